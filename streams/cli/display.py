"""Shows the status of jobs, one row per job: as a live table, as plain lines, or as JSON lines."""

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

LINE_SECONDS: Final = 5.0  # between two plain lines of a running job whose numbers have changed
UNCHANGED_SECONDS: Final = 300.0  # between two plain lines of a running job without a change
JSON_SECONDS: Final = 1.0  # between two JSON lines of a job
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
    """Format the status of a job as one plain line."""
    fields = status_fields(status, now_ms)
    parts = [fields["state"]]
    if not is_service(status):
        parts += [describe_stored(status), f"{fields['rows_per_second']:,.0f}/s", f"lag {_lag(fields['lag'])}"]
        if fields["commits"] and fields["commit_age_seconds"] is not None:
            parts.append(f"last commit {_seconds(fields['commit_age_seconds'])} ago")
        parts.append(f"fresh {_seconds(fields['freshness_seconds'], UNKNOWN)}")
        if fields["dead_letters"]:
            parts.append(f"dead letters {fields['dead_letters']:,}")
        if fields["tombstones_ignored"]:
            parts.append(f"tombstones ignored {fields['tombstones_ignored']:,}")
        if fields["rows_unordered"]:
            parts.append(unordered_words(fields["rows_unordered"]))
    if fields["restarts"]:
        parts.append(f"restarts {fields['restarts']}")
    if fields["message"]:
        parts.append(fields["message"])
    return f"{fields['job']}: {' · '.join(parts)}"


def is_service(status: JobStatus) -> bool:
    """Whether a job is a service: it runs in the background, or has ended with the result of a single round."""
    ended_after_one_round = status.phase is Phase.DONE and status.report.message and not status.report.batch_counts
    return status.background or bool(ended_after_one_round)


def describe_stored(status: JobStatus) -> str:
    """Describe what a writer has stored since it was started, such as ``1,000 rows in 3 commits``."""
    report = status.report
    if report.commits:
        return f"{counted(report.rows, 'row')} in {counted(report.commits, 'commit')}"
    has_read_all = status.phase is Phase.DONE or report.lag == 0
    return "no new messages" if has_read_all and not report.rows else counted(report.rows, "row")


def render_jobs(statuses: Sequence[JobStatus], now_ms: int, *, show_failures: bool = True) -> RenderableType:
    """Render all jobs as a table with their messages below it.

    Args:
        statuses: The jobs.
        now_ms: The time, in Unix milliseconds.
        show_failures: Whether to show the messages of jobs that have failed permanently.
    """
    table = Table(box=None, pad_edge=False)
    for name in ("stream", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "commits", "rows/s", "lag ≤", "last commit", "fresh", "dead letters", "restarts"):
        table.add_column(name, justify="right", no_wrap=True)
    messages: list[RenderableType] = []
    for status in statuses:
        fields = status_fields(status, now_ms)
        style = _STYLES[status.phase]
        absent = "-" if status.background else UNKNOWN
        table.add_row(
            fields["job"],
            Text(fields["state"], style),
            f"{fields['rows']:,}",
            f"{fields['commits']:,}",
            f"{fields['rows_per_second']:,.0f}",
            _number(fields["lag"], absent),
            _seconds(fields["commit_age_seconds"]),
            _seconds(fields["freshness_seconds"], absent),
            f"{fields['dead_letters']:,}",
            str(fields["restarts"]),
        )
        if fields["rows_unordered"]:
            messages.append(Text(f"{fields['job']}: {unordered_words(fields['rows_unordered'])}", "yellow"))
        if fields["message"] and (show_failures or not status.is_lost):
            bad = status.phase in {Phase.FAILED, Phase.FENCED, Phase.WAITING}
            messages.append(Text(f"{fields['job']}: {fields['message']}", style if bad else "dim"))
    return Group(table, *messages)


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
    show_failures: bool = True,
) -> Iterator[OnStatus]:
    """Yield a callback that shows statuses: live on a terminal, else as lines.

    Args:
        console: Console of the live view.
        as_json: Print lines of JSON, also on a terminal.
        line_seconds: Time between two lines of a running job; `JSON_SECONDS` or `LINE_SECONDS` if None.
        unchanged_seconds: Time between two plain lines of a running job without a change, apart from times.
        show_failures: Whether the live view says why a job has failed permanently; if not, the caller says it.
    """
    if as_json:
        every = JSON_SECONDS if line_seconds is None else line_seconds
        yield _Lines(lambda status, now: json.dumps(status_fields(status, now)), every, every)
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=REFRESH_PER_SECOND) as live:
            yield lambda statuses: live.update(render_jobs(statuses, _now_ms(), show_failures=show_failures))
    else:
        every = LINE_SECONDS if line_seconds is None else line_seconds
        yield _Lines(format_line, every, max(every, unchanged_seconds))


