"""``weft show``: prints the results of `weft.storage.services.inspect.inspect` as tables or as JSON lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from rich.table import Table as Grid
from rich.text import Text

from weft.storage.core.model import Ttl
from weft.storage.core.names import TABLE_LANE
from weft.storage.core.types import format_type
from weft.storage.plural import counted
from weft.storage.services.inspect.inspect import FileReport, Inspection, LaneReport, Overview, TimelineEntry
from weft.storage.services.inspect.references import ReferenceReport
from weft.storage.services.inspect.stream_report import StreamReport
from weft.storage.store.open_store import open_store
from weft.streams.cli.arguments import console
from weft.streams.cli.output import draw, print_json
from weft.streams.cli.plot import ENTRIES, MAX_WIDTH, draw_plot
from weft.streams.pipeline.file.pipeline import Pipeline
from weft.streams.pipeline.file.quantities import age, duration, moment, size
from weft.streams.pipeline.run.part_states import PartState, read_parts, stored_reports
from weft.streams.pipeline.run.run import make_jobs


class Aspect(StrEnum):
    """The part of a table, or of its pipeline, that ``weft show`` prints."""

    OVERVIEW = "overview"
    TIMELINE = "timeline"
    FILES = "files"
    STREAMS = "streams"
    PARTS = "parts"


def show_plot(table: Inspection) -> None:
    """Print a plot of what the streams of a table have written over time, and of what waits for compaction."""
    out = console()
    entries = table.timeline(ENTRIES)
    now_ms = int(time.time() * 1000)
    for line in draw_plot(table.overview(), table.lanes(), entries, width=min(out.width, MAX_WIDTH), now_ms=now_ms):
        out.print(line, no_wrap=True)


def show_table(table: Inspection, what: Aspect, *, limit: int, as_json: bool) -> None:
    """Print one aspect of a table.

    Args:
        table: The table.
        what: The aspect.
        limit: Maximum number of entries of the timeline.
        as_json: Print JSON lines: one object for the overview, else one per row.
    """
    match what:
        case Aspect.OVERVIEW:
            overview = table.overview()
            _print([overview], _draw_overview(overview), as_json=as_json)
        case Aspect.TIMELINE:
            entries = table.timeline(limit)
            _print(entries, [_draw_timeline(entries)], as_json=as_json)
        case Aspect.FILES:
            files = table.files()
            _print(files, [_draw_files(files)], as_json=as_json)
        case Aspect.STREAMS:
            lanes = table.lanes()
            _print(lanes, _draw_streams(lanes, table), as_json=as_json)


def show_parts(pipeline: Pipeline, *, as_json: bool) -> None:
    """Print what each writer and service of a pipeline did last, and whether it runs.

    Writers on other machines are not included; `weft show TARGET streams` has them.

    Args:
        pipeline: The pipeline.
        as_json: Print JSON lines, one for each part.
    """
    names = [job.name for job in make_jobs(pipeline)]
    store = open_store(pipeline.table.uri, pipeline.table.storage_options)
    parts = read_parts(pipeline.state, names, stored_reports(store, names))
    _print(parts, [_draw_parts(parts)], as_json=as_json)


def _draw_parts(parts: Sequence[PartState]) -> Grid:
    return draw(
        parts,
        {
            "part": lambda part: part.part,
            "state": lambda part: part.state,
            "last run": lambda part: "-" if part.last_run_at_ms is None else age(part.last_run_at_ms),
            "result": lambda part: part.result or "-",
            "error": lambda part: part.error or "-",
            "next": lambda part: "-" if part.next_run_at_ms is None else f"in {_seconds_until(part.next_run_at_ms)}",
        },
        right=("last run", "next"),
    )


def _seconds_until(then_ms: int) -> str:
    return duration(max(0.0, then_ms / 1000 - time.time()))


def _print(items: Sequence[object], drawings: Iterable[Grid | Text], *, as_json: bool) -> None:
    """Print items as JSON lines, or their drawings for people."""
    if as_json:
        for item in items:
            print_json(item)
    else:
        for drawing in drawings:
            console().print(drawing)


def _draw_overview(table: Overview) -> Iterator[Grid | Text]:
    schema = table.schema
    rows = f"{table.rows_in_base:,}"
    if table.events_in_logs:
        rows += f" compacted, and {counted(table.events_in_logs, 'event')} in logs"
    key = f"{', '.join(schema.key)}, {counted(1 << schema.bucket_bits, 'bucket')}"
    if table.unsplit_groups:
        key += f" ({table.unsplit_groups} file groups are to be split or merged)"
    if schema.partition_by:
        key += f", partitioned by {', '.join(schema.partition_by)}"
    logs = f"{size(table.log_bytes)} in logs, {counted(table.file_groups, 'file group')}"
    waiting = f"{table.commits_waiting:,} commits are not compacted yet"
    if table.compactions_open:
        waiting += f", {table.compactions_open} open"
    oldest = table.oldest_retained
    yield Text(table.uri, "bold")
    if schema.comment:
        yield Text(f"comment     {schema.comment}")
    yield Text(f"created     {moment(table.created_at_ms)}")
    yield Text(f"key         {key}")
    yield Text(f"rows        {rows}")
    yield Text(f"stored      {size(table.base_bytes)} in bases, {logs}")
    yield Text(f"compaction  {waiting}")
    yield Text(f"snapshot    {table.cut}")
    retained = "all snapshots" if oldest <= 1 else f"snapshots from entry {oldest} of the table lane on"
    yield Text(f"kept        {retained}")
    for keeper in table.keepers:
        since = "" if keeper.since_ms is None else f", since {age(keeper.since_ms)}"
        until = "" if keeper.until_ms is None else f", until {moment(keeper.until_ms)}"
        note = f": {keeper.note}" if keeper.note else ""
        yield Text(f"            {keeper.cut} by {keeper.what} {keeper.name}{since}{until}{note}")
    if schema.ttl is not None:
        yield Text(f"ttl         {_format_ttl(schema.ttl)}")
    if schema.overlays:
        yield Text("overlays    compactions may write changed column groups alone")
    if schema.index:
        yield Text(f"index       {', '.join(schema.index)}")
    if table.references:
        yield Text("")
        yield draw(
            table.references,
            {
                "reference": lambda reference: reference.name,
                "table": lambda reference: reference.table,
                "foreign key": lambda reference: ", ".join(reference.on),
                "columns": lambda reference: ", ".join(reference.columns),
                "state": _reference_state,
            },
        )
    yield Text("")
    types = {name: format_type(column.type) for name, column in schema.column_by_name.items()}
    yield draw(
        schema.groups,
        {
            "group": lambda group: group.name,
            "columns": lambda group: ", ".join(f"{name} {types[name]}" for name in group.columns),
            "ordering": lambda group: ", ".join(group.ordering) or "as committed",
            "merge": lambda group: group.merge,
            "streams": lambda group: ", ".join(
                f"{stream.name} (deletes: {stream.on_delete})"
                for stream in schema.streams
                if group.name in stream.groups
            ),
        },
    )
    commented = [column for column in schema.columns if column.comment]
    if commented:
        yield Text("")
        yield draw(commented, {"column": lambda column: column.name, "comment": lambda column: column.comment})


def _reference_state(reference: ReferenceReport) -> str:
    """Describe the problem of a reference, or the watermarks of its streams."""
    if reference.problem:
        return reference.problem
    return (
        ", ".join(
            f"{stream.stream}: complete before {stream.column} {stream.watermark}"
            for stream in reference.streams
            if stream.watermark is not None
        )
        or "readable"
    )


def _format_ttl(ttl: Ttl) -> str:
    by = ttl.by or "their last event"
    rows = "for ever" if ttl.rows_ms is None else f"for {duration(ttl.rows_ms / 1000)} by {by}"
    return f"rows are kept {rows}, deletes for {duration(ttl.deletes_ms / 1000)}"


def _draw_timeline(entries: Sequence[TimelineEntry]) -> Grid:
    return draw(
        entries,
        {
            "when": lambda entry: moment(entry.committed_at_ms),
            "age": lambda entry: age(entry.committed_at_ms),
            "lane": lambda entry: "(table)" if entry.lane == TABLE_LANE else entry.lane,
            "seq": lambda entry: str(entry.seq),
            "kind": lambda entry: entry.kind,
            "rows": lambda entry: _count(entry.rows, absent=""),
            "files": lambda entry: str(entry.files or ""),
            "size": lambda entry: size(entry.bytes) if entry.files else "",
            "what": lambda entry: entry.detail,
        },
        right=("age", "seq", "rows"),
    )


def _draw_files(files: Sequence[FileReport]) -> Grid:
    return draw(
        files,
        {
            "file group": lambda file: file.file_group,
            "base rows": lambda file: _count(file.base_rows),
            "base": lambda file: size(file.base_bytes),
            "shadow rows": lambda file: _count(file.shadow_rows),
            "shadow": lambda file: size(file.shadow_bytes),
            "commits": lambda file: str(file.commits),
            "log files": lambda file: str(file.log_files),
            "log rows": lambda file: _count(file.log_rows),
            "logs": lambda file: size(file.log_bytes),
        },
        right=("base rows", "base", "shadow rows", "shadow", "commits", "log files", "log rows", "logs"),
    )


def _draw_streams(lanes: Sequence[LaneReport], table: Inspection) -> Iterator[Grid | Text]:
    yield draw(
        lanes,
        {
            "stream": lambda lane: lane.stream,
            "lane": lambda lane: lane.lane,
            "writer": _writer,
            "epoch": lambda lane: str(lane.epoch),
            "commit": lambda lane: _count(lane.last_commit),
            "age": lambda lane: "-" if lane.committed_at_ms is None else age(lane.committed_at_ms),
            "batch": lambda lane: _count(lane.batch),
            "rows": lambda lane: f"{'' if lane.rows_complete else '> '}{lane.rows:,}",
            "waiting": lambda lane: _count(lane.rows_waiting),
            "owner": lambda lane: lane.owner,
        },
        right=("epoch", "commit", "age", "batch", "rows", "waiting"),
    )
    if any(value is not None for lane in lanes for value in lane.watermarks.values()):  # a writer declared a lateness
        yield Text("")
        yield _draw_watermarks([stream for stream in table.streams() if stream.column is not None])


def _draw_watermarks(streams: Sequence[StreamReport]) -> Grid:
    return draw(
        streams,
        {
            "stream": lambda stream: stream.stream,
            "group": lambda stream: stream.group,
            "column": lambda stream: str(stream.column),
            "watermark": lambda stream: "-" if stream.watermark is None else str(stream.watermark),
            "lag": lambda stream: "-" if stream.lag_ms is None else duration(stream.lag_ms / 1000),
            "late": lambda stream: _count(stream.late),
            "waits for": lambda stream: ", ".join(f"lane {lane}" for lane in stream.held_by) or "-",
        },
        right=("lag", "late"),
    )


def _writer(lane: LaneReport) -> str:
    """Describe the state of the writer of a lane, with the age of its last heartbeat."""
    if lane.closed:
        return "lane closed"
    if lane.finished:
        return "finished"
    if lane.heartbeat_at_ms is not None:
        heartbeat_age = age(lane.heartbeat_at_ms)
        return f"silent for {heartbeat_age}" if lane.writer == "silent" else f"{lane.writer}, {heartbeat_age} ago"
    return "ended" if lane.writer == "closed" else lane.writer


def _count(value: int | None, absent: str = "-") -> str:
    return absent if value is None else f"{value:,}"
