"""Shows the status of jobs as a live table, as plain lines, or as JSON lines, one row per job."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weft.storage.plural import counted
from weft.streams.pipeline.run.event_log import Format, open_event_log
from weft.streams.pipeline.run.status_fields import reason_of, status_fields, unordered_words, waiting_for
from weft.streams.pipeline.run.supervisor import JobStatus, Phase

LINE_SECONDS: Final = 5.0  # seconds between two plain lines of a running job, if anything has changed
UNCHANGED_SECONDS: Final = 300.0  # and if nothing has
JSON_SECONDS: Final = 1.0  # seconds between two JSON lines
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


def format_line(status: JobStatus, now_ms: int) -> str:
    """One plain line."""
    shown = status_fields(status, now_ms)
    parts = [shown["state"]]
    if not is_service(status):
        parts += [stored_words(status), f"{shown['rows_per_second']:,.0f}/s", f"lag {_lag(shown['lag'])}"]
        if shown["commits"] and shown["commit_age_seconds"] is not None:
            parts.append(f"last commit {_seconds(shown['commit_age_seconds'])} ago")
        parts.append(f"fresh {_seconds(shown['freshness_seconds'], UNKNOWN)}")
        if shown["dead_letters"]:
            parts.append(f"dead letters {shown['dead_letters']:,}")
        if shown["tombstones_ignored"]:
            parts.append(f"tombstones ignored {shown['tombstones_ignored']:,}")
        if shown["rows_unordered"]:
            parts.append(unordered_words(shown["rows_unordered"]))
    if shown["restarts"]:
        parts.append(f"restarts {shown['restarts']}")
    if shown["message"]:
        parts.append(shown["message"])
    return f"{shown['job']}: {' · '.join(parts)}"


def is_service(status: JobStatus) -> bool:
    """Whether a job is a service: it runs in the background, or has ended after one round with the result of that."""
    had_one_round = status.phase is Phase.DONE and status.report.message and not status.report.batch_counts
    return status.background or bool(had_one_round)


def stored_words(status: JobStatus) -> str:
    """What a writer has stored since it was started, in words."""
    report = status.report
    if report.commits:
        return f"{counted(report.rows, 'row')} in {counted(report.commits, 'commit')}"
    found_nothing = status.phase is Phase.DONE or report.lag == 0
    return "no new messages" if found_nothing and not report.rows else counted(report.rows, "row")


def render_jobs(statuses: Sequence[JobStatus], now_ms: int, *, tells_lost: bool = True) -> RenderableType:
    """All jobs as a table, with their messages below it; ``tells_lost``: also of those that have failed permanently."""
    table = Table(box=None, pad_edge=False)
    for name in ("stream", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "commits", "rows/s", "lag ≤", "last commit", "fresh", "dead letters", "restarts"):
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
            f"{shown['commits']:,}",
            f"{shown['rows_per_second']:,.0f}",
            _number(shown["lag"], absent),
            _seconds(shown["commit_age_seconds"]),
            _seconds(shown["freshness_seconds"], absent),
            f"{shown['dead_letters']:,}",
            str(shown["restarts"]),
        )
        if shown["rows_unordered"]:
            told.append(Text(f"{shown['job']}: {unordered_words(shown['rows_unordered'])}", "yellow"))
        if shown["message"] and (tells_lost or not status.is_lost):
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
def show_jobs(
    console: Console,
    *,
    as_json: bool = False,
    line_seconds: float | None = None,
    unchanged_seconds: float = UNCHANGED_SECONDS,
    tells_lost: bool = True,
) -> Iterator[OnStatus]:
    """A callback that shows statuses: live on a terminal, else as lines, some of them for every job.

    Args:
        console: For the live view.
        as_json: Print lines of JSON, also on a terminal.
        line_seconds: Time between the lines of a running job; None: `JSON_SECONDS` or `LINE_SECONDS`.
        unchanged_seconds: Time between plain lines of a job of which nothing but times has changed.
        tells_lost: Whether the live view says why a job has failed permanently; else the caller does.
    """
    if as_json:
        every = JSON_SECONDS if line_seconds is None else line_seconds
        yield _Lines(lambda status, now: json.dumps(status_fields(status, now)), every, every)
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=REFRESH_PER_SECOND) as live:
            yield lambda statuses: live.update(render_jobs(statuses, _now_ms(), tells_lost=tells_lost))
    else:
        every = LINE_SECONDS if line_seconds is None else line_seconds
        yield _Lines(format_line, every, max(every, unchanged_seconds))


class _Lines:
    """Prints a line when a job starts, stops, fails or has a new message, and from time to time in between."""

    def __init__(self, form: Callable[[JobStatus, int], str], changed_seconds: float, unchanged_seconds: float) -> None:
        """Print nothing yet.

        Args:
            form: Forms a line of a status and the time.
            changed_seconds: Time between two lines of a job that has done something.
            unchanged_seconds: And of one that has not.
        """
        self._form, self._changed_seconds, self._unchanged_seconds = form, changed_seconds, unchanged_seconds
        self._said: dict[str, tuple[Any, Any, float]] = {}

    def __call__(self, statuses: Sequence[JobStatus]) -> None:
        now = time.monotonic()
        for status in statuses:
            state = (status.phase, status.restarts, waiting_for(status), reason_of(status))
            report = status.report
            if status.phase is Phase.RUNNING and report.doing == "failed":
                continue  # its process is ending; the next status says what becomes of the job
            lost = (report.dead_letters, report.tombstones, report.rows_unordered)
            done = (report.rows, report.commits, *lost, report.lag)
            last, last_done, when = self._said.get(status.name, (None, None, 0.0))
            moving = status.phase in {Phase.RUNNING, Phase.STOPPING} or waiting_for(status) is not None
            every = self._changed_seconds if done != last_done else self._unchanged_seconds
            if state != last or (moving and now - when >= every):
                self._said[status.name] = state, done, now
                print(self._form(status, _now_ms()), flush=True)  # noqa: T201 - this is what it is for


@contextmanager
def show_and_log(
    console: Console,
    *,
    as_json: bool,
    log_format: Format | None,
    log_file: Path | None,
    line_seconds: float | None = None,
    tells_lost: bool = True,
) -> Iterator[OnStatus]:
    """A callback that shows statuses as `show_jobs` does, and logs their changes if that is wanted.

    Args:
        console: For the live view.
        as_json: Show statuses as lines of JSON.
        log_format: Form of the log; None: no log, or text if there is a file.
        log_file: File of the log; None: standard output, in place of the statuses.
        line_seconds: See `show_jobs`.
        tells_lost: See `show_jobs`.

    Raises:
        InvalidInput: The file cannot be written.
    """
    with ExitStack() as stack:
        tellers: list[OnStatus] = []
        if log_format is not None or log_file is not None:
            tellers.append(stack.enter_context(open_event_log(log_file, log_format or "text")))
        if log_format is None or log_file is not None:
            shown = show_jobs(console, as_json=as_json, line_seconds=line_seconds, tells_lost=tells_lost)
            tellers.append(stack.enter_context(shown))

        def tell_all(statuses: Sequence[JobStatus]) -> None:
            for tell in tellers:
                tell(statuses)

        yield tell_all


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
