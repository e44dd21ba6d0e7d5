"""Decides which rows and deletes are older than a table's time to live (MERGE.md, "Time to live"). Pure functions.

The age of a row follows from its registers, so the result does not depend on how its events are stored. The current
time is an argument; the service that removes rows records it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import Mask
from weft.storage.core.model import Ttl
from weft.storage.core.predicate import ColumnRange, RangeLookup
from weft.storage.core.schema.table_schema import TableSchema

_DAY_MS: Final = 86_400_000
_UNKNOWN: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class AgeLimits:
    """The times before which rows and deletes are old, in Unix milliseconds.

    Attributes:
        by: The column that holds the time of a row; "" for the time of its last event.
        unit: Unit of an integer column, see `Ttl`.
        rows_ms: Rows from before this time are old; None if rows do not expire.
        deletes_ms: Deletes that were committed before this time are old.
        stamp_bits: Bits of an arrival below its stamp.
    """

    by: str
    unit: str
    rows_ms: int | None
    deletes_ms: int
    stamp_bits: int

    @classmethod
    def of(cls, ttl: Ttl, now_ms: int, stamp_bits: int) -> AgeLimits:
        """The limits of a time to live at the time ``now_ms``."""
        rows_ms = None if ttl.rows_ms is None else now_ms - ttl.rows_ms
        return cls(ttl.by, ttl.unit, rows_ms, now_ms - ttl.deletes_ms, stamp_bits)

    def columns(self, schema: TableSchema, *, visible: bool) -> list[str]:
        """The slice columns that `expired` reads, for visible or for hidden rows."""
        column_names = [schema.sort_column, *_arrivals(schema), *_floors(schema)]
        if self.by and self.by not in column_names:
            column_names.append(self.by)
        if not visible:
            column_names += [name for name in _other_state(schema) if name not in column_names]
        return column_names


def expired(schema: TableSchema, rows: Arrays, limits: AgeLimits) -> Mask:
    """Mask of the merged rows to remove: all their deletes are old, and the row is old or has only deletes.

    Args:
        schema: The schema of the columns.
        rows: Slice columns, n rows: `AgeLimits.columns`.
        limits: The limits of age.
    """
    size = len(rows[schema.sort_column])
    newest_delete = _newest(rows, _floors(schema), size)
    deletes_old = newest_delete < limits.deletes_ms << limits.stamp_bits
    result: Mask = deletes_old & (
        _has_only_deletes(schema, rows, newest_delete) | _find_old(schema, rows, limits, newest_delete)
    )
    return result


def may_have_expired(schema: TableSchema, ranges: RangeLookup, limits: AgeLimits, *, visible: bool) -> bool:
    """Whether visible or hidden rows of a row group can be `expired`, according to its statistics."""
    if not visible and _may_be_below(ranges, _floors(schema), limits.deletes_ms << limits.stamp_bits):
        return True
    if limits.rows_ms is None:
        return False
    group = schema.group_of_column.get(limits.by)
    always_has_value = limits.by != "" and all(
        _has_no_nulls(ranges(name)) for name in (limits.by, *(() if group is None else (names.arrival(group.id),)))
    )
    last_events = [*_arrivals(schema), *_floors(schema)]
    if not always_has_value and _may_be_below(ranges, last_events, limits.rows_ms << limits.stamp_bits):
        return True
    if not limits.by:
        return False
    stats = ranges(limits.by)
    if stats is None or (stats.least is None and not stats.all_null):
        return True
    return not stats.all_null and _number(stats.least, stats.type) < _threshold(limits, stats.type)


def _find_old(schema: TableSchema, rows: Arrays, limits: AgeLimits, newest_delete: Any) -> Mask:
    """Mask of the old rows: by the value of the column, or by the last event without a value."""
    size = len(rows[schema.sort_column])
    if limits.rows_ms is None:
        return np.zeros(size, np.bool_)
    last_event = np.maximum(_newest(rows, _arrivals(schema), size), newest_delete)
    old: Mask = (last_event != _UNKNOWN) & (last_event < limits.rows_ms << limits.stamp_bits)
    if not limits.by:
        return old
    column = rows[limits.by]
    has_value = np.asarray(column.is_valid())
    group = schema.group_of_column.get(limits.by)
    if group is not None:  # an absent group shows the default of the column
        has_value = has_value & np.asarray(rows[names.arrival(group.id)].is_valid())
    values = np.asarray(_as_numbers(column).fill_null(0))
    result: Mask = np.where(has_value, values < _threshold(limits, column.type), old)
    return result


def _has_only_deletes(schema: TableSchema, rows: Arrays, newest_delete: Any) -> Mask:
    """Mask of rows that have only deletes: no group is present, and no group has state without a floor."""
    result: Mask = newest_delete != _UNKNOWN
    for group in schema.groups:
        result = result & np.asarray(rows[names.arrival(group.id)].is_null())
    if result.any():  # visible rows are read without the other columns
        for name in _other_state(schema):
            result = result & np.asarray(rows[name].is_null())
    return result


def _arrivals(schema: TableSchema) -> list[str]:
    """The columns with the arrivals of upserts."""
    slice_columns = frozenset(schema.slice.names)
    candidates = [name for group in schema.groups for name in (names.arrival(group.id), names.top_arrival(group.id))]
    return [name for name in candidates if name in slice_columns]


def _floors(schema: TableSchema) -> list[str]:
    """The columns with the arrivals of deletes."""
    slice_columns = frozenset(schema.slice.names)
    return [name for group in schema.groups if (name := names.floor_arrival(group.id)) in slice_columns]


def _other_state(schema: TableSchema) -> list[str]:
    """The state columns of groups without a delete floor."""
    floors = frozenset(_floors(schema))
    groups = [group for group in schema.groups if names.floor_arrival(group.id) not in floors]
    return [field.name for group in groups for field in schema.state_fields(group)]


def _newest(rows: Arrays, columns: list[str], size: int) -> Any:
    """The largest arrival of each row; `_UNKNOWN` without an arrival."""
    result = np.full(size, _UNKNOWN, np.int64)
    for name in columns:
        if rows[name].null_count < size:
            result = np.maximum(result, np.asarray(rows[name].fill_null(_UNKNOWN)))
    return result


def _may_be_below(ranges: RangeLookup, columns: list[str], limit: int) -> bool:
    """Whether all arrivals of some row can be below a limit; each row has at least one arrival."""
    stats = [ranges(name) for name in columns]
    if any(item is None or (item.least is None and not item.all_null) for item in stats):
        return True
    with_values = [item for item in stats if item is not None and not item.all_null]
    return any(item.least < limit for item in with_values) and all(
        item.least < limit for item in with_values if item.nulls == 0
    )


def _has_no_nulls(column_range: ColumnRange | None) -> bool:
    return column_range is not None and column_range.nulls == 0


def _threshold(limits: AgeLimits, kind: pa.DataType) -> int:
    """The number below which values of a column are old."""
    assert limits.rows_ms is not None, "rows expire"
    if pa.types.is_timestamp(kind) or limits.unit == "microseconds":
        return limits.rows_ms * 1000
    if pa.types.is_date(kind):
        return -(-limits.rows_ms // _DAY_MS)
    return limits.rows_ms if limits.unit == "milliseconds" else -(-limits.rows_ms // 1000)


def _as_numbers(column: pa.Array) -> pa.Array:
    """Convert a time column to int64: days, microseconds, or its integers."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    return column.cast(pa.int64())


def _number(value: Any, kind: pa.DataType) -> int:
    number: int = _as_numbers(pa.array([value], kind))[0].as_py()
    return number
