"""Evolution: files of an older schema revision, read as the newest schema wants them.

Schemas only grow, so all that an older file can differ in is: a column is missing, a type is narrower, a default is
another one, and the state of a group does not know columns that were added to it. What a row of an older file says of
a column that came later is what its events said: nothing. So the column is NULL where its group is present, whatever
its default; `latest_non_null` takes it as supplied by nobody, an aggregate as contributed to by nobody.

Three kinds of files, by what has to be done to their rows:

- events (logs): types are widened. A batch without a column is a batch without a column, at any time.
- registers (folds of logs): the same, and the state of groups is renewed. They show no defaults.
- slices (base and shadow): the same, and defaults are materialised again. Their revision says what they may lack.

FORMAT.md, "Files of older schemas".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from storage.core import names
from storage.core.arrays import Arrays
from storage.core.model import Group
from storage.core.modes import mode_of
from storage.core.schema.table_schema import TableSchema

_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether all values of ``old`` are values of the larger ``new``, in the same order and with the same hash."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(old.scale == new.scale and old.precision < new.precision)
    return bool(old == pa.float32() and new == pa.float64())


def reads_as_it_is(schema: TableSchema, rev: int, columns: Collection[str]) -> bool:
    """Whether any Parquet reader finds the right values of these user columns in a base file of revision ``rev``.

    It gives NULL where a file lacks a column: right for one that was added without a default, unless an aggregate
    shows something else for no values.
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
    """Rows of a log file of events, with the types that batches have now."""
    types = schema.event_types
    return _with_types(batch, [types.get(field.name, field.type) for field in batch.schema])


def adapt_registers(schema: TableSchema, stored: Sequence[str], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a log file of registers, with the types and the state that its groups have now.

    What a file lacks is NULL in its registers: it stays missing.

    Args:
        schema: The newest.
        stored: All columns of the file.
        batch: Those that were read: whatever the modes of their groups read.
    """
    batch = _with_types(batch, [_now(schema, field.name, field.type) for field in batch.schema])
    rows = dict(zip(batch.schema.names, batch.columns, strict=True))
    for group in schema.groups:
        added = [name for name in group.values if name not in stored]
        mode, columns = mode_of(group), schema.column_by_name
        needed = mode.renewal_reads(group, columns, added, rows)
        if needed:
            rows.update(mode.renewed(group, columns, added, {name: rows[name] for name in needed}))
    return pa.RecordBatch.from_arrays([rows[name] for name in batch.schema.names], batch.schema.names)


@dataclass(frozen=True, slots=True)
class Adaptation:
    """How the rows of one slice file of an older revision become rows of the newest schema.

    Attributes:
        schema: The newest.
        rev: Revision of the file.
        wanted: Slice columns that `apply` gives.
        stored: Arrays that the file has.
        reads: Those of them that `apply` must be given.
    """

    schema: TableSchema
    rev: int
    wanted: tuple[str, ...]
    stored: frozenset[str]
    reads: tuple[str, ...]

    @classmethod
    def of(cls, schema: TableSchema, rev: int, wanted: Sequence[str], stored: Iterable[str]) -> Adaptation | None:
        """None if the wanted columns can be read as they are.

        Raises:
            KeyError: The file lacks a column that its revision had.
        """
        if rev >= schema.changed:
            return None
        stored = frozenset(stored)
        reads = set(wanted)
        lacking = reads - stored
        for group in schema.groups:
            changed = _changed(schema, group, rev)
            if not changed:
                continue
            lacking.difference_update(field.name for field in schema.state_fields(group))
            lacking.difference_update(name for name in changed if schema.column_by_name[name].since > rev)
            if not reads.isdisjoint(changed):
                reads.add(names.arrival(group.id))
            reads.update(mode_of(group).renewal_reads(group, schema.column_by_name, changed, wanted))
        if lacking:
            raise KeyError(f"columns {', '.join(sorted(lacking))}")
        in_order = tuple(name for name in schema.slice.names if name in reads & stored)
        return cls(schema, rev, tuple(wanted), stored, in_order)

    def apply(self, rows: Arrays, count: int) -> dict[str, pa.Array]:
        """The columns of ``wanted``, from those of ``reads``, ``count`` rows."""
        known = {name: _widened(column, _now(self.schema, name, column.type)) for name, column in rows.items()}
        for group in self.schema.groups:
            changed = _changed(self.schema, group, self.rev)
            if changed:
                self._renew(group, changed, known, count)
                self._show_defaults(group, changed, known, count)
        return {name: self._column(known, name, count) for name in self.wanted}

    def _renew(self, group: Group, changed: Collection[str], known: dict[str, pa.Array], count: int) -> None:
        mode, columns = mode_of(group), self.schema.column_by_name
        needed = mode.renewal_reads(group, columns, changed, self.wanted)
        if needed and names.arrival(group.id) in self.stored:
            added = [name for name in group.values if name not in self.stored]
            rows = {name: self._column(known, name, count) for name in needed}
            known.update(mode.renewed(group, columns, added, rows))

    def _show_defaults(self, group: Group, changed: Collection[str], known: dict[str, pa.Array], count: int) -> None:
        for name in changed:
            column = self.schema.column_by_name[name]
            if name in self.wanted and (column.default is not None or name in self.stored):
                # Without an arrival the whole group came later: it is absent everywhere.
                present = self._column(known, names.arrival(group.id), count).is_valid()
                default = pa.scalar(column.default, column.type)
                known[name] = pc.if_else(present, self._column(known, name, count), default)

    def _column(self, known: Arrays, name: str, count: int) -> pa.Array:
        column = known.get(name)
        return pa.nulls(count, self.schema.slice.field(name).type) if column is None else column


def _changed(schema: TableSchema, group: Group, rev: int) -> tuple[str, ...]:
    """Arrays of a group that were added, widened or got another default after a revision."""
    return tuple(name for name in group.columns if schema.column_by_name[name].changed > rev)


def _now(schema: TableSchema, name: str, stored: pa.DataType) -> pa.DataType:
    """Type that a column of a slice has now; suppliers change their width by `MergeMode.renewed` alone."""
    if pa.types.is_fixed_size_binary(stored):
        return stored
    number = schema.slice.get_field_index(name)
    return stored if number < 0 else schema.slice.field(number).type


def _with_types(batch: pa.RecordBatch, types: Sequence[pa.DataType]) -> pa.RecordBatch:
    if all(field.type == target for field, target in zip(batch.schema, types, strict=True)):
        return batch
    columns = [_widened(column, target) for column, target in zip(batch.columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _widened(column: pa.Array, target: pa.DataType) -> pa.Array:
    return column if column.type == target else column.cast(target)
