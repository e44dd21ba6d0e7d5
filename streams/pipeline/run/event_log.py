"""A log of what happens in a pipeline: one line for each batch, restart, outage and end, as text or as JSON.

The supervisor writes the lines from changes of the status, so that a part that hangs is logged, too.
The standard library rotates the file.

    2026-11-22T18:00:02.125Z INFO orders batch: 1,200 rows in 0.41 s, commit 14, lag 0
    {"time": "2026-11-22T18:00:02.125Z", "level": "info", "part": "orders", "event": "batch", "rows": 1200, ...}
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, Literal

from weft.storage.errors import InvalidInput
from weft.storage.plural import counted
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.outage import spell_duration
from weft.streams.pipeline.run.status_fields import reason_of, unordered_words, waiting_for
from weft.streams.pipeline.run.supervisor import GOOD_ENDS, JobStatus, Phase

Format = Literal["text", "json"]
FILE_BYTES: Final = 10 * 1024 * 1024
BACKUP_FILES: Final = 5


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line.

    Attributes:
        level: As in the standard library: ``logging.INFO``, ``WARNING`` or ``ERROR``.
        part: The writer or service.
        event: One word: started, batch, round, waiting, answers, restart, done, stopped, fenced or failed.
        text: What happened, for people.
        values: The same as named values, for programs.
    """

    level: int
    part: str
    event: str
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    def format(self, form: Format, now_ms: int) -> str:
        """The line with a time."""
        moment = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
        moment = moment.replace("+00:00", "Z")
        level = logging.getLevelName(self.level)
        if form == "text":
            return f"{moment} {level} {self.part} {self.event}{': ' if self.text else ''}{self.text}"
        head = {"time": moment, "level": level.lower(), "part": self.part, "event": self.event}
        return json.dumps({**head, **self.values, **({"text": self.text} if self.text else {})}, ensure_ascii=False)


def changes(before: JobStatus | None, now: JobStatus, now_ms: int) -> Iterator[LogLine]:
    """The lines for the change from one status of a job to the next.

    Batches that end between two polls of the supervisor (0.2 s) share a line, which says how many they are.

    Args:
        before: The status at the last poll; None at the first one.
        now: The status now.
        now_ms: The time of the status, in Unix milliseconds.
    """
    if now.pid is not None and (before is None or before.pid != now.pid):
        yield LogLine(logging.INFO, now.name, "started", "", {"pid": now.pid, "restarts": now.restarts})
    if before is not None and now.report.commits > before.report.commits:
        yield _progress(before, now, now_ms)
    yield from _outage(before, now, now_ms)
    if before is not None and before.phase is now.phase:
        return
    is_outage = waiting_for(now) is not None and now.exit_code == Ending.UNAVAILABLE  # its own lines say enough
    if now.phase is Phase.WAITING and now.next_start_seconds is not None and not is_outage:
        text = f"in {now.next_start_seconds:.0f} s, failure {now.failures} in a row: {now.message}"
        values = {"seconds": round(now.next_start_seconds, 1), "failures": now.failures, "exit_code": now.exit_code}
        yield LogLine(logging.WARNING, now.name, "restart", text, values)
    elif now.phase in {Phase.DONE, Phase.STOPPED, Phase.FENCED, Phase.FAILED}:
        level = logging.INFO if now.phase in GOOD_ENDS else logging.ERROR
        details = {"exit_code": now.exit_code, "log": str(now.log)}
        yield LogLine(level, now.name, str(now.phase), reason_of(now), details)


def _progress(before: JobStatus, now: JobStatus, now_ms: int) -> LogLine:
    """The line of one or more batches of a writer, or of a round of a service."""
    last, report = before.report, now.report
    rows, stored = report.rows - last.rows, report.stored_bytes - last.stored_bytes
    values: dict[str, Any] = {"rows": rows, "bytes": stored}
    if not report.batch_counts:
        return LogLine(logging.INFO, now.name, "round", report.message, values)
    seconds, batches = report.batch_seconds - last.batch_seconds, report.commits - last.commits
    lost, unordered = report.dead_letters - last.dead_letters, report.rows_unordered - last.rows_unordered
    fresh = None if report.complete_at_ms is None else max(0, now_ms - report.complete_at_ms) / 1000
    values |= {
        "batches": batches,
        "seconds": round(seconds, 3),
        "commit": report.seq,
        "lag": report.lag,
        "freshness_seconds": fresh,
        "dead_letters": lost,
        "rows_unordered": unordered,
    }
    text = f"{counted(rows, 'row')} in {seconds:.2f} s, commit {report.seq}"
    text += f", lag {report.lag:,}" if report.lag is not None else ""
    text += f", {counted(lost, 'dead letter')}" if lost else ""
    text += f", {unordered_words(unordered)}" if unordered else ""
    text += f", {batches} batches" if batches > 1 else ""
    return LogLine(logging.WARNING if lost or unordered else logging.INFO, now.name, "batch", text, values)


def _outage(before: JobStatus | None, now: JobStatus, now_ms: int) -> Iterator[LogLine]:
    """The lines of an outage that has begun or ended."""
    was, what = None if before is None else waiting_for(before), waiting_for(now)
    if was is not None and what != was and before is not None and before.report.waiting_since_ms is not None:
        seconds = max(0, now_ms - before.report.waiting_since_ms) / 1000
        text = f"{was}, after {spell_duration(seconds)}"
        yield LogLine(logging.INFO, now.name, "answers", text, {"waited_for": was, "seconds": round(seconds, 1)})
    if what is not None and what != was:
        text = f"{what}: {reason_of(now)}".removesuffix(": ")
        yield LogLine(logging.WARNING, now.name, "waiting", text, {"waiting_for": what})


class EventLog:
    """Writes the lines of all jobs. Call it with every status of the supervisor."""

    def __init__(self, handler: logging.Handler, form: Format) -> None:
        """Write nothing yet.

        Args:
            handler: Where lines go.
            form: Their form.
        """
        self._handler, self._form = handler, form
        self._last: dict[str, JobStatus] = {}

    def __call__(self, statuses: Sequence[JobStatus]) -> None:
        """Write what has changed since the last call."""
        now_ms = time.time_ns() // 1_000_000
        for status in statuses:
            for line in changes(self._last.get(status.name), status, now_ms):
                text = line.format(self._form, now_ms)
                # A disk that is full must not stop a pipeline: a handler prints its errors and goes on.
                self._handler.handle(logging.LogRecord("weft", line.level, "", 0, text, None, None))
            self._last[status.name] = status


@contextmanager
def open_event_log(
    path: Path | None, form: Format = "text", *, max_bytes: int = FILE_BYTES, backups: int = BACKUP_FILES
) -> Iterator[Callable[[Sequence[JobStatus]], None]]:
    """A log in a file that is rotated, or on standard output.

    Args:
        path: The file; its folder is created. None: standard output.
        form: Form of the lines.
        max_bytes: Size at which a new file is begun.
        backups: Number of older files that are kept, with the suffixes ``.1``, ``.2``, ...

    Raises:
        InvalidInput: The file cannot be written.
    """
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(sys.stdout)
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = RotatingFileHandler(path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"--log-file {path}: {error.strerror}", hint="choose another file") from error
    try:
        yield EventLog(handler, form)
    finally:
        handler.close()
