"""What a job says of itself while it runs, and how it hears that its supervisor is gone.

A job is an operating-system process started by `streams.pipeline.supervisor`. Between the two:
    status pipe    job -> supervisor, one JSON line a report; reports hold totals, so losing one loses nothing
    lifeline pipe  never written to; its end means that the supervisor died, however it died, and the job stops too
    exit code      why the job ended (`Ending`), which decides whether and how it is started again
Both pipes are named by environment variables, so that a job also runs by hand: it then reports to its standard output.
A job reports before it imports anything heavy, and so does this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final

STATUS_FD: Final = "WEFT_STATUS_FD"
LIFELINE_FD: Final = "WEFT_LIFELINE_FD"
RESUME: Final = "WEFT_RESUME"
"""The last report of the job's earlier incarnation: its totals go on from there."""

ORPHAN_SECONDS: Final = 10.0  # what a job without a supervisor gets to finish its batch; shorter than any restart of it
_LINE_BYTES: Final = 4096  # POSIX's least PIPE_BUF: such a line is written whole or not at all
_OUTAGES: Final = frozenset({"SOURCE_UNAVAILABLE", "STORE_UNAVAILABLE", "COMMIT_UNKNOWN"})
"""Codes of errors that say that a broker or a store does not answer. They pass without anybody's help."""
_LASTING: Final = frozenset({"INVALID_INPUT", "UNSUPPORTED_FORMAT", "SPLIT_BRAIN", "GAP", "CONFLICT", "DATA_LOSS"})
"""Codes of errors (`storage.errors`, `streams.kafka.errors`) that are the same however often one tries."""
_INNER: Final = re.compile(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of a Python traceback, in the text of an error of Spark's."""
_MESSAGE_CHARS: Final = 600
WAITING_CHARS: Final = 80
_ESCAPED_BYTES: Final = 6  # the most that JSON makes of one character of such texts


class Ending(IntEnum):
    """Exit codes of jobs. 2 is Python's own for a wrong command line, so it is left out."""

    DONE = 0
    FAILED = 1  # may be better next time: started again, a bounded number of times in a row
    REFUSED = 3  # will be the same next time: not started again
    FENCED = 4  # another owner took over: not started again
    UNAVAILABLE = 5  # a broker or a store does not answer: started again until it does


@dataclass(frozen=True, slots=True)
class Report:
    """One report.

    Attributes:
        doing: One word: starting, waiting, running, idle, compacting, stopping.
        rows: Stored since the job first started, over all its restarts.
        rows_per_second: Of late.
        commits: Since the job first started.
        seq: Lane entry of the last commit.
        committed_at_ms: When that was.
        complete_at_ms: The table holds everything that the source had to offer at this time; None as long as this
            process has not measured it.
        lag: So many messages at most are in the source and not in the table; 0 is exact. Kafka counts offsets, which
            is more than messages on compacted and transactional topics (`streams.pipeline.lag`). None if this process
            has not measured it, or cannot: the source does not tell, or does not answer.
        dead_letters: Messages refused since the job first started.
        message: The last thing worth telling: what a service did, why a job failed.
        reported_at_ms: When this report was made; None for one that no process has made.
        progress: Grows with everything that shows that the job works: a batch committed, a look at the source that
            found nothing, a round of a service. A run in which it has not grown has failed, however long it lasted.
        waiting_for: What does not answer: "the broker 127.0.0.1:9092". Empty if nothing is waited for.
        waiting_since_ms: When it was first found not to answer; null if nothing is waited for.
        tombstones: Messages without a value that were passed over, since the job first started.
    """

    doing: str = "starting"
    rows: int = 0
    rows_per_second: float = 0.0
    commits: int = 0
    seq: int | None = None
    committed_at_ms: int | None = None
    complete_at_ms: int | None = None
    lag: int | None = None
    dead_letters: int = 0
    message: str = ""
    reported_at_ms: int | None = None
    progress: int = 0
    waiting_for: str = ""
    waiting_since_ms: int | None = None
    tombstones: int = 0

    def restarted(self) -> Report:
        """What is left of the report when its process has ended: totals. What it measured is not known any more."""
        return replace(
            self,
            doing="starting",
            rows_per_second=0.0,
            complete_at_ms=None,
            lag=None,
            message="",
            reported_at_ms=None,
        )


_FIELDS: Final = frozenset(f.name for f in fields(Report))


def encode_report(report: Report) -> bytes:
    """One line, short enough to be written to a pipe whole or not at all."""
    report = replace(report, waiting_for=shortened(report.waiting_for, WAITING_CHARS))
    room = _LINE_BYTES - len(json.dumps(asdict(replace(report, message="")))) - 1
    report = replace(report, message=shortened(report.message, min(_MESSAGE_CHARS, room // _ESCAPED_BYTES)))
    line = json.dumps(asdict(report)).encode() + b"\n"
    assert len(line) <= _LINE_BYTES, "the message is bounded, and so are all other fields"
    return line


def shortened(text: str, chars: int) -> str:
    """A text of at most so many characters; one that was longer ends with three dots."""
    return text if len(text) <= chars else text[: chars - 3] + "..."


def parse_report(line: bytes | str) -> Report:
    """The report in a line.

    Raises:
        ValueError: It is none.
    """
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not values.keys() <= _FIELDS:
        raise ValueError(f"not a status report: {line[:80]!r}")
    return Report(**values)


def is_outage(error: BaseException) -> bool:
    """Whether an error says that a broker or a store does not answer, so that waiting helps."""
    return getattr(error, "code", None) in _OUTAGES


def ending_of(error: BaseException) -> Ending:
    """Whether trying again may help."""
    if is_outage(error):
        return Ending.UNAVAILABLE
    code = getattr(error, "code", None)
    if code == "FENCED":
        return Ending.FENCED
    return Ending.REFUSED if code in _LASTING else Ending.FAILED


def describe(error: BaseException) -> str:
    """An error in one line, hint included."""
    from storage.errors import TableError

    if isinstance(error, TableError):
        text = f"{error.message} ({error.hint})" if error.hint else error.message
    elif inner := _INNER.findall(str(error)):
        text = inner[-1]
    else:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return " ".join(text.split())


class Reporter:
    """The job's side of the status pipe; usable from any thread."""

    def __init__(self, descriptor: int | None, resumed: Report) -> None:
        self._descriptor = descriptor
        self._report = resumed.restarted()
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> Reporter:
        """As the supervisor arranged it; to standard output if there is none."""
        text = os.environ.get(STATUS_FD)
        descriptor = int(text) if text else None
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # the pipe must end with this process, not with its children
            os.set_blocking(descriptor, False)
        return cls(descriptor, parse_report(os.environ.get(RESUME) or "{}"))

    @property
    def report(self) -> Report:
        """The last one."""
        return self._report

    def update(self, **changes: Any) -> None:
        """Change some fields, and tell."""
        with self._lock:
            self._report = replace(self._report, **changes, reported_at_ms=time.time_ns() // 1_000_000)
            self._send(encode_report(self._report))

    def _send(self, line: bytes) -> None:
        if self._descriptor is None:
            sys.stdout.write(line.decode())
            sys.stdout.flush()
            return
        # A supervisor that does not listen for a while must not hold up a writer, and one that died is the lifeline's
        # business. The next report has everything that is in this one.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._descriptor, line)


class StopSignal:
    """Set when the job shall end: on SIGTERM, or when the supervisor is gone. Make one in the main thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._event.set())
        lifeline = os.environ.get(LIFELINE_FD)
        if lifeline is not None:
            watch_lifeline(int(lifeline), self._event.set)

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for it, so long at most."""
        return self._event.wait(seconds)


def watch_lifeline(descriptor: int, on_end: Callable[[], None]) -> None:
    """Call ``on_end`` when the supervisor is gone; `ORPHAN_SECONDS` later kill this process and its children."""
    os.set_inheritable(descriptor, False)

    def watch() -> None:
        os.read(descriptor, 1)  # returns at the pipe's end only: nobody writes to it
        on_end()
        time.sleep(ORPHAN_SECONDS)
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="weft-lifeline", daemon=True).start()
