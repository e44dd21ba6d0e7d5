"""``weft show --plot``: what each stream has written over time, and how far compaction and readers are behind. Pure.

One line for each stream, of block characters: one column is the same part of the time everywhere, so what happens at
the same time is below each other. Nothing is said by colours alone.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from rich.text import Text

from weft.storage.core.names import TABLE_LANE
from weft.storage.plural import counted
from weft.storage.services.inspect.inspect import LaneReport, Overview, TimelineEntry
from weft.streams.pipeline.file.quantities import duration, size

ENTRIES: Final = 5_000
"""The newest entries of the log that are drawn."""
MOST_WIDTH: Final = 120
Facts = Callable[[str, Sequence[int]], str]
"""The numbers at the end of a line, of a name and its values."""
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_NAME: Final = 14  # width of names
_FACTS: Final = 24  # width of the numbers at the end of a line
_LEAST_SPAN_MS: Final = 1_000


def draw_plot(
    table: Overview, lanes: Sequence[LaneReport], entries: Sequence[TimelineEntry], *, width: int, now_ms: int
) -> Iterator[Text]:
    """Lines of a plot.

    Args:
        table: The table.
        lanes: Its lanes.
        entries: Its newest log entries, in any order.
        width: Columns of the terminal.
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
    columns = max(8, min(width, MOST_WIDTH) - _NAME - _FACTS - 2)
    begin = min(entry.committed_at_ms for found in commits.values() for entry in found)
    span = max(_LEAST_SPAN_MS, now_ms - begin)
    step = duration(span / columns / 1000)
    since = dt.datetime.fromtimestamp(begin / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield Text(f"since {since}, the last {duration(span / 1000)}; one column is {step}", "dim")
    if len(entries) >= ENTRIES:
        yield Text(f"only the newest {ENTRIES:,} entries of the log are shown", "dim")

    def columns_of(found: Sequence[TimelineEntry]) -> Iterator[tuple[int, TimelineEntry]]:
        for entry in found:
            yield min(columns - 1, max(0, (entry.committed_at_ms - begin) * columns // span)), entry

    streams = sorted(commits)
    rows = {name: [0] * columns for name in streams}
    numbers = {name: [0] * columns for name in streams}
    for name in streams:
        for column, entry in columns_of(commits[name]):
            rows[name][column] += entry.rows or 0
            numbers[name][column] += 1
    yield from _section("rows", rows, "green", lambda _, values: f"{sum(values):,}", width)
    yield from _section("commits", numbers, "cyan", lambda _, values: f"{sum(values):,}", width)
    newest = {name: max(entry.committed_at_ms for entry in commits[name]) for name in streams}
    ages = {name: _ages(commits[name], begin, span, columns) for name in streams}
    yield from _section(
        "age of the newest commit",
        ages,
        "yellow",
        lambda name, values: f"{_age(now_ms - newest[name])}, most {_age(max(values))}",
        width,
    )
    work = {"compactions": "BASE", "folds": "FOLD"}
    done = {name: [0] * columns for name in work}
    for name, kind in work.items():
        for column, _ in columns_of([each for each in entries if each.lane == TABLE_LANE and each.kind == kind]):
            done[name][column] += 1
    yield from _section("services", done, "magenta", lambda _, values: f"{sum(values):,}", width)
    yield from _waiting(table, lanes, columns, width)


def _section(title: str, of: Mapping[str, Sequence[int]], style: str, facts: Facts, width: int) -> Iterator[Text]:
    """A title, and a line for each name; all lines of a section have one scale."""
    top = max((max(values, default=0) for values in of.values()), default=0)
    yield Text("")
    yield Text(title, "bold")
    for name, values in of.items():
        line = Text(f"{_cut(name, _NAME):<{_NAME}} ")
        line.append("".join(_level(value, top) for value in values), style)
        line.append(" " + facts(name, values))
        line.truncate(width)
        yield line


def _waiting(table: Overview, lanes: Sequence[LaneReport], columns: int, width: int) -> Iterator[Text]:
    """What waits for compaction now, by stream, and how large it is beside what is compacted."""
    waiting: dict[str, int] = defaultdict(int)
    for lane in lanes:
        waiting[lane.stream] += lane.rows_waiting or 0
    yield Text("")
    yield Text("rows that wait for compaction now", "bold")
    top = max(waiting.values(), default=0)
    for name, number in sorted(waiting.items()):
        bar = "█" * (round(number / top * columns) or (number > 0)) if top else ""
        line = Text(f"{_cut(name, _NAME):<{_NAME}} ")
        line.append(f"{bar:<{columns}}", "blue")
        line.append(f" {number:,}")
        line.truncate(width)
        yield line
    ratio = f", {table.log_bytes / table.base_bytes:.2f} times the bases" if table.base_bytes else ""
    text = f"{counted(table.commits_waiting, 'commit')}, {size(table.log_bytes)} in logs{ratio}"
    yield Text(_cut(text, width), "dim")


def _ages(commits: Sequence[TimelineEntry], begin: int, span: int, columns: int) -> list[int]:
    """Milliseconds since the newest commit, at the end of each column; the largest within it."""
    times = sorted(entry.committed_at_ms for entry in commits)
    found, last, place = [], begin, 0
    for column in range(columns):
        end, most = begin + span * (column + 1) // columns, 0
        while place < len(times) and times[place] <= end:
            most = max(most, times[place] - last)
            last = times[place]
            place += 1
        found.append(max(most, end - last))
    return found


def _level(value: int, top: int) -> str:
    return _LEVELS[0] if value <= 0 or top <= 0 else _LEVELS[max(1, round(value / top * (len(_LEVELS) - 1)))]


def _age(milliseconds: int) -> str:
    return duration(max(0, milliseconds) / 1000)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
