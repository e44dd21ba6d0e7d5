"""Changes: what became of the rows of one file group between two snapshots.

Rules of this room: both sides are read under one schema, that of the later snapshot; a row is in the answer if it is
visible on one side only, or on both and some group differs in presence or in a value. So an event that lost, a commit
that was sent twice, a compaction and a change of the schema are no changes, and of many changes of a row one is left.

Values are equal as in SQL's ``IS NOT DISTINCT FROM``: NULL equals NULL, NaN equals NaN, 0.0 equals -0.0; lists, maps
and structs element by element in the order stored. S21 IncrementalComplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import keys, names
from storage.core.arrays import Arrays, list_lengths, take_rows
from storage.core.keys import Indices, KeyVector, Mask
from storage.core.merge.locate_keys import sort_keys
from storage.core.model import Group
from storage.core.schema.table_schema import TableSchema
from storage.errors import InvalidInput

CHANGE: Final = "_change"
CHANGED_GROUPS: Final = "_changed_groups"
BEFORE: Final = "_before"

_KINDS: Final = pa.array(["insert", "update", "delete"])
_INSERT, _UPDATE, _DELETE = 0, 1, 2

_Cells = npt.NDArray[np.bool_]
"""One row per row, one column per group."""


@dataclass(frozen=True)
class ChangeShape:
    """What is asked of the changes, and what the answer looks like.

    Attributes:
        schema: The later snapshot's.
        columns: User columns of the answer, in its order; all key columns among them.
        before: With the image of before.
        touched: Ids of the groups that can differ in a row that is on both sides; None for all.
    """

    schema: TableSchema
    columns: tuple[str, ...]
    before: bool
    touched: frozenset[int] | None = None

    @classmethod
    def of(cls, schema: TableSchema, columns: Sequence[str] | None, *, before: bool) -> ChangeShape:
        """Check what is asked for. Key columns that are not named come first: a delete has nothing else.

        Raises:
            NotFound: The table has no such column.
            InvalidInput: The answer would have two columns of one name, or an image of no columns.
        """
        wanted = tuple(schema.arrow.names) if columns is None else tuple(dict.fromkeys(columns))
        for name in wanted:
            schema.column(name)
        shape = cls(schema, (*(name for name in schema.key if name not in wanted), *wanted), before)
        own = {CHANGE, CHANGED_GROUPS, *([BEFORE] if before else [])}
        clash = [name for name in shape.columns if name.lower() in own]
        if clash:
            raise InvalidInput(
                f"column {clash[0]!r} of the table is called like one that changes have",
                hint="name the columns that you need, without this one",
            )
        if before and not shape.values:
            raise InvalidInput("there is no image of before of key columns alone", hint="name further columns")
        return shape

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The columns that are not of the key."""
        return tuple(name for name in self.columns if name not in self.schema.key)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups whose changes count, in table order: those of the columns."""
        return tuple(group for group in self.schema.groups if any(name in group.columns for name in self.values))

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """The columns in which rows that are on both sides can differ."""
        owned = self.schema.group_of_column
        return tuple(name for name in self.values if self.touched is None or owned[name].id in self.touched)

    @cached_property
    def earlier(self) -> tuple[str, ...]:
        """The columns that are needed of the earlier rows: one of every group at least, for its arrival."""
        if self.before:
            return self.columns
        any_of = {group.name: next(name for name in group.columns if name in self.columns) for group in self.groups}
        wanted = {*self.schema.key, *self.compared, *any_of.values()}
        return tuple(name for name in self.columns if name in wanted)

    @cached_property
    def arrow(self) -> pa.Schema:
        """Schema of the answer."""
        fields = [self.schema.field(name).remove_metadata() for name in self.columns]
        fields.append(pa.field(CHANGE, pa.string(), nullable=False))
        element = pa.field("element", pa.string(), nullable=False)
        fields.append(pa.field(CHANGED_GROUPS, pa.list_(element), nullable=False))
        if self.before:
            fields.append(pa.field(BEFORE, self.image))
        return pa.schema(fields)

    @cached_property
    def image(self) -> pa.StructType:
        """Type of the image of before."""
        return pa.struct([self.schema.field(name).remove_metadata() for name in self.values])

    def keys(self, rows: Arrays) -> KeyVector:
        """The record keys of rows."""
        return keys.key_vector(sort_keys(self.schema, rows))

    def present(self, rows: Arrays) -> _Cells:
        """Which groups the rows have."""
        there = [np.asarray(rows[names.arrival(group.id)].is_valid()) for group in self.groups]
        return np.stack(there, axis=1) if there else np.zeros((len(rows[self.schema.key[0]]), 0), np.bool_)


def diff(shape: ChangeShape, before: Arrays, after: Iterable[Arrays]) -> Iterator[pa.RecordBatch]:
    """The changes of rows, with the schema of ``shape``; no batch is empty.

    Args:
        shape: What is asked for.
        before: The earlier rows: `ChangeShape.earlier`, and the arrivals of all groups. Every key at most once.
        after: The later rows, with all columns of the shape, in any number of parts.
    """
    own = shape.keys(before)
    order = keys.stable_order(own)
    ordered = keys.take(own, order)
    gone = np.ones(len(own), np.bool_)
    for rows in after:
        position, found = keys.find(ordered, shape.keys(rows))
        partner = np.full(len(found), -1, np.int64)
        if found.any():
            partner[found] = order[position[found]]
            gone[partner[found]] = False
        batch = _upserts(shape, before, rows, partner)
        if len(batch):
            yield batch
    if gone.any():
        yield _deletes(shape, take_rows(before, np.flatnonzero(gone)))


def _upserts(shape: ChangeShape, before: Arrays, rows: Arrays, partner: Indices) -> pa.RecordBatch:
    """Inserts and updates among later rows; ``partner`` is a row's place among the earlier ones, or -1."""
    paired = np.flatnonzero(partner >= 0)
    groups = shape.present(rows)
    if len(paired):
        looked_at = {*shape.schema.key, *shape.compared, *(names.arrival(group.id) for group in shape.groups)}
        old = {name: column for name, column in before.items() if name in looked_at}
        new = {name: column for name, column in rows.items() if name in looked_at}
        groups[paired] = _changed(shape, take_rows(old, partner[paired]), take_rows(new, paired))
    kept = np.flatnonzero((partner < 0) | groups.any(axis=1))
    partner, groups, rows = partner[kept], groups[kept], take_rows(rows, kept)
    image = None
    if shape.before:
        none = partner < 0
        there = pa.array(partner, mask=none)
        image = _image(shape, {name: before[name].take(there) for name in shape.values}, none)
    kind = np.where(partner < 0, _INSERT, _UPDATE)
    return _batch(shape, [rows[name] for name in shape.columns], kind, groups, image)


