"""System tables: what a table consists of, as rows. `weft.shop.orders_wide.files`.

They show the snapshot that the query reads of the table, so they can be joined with it; also AS OF a version or time.
Times are timestamps, sizes are bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from weft.storage import Snapshot
from weft.storage.errors import NotFound
from weft.storage.services.inspect.file_groups import stored_files
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.services.inspect.snapshots import snapshot_points
from weft.streams.catalog.fixed_rows import FixedRows
from weft.streams.read.relation.planner_interface import PinnedPlanner

_TIME: Final = pa.timestamp("us", tz="UTC")
_NAMES: Final = pa.list_(pa.string())


@dataclass(frozen=True)
class SystemTable:
    """A system table.

    Attributes:
        columns: Its columns.
        rows: Its rows for a snapshot, by the names of the columns. Times are Unix milliseconds, or None.
        about: What a row is.
    """

    columns: pa.Schema
    rows: Callable[[Snapshot], Iterable[Mapping[str, Any]]]
    about: str

    def of(self, snapshot: Snapshot) -> pa.Table:
        """The table for a snapshot."""
        found = [
            {
                field.name: row[field.name] * 1_000
                if field.type == _TIME and row[field.name] is not None
                else row[field.name]
                for field in self.columns
            }
            for row in self.rows(snapshot)
        ]
        return pa.Table.from_pylist(found, self.columns)


def _fields(each: Any, **renamed: Any) -> dict[str, Any]:
    return {field.name: getattr(each, field.name) for field in dataclasses.fields(each)} | renamed


def _commits(snapshot: Snapshot) -> Iterable[Mapping[str, Any]]:
    streams = {"": None} | {str(name): lane.stream for name, lane in snapshot.state.lanes.items()}
    return (
        _fields(each, committed_at=each.committed_at_ms, stream=streams[each.lane])
        for each in Inspection.of(snapshot).timeline()
    )


def _streams(snapshot: Snapshot) -> Iterable[Mapping[str, Any]]:
    return (
        _fields(
            each,
            claimed_at=each.claimed_at_ms,
            committed_at=each.committed_at_ms,
            heartbeat_at=each.heartbeat_at_ms,
            source=json.dumps(dict(each.source)),
            watermarks=json.dumps(dict(each.watermarks)),
        )
        for each in Inspection.of(snapshot).lanes()
    )


def _savepoints(snapshot: Snapshot) -> Iterable[Mapping[str, Any]]:
    return (
        {"name": each.name, "made_at": each.at_ms, "cut": each.cut}
        for each in snapshot_points(snapshot)
        if each.kind == "savepoint" and each.name in snapshot.state.savepoints
    )


def _watermarks(snapshot: Snapshot) -> Iterable[Mapping[str, Any]]:
    return (
        _fields(
            each,
            watermark=None if each.watermark is None else str(each.watermark),
            held_by=list(each.held_by),
            late_events=each.late,
        )
        for each in Inspection.of(snapshot).streams()
    )


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_TEXT, _NUMBER, _FLAG = pa.string(), pa.int64(), pa.bool_()

SYSTEM_TABLES: Final[Mapping[str, SystemTable]] = {
    "commits": SystemTable(
        _schema(
            committed_at=_TIME,
            lane=_TEXT,
            seq=_NUMBER,
            kind=_TEXT,
            rows=_NUMBER,
            files=_NUMBER,
            bytes=_NUMBER,
            detail=_TEXT,
            stream=_TEXT,
        ),
        _commits,
        "an entry of a lane; lane '' is the table lane, which has no stream. Newest first",
    ),
    "streams": SystemTable(
        _schema(
            lane=_TEXT,
            stream=_TEXT,
            head=_NUMBER,
            epoch=_NUMBER,
            owner=_TEXT,
            claimed_at=_TIME,
            last_commit=_NUMBER,
            committed_at=_TIME,
            last_rows=_NUMBER,
            query_id=_TEXT,
            batch=_NUMBER,
            rows=_NUMBER,
            rows_complete=_FLAG,
            rows_waiting=_NUMBER,
            source=_TEXT,
            closed=_FLAG,
            finished=_FLAG,
            for_batch=_FLAG,
            writer=_TEXT,
            heartbeat_at=_TIME,
            watermarks=_TEXT,
            late=_NUMBER,
        ),
        _streams,
        "a lane, with its stream and writer. source and watermarks are JSON",
    ),
    "files": SystemTable(
        _schema(path=_TEXT, kind=_TEXT, rows=_NUMBER, bytes=_NUMBER, lane=_TEXT, seq=_NUMBER, file_groups=_NUMBER),
        lambda snapshot: map(_fields, stored_files(snapshot)),
        "a file: base, shadow, log or fold",
    ),
    "slices": SystemTable(
        _schema(
            file_group=_TEXT,
            base_rows=_NUMBER,
            base_bytes=_NUMBER,
            shadow_rows=_NUMBER,
            shadow_bytes=_NUMBER,
            log_files=_NUMBER,
            log_rows=_NUMBER,
            log_bytes=_NUMBER,
            commits=_NUMBER,
        ),
        lambda snapshot: map(_fields, Inspection.of(snapshot).files()),
        "a file group",
    ),
    "savepoints": SystemTable(_schema(name=_TEXT, made_at=_TIME, cut=_TEXT), _savepoints, "a savepoint. Newest first"),
    "snapshots": SystemTable(
        _schema(cut=_TEXT, at=_TIME, kind=_TEXT, name=_TEXT, readable=_FLAG),
        lambda snapshot: (_fields(each, at=each.at_ms) for each in snapshot_points(snapshot)),
        "a state that the log names: newest, savepoint, compaction or mark. Newest first",
    ),
    "watermarks": SystemTable(
        _schema(
            stream=_TEXT,
            group=_TEXT,
            column=_TEXT,
            watermark=_TEXT,
            lag_ms=_NUMBER,
            late_events=_NUMBER,
            held_by=_NAMES,
        ),
        _watermarks,
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


@dataclass(frozen=True)
class SystemTablePlanner:
    """Gives every query the system table of the snapshot that it reads of the table.

    Attributes:
        name: Name of the system table.
        snapshot: The snapshot of the query that is planned on this thread.
    """

    name: str
    snapshot: Callable[[], Snapshot]

    def pin(self) -> PinnedPlanner:
        snapshot = self.snapshot()
        return FixedRows(self.name, system_table(snapshot.table_log.store.uri, self.name).of(snapshot))
