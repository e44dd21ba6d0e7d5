"""``weft show``: prints the results of `storage.services.inspect` as tables or as JSON lines."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from storage.engine import (
    TABLE_LANE,
    FileReport,
    Inspection,
    LaneReport,
    Overview,
    StreamReport,
    TimelineEntry,
    format_type,
)

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


Fact = Overview | TimelineEntry | FileReport | LaneReport


class What(StrEnum):
    """What to show."""

    OVERVIEW = "overview"
    TIMELINE = "timeline"
    FILES = "files"
    STREAMS = "streams"


def show(console: Console, table: Inspection, what: What, *, limit: int, as_json: bool) -> None:
    """Print one aspect of a table.

    Args:
        console: Where to print.
        table: The table.
        what: The aspect.
        limit: Most entries of the timeline.
        as_json: JSON lines: one object for the overview, else one per row.
    """
    match what:
        case What.OVERVIEW:
            overview = table.overview()
            _print(console, [overview], _draw_overview(overview), as_json=as_json)
        case What.TIMELINE:
            entries = table.timeline(limit)
            _print(console, entries, _draw_timeline(entries), as_json=as_json)
        case What.FILES:
            files = table.files()
            _print(console, files, _draw_files(files), as_json=as_json)
        case What.STREAMS:
            lanes = table.lanes()
            _print(console, lanes, [*_draw_streams(lanes), *_draw_watermarks(lanes, table.streams())], as_json=as_json)


def _print(console: Console, facts: Sequence[Fact], drawn: Iterable[Grid | Text], *, as_json: bool) -> None:
    if as_json:
        for fact in facts:
            text = json.dumps(_plain(fact), ensure_ascii=False, default=dataclasses.asdict)
            print(text)  # noqa: T201 - this is what it is for
        return
    for part in drawn:
        console.print(part)


def _plain(fact: Fact) -> dict[str, Any]:
    values = {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}
    if isinstance(fact, Overview):
        values["schema"] = fact.schema.to_json()
    return values


def _draw_overview(table: Overview) -> Iterable[Grid | Text]:
    schema = table.schema
    rows = f"{table.rows_in_base:,}"
    if table.events_in_logs:
        rows += f" compacted, and {table.events_in_logs:,} events in logs"
    key = f"{', '.join(schema.key)}, {1 << schema.bucket_bits} buckets"
    if schema.partition_by:
        key += f", partitioned by {', '.join(schema.partition_by)}"
    logs = f"{_bytes(table.log_bytes)} in logs, {table.file_groups} file groups"
    waiting = f"{table.commits_waiting:,} commits are not compacted yet"
    if table.compactions_open:
        waiting += f", {table.compactions_open} open"
    yield Text(table.uri, "bold")
    yield Text(f"created     {_moment(table.created_at_ms)}")
    yield Text(f"key         {key}")
    yield Text(f"rows        {rows}")
    yield Text(f"stored      {_bytes(table.base_bytes)} in bases, {logs}")
    yield Text(f"compaction  {waiting}")
    yield Text(f"snapshot    {table.cut}")
    kept = (
        "all snapshots"
        if table.oldest_retained <= 1
        else f"snapshots from entry {table.oldest_retained} of the table lane on"
    )
    yield Text(f"kept        {kept}")
    for keeper in table.keepers:
        since = "" if keeper.since_ms is None else f", since {_age(keeper.since_ms)}"
        until = "" if keeper.until_ms is None else f", until {_moment(keeper.until_ms)}"
        note = f": {keeper.note}" if keeper.note else ""
        yield Text(f"            {keeper.cut} by {keeper.what} {keeper.name}{since}{until}{note}")
    yield Text("")
    grid = _grid("group", "columns", "ordering", "merge", "streams")
    for group in schema.groups:
        columns = ", ".join(f"{name} {format_type(schema.column_by_name[name].type)}" for name in group.columns)
        streams = [f"{s.name} (deletes: {s.on_delete})" for s in schema.streams if group.name in s.groups]
        _add(grid, group.name, columns, ", ".join(group.ordering) or "as committed", group.merge, ", ".join(streams))
    yield grid


def _draw_timeline(facts: Sequence[TimelineEntry]) -> Iterable[Grid | Text]:
    grid = _grid("when", "age", "lane", "seq", "kind", "rows", "files", "size", "what", right=("age", "seq", "rows"))
    for entry in facts:
        _add(
            grid,
            _moment(entry.committed_at_ms),
            _age(entry.committed_at_ms),
            "(table)" if entry.lane == TABLE_LANE else entry.lane,
            str(entry.seq),
            entry.kind,
            "" if entry.rows is None else f"{entry.rows:,}",
            str(entry.files or ""),
            _bytes(entry.bytes) if entry.files else "",
            entry.detail,
        )
    yield grid


def _draw_files(facts: Sequence[FileReport]) -> Iterable[Grid | Text]:
    numbers = ("base rows", "base", "shadow rows", "shadow", "commits", "log files", "log rows", "logs")
    grid = _grid("file group", *numbers, right=numbers)
    for file in facts:
        _add(
            grid,
            file.file_group,
            f"{file.base_rows:,}",
            _bytes(file.base_bytes),
            f"{file.shadow_rows:,}",
            _bytes(file.shadow_bytes),
            str(file.commits),
            str(file.log_files),
            f"{file.log_rows:,}",
            _bytes(file.log_bytes),
        )
    yield grid


def _draw_streams(facts: Sequence[LaneReport]) -> Iterable[Grid | Text]:
    numbers = ("epoch", "commit", "age", "batch", "rows", "waiting")
    grid = _grid("stream", "lane", "writer", *numbers, "owner", right=numbers)
    for lane in facts:
        _add(
            grid,
            lane.stream,
            lane.lane,
            _writer(lane),
            str(lane.epoch),
            _optional(lane.last_commit),
            "-" if lane.committed_at_ms is None else _age(lane.committed_at_ms),
            _optional(lane.batch),
            f"{'' if lane.rows_complete else '> '}{lane.rows:,}",
            f"{lane.rows_waiting:,}",
            lane.owner,
        )
    yield grid


def _draw_watermarks(lanes: Sequence[LaneReport], facts: Sequence[StreamReport]) -> Iterable[Grid | Text]:
    if all(value is None for lane in lanes for value in lane.watermarks.values()):
        return  # no writer has declared a lateness
    grid = _grid("stream", "group", "column", "watermark", "lag", "late", "waits for", right=("lag", "late"))
    for mark in facts:
        if mark.column is not None:
            _add(
                grid,
                mark.stream,
                mark.group,
                mark.column,
                "-" if mark.watermark is None else str(mark.watermark),
                "-" if mark.lag_ms is None else _duration(mark.lag_ms / 1000),
                f"{mark.late:,}",
                ", ".join(f"lane {lane}" for lane in mark.held_by) or "-",
            )
    yield Text("")
    yield grid


def _writer(lane: LaneReport) -> str:
    """State of the writer of a lane, and the age of its last heartbeat."""
    if lane.closed:
        return "lane closed"
    if lane.heartbeat_at_ms is not None:
        age = _age(lane.heartbeat_at_ms)
        return f"silent for {age}" if lane.writer == "silent" else f"{lane.writer}, {age} ago"
    return "ended" if lane.writer == "closed" else lane.writer


def _grid(*columns: str, right: Sequence[str] = ()) -> Grid:
    grid = Grid(box=None, pad_edge=False)
    for column in columns:
        grid.add_column(column, justify="right" if column in right else "left")
    return grid


def _add(grid: Grid, *cells: str) -> None:
    grid.add_row(*(Text(cell) for cell in cells))  # Text, because rich would interpret brackets as markup


def _optional(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _bytes(size: float) -> str:
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} {_UNITS[-1]}"


def _moment(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(milliseconds: int) -> str:
    return _duration(max(0.0, time.time() - milliseconds / 1000))


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def json_value(value: Any) -> Any:
    """A value of an answer as a JSON value; values that JSON does not have become text."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "__fields__"):  # a struct, as Spark's rows have it
        return {name: json_value(item) for name, item in zip(value.__fields__, value, strict=True)}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)
