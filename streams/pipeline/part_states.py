"""What each part of a pipeline did last, kept in its state folder: who looks later learns it, also if `weft run` died.

`weft run` writes a file for each of its parts. Whether a part runs now is not in the file: a process that is killed
writes nothing more. It runs as long as its lock is held (`streams.pipeline.run_lock`). On a machine that has not run
the pipeline nothing is known of its parts.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from storage.foreign_text import parse_json
from storage.plural import counted
from streams.pipeline.outage import spell_since
from streams.pipeline.run_lock import is_held
from streams.pipeline.status import Report, parse_report
from streams.pipeline.supervisor import ENDED, LOST, JobStatus, Phase

_FOLDER: Final = "parts"
_WRITE_SECONDS: Final = 1.0  # between two files of a part that does the same as before


@dataclass(frozen=True, slots=True)
class PartState:
    """What is known of one part. Times are Unix milliseconds; None if there is none, or it is not known.

    Attributes:
        part: Name of the writer or service.
        runs: Whether a process of this machine runs it now.
        is_known: Whether `weft run` has run it on this machine.
        is_lost: Whether it has failed or was fenced, and is not started again by itself.
        state: One or two words.
        last_run_at_ms: Of a service the end of its last round, of a writer its last commit.
        has_worked: Whether it has ever done what it has to; of publishing, whether all tables were once up to date.
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

    def __init__(self, state: Path) -> None:
        """Write nothing yet; ``state`` is the state folder of the pipeline."""
        self._folder = state / _FOLDER
        self._written: dict[str, tuple[tuple[Phase, str], float]] = {}

    def write(self, statuses: Sequence[JobStatus]) -> None:
        """Write what has changed. A folder that cannot be written does not stop the pipeline."""
        now = time.monotonic()
        for status in statuses:
            does = status.phase, status.report.doing
            did, written = self._written.get(status.name, (None, 0.0))
            if did == does and (status.phase in ENDED or now - written < _WRITE_SECONDS):
                continue
            self._written[status.name] = does, now
            plain = {"phase": status.phase, "message": status.message, "report": asdict(status.report)}
            path = _path(self._folder, status.name)
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_suffix(f".{os.getpid()}")
                temporary.write_text(json.dumps(plain), encoding="utf-8")
                temporary.replace(path)


def read_parts(state: Path, names: Sequence[str]) -> list[PartState]:
    """The state of each part, in the order of the names.

    Args:
        state: The state folder of the pipeline.
        names: Names of its writers and services (`streams.pipeline.run.make_jobs`).
    """
    return [_read(state, name) for name in names]


def _read(state: Path, name: str) -> PartState:
    runs = is_held(state, name)
    try:
        plain = parse_json(_path(state / _FOLDER, name).read_bytes())
        phase, message, report = Phase(plain["phase"]), plain["message"], parse_report(json.dumps(plain["report"]))
    except (OSError, ValueError, KeyError, TypeError):  # no file, or one of another version
        return PartState(name, runs, is_known=runs, state="running" if runs else "not known here")
    word = (report.doing if phase is Phase.RUNNING else phase) if runs else phase if phase in ENDED else "not running"
    error = _error_of(phase, message, report)
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
