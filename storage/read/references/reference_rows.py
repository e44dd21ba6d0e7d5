"""Looks foreign keys up in one snapshot of a referenced table."""

from __future__ import annotations

import contextlib
import decimal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys
from weft.storage.core.arrays import Arrays, scatter
from weft.storage.core.keys import Indices, KeyVector
from weft.storage.core.merge.locate_keys import key_columns, locate_keys, sort_keys
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import SnapshotExpired
from weft.storage.read.references.kept_rows import MAX_BYTES, KeptRows
from weft.storage.read.scan.scan import Scan

ForeignKeys: TypeAlias = Sequence[pa.Array | pa.ChunkedArray]
"""One column for each key column of the referenced table."""

DENSE: Final = 4
"""Keys are treated as nearly consecutive if their range has at most this many numbers per key."""

LOOK_UP_ROWS: Final = 1_000
"""Up to this many foreign keys are looked up by key; for more, all rows are read once."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows of a referenced table, indexed by key.

    Attributes:
        schema: The schema of the referenced table.
        rows: The rows, with the key columns.
        ordered: Their keys, ascending.
        order: The row of each of these keys.
        dense: For nearly consecutive numbers: the row of each number from the first key on, or -1; None for other keys.
        newer: Rows that replace those of the same keys; None without such rows. Their numbers begin at ``len(rows)``.
    """

    schema: TableSchema
    rows: pa.Table
    ordered: KeyVector
    order: Indices
    dense: Indices | None = None
    newer: Newer | None = None

    @classmethod
    def of(cls, schema: TableSchema, rows: pa.Table) -> KeyedRows:
        """Index rows that have the key columns of the schema, and distinct keys."""
        rows = rows.combine_chunks()
        order, ordered = keys.in_order(keys.key_vector(sort_keys(schema, key_columns(schema, rows))))
        return cls(schema, rows, ordered, order, _dense(ordered, order))

    @property
    def nbytes(self) -> int:
        """Approximate size in memory: the rows, and three numbers for each of them."""
        return int(self.rows.nbytes) + 3 * self.order.nbytes

    def with_newer(self, newer: Newer) -> KeyedRows:
        """The rows of a later snapshot of the same table, without a copy of the rows that have not changed."""
        return replace(self, newer=newer)

    def find(self, foreign_keys: ForeignKeys) -> pa.Array:
        """For each foreign key the number of its row (int64); NULL if the row does not exist."""
        positions, columns = as_keys(self.schema, foreign_keys)
        numbers = np.full(len(foreign_keys[0]), -1, np.int64)
        if not len(positions):
            return pa.array(numbers, mask=numbers < 0)
        vector = keys.key_vector(sort_keys(self.schema, columns))
        if self.dense is not None and isinstance(vector, np.ndarray):
            offset = vector - self.ordered[0]
            inside = (vector >= self.ordered[0]) & (vector <= self.ordered[-1])
            numbers[positions[inside]] = self.dense[offset[inside]]
        elif len(self.order):
            position, is_match = keys.find(self.ordered, vector)
            numbers[positions[is_match]] = self.order[position[is_match]]
        if self.newer is not None:
            position, is_match = keys.find(self.newer.ordered, vector)
            number = self.newer.order[position[is_match]]
            numbers[positions[is_match]] = np.where(number < 0, -1, number + len(self.rows))
        return pa.array(numbers, mask=numbers < 0)

    def values(self, name: str, numbers: pa.Array) -> pa.Array:
        """The values of a column in the rows with these numbers, as `find` returns them; NULL for NULL."""
        if self.newer is None:
            return keys.one_array(self.rows.column(name).take(numbers))
        first = len(self.rows)
        number = np.asarray(pc.fill_null(numbers, -1))
        positions = np.flatnonzero(number >= first)
        old_numbers = pa.array(number, mask=(number < 0) | (number >= first))
        values = keys.one_array(self.rows.column(name).take(old_numbers))
        newer = keys.one_array(self.newer.rows.column(name).take(pa.array(number[positions] - first)))
        return scatter(values, positions, newer)


@dataclass(frozen=True, slots=True)
class Newer:
    """Rows of a later snapshot of a referenced table, for the keys that may have changed since an earlier one.

    Attributes:
        rows: The rows, with the key columns.
        ordered: The keys that may have changed, ascending, including those whose row is gone.
        order: The row of each of these keys, or -1.
    """

    rows: pa.Table
    ordered: KeyVector
    order: Indices

    @classmethod
    def of(cls, schema: TableSchema, changed: Arrays, rows: pa.Table) -> Newer:
        """Index the rows of some keys.

        Args:
            schema: The schema of the table.
            changed: The key columns of these keys, without duplicates.
            rows: Their rows in the later snapshot, with the key columns.
        """
        order, ordered = keys.in_order(keys.key_vector(sort_keys(schema, changed)))
        keyed = KeyedRows.of(schema, rows)
        number = pc.fill_null(keyed.find([changed[name] for name in schema.key]), -1)
        return cls(keyed.rows, ordered, np.asarray(number)[order])

    def followed_by(self, later: Newer) -> Newer:
        """All changes until the snapshot of ``later``, which has the changes since the snapshot of this."""
        _, has_changed_again = keys.find(later.ordered, self.ordered)
        moved = np.where(later.order < 0, -1, later.order + len(self.rows))
        number = np.concatenate([self.order[~has_changed_again], moved])
        order, ordered = keys.in_order(keys.concat([keys.take(self.ordered, ~has_changed_again), later.ordered]))
        return Newer(pa.concat_tables([self.rows, later.rows]).combine_chunks(), ordered, number[order])


