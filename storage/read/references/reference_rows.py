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
"""A column for each column of the key of the referenced table."""

DENSE: Final = 4
"""Keys count as nearly consecutive if there are at most this many numbers for each of them."""

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
        dense: For keys that are nearly consecutive numbers: the row of each number from the first key on, or -1.
        newer: Rows that replace those of the same keys; None if there are none. Their numbers begin at ``len(rows)``.
    """

    schema: TableSchema
    rows: pa.Table
    ordered: KeyVector
    order: Indices
    dense: Indices | None = None
    newer: Newer | None = None

    @classmethod
    def of(cls, schema: TableSchema, rows: pa.Table) -> KeyedRows:
        """Rows that have the key columns of the schema, each key at most once."""
        rows = rows.combine_chunks()
        order, ordered = keys.in_order(keys.key_vector(sort_keys(schema, key_columns(schema, rows))))
        return cls(schema, rows, ordered, order, _dense(ordered, order))

    @property
    def nbytes(self) -> int:
        """Size in memory, about: the rows, and three numbers for each of them."""
        return int(self.rows.nbytes) + 3 * self.order.nbytes

    def with_newer(self, newer: Newer) -> KeyedRows:
        """The rows of a later snapshot of the same table, without a copy of the rows that have not changed."""
        return replace(self, newer=newer)

    def find(self, foreign_keys: ForeignKeys) -> pa.Array:
        """For each foreign key the number of its row (int64); NULL if there is no such row."""
        places, wanted = as_keys(self.schema, foreign_keys)
        numbers = np.full(len(foreign_keys[0]), -1, np.int64)
        if not len(places):
            return pa.array(numbers, mask=numbers < 0)
        vector = keys.key_vector(sort_keys(self.schema, wanted))
        if self.dense is not None and isinstance(vector, np.ndarray):
            offset = vector - self.ordered[0]
            inside = (vector >= self.ordered[0]) & (vector <= self.ordered[-1])
            numbers[places[inside]] = self.dense[offset[inside]]
        elif len(self.order):
            position, found = keys.find(self.ordered, vector)
            numbers[places[found]] = self.order[position[found]]
        if self.newer is not None:
            position, found = keys.find(self.newer.ordered, vector)
            number = self.newer.order[position[found]]
            numbers[places[found]] = np.where(number < 0, -1, number + len(self.rows))
        return pa.array(numbers, mask=numbers < 0)

    def values(self, name: str, numbers: pa.Array) -> pa.Array:
        """The values of a column in the rows with these numbers, as `find` returns them; NULL for NULL."""
        if self.newer is None:
            return keys.one_array(self.rows.column(name).take(numbers))
        first = len(self.rows)
        number = np.asarray(pc.fill_null(numbers, -1))
        places = np.flatnonzero(number >= first)
        of_rows = pa.array(number, mask=(number < 0) | (number >= first))
        found = keys.one_array(self.rows.column(name).take(of_rows))
        newer = keys.one_array(self.newer.rows.column(name).take(pa.array(number[places] - first)))
        return scatter(found, places, newer)


@dataclass(frozen=True, slots=True)
class Newer:
    """Rows of a later snapshot of a referenced table, for the keys that may have changed since an earlier one.

    Attributes:
        rows: The rows, with the key columns.
        ordered: The keys that may have changed, ascending, also those that have no row any more.
        order: The row of each of these keys, or -1.
    """

    rows: pa.Table
    ordered: KeyVector
    order: Indices

    @classmethod
    def of(cls, schema: TableSchema, changed: Arrays, rows: pa.Table) -> Newer:
        """The rows of some keys.

        Args:
            schema: The schema of the table.
            changed: The key columns of these keys, each key once.
            rows: Their rows in the later snapshot, with the key columns.
        """
        order, ordered = keys.in_order(keys.key_vector(sort_keys(schema, changed)))
        keyed = KeyedRows.of(schema, rows)
        number = pc.fill_null(keyed.find([changed[name] for name in schema.key]), -1)
        return cls(keyed.rows, ordered, np.asarray(number)[order])

    def followed_by(self, later: Newer) -> Newer:
        """What has changed until the snapshot of ``later``, which has what has changed since the snapshot of this."""
        _, again = keys.find(later.ordered, self.ordered)
        moved = np.where(later.order < 0, -1, later.order + len(self.rows))
        number = np.concatenate([self.order[~again], moved])
        order, ordered = keys.in_order(keys.concat([keys.take(self.ordered, ~again), later.ordered]))
        return Newer(pa.concat_tables([self.rows, later.rows]).combine_chunks(), ordered, number[order])


def _dense(ordered: KeyVector, order: Indices) -> Indices | None:
    """See `KeyedRows.dense`; None if the keys are no numbers, or too far apart."""
    if not isinstance(ordered, np.ndarray) or not len(ordered) or ordered.dtype.kind != "i":
        return None
    first, span = int(ordered[0]), int(ordered[-1]) - int(ordered[0]) + 1
    if span > DENSE * len(ordered):
        return None
    dense = np.full(span, -1, np.int64)
    dense[ordered - first] = order
    return dense


KEPT: Final[KeptRows[KeyedRows]] = KeptRows(MAX_BYTES)
"""What this process keeps for `ReferenceRows.kept`."""


class RowCache:
    """Rows that were read once. It is not pickled: another process reads them itself."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: KeyedRows | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RowCache, ()