def _deletes(shape: ChangeShape, rows: Arrays) -> pa.RecordBatch:
    count = len(rows[shape.schema.key[0]])
    columns = [
        rows[name] if name in shape.schema.key else pa.nulls(count, shape.schema.field(name).type)
        for name in shape.columns
    ]
    image = _image(shape, rows, np.zeros(count, np.bool_)) if shape.before else None
    return _batch(shape, columns, np.full(count, _DELETE), shape.present(rows), image)


def _changed(shape: ChangeShape, old: Arrays, new: Arrays) -> _Cells:
    """Which groups of rows that are on both sides differ."""
    result = shape.present(old) ^ shape.present(new)
    place = {group.id: number for number, group in enumerate(shape.groups)}
    for name in shape.compared:
        result[:, place[shape.schema.group_of_column[name].id]] |= differing(old[name], new[name])
    return result


def _batch(
    shape: ChangeShape, columns: list[pa.Array], kind: Indices, groups: _Cells, image: pa.Array | None
) -> pa.RecordBatch:
    field = shape.arrow.field(CHANGED_GROUPS)
    offsets = np.concatenate([[0], np.cumsum(groups.sum(axis=1))]).astype(np.int32)
    named = pa.array([group.name for group in shape.groups], pa.string()).take(pa.array(np.nonzero(groups)[1]))
    lists = pa.ListArray.from_arrays(pa.array(offsets), named, type=field.type)
    arrays = [*columns, _KINDS.take(pa.array(kind)), lists, *([image] if image is not None else [])]
    return pa.RecordBatch.from_arrays(arrays, schema=shape.arrow)


def _image(shape: ChangeShape, rows: Arrays, none: Mask) -> pa.Array:
    columns = [rows[name] for name in shape.values]
    return pa.StructArray.from_arrays(columns, fields=list(shape.image), mask=pa.array(none))


def differing(old: pa.Array, new: pa.Array) -> Mask:
    """Row by row whether two columns of one type differ; see the module for what is equal."""
    one_null = np.asarray(old.is_valid()) ^ np.asarray(new.is_valid())
    if pa.types.is_struct(old.type):
        # Fields of a NULL are NULL here.
        parts = [differing(mine, other) for mine, other in zip(old.flatten(), new.flatten(), strict=True)]
        return np.logical_or.reduce([one_null, *parts])
    if pa.types.is_map(old.type):
        entry = pa.struct([pa.field("key", old.type.key_type), pa.field("value", old.type.item_type)])
        return differing(old.cast(pa.list_(entry)), new.cast(pa.list_(entry)))
    if pa.types.is_list(old.type):
        return one_null | _lists_differ(old, new)
    unequal = pc.not_equal(old, new)
    if pa.types.is_floating(old.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(old), pc.is_nan(new)))
    return one_null | np.asarray(unequal.fill_null(False))


def _lists_differ(old: pa.Array, new: pa.Array) -> Mask:
    """Whether lists have other lengths or elements; NULL is like empty here."""
    lengths = list_lengths(old)
    result = lengths != list_lengths(new)
    alike = np.flatnonzero(~result & (lengths > 0))
    if len(alike):
        places = pa.array(alike)
        elements = differing(old.take(places).flatten(), new.take(places).flatten())
        starts = np.concatenate([[0], np.cumsum(lengths[alike])[:-1]])
        result[alike] = np.logical_or.reduceat(elements, starts)
    return result
