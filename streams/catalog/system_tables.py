"""System tables: what a table consists of, as rows. `weft.shop.orders_wide.files`.

They show the snapshot that the query reads of the table, so they can be joined with it; also AS OF a version or time.
Times are timestamps, sizes are bytes.
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
"""Types of columns by those of a report's fields. Others are strings; a mapping is JSON."""


@dataclass(frozen=True)
class SystemTable:
    """A system table.

    Attributes:
        columns: Its columns.
        rows: Its rows for a snapshot, by the names of the columns, with the values of a report.
        about: What a row is.
    """

    columns: pa.Schema
    rows: Callable[[Snapshot], Iterable[Mapping[str, Any]]]
    about: str

    def of(self, snapshot: Snapshot) -> pa.Table:
        """The table for a snapshot."""
        rows = [
            {column.name: _value(row[column.name], column.type) for column in self.columns}
            for row in self.rows(snapshot)
        ]
        return pa.Table.from_pylist(rows, self.columns)


def _columns(report: type, without: Collection[str] = (), renamed: Mapping[str, str] | None = None) -> pa.Schema:
    """The columns of a table whose rows are reports: their fields, in order.

    Args:
        report: The dataclass of a report.
        without: Fields that are not shown.
        renamed: Names of columns by those of fields.
    """
    fields = {name: kind for name, kind in get_type_hints(report).items() if name not in without}
    return pa.schema([((renamed or {}).get(name, _column(name)), _type(name, kind)) for name, kind in fields.items()])


def _row(report: Any, **added: Any) -> dict[str, Any]:
    return {_column(field.name): getattr(report, field.name) for field in dataclasses.fields(report)} | added


def _column(field: str) -> str:
    """The name of a field's column: that of a time has no unit, because the type of the column has it."""
    return field.removesuffix("_ms") if field.endswith("at_ms") else field


def _type(field: str, kind: Any) -> pa.DataType:
    if field.endswith("at_ms"):
        return _TIME
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    return _TYPES.get(get_origin(kind) or kind, _TEXT)


def _value(value: Any, kind: pa.DataType) -> Any:
    """A value of a report as one of a column; times of reports are Unix milliseconds."""
    if value is None or kind not in (_TEXT, _TIME):
        return value
    if kind == _TIME:
        return value * 1_000
    return json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)


def _commits(snapshot: Snapshot) -> Iterable[Mapping[str, Any]]:
    streams = {"": None} | {str(name): lane.stream for name, lane in snapshot.state.lanes.items()}
    return (_row(each, stream=streams[each.lane]) for each in Inspection.of(snapshot).timeline())


def _savepoints(snapshot: Snapshot) -> Iterable[Mapping[str, Any]]:
    return (
        {"name": each.name, "made_at": each.at_ms, "cut": each.cut}
        for each in snapshot_points(snapshot)
        if each.kind == "savepoint" and each.name in snapshot.state.savepoints
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
        lambda snapshot: (_row(each, late_events=each.late) for each in Inspection.of(snapshot).streams()),
        "a column group of a stream",
    ),
}


def system_table(table: str, name: str) -> SystemTable:
    """A system table by its name.

    Raises:
        NotFound: There is none of that name.
    """
    if name not in SYSTEM_TABLES:
        raise NotFound(f"table {table} has no system table {name!r}", hint=f"there are {', '.join(SYSTEM_TABLES)}")
    return SYSTEM_TABLES[name]


def system_rows(name: str, snapshot: Snapshot) -> FixedRows:
    """The rows of a system table for the snapshot of a query.

    Raises:
        NotFound: There is none of that name.
    """
    return FixedRows(name, system_table(snapshot.table_log.store.uri, name).of(snapshot))