@dataclass(frozen=True)
class Since:
    """How the rows of a snapshot follow from those of an earlier one (`weft.storage.read.references.bound_rows`).

    Attributes:
        scan: Reads all rows of the earlier snapshot.
        kept: Identity of these rows.
        newer: What may have changed since.
    """

    scan: Scan
    kept: str
    newer: Newer


@dataclass(frozen=True)
class ReferenceRows:
    """The rows of one snapshot of a referenced table. Thread-safe.

    Attributes:
        scan: Reads the key columns and the wanted columns of all rows.
        kept: Identity of the rows by which the process keeps them for later reads; empty: it does not keep them.
        since: How to make all rows from those of an earlier snapshot, which the process may have; None: read them.
    """

    scan: Scan
    kept: str = ""
    since: Since | None = None
    _cache: RowCache = field(default_factory=RowCache, compare=False, repr=False)

    def all(self) -> KeyedRows:
        """All rows, read at the first call and then kept: memory for the key and the wanted columns of the table."""
        with self._cache.lock:
            if self._cache.rows is None:
                self._cache.rows = self._made()
            return self._cache.rows

    def _made(self) -> KeyedRows:
        if self.since is not None:
            with contextlib.suppress(SnapshotExpired):  # then the rows of this snapshot are read
                return _kept(self.since.kept, self.since.scan).with_newer(self.since.newer)
        return _kept(self.kept, self.scan)

    def of(self, foreign_keys: ForeignKeys) -> KeyedRows:
        """Rows that include those of some foreign keys: only these rows if the keys are few, else all rows."""
        kept = self.kept if self.since is None else self.since.kept
        known = self._cache.rows is not None or (kept and KEPT.find(kept) is not None)
        if len(foreign_keys[0]) > LOOK_UP_ROWS or known:
            return self.all()
        _, wanted = as_keys(self.scan.schema, foreign_keys)
        levels = {part.group.bits for task in self.scan.tasks for part in task.slices}
        chosen = locate_keys(self.scan.schema, wanted, levels)
        found = [batch for task in self.scan.tasks for batch in self.scan.read(task, chosen)]
        return KeyedRows.of(self.scan.schema, pa.Table.from_batches(found, self.scan.arrow))


def _kept(identity: str, scan: Scan) -> KeyedRows:
    """All rows of a scan; the process keeps them if they have an identity."""

    def read() -> KeyedRows:
        return KeyedRows.of(scan.schema, scan.to_arrow())

    return KEPT.get(identity, read) if identity else read()


def as_keys(schema: TableSchema, given: ForeignKeys) -> tuple[Indices, Arrays]:
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