class _Lines:
    """Prints a line when a job starts, stops, fails or has a new message, and from time to time in between."""

    def __init__(
        self, format_status: Callable[[JobStatus, int], str], changed_seconds: float, unchanged_seconds: float
    ) -> None:
        """Print nothing yet.

        Args:
            format_status: Formats a line from a status and the time in Unix milliseconds.
            changed_seconds: Time between two lines of a job whose numbers have changed.
            unchanged_seconds: Time between two lines of a job whose numbers have not changed.
        """
        self._format = format_status
        self._changed_seconds, self._unchanged_seconds = changed_seconds, unchanged_seconds
        self._last_lines: dict[str, tuple[Any, Any, float]] = {}  # state, numbers, time; by job

    def __call__(self, statuses: Sequence[JobStatus]) -> None:
        now = time.monotonic()
        for status in statuses:
            state = (status.phase, status.restarts, waiting_for(status), reason_of(status))
            report = status.report
            if status.phase is Phase.RUNNING and report.doing == "failed":
                continue  # its process is ending; the next status says what becomes of the job
            losses = (report.dead_letters, report.tombstones, report.rows_unordered)
            numbers = (report.rows, report.commits, *losses, report.lag)
            last_state, last_numbers, printed_at = self._last_lines.get(status.name, (None, None, 0.0))
            is_active = status.phase in {Phase.RUNNING, Phase.STOPPING} or waiting_for(status) is not None
            interval = self._changed_seconds if numbers != last_numbers else self._unchanged_seconds
            if state != last_state or (is_active and now - printed_at >= interval):
                self._last_lines[status.name] = state, numbers, now
                print(self._format(status, _now_ms()), flush=True)  # noqa: T201 - output is its purpose


@contextmanager
def show_and_log(
    console: Console,
    *,
    as_json: bool,
    log_format: Format | None,
    log_file: Path | None,
    line_seconds: float | None = None,
    show_failures: bool = True,
) -> Iterator[OnStatus]:
    """Yield a callback that shows statuses as `show_jobs` does, and logs their changes if a log is configured.

    Args:
        console: Console of the live view.
        as_json: Show statuses as lines of JSON.
        log_format: Format of the log. If None, text with a log file, and no log without one.
        log_file: File of the log. If None, the log goes to standard output, in place of the statuses.
        line_seconds: See `show_jobs`.
        show_failures: See `show_jobs`.

    Raises:
        InvalidInput: The file cannot be written.
    """
    with ExitStack() as stack:
        callbacks: list[OnStatus] = []
        if log_format is not None or log_file is not None:
            callbacks.append(stack.enter_context(open_event_log(log_file, log_format or "text")))
        if log_format is None or log_file is not None:
            display = show_jobs(console, as_json=as_json, line_seconds=line_seconds, show_failures=show_failures)
            callbacks.append(stack.enter_context(display))

        def call_all(statuses: Sequence[JobStatus]) -> None:
            for callback in callbacks:
                callback(statuses)

        yield call_all


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
