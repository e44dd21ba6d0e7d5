"""System tables: the commits, files, streams and so on of a table, as rows. For example `weft.shop.orders_wide.files`.

They show the snapshot of the table that the query reads, so they can be joined with it, also AS OF a version or time.
Times are timestamps, sizes are in bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

import pyarrow as pa

from weft.storage import Snapshot
from weft.storage.errors import NotFound
from weft.storage.services.inspect.file_groups import StoredFile, stored_files
from weft.storage.services.inspect.inspect import FileReport, Inspection, LaneReport, TimelineEntry
from weft.storage.services.inspect.snapshots import SnapshotPoint, snapshot_points
from weft.storage.services.inspect.stream_report import StreamReport
from weft.streams.catalog.fixed_rows import FixedRows

_TEXT, _TIME, _NAMES = pa.string(), pa.timestamp("us", tz="UTC"), pa.list_(pa.string())
_TYPES: Final = {int: pa.int64(), bool: pa.bool_(), tuple: _NAMES}
"""Types of columns, by the types of fields of a report. Other fields become strings, and a mapping becomes JSON."""


@dataclass(frozen=True)
class SystemTable:
    """A system table.

    Attributes:
        columns: Its columns.
        rows: Returns its rows for a snapshot: values of a report, by names of columns.
        description: The meaning of a row, for users.
    """

    columns: pa.Schema
    rows: Callable[[Snapshot], Iterable[Mapping[str, Any]]]
    description: str

    def of(self, snapshot: Snapshot) -> pa.Table:
        """Build the table for a snapshot."""
        rows = [
            {column.name: _value(row[column.name], column.type) for column in self.columns}
            for row in self.rows(snapshot)
        ]
        return pa.Table.from_pylist(rows, self.columns)


def _columns(report: type, without: Collection[str] = (), renamed: Mapping[str, str] | None = None) -> pa.Schema:
    """Build the schema of a table whose rows are reports, with a column for each field.

    Args:
        report: The dataclass of a report.
        without: Names of fields to leave out.
        renamed: Names of columns by names of fields, where they differ.
    """
    fields = {name: kind for name, kind in get_type_hints(report).items() if name not in without}
    return pa.schema(
        [((renamed or {}).get(name, _column_name(name)), _type(name, kind)) for name, kind in fields.items()]
    )


def _row(report: Any, **more: Any) -> dict[str, Any]:
    return {_column_name(field.name): getattr(report, field.name) for field in dataclasses.fields(report)} | more


def _column_name(field: str) -> str:
    """The name of the column for a field. A time loses its unit ``_ms``, because the column is a timestamp."""
    return field.removesuffix("_ms") if field.endswith("at_ms") else field


def _type(field: str, kind: Any) -> pa.DataType:
    if field.endswith("at_ms"):
        return _TIME
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    return _TYPES.get(get_origin(kind) or kind, _TEXT)


def _value(value: Any, kind: pa.DataType) -> Any:
    """Convert a value of a report to a value of a column. Times of reports are Unix milliseconds."""
    if value is None or kind not in (_TEXT, _TIME):
        return value
    if kind == _TIME:
        return value * 1_000
    return json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)


def _commits(snapshot: Snapshot) -> Iterable[Mapping[str, Any]]:
    streams = {"": None} | {str(name): lane.stream for name, lane in snapshot.state.lanes.items()}
    return (_row(entry, stream=streams[entry.lane]) for entry in Inspection.of(snapshot).timeline())


def _savepoints(snapshot: Snapshot) -> Iterable[Mapping[str, Any]]:
    return (
        {"name": point.name, "made_at": point.at_ms, "cut": point.cut}
        for point in snapshot_points(snapshot)
        if point.kind == "savepoint" and point.name in snapshot.state.savepoints
    )


SYSTEM_TABLES: Final[Mapping[str, SystemTable]] = {
    "commits": SystemTable(
        _columns(TimelineEntry, without=("plan", "ignored", "intent", "closes")).append(pa.field("stream", _TEXT)),
        _commits,
        "an entry of a lane; lane '' is the table lane, which has no stream. Newest first",
    ),
    "streams": SystemTable(
        _columns(LaneReport),
        lambda snapshot: map(_row, Inspection.of(snapshot).lanes()),
        "a lane, with its stream and writer. source and watermarks are JSON",
    ),
    "files": SystemTable(
        _columns(StoredFile, without=("file_rows", "blocks")),
        lambda snapshot: map(_row, stored_files(snapshot)),
        "a file: base, shadow, log or fold",
    ),
    "slices": SystemTable(
        _columns(FileReport), lambda snapshot: map(_row, Inspection.of(snapshot).files()), "a file group"
    ),
    "savepoints": SystemTable(
        pa.schema([("name", _TEXT), ("made_at", _TIME), ("cut", _TEXT)]), _savepoints, "a savepoint. Newest first"
    ),
    "snapshots": SystemTable(
        _columns(SnapshotPoint),
        lambda snapshot: map(_row, snapshot_points(snapshot)),
        "a state that the log names: newest, savepoint, compaction or mark. Newest first",
    ),
    "watermarks": SystemTable(
        _columns(StreamReport, renamed={"late": "late_events"}),
        lambda snapshot: (_row(stream, late_events=stream.late) for stream in Inspection.of(snapshot).streams()),
        "a column group of a stream",
    ),
}


def system_table(table: str, name: str) -> SystemTable:
    """Find a system table by its name.

    Args:
        table: Name of the table, for the message.
        name: Name of the system table.

    Raises:
        NotFound: No system table has this name.
    """
    if name not in SYSTEM_TABLES:
        raise NotFound(f"table {table} has no system table {name!r}", hint=f"system tables: {', '.join(SYSTEM_TABLES)}")
    return SYSTEM_TABLES[name]


def system_rows(name: str, snapshot: Snapshot) -> FixedRows:
    """Build a system table for the snapshot that a query reads.

    Raises:
        NotFound: No system table has this name.
    """
    return FixedRows(name, system_table(snapshot.table_log.store.uri, name).of(snapshot))
