"""Schema evolution: reading files of an older schema revision with the newest schema.

Schemas only grow. So an older file can only differ in four ways: a column is missing, a type is narrower, a default is
different, or the state of a column group lacks columns that were added later. The events of an older row had no value
for a column that was added later. So the column is NULL where its group is present, regardless of its default; for
`latest_non_null` no event supplied it, and for an aggregate no event had a value.

How rows are adapted depends on the kind of file:

- event files (logs): widen types. A column that a batch omitted stays missing.
- register files (folds): widen types, and renew the state of groups. These files do not contain defaults.
- slice files (base and shadow): widen types, renew the state of groups, and fill in current defaults. Their revision
  says which columns may be missing.

See FORMAT.md, "Files of older schemas", and MERGE.md, "Schema changes".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.model import Group
from weft.storage.core.modes import mode_of
from weft.storage.core.schema.table_schema import TableSchema

_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether all values of ``old`` are values of the larger ``new``, in the same order and with the same hash."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(old.scale == new.scale and old.precision < new.precision)
    return bool(old == pa.float32() and new == pa.float64())


def reads_as_it_is(schema: TableSchema, rev: int, columns: Collection[str]) -> bool:
    """Whether any Parquet reader finds the right values of some user columns in a base file of revision ``rev``.

    Such a reader returns NULL for a column that the file lacks. That is right for a column that was added without a
    default, unless its merge mode shows something else for events without a value.
    """
    return rev >= schema.changed or all(_is_native(schema, rev, name) for name in columns)


def _is_native(schema: TableSchema, rev: int, name: str) -> bool:
    column = schema.column_by_name[name]
    if column.changed <= rev:
        return True
    group = schema.group_of_column.get(name)
    if group is None or not mode_of(group).null_if_added_later:
        return False
    return column.since > rev and column.default is None


def adapt_events(schema: TableSchema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of an event file to the current types of batches."""
    types = schema.event_types
    return _with_types(batch, [types.get(field.name, field.type) for field in batch.schema])


def adapt_registers(schema: TableSchema, file_columns: Sequence[str], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of a register file to the current types and state of its groups.

    Columns that the file lacks stay missing, because they are NULL in its registers.

    Args:
        schema: The newest schema.
        file_columns: All columns of the file.
        batch: The columns that were read, including all columns that the modes of their groups need.
    """
    batch = _with_types(batch, [_current_type(schema, field.name, field.type) for field in batch.schema])
    rows = dict(zip(batch.schema.names, batch.columns, strict=True))
    for group in schema.groups:
        added = [name for name in group.values if name not in file_columns]
        mode, columns = mode_of(group), schema.column_by_name
        columns_read = mode.renewal_reads(group, columns, added, rows)
        if columns_read:
            rows.update(mode.renew(group, columns, added, {name: rows[name] for name in columns_read}))
    return pa.RecordBatch.from_arrays([rows[name] for name in batch.schema.names], batch.schema.names)


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Converts the rows of a slice file of an older revision to rows of the newest schema.

    Attributes:
        schema: The newest schema.
        rev: Schema revision of the file.
        result: Slice columns that `apply` returns.
        stored: Columns of the file.
        reads: Columns of the file that `apply` needs.
    """

    schema: TableSchema
    rev: int
    result: tuple[str, ...]
    stored: frozenset[str]
    reads: tuple[str, ...]

    @classmethod
    def of(cls, schema: TableSchema, rev: int, result: Sequence[str], columns: Iterable[str]) -> Adaptation | None:
        """Plan the adaptation; None if the columns ``result`` can be read without changes.

        Raises:
            KeyError: The file lacks a column that files of its revision have.
        """
        if rev >= schema.changed:
            return None
        columns = frozenset(columns)
        reads = set(result)
        lacking = reads - columns
        for group in schema.groups:
            changed = _changed_columns(schema, group, rev)
            if not changed:
                continue
            lacking.difference_update(field.name for field in schema.state_fields(group))
            lacking.difference_update(name for name in changed if schema.column_by_name[name].since > rev)
            if not reads.isdisjoint(changed):
                reads.add(names.arrival(group.id))
            reads.update(mode_of(group).renewal_reads(group, schema.column_by_name, changed, result))
        if lacking:
            raise KeyError(f"columns {', '.join(sorted(lacking))}")
        in_order = tuple(name for name in schema.slice.names if name in reads & columns)
        return cls(schema, rev, tuple(result), columns, in_order)

    def apply(self, rows: Arrays, count: int) -> dict[str, pa.Array]:
        """Convert the columns ``reads`` to the columns ``result``; both have ``count`` rows."""
        columns = {name: _widen(column, _current_type(self.schema, name, column.type)) for name, column in rows.items()}
        for group in self.schema.groups:
            changed = _changed_columns(self.schema, group, self.rev)
            if changed:
                self._renew(group, changed, columns, count)
                self._apply_defaults(group, changed, columns, count)
        return {name: self._column(columns, name, count) for name in self.result}

    def _renew(self, group: Group, changed: Collection[str], current: dict[str, pa.Array], count: int) -> None:
        mode, columns = mode_of(group), self.schema.column_by_name
        columns_read = mode.renewal_reads(group, columns, changed, self.result)
        if columns_read and names.arrival(group.id) in self.stored:
            added = [name for name in group.values if name not in self.stored]
            rows = {name: self._column(current, name, count) for name in columns_read}
            current.update(mode.renew(group, columns, added, rows))

    def _apply_defaults(self, group: Group, changed: Collection[str], columns: dict[str, pa.Array], count: int) -> None:
        for name in changed:
            column = self.schema.column_by_name[name]
            if name in self.result and (column.default is not None or name in self.stored):
                # Without an arrival column the whole group was added later, and is absent in every row.
                present = self._column(columns, names.arrival(group.id), count).is_valid()
                default = pa.scalar(column.default, column.type)
                columns[name] = pc.if_else(present, self._column(columns, name, count), default)

    def _column(self, columns: Arrays, name: str, count: int) -> pa.Array:
        column = columns.get(name)
        return pa.nulls(count, self.schema.slice.field(name).type) if column is None else column


def _changed_columns(schema: TableSchema, group: Group, rev: int) -> tuple[str, ...]:
    """Columns of a group that were added or widened, or whose default changed, after a revision."""
    return tuple(name for name in group.columns if schema.column_by_name[name].changed > rev)


def _current_type(schema: TableSchema, name: str, file_type: pa.DataType) -> pa.DataType:
    """Current type of a slice column. Only `MergeMode.renew` changes the width of fixed-size binaries."""
    if pa.types.is_fixed_size_binary(file_type):
        return file_type
    number = schema.slice.get_field_index(name)
    return file_type if number < 0 else schema.slice.field(number).type


def _with_types(batch: pa.RecordBatch, types: Sequence[pa.DataType]) -> pa.RecordBatch:
    if all(field.type == target for field, target in zip(batch.schema, types, strict=True)):
        return batch
    columns = [_widen(column, target) for column, target in zip(batch.columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _widen(column: pa.Array, target: pa.DataType) -> pa.Array:
    return column if column.type == target else column.cast(target)
