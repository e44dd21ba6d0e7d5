"""Looks foreign keys up in one snapshot of a referenced table."""

from __future__ import annotations

import decimal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import keys
from storage.core.arrays import Arrays
from storage.core.keys import Indices, KeyVector
from storage.core.merge.locate_keys import key_columns, locate_keys, sort_keys
from storage.core.schema.table_schema import TableSchema
from storage.read.scan import Scan

ForeignKeys: TypeAlias = Sequence[pa.Array | pa.ChunkedArray]
"""A column for each column of the key of the referenced table."""

LOOK_UP_ROWS: Final = 1_000
"""For at most this many foreign keys the rows are looked up by key; for more all rows are read, once."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows of a referenced table, to be found by key.

    Attributes:
        schema: The schema of the referenced table.
        rows: The rows, with the key columns.
        ordered: Their keys, ascending.
        order: The row of each of these keys.
    """

    schema: TableSchema
    rows: pa.Table
    ordered: KeyVector
    order: Indices

    @classmethod
    def of(cls, schema: TableSchema, rows: pa.Table) -> KeyedRows:
        """Rows that have the key columns of the schema, each key at most once."""
        rows = rows.combine_chunks()
        order, ordered = keys.in_order(keys.key_vector(sort_keys(schema, key_columns(schema, rows))))
        return cls(schema, rows, ordered, order)

    def find(self, foreign_keys: ForeignKeys) -> pa.Array:
        """For each foreign key the number of its row (int64); NULL if there is no such row."""
        places, wanted = _as_keys(self.schema, foreign_keys)
        numbers = np.full(len(foreign_keys[0]), -1, np.int64)
        if len(places) and len(self.order):
            position, found = keys.find(self.ordered, keys.key_vector(sort_keys(self.schema, wanted)))
            numbers[places[found]] = self.order[position[found]]
        return pa.array(numbers, mask=numbers < 0)


class _Cache:
    """What `ReferenceRows` has read. It is not pickled: another process reads the rows itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: KeyedRows | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Cache, ()


@dataclass(frozen=True)
class ReferenceRows:
    """The rows of one snapshot of a referenced table. Thread-safe.

    Attributes:
        scan: Reads the key columns and the wanted columns of all rows.
    """

    scan: Scan
    _cache: _Cache = field(default_factory=_Cache, compare=False, repr=False)

    def all(self) -> KeyedRows:
        """All rows, read at the first call and then kept: memory for the key and the wanted columns of the table."""
        with self._cache.lock:
            if self._cache.rows is None:
                self._cache.rows = KeyedRows.of(self.scan.schema, self.scan.to_arrow())
            return self._cache.rows

    def of(self, foreign_keys: ForeignKeys) -> KeyedRows:
        """Rows that include those of some foreign keys: only these rows if the keys are few, else all rows."""
        if len(foreign_keys[0]) > LOOK_UP_ROWS or self._cache.rows is not None:
            return self.all()
        _, wanted = _as_keys(self.scan.schema, foreign_keys)
        chosen = locate_keys(self.scan.schema, wanted)
        found = [batch for task in self.scan.tasks for batch in self.scan.read(task, chosen)]
        return KeyedRows.of(self.scan.schema, pa.Table.from_batches(found, self.scan.arrow))


def _as_keys(schema: TableSchema, given: ForeignKeys) -> tuple[Indices, Arrays]:
    """Foreign keys as keys of the referenced table: the rows that can have a key, and their key columns."""
    types = [schema.column_by_name[name].type for name in schema.key]
    columns = [_fitting(keys.one_array(column), kind) for column, kind in zip(given, types, strict=True)]
    valid = np.logical_and.reduce([np.asarray(column.is_valid()) for column in columns])
    rows = np.flatnonzero(valid)
    taken = columns if len(rows) == len(valid) else [column.take(pa.array(rows)) for column in columns]
    return rows, dict(zip(schema.key, taken, strict=True))


def _fitting(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column with the type of a key; values that no key of this type has become NULL."""
    if column.type == kind:
        return column
    if pa.types.is_integer(kind) and column.type.bit_width > kind.bit_width:
        limit = 1 << (kind.bit_width - 1)
        fits = pc.and_(pc.greater_equal(column, -limit), pc.less(column, limit))
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
    elif pa.types.is_decimal(kind) and column.type.precision > kind.precision:
        limit = pa.scalar(decimal.Decimal(10 ** (kind.precision - kind.scale)), column.type)
        column = pc.if_else(pc.less(pc.abs(column), limit), column, pa.scalar(None, column.type))
    return column.cast(kind)
