"""How a job reports to its supervisor.

A job is an operating-system process that `weft.streams.pipeline.run.supervisor` starts. It writes a JSON line for each
report to the status pipe, which an environment variable names. Reports have totals, so a lost report does no harm. A
job that is started by hand reports to its standard output.

This module imports nothing heavy, so that a job can report as soon as it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final

from weft.streams.pipeline.run.report import Report, encode_report, parse_report

STATUS_FD: Final = "WEFT_STATUS_FD"
RESUME: Final = "WEFT_RESUME"
"""The last report of the previous process of the job: totals continue from there."""


class Reporter:
    """The job's side of the status pipe. Thread-safe.

    Args:
        descriptor: The writing end of the pipe; None to print reports.
        resumed: The last report of the previous process of the job.
        on_report: Called with each report, from the thread that makes it.
    """

    def __init__(
        self, descriptor: int | None, resumed: Report, on_report: Callable[[Report], None] = lambda _: None
    ) -> None:
        self._descriptor, self._on_report = descriptor, on_report
        self._report = resumed.restarted()
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls, on_report: Callable[[Report], None] = lambda _: None) -> Reporter:
        """A reporter to the pipe of the supervisor, or to standard output without a supervisor."""
        text = os.environ.get(STATUS_FD)
        descriptor = int(text) if text else None
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # the pipe must close with this process, even if children run
            os.set_blocking(descriptor, False)
        return cls(descriptor, parse_report(os.environ.get(RESUME) or "{}"), on_report)

    def follow(self, on_report: Callable[[Report], None]) -> None:
        """Call another function, too, with each later report."""
        before = self._on_report

        def both(report: Report) -> None:
            before(report)
            on_report(report)

        self._on_report = both

    @property
    def report(self) -> Report:
        """The last report."""
        return self._report

    def update(self, **changes: Any) -> None:
        """Change some fields and send the report."""
        with self._lock:
            self._report = replace(self._report, **changes, reported_at_ms=time.time_ns() // 1_000_000)
            self._send(self._report)
            self._on_report(self._report)

    def _send(self, report: Report) -> None:
        if self._descriptor is None:
            sys.stdout.write(json.dumps(asdict(report)) + "\n")
            sys.stdout.flush()
            return
        # A supervisor that does not read must not block a writer. The next report repeats everything. If the supervisor
        # has ended, the lifeline stops this process.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._descriptor, encode_report(report))
