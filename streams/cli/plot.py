"""``weft show --plot``: draws what each stream has written over time, and what waits for compaction. Pure.

Each stream is one line of block characters. A column is the same period of time in all lines, so events of the same
time are below each other. No information is in colours alone.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from rich.text import Text

from weft.storage.core.names import TABLE_LANE
from weft.storage.plural import counted
from weft.storage.services.inspect.inspect import LaneReport, Overview, TimelineEntry
from weft.streams.pipeline.file.quantities import duration, size

ENTRIES: Final = 5_000
"""Number of log entries that are drawn, the newest."""
MAX_WIDTH: Final = 120
FormatSummary = Callable[[str, Sequence[int]], str]
"""Formats the numbers at the end of a line, from the name of the line and its values."""
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_NAME_WIDTH: Final = 14
_SUMMARY_WIDTH: Final = 24
_MIN_SPAN_MS: Final = 1_000


def draw_plot(
    table: Overview, lanes: Sequence[LaneReport], entries: Sequence[TimelineEntry], *, width: int, now_ms: int
) -> Iterator[Text]:
    """Draw the plot of a table, line by line.

    Args:
        table: Overview of the table.
        lanes: Its lanes.
        entries: Its newest log entries, in any order.
        width: Width of the terminal in characters.
        now_ms: The time, in Unix milliseconds.
    """
    yield Text(_cut(table.uri, width), "bold")
    stream_of = {lane.lane: lane.stream for lane in lanes}
    commits: dict[str, list[TimelineEntry]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "DATA" and entry.lane in stream_of:
            commits[stream_of[entry.lane]].append(entry)
    if not commits:
        yield Text("nothing is committed yet" if not table.rows_in_base else "nothing was committed lately")
        return
    columns = max(8, min(width, MAX_WIDTH) - _NAME_WIDTH - _SUMMARY_WIDTH - 2)
    begin = min(entry.committed_at_ms for stream_commits in commits.values() for entry in stream_commits)
    span = max(_MIN_SPAN_MS, now_ms - begin)
    step = duration(span / columns / 1000)
    since = dt.datetime.fromtimestamp(begin / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield Text(f"since {since}, the last {duration(span / 1000)}; one column is {step}", "dim")
    if len(entries) >= ENTRIES:
        yield Text(f"only the newest {ENTRIES:,} entries of the log are shown", "dim")

    def column_of(entry: TimelineEntry) -> int:
        return min(columns - 1, max(0, (entry.committed_at_ms - begin) * columns // span))

    streams = sorted(commits)
    rows = {name: [0] * columns for name in streams}
    commit_counts = {name: [0] * columns for name in streams}
    for name in streams:
        for entry in commits[name]:
            rows[name][column_of(entry)] += entry.rows or 0
            commit_counts[name][column_of(entry)] += 1
    yield from _draw_section("rows", rows, "green", lambda _, values: f"{sum(values):,}", width)
    yield from _draw_section("commits", commit_counts, "cyan", lambda _, values: f"{sum(values):,}", width)
    newest = {name: max(entry.committed_at_ms for entry in commits[name]) for name in streams}
    ages = {name: _ages(commits[name], begin, span, columns) for name in streams}
    yield from _draw_section(
        "age of the newest commit",
        ages,
        "yellow",
        lambda name, values: f"{_format_age(now_ms - newest[name])}, most {_format_age(max(values))}",
        width,
    )
    services = {"compactions": [0] * columns, "folds": [0] * columns}
    service_of = {"BASE": "compactions", "FOLD": "folds"}
    for entry in entries:
        if entry.lane == TABLE_LANE and entry.kind in service_of:
            services[service_of[entry.kind]][column_of(entry)] += 1
    yield from _draw_section("services", services, "magenta", lambda _, values: f"{sum(values):,}", width)
    yield from _draw_backlog(table, lanes, columns, width)


def _draw_section(
    title: str, lines: Mapping[str, Sequence[int]], style: str, summary: FormatSummary, width: int
) -> Iterator[Text]:
    """Draw a title, and a line for each name. All lines of a section have one scale."""
    top = max((max(values, default=0) for values in lines.values()), default=0)
    yield Text("")
    yield Text(title, "bold")
    for name, values in lines.items():
        line = Text(f"{_cut(name, _NAME_WIDTH):<{_NAME_WIDTH}} ")
        line.append("".join(_level(value, top) for value in values), style)
        line.append(" " + summary(name, values))
        line.truncate(width)
        yield line


def _draw_backlog(table: Overview, lanes: Sequence[LaneReport], columns: int, width: int) -> Iterator[Text]:
    """Draw the rows of each stream that wait for compaction now, and the size of the logs beside the base files."""
    rows_waiting: dict[str, int] = defaultdict(int)
    for lane in lanes:
        rows_waiting[lane.stream] += lane.rows_waiting or 0
    yield Text("")
    yield Text("rows that wait for compaction now", "bold")
    top = max(rows_waiting.values(), default=0)
    for stream, rows in sorted(rows_waiting.items()):
        bar = "█" * (round(rows / top * columns) or (rows > 0)) if top else ""
        line = Text(f"{_cut(stream, _NAME_WIDTH):<{_NAME_WIDTH}} ")
        line.append(f"{bar:<{columns}}", "blue")
        line.append(f" {rows:,}")
        line.truncate(width)
        yield line
    ratio = f", {table.log_bytes / table.base_bytes:.2f} times the bases" if table.base_bytes else ""
    text = f"{counted(table.commits_waiting, 'commit')}, {size(table.log_bytes)} in logs{ratio}"
    yield Text(_cut(text, width), "dim")


def _ages(commits: Sequence[TimelineEntry], begin: int, span: int, columns: int) -> list[int]:
    """The largest age of the newest commit in each column, in milliseconds."""
    times = deque(sorted(entry.committed_at_ms for entry in commits))
    ages, newest = [], begin
    for column in range(columns):
        end, largest = begin + span * (column + 1) // columns, 0
        while times and times[0] <= end:
            largest = max(largest, times[0] - newest)
            newest = times.popleft()
        ages.append(max(largest, end - newest))
    return ages


def _level(value: int, top: int) -> str:
    return _LEVELS[0] if value <= 0 or top <= 0 else _LEVELS[max(1, round(value / top * (len(_LEVELS) - 1)))]


def _format_age(milliseconds: int) -> str:
    return duration(max(0, milliseconds) / 1000)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
