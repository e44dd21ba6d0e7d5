"""Changes of the rows in new slices, made by an erase, a rewrite or an expiry (PROTOCOL.md, X3 and X6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays, scatter, take_rows
from weft.storage.core.keys import KeyVector
from weft.storage.core.merge.visibility import visible_rows
from weft.storage.core.plan.row_age import AgeLimits, expired
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, TableError

Function: TypeAlias = Callable[[pa.Array], pa.Array | pa.ChunkedArray]
"""Maps an array of values, without NULLs, to an array of as many new values."""


@dataclass(frozen=True, slots=True)
class WithoutKeys:
    """Removes rows with some keys. ``vector``: these keys, as ascending, distinct values of the sort column."""

    vector: KeyVector

    def apply(self, schema: TableSchema, rows: Arrays) -> Arrays:
        """The remaining rows."""
        return _drop_rows(rows, keys.find(self.vector, keys.key_vector(rows[schema.sort_column]))[1])


@dataclass(frozen=True, slots=True)
class NewValues:
    """Replaces the values of a column by the results of a function, where the group of the column is present.

    Attributes:
        column: Name of a value column.
        function: The function; it must be picklable to run in other processes.
    """

    column: str
    function: Function

    def apply(self, schema: TableSchema, rows: Arrays) -> Arrays:
        """The rows with new values and unchanged versions.

        Raises:
            InvalidInput: The function failed, or its result does not fit the column.
            MemoryError, OSError: The function raised it.
        """
        column = rows[self.column]
        is_present = rows[names.arrival(schema.group_of_column[self.column].id)].is_valid()
        positions = np.flatnonzero(np.asarray(is_present) & np.asarray(column.is_valid()))
        if len(positions) == 0:
            return rows
        return {**rows, self.column: scatter(column, positions, self._values(column.take(pa.array(positions))))}

    def _values(self, values: pa.Array) -> pa.Array:
        subject = f"the function for column {self.column!r}"
        try:
            new_values = self.function(values)
        except (TableError, MemoryError, OSError):
            raise
        except Exception as error:
            raise InvalidInput(
                f"{subject} failed: {error!r}", hint="correct the function; nothing was changed"
            ) from error
        if not isinstance(new_values, pa.Array | pa.ChunkedArray) or len(new_values) != len(values):
            raise InvalidInput(
                f"{subject} did not return one value for each of {len(values)} values",
                hint="return an array of the same length as the argument",
            )
        try:
            return keys.one_array(new_values).cast(values.type)
        except pa.ArrowException as error:
            raise InvalidInput(
                f"the result of {subject} is not {values.type}: {error}", hint="cast it to this type"
            ) from error


@dataclass(frozen=True, slots=True)
class WithoutOldDeletes:
    """Removes rows that consist of an old delete of one group only.

    Attributes:
        group: Name of a group with a delete floor and ordering columns.
        before: A delete is old if its first ordering value is smaller than this, or NULL.
    """

    group: str
    before: Any

    def apply(self, schema: TableSchema, rows: Arrays) -> Arrays:
        """The remaining rows: those with values, a register of another group, or a newer delete."""
        group = schema.group(self.group)
        floor = rows[names.floor_ordering(group.id, 0)]
        is_old = np.asarray(pc.fill_null(pc.less(floor, pa.scalar(self.before, floor.type)), fill_value=True))
        others = [field.name for other in schema.groups if other.id != group.id for field in schema.state_fields(other)]
        drop = is_old & np.asarray(rows[names.floor_arrival(group.id)].is_valid())
        for name in (names.arrival(group.id), *others):
            drop &= np.asarray(rows[name].is_null())
        return _drop_rows(rows, drop)


@dataclass(frozen=True, slots=True)
class WithoutOldRows:
    """Removes visible rows in which a column has a smaller value than a limit.

    Attributes:
        column: Name of a column of a group.
        before: The limit. NULL does not count as smaller, nor does the default of an absent group.
    """

    column: str
    before: Any

    def apply(self, schema: TableSchema, rows: Arrays) -> Arrays:
        """The remaining rows."""
        column = rows[self.column]
        is_present = rows[names.arrival(schema.group_of_column[self.column].id)].is_valid()
        is_old = pc.fill_null(pc.less(column, pa.scalar(self.before, column.type)), fill_value=False)
        drop = np.asarray(is_old) & np.asarray(is_present) & visible_rows(rows, schema)
        return _drop_rows(rows, drop)


@dataclass(frozen=True, slots=True)
class WithoutExpired:
    """Removes rows and deletes that are older than the time to live (`weft.storage.core.plan.row_age`)."""

    limits: AgeLimits

    def apply(self, schema: TableSchema, rows: Arrays) -> Arrays:
        """The remaining rows."""
        return _drop_rows(rows, expired(schema, rows, self.limits))


def _drop_rows(rows: Arrays, drop: keys.Mask) -> Arrays:
    return take_rows(rows, ~drop) if drop.any() else rows


RowChange: TypeAlias = WithoutKeys | NewValues | WithoutOldDeletes | WithoutOldRows | WithoutExpired
