"""Keeps what each part of a pipeline did last, so that it can be shown after `weft run` died, or on another machine.

`weft run` writes a file for each of its parts into the state folder of the pipeline. The file does not say whether the
part runs now, because a process that is killed cannot update it. A part runs as long as its lock is held
(`weft.streams.pipeline.run.run_lock`).

Other machines see neither files nor locks. So each service also writes a report into the table's store
(`weft.storage.services.service_reports`). A service of another machine counts as running until its next round is
overdue. Writers write no such report: their commits and heartbeats are in the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from weft.storage.errors import StoreUnavailable
from weft.storage.foreign_text import parse_json
from weft.storage.plural import counted
from weft.storage.services.service_reports import put_service_report, service_reports
from weft.storage.store.object_store import ObjectStore
from weft.streams.pipeline.run.outage import spell_since
from weft.streams.pipeline.run.report import Report, parse_report
from weft.streams.pipeline.run.run_lock import is_held
from weft.streams.pipeline.run.supervisor import ENDED, LOST, JobStatus, Phase

_FOLDER: Final = "parts"
_WRITE_SECONDS: Final = 1.0  # between two files of a part that does the same as before
_STORE_SECONDS: Final = 30.0  # between two reports in the store, as between heartbeats of writers
_OVERDUE_MS: Final = 120_000  # a round may take long, and reports may be lost; heartbeats have the same limit


@dataclass(frozen=True, slots=True)
class PartState:
    """The state of one part. Times are Unix milliseconds; None if there is none, or it is unknown.

    Attributes:
        part: Name of the writer or service.
        runs: Whether a process of this machine runs it now, or one of another machine whose next round is not overdue.
        is_known: Whether `weft run` has run it on this machine, or it has left a report in the table's store.
        is_lost: Whether it has failed or was fenced, and is not started again by itself.
        state: One or two words.
        last_run_at_ms: For a service the end of its last round, for a writer its last commit.
        has_worked: Whether it has ever done its work; for publishing, whether all tables were once up to date.
        result: What it did; "" if nothing.
        error: Why it does not work, or did not work when it last ran; "" if it works.
        next_run_at_ms: When the next round of a service begins.
    """

    part: str
    runs: bool
    is_known: bool = False
    is_lost: bool = False
    state: str = "not known here"
    last_run_at_ms: int | None = None
    has_worked: bool = False
    result: str = ""
    error: str = ""
    next_run_at_ms: int | None = None


class PartFiles:
    """Writes the files of the parts that a process runs."""

    def __init__(self, state: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Write nothing yet.

        Args:
            state: The state folder of the pipeline.
            clock: Returns monotonic seconds; replaced by tests.
        """
        self._folder, self._clock = state / _FOLDER, clock
        self._last_writes: dict[str, tuple[tuple[Phase, str], float]] = {}

    def write(self, statuses: Sequence[JobStatus]) -> None:
        """Write the files of parts that have changed. A folder that cannot be written does not stop the pipeline."""
        now = self._clock()
        for status in statuses:
            current = status.phase, status.report.doing
            previous, written_at = self._last_writes.get(status.name, (None, 0.0))
            if previous == current and (status.phase in ENDED or now - written_at < _WRITE_SECONDS):
                continue
            self._last_writes[status.name] = current, now
            plain = {"phase": status.phase, "message": status.message, "report": asdict(status.report)}
            path = _path(self._folder, status.name)
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_suffix(f".{os.getpid()}")
                temporary.write_text(json.dumps(plain), encoding="utf-8")
                temporary.replace(path)


class StoredReports:
    """Writes what a service did last into the store of its table."""

    def __init__(self, store: ObjectStore, name: str, last: Report) -> None:
        """Write nothing yet.

        Args:
            store: The table's store.
            name: Name of the service.
            last: The last report of the previous process of the service.
        """
        self._store, self._name = store, name
        self._round_at_ms, self._error = last.round_at_ms, ""
        self._written_at: float | None = None

    def write(self, report: Report) -> None:
        """Write a report if a round or the service has ended.

        Rounds without a new error are written at most every `_STORE_SECONDS`. A report that cannot be written is lost,
        with a warning. During an outage of the store nothing is written.
        """
        is_end = report.doing in {"ended", "failed"}
        if report.waiting_since_ms is not None or (report.round_at_ms == self._round_at_ms and not is_end):
            return
        phase = Phase.DONE if report.doing == "ended" else Phase.RUNNING
        error, now = _error_of(phase, "", report), time.monotonic()
        is_recent = self._written_at is not None and now - self._written_at < _STORE_SECONDS
        if is_recent and error == self._error and not is_end:
            return
        self._round_at_ms, self._error, self._written_at = report.round_at_ms, error, now
        if is_end:
            report = replace(report, next_round_at_ms=None)
        plain = {"version": 1, "host": socket.gethostname(), "phase": phase, "message": "", "report": asdict(report)}
        try:
            put_service_report(self._store, self._name, json.dumps(plain).encode())
        except (OSError, StoreUnavailable) as problem:
            sys.stderr.write(f"the report of {self._name} for other machines was not written: {problem}\n")