def _dense(ordered: KeyVector, order: Indices) -> Indices | None:
    """Build `KeyedRows.dense`; None if the keys are not numbers, or too far apart."""
    if not isinstance(ordered, np.ndarray) or not len(ordered) or ordered.dtype.kind != "i":
        return None
    first, span = int(ordered[0]), int(ordered[-1]) - int(ordered[0]) + 1
    if span > DENSE * len(ordered):
        return None
    dense = np.full(span, -1, np.int64)
    dense[ordered - first] = order
    return dense


KEPT_ROWS: Final[KeptRows[KeyedRows]] = KeptRows(MAX_BYTES)
"""Rows that this process keeps, by `ReferenceRows.cache_key`."""


class RowCache:
    """Rows that an object has read. They are not pickled: another process reads them itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: KeyedRows | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RowCache, ()


@dataclass(frozen=True)
class Since:
    """The rows of a snapshot as changes of an earlier one (`weft.storage.read.references.bound_rows`).

    Attributes:
        scan: Scan of all rows of the earlier snapshot.
        cache_key: Identity of these rows.
        newer: Rows that may have changed since.
    """

    scan: Scan
    cache_key: str
    newer: Newer


@dataclass(frozen=True)
class ReferenceRows:
    """The rows of one snapshot of a referenced table. Thread-safe.

    Attributes:
        scan: Scan of the key columns and the requested columns of all rows.
        cache_key: Identity of the rows, by which the process caches them for later reads; "" to cache nothing.
        since: The rows as changes of an earlier snapshot, whose rows the process may have cached; None to read all.
    """

    scan: Scan
    cache_key: str = ""
    since: Since | None = None
    _cache: RowCache = field(default_factory=RowCache, compare=False, repr=False)

    def all(self) -> KeyedRows:
        """All rows, read by the first call and then kept. Needs memory for the key and the requested columns."""
        with self._cache.lock:
            if self._cache.rows is None:
                self._cache.rows = self._read()
            return self._cache.rows

    def _read(self) -> KeyedRows:
        if self.since is not None:
            with contextlib.suppress(SnapshotExpired):  # in that case the rows of this snapshot are read
                return _read_all(self.since.cache_key, self.since.scan).with_newer(self.since.newer)
        return _read_all(self.cache_key, self.scan)

    def of(self, foreign_keys: ForeignKeys) -> KeyedRows:
        """Rows that include those of some foreign keys: only these rows for few keys, otherwise all rows."""
        cache_key = self.cache_key if self.since is None else self.since.cache_key
        is_cached = self._cache.rows is not None or (cache_key and KEPT_ROWS.find(cache_key) is not None)
        if len(foreign_keys[0]) > LOOK_UP_ROWS or is_cached:
            return self.all()
        _, columns = as_keys(self.scan.schema, foreign_keys)
        levels = {part.group.bits for task in self.scan.tasks for part in task.slices}
        located = locate_keys(self.scan.schema, columns, levels)
        batches = [batch for task in self.scan.tasks for batch in self.scan.read(task, located)]
        return KeyedRows.of(self.scan.schema, pa.Table.from_batches(batches, self.scan.arrow))


def _read_all(cache_key: str, scan: Scan) -> KeyedRows:
    """All rows of a scan; the process caches them if they have a key."""

    def read() -> KeyedRows:
        return KeyedRows.of(scan.schema, scan.to_arrow())

    return KEPT_ROWS.get(cache_key, read) if cache_key else read()


def as_keys(schema: TableSchema, foreign_keys: ForeignKeys) -> tuple[Indices, Arrays]:
    """Convert foreign keys to keys of the referenced table: the rows that can have a key, and their key columns."""
    types = [schema.column_by_name[name].type for name in schema.key]
    columns = [_cast_to_key(keys.one_array(column), kind) for column, kind in zip(foreign_keys, types, strict=True)]
    valid = np.logical_and.reduce([np.asarray(column.is_valid()) for column in columns])
    rows = np.flatnonzero(valid)
    key_columns = columns if len(rows) == len(valid) else [column.take(pa.array(rows)) for column in columns]
    return rows, dict(zip(schema.key, key_columns, strict=True))


def _cast_to_key(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to the type of a key; values outside the range of the type become NULL."""
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
