"""Status of jobs for eyes and for machines: one row a job, as a live table, as plain lines, or as JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streams.pipeline.outage import spell_since
from streams.pipeline.supervisor import JobStatus, Phase

LINE_SECONDS: Final = 5.0  # between a running job's lines, which a terminal's log keeps
JSON_SECONDS: Final = 1.0  # likewise, for programs
STALE_SECONDS: Final = 10.0  # since a job's last report: what it measured is old news then
REFRESH_PER_SECOND: Final = 4
UNKNOWN: Final = "unknown"
OnStatus = Callable[[Sequence[JobStatus]], None]

_STYLES: Final = {
    Phase.RUNNING: "green",
    Phase.WAITING: "yellow",
    Phase.STOPPING: "yellow",
    Phase.DONE: "dim",
    Phase.STOPPED: "dim",
    Phase.FENCED: "bold red",
    Phase.FAILED: "bold red",
}


def status_fields(status: JobStatus, now_ms: int) -> dict[str, Any]:
    """What is shown of a job, by name; ages in seconds, None for what is not known or does not apply.

    ``lag`` is an upper bound, see `streams.pipeline.status.Report`. It and ``freshness_seconds`` are None as soon as
    nobody can know them: the job has not measured yet, does not report, or does not run any more.
    """
    report = status.report
    measured = _is_current(status, now_ms)

    def age(then_ms: int | None) -> float | None:
        return None if then_ms is None else round(max(0, now_ms - then_ms) / 1000, 1)

    return {
        "job": status.name,
        "state": state_word(status),
        "rows": report.rows,
        "rows_per_second": report.rows_per_second,
        "lag": report.lag if measured else None,
        "commit": report.seq,
        "commit_age_seconds": age(report.committed_at_ms),
        "freshness_seconds": age(report.complete_at_ms) if measured else None,
        "commits": report.commits,
        "dead_letters": report.dead_letters,
        "tombstones_ignored": report.tombstones,
        "restarts": status.restarts,
        "failures": status.failures,
        "pid": status.pid,
        "waiting_for": waiting_for(status),
        "waiting_seconds": age(report.waiting_since_ms) if waiting_for(status) else None,
        "message": news(status, now_ms),
    }


def _is_current(status: JobStatus, now_ms: int) -> bool:
    """Whether what the job last measured still holds."""
    if status.phase is Phase.DONE:
        return True  # it ended by itself, and measured last of all
    heard = status.report.reported_at_ms
    hangs = heard is not None and now_ms - heard > STALE_SECONDS * 1000
    return status.phase in {Phase.RUNNING, Phase.STOPPING} and not hangs


def state_word(status: JobStatus) -> str:
    """The job's own word while it runs, the supervisor's otherwise."""
    if status.phase is Phase.RUNNING:
        return status.report.doing
    if status.phase is Phase.WAITING:
        return f"restart in {status.next_start_seconds or 0:.0f} s"
    return str(status.phase)


def waiting_for(status: JobStatus) -> str | None:
    """What does not answer, so that the job waits; None if it does not wait for anything."""
    waits = status.phase in {Phase.RUNNING, Phase.WAITING} and status.report.waiting_since_ms is not None
    return status.report.waiting_for if waits else None


def news(status: JobStatus, now_ms: int) -> str:
    """Why the job is not running, what it waits for, or what it last had to say."""
    what, since_ms = waiting_for(status), status.report.waiting_since_ms
    if what is not None and since_ms is not None:
        reason = f": {_reason(status)}" if _reason(status) else ""
        return f"waiting for {what}, {spell_since(since_ms, now_ms)}{reason}"
    return _reason(status)


def _reason(status: JobStatus) -> str:
    if status.phase in {Phase.FAILED, Phase.FENCED, Phase.WAITING}:
        return status.message
    return status.report.message or (f"last failure: {status.message}" if status.message else "")


def format_line(status: JobStatus, now_ms: int) -> str:
    """One plain line."""
    shown = status_fields(status, now_ms)
    parts = [shown["state"]]
    if not status.background:
        parts += [f"{shown['rows']:,} rows", f"{shown['rows_per_second']:,.0f}/s", f"lag {_lag(shown['lag'])}"]
        if shown["commit"] is not None:
            parts.append(f"commit {shown['commit']}, {_seconds(shown['commit_age_seconds'])} ago")
        parts.append(f"fresh {_seconds(shown['freshness_seconds'], UNKNOWN)}")
        if shown["dead_letters"]:
            parts.append(f"dead letters {shown['dead_letters']:,}")
        if shown["tombstones_ignored"]:
            parts.append(f"tombstones ignored {shown['tombstones_ignored']:,}")
    if shown["restarts"]:
        parts.append(f"restarts {shown['restarts']}")
    if shown["message"]:
        parts.append(shown["message"])
    return f"{shown['job']}: {' · '.join(parts)}"


def render_jobs(statuses: Sequence[JobStatus], now_ms: int) -> RenderableType:
    """All jobs as a table, with what is to be told below it."""
    table = Table(box=None, pad_edge=False)
    for name in ("stream", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "rows/s", "lag ≤", "commit", "age", "fresh", "dead letters", "restarts"):
        table.add_column(name, justify="right", no_wrap=True)
    told: list[RenderableType] = []
    for status in statuses:
        shown = status_fields(status, now_ms)
        style = _STYLES[status.phase]
        absent = "-" if status.background else UNKNOWN
        table.add_row(
            shown["job"],
            Text(shown["state"], style),
            f"{shown['rows']:,}",
            f"{shown['rows_per_second']:,.0f}",
            _number(shown["lag"], absent),
            _number(shown["commit"]),
            _seconds(shown["commit_age_seconds"]),
            _seconds(shown["freshness_seconds"], absent),
            f"{shown['dead_letters']:,}",
            str(shown["restarts"]),
        )
        if shown["message"]:
            bad = status.phase in {Phase.FAILED, Phase.FENCED, Phase.WAITING}
            told.append(Text(f"{shown['job']}: {shown['message']}", style if bad else "dim"))
    return Group(table, *told)


def _number(value: int | None, absent: str = "-") -> str:
    return absent if value is None else f"{value:,}"


def _lag(value: int | None) -> str:
    return f"≤ {value:,}" if value else _number(value, UNKNOWN)


def _seconds(value: float | None, absent: str = "-") -> str:
    return absent if value is None else f"{value:.1f} s"


@contextmanager
def show_jobs(console: Console, *, as_json: bool = False, line_seconds: float | None = None) -> Iterator[OnStatus]:
    """A callback that shows statuses: live on a terminal, else as lines, some of them for every job.

    Args:
        console: For the live view.
        as_json: Print lines of JSON, also on a terminal.
        line_seconds: Time between the lines of a running job; None: `JSON_SECONDS` or `LINE_SECONDS`.
    """
    if as_json:
        every = JSON_SECONDS if line_seconds is None else line_seconds
        yield _Lines(lambda status, now: json.dumps(status_fields(status, now)), every)
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=REFRESH_PER_SECOND) as live:
            yield lambda statuses: live.update(render_jobs(statuses, _now_ms()))
    else:
        yield _Lines(format_line, LINE_SECONDS if line_seconds is None else line_seconds)


class _Lines:
    """Prints a job's line when it starts, stops, fails or has something new to tell, and every so often between."""

    def __init__(self, form: Callable[[JobStatus, int], str], every_seconds: float) -> None:
        self._form, self._every_seconds = form, every_seconds
        self._said: dict[str, tuple[Any, float]] = {}

    def __call__(self, statuses: Sequence[JobStatus]) -> None:
        now = time.monotonic()
        for status in statuses:
            state = (status.phase, status.restarts, waiting_for(status), _reason(status))
            last, when = self._said.get(status.name, (None, 0.0))
            moving = status.phase in {Phase.RUNNING, Phase.STOPPING} or waiting_for(status) is not None
            if state != last or (moving and now - when >= self._every_seconds):
                self._said[status.name] = state, now
                print(self._form(status, _now_ms()), flush=True)  # noqa: T201 - this is what it is for


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