@dataclass(frozen=True, slots=True)
class _Record:
    """The record of a part, from a file or the store.

    Attributes:
        phase: Phase of the job.
        message: Why it is not running.
        report: Its last report.
        host: The machine that wrote the record; "" for this one.
    """

    phase: Phase
    message: str
    report: Report
    host: str

    @property
    def at_ms(self) -> int:
        return self.report.reported_at_ms or 0


def stored_reports(store: ObjectStore, names: Sequence[str]) -> Mapping[str, bytes]:
    """The reports that services have left in the store of their table, by name; empty if it does not answer."""
    with contextlib.suppress(OSError, StoreUnavailable):
        return service_reports(store, names)
    return {}


def read_parts(state: Path, names: Sequence[str], stored: Mapping[str, bytes]) -> list[PartState]:
    """The state of each part, in the order of the names.

    Args:
        state: The state folder of the pipeline.
        names: Names of its writers and services (`weft.streams.pipeline.run.run.make_jobs`).
        stored: From `stored_reports`; used for parts that do not run on this machine.
    """
    return [_read_part(state, name, stored.get(name)) for name in names]


def _read_part(state: Path, name: str, stored: bytes | None) -> PartState:
    runs = is_held(state, name)
    record, remote = _parse(_file_of(state, name)), None if runs else _parse(stored)
    # The file has more than the report of the same machine.
    if remote is not None and (record is None or (remote.host != socket.gethostname() and remote.at_ms > record.at_ms)):
        return _state_of(name, remote, runs=_is_due(remote.report), silent_state="overdue")
    if record is None:  # there is no record, or another version wrote it
        return PartState(name, runs, is_known=runs, state="running" if runs else "not known here")
    return _state_of(name, record, runs=runs, silent_state="not running")


def _file_of(state: Path, name: str) -> bytes | None:
    try:
        return _path(state / _FOLDER, name).read_bytes()
    except OSError:
        return None


def _parse(data: bytes | None) -> _Record | None:
    """Parse a record; None if there is none, or another version wrote it."""
    try:
        plain = parse_json(data or b"")
        report = parse_report(json.dumps(plain["report"]))
        return _Record(Phase(plain["phase"]), str(plain["message"]), report, str(plain.get("host", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_due(report: Report) -> bool:
    following = report.next_round_at_ms
    return following is not None and time.time_ns() // 1_000_000 < following + _OVERDUE_MS


def _state_of(name: str, record: _Record, *, runs: bool, silent_state: str) -> PartState:
    phase, report = record.phase, record.report
    word = (report.doing if phase is Phase.RUNNING else phase) if runs else phase if phase in ENDED else silent_state
    error = _error_of(phase, record.message, report)
    is_writer = report.trigger_seconds is not None
    last_run = report.committed_at_ms if is_writer else report.round_at_ms
    publishes = report.publish_seconds is not None
    has_worked = report.published_at_ms is not None if publishes else report.progress > 0
    result = "" if error else report.message
    if is_writer:
        result = f"{counted(report.rows, 'row')} in {counted(report.commits, 'commit')}"
    return PartState(
        part=name,
        runs=runs,
        is_known=True,
        is_lost=phase in LOST,
        state=str(word),
        last_run_at_ms=last_run,
        has_worked=has_worked,
        result=result,
        error=error,
        next_run_at_ms=report.next_round_at_ms if runs else None,
    )


def _error_of(phase: Phase, message: str, report: Report) -> str:
    if phase in {Phase.FAILED, Phase.FENCED, Phase.WAITING}:
        return message
    if report.waiting_since_ms is not None:
        since = spell_since(report.waiting_since_ms, time.time_ns() // 1_000_000)
        return f"waiting for {report.waiting_for}, {since}" + (f": {report.message}" if report.message else "")
    if report.publish_problem:
        return report.publish_problem
    return report.message if report.doing in {"waiting", "failed"} else ""


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"
