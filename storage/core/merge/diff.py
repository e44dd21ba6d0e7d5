"""Changes: compares the rows of one file group in two snapshots (PROTOCOL.md, S21 IncrementalComplete).

Both sides are read with the schema of the later snapshot. A row is in the result if it is visible on one side only, or
if it is visible on both and a column group differs in presence or in a value. So events that lost, replayed commits,
compactions and schema changes are not in the result, and several changes of a row become one.

Values are compared as by SQL's ``IS NOT DISTINCT FROM``: NULL equals NULL, NaN equals NaN, 0.0 equals -0.0. Lists, maps
and structs are compared element by element, in stored order.
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

from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays, list_lengths, take_rows
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.merge.locate_keys import sort_keys
from weft.storage.core.model import Group
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput

CHANGE: Final = "_change"
CHANGED_GROUPS: Final = "_changed_groups"
BEFORE: Final = "_before"

_KINDS: Final = pa.array(["insert", "update", "delete"])
_INSERT, _UPDATE, _DELETE = 0, 1, 2

_Cells = npt.NDArray[np.bool_]
"""Boolean array of shape (rows, groups)."""


@dataclass(frozen=True)
class ChangeShape:
    """The changes to compute, and the columns of the result.

    Attributes:
        schema: The schema of the later snapshot.
        columns: User columns of the result, in order, including all key columns.
        before: Whether the result has the image of the row before the change.
        touched: Ids of the column groups that can differ in a row that is on both sides; None for all.
    """

    schema: TableSchema
    columns: tuple[str, ...]
    before: bool
    touched: frozenset[int] | None = None

    @classmethod
    def of(cls, schema: TableSchema, columns: Sequence[str] | None, *, before: bool) -> ChangeShape:
        """Build the shape for a list of columns. Key columns that are not in the list come first.

        Args:
            schema: The schema of the later snapshot.
            columns: User columns; None for all.
            before: Whether the result has the image of the row before the change.

        Raises:
            NotFound: A column does not exist.
            InvalidInput: The result would have two columns with one name, or an image without columns.
        """
        selected = tuple(schema.arrow.names) if columns is None else tuple(dict.fromkeys(columns))
        for name in selected:
            schema.column(name)
        shape = cls(schema, (*(name for name in schema.key if name not in selected), *selected), before)
        reserved = {CHANGE, CHANGED_GROUPS, *([BEFORE] if before else [])}
        clash = [name for name in shape.columns if name.lower() in reserved]
        if clash:
            raise InvalidInput(
                f"column {clash[0]!r} of the table has the same name as a column that changes add",
                hint="list the columns that you need without this one",
            )
        if before and not shape.values:
            raise InvalidInput(f"{BEFORE} would be empty: only key columns are listed", hint="list value columns, too")
        return shape

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The columns of the result that are not key columns."""
        return tuple(name for name in self.columns if name not in self.schema.key)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The column groups of ``columns``, whose changes count, in table order."""
        return tuple(group for group in self.schema.groups if any(name in group.columns for name in self.values))

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """The columns in which a row that is on both sides can differ."""
        group_of = self.schema.group_of_column
        return tuple(name for name in self.values if self.touched is None or group_of[name].id in self.touched)

    @cached_property
    def earlier(self) -> tuple[str, ...]:
        """The columns to read of the earlier rows: at least one of every group, so that its arrival is read."""
        if self.before:
            return self.columns
        column_of_group = {
            group.name: next(name for name in group.columns if name in self.columns) for group in self.groups
        }
        columns_read = {*self.schema.key, *self.compared, *column_of_group.values()}
        return tuple(name for name in self.columns if name in columns_read)

    @cached_property
    def arrow(self) -> pa.Schema:
        """Schema of the result."""
        fields = [self.schema.field(name).remove_metadata() for name in self.columns]
        fields.append(pa.field(CHANGE, pa.string(), nullable=False))
        element = pa.field("element", pa.string(), nullable=False)
        fields.append(pa.field(CHANGED_GROUPS, pa.list_(element), nullable=False))
        if self.before:
            fields.append(pa.field(BEFORE, self.image))
        return pa.schema(fields)

    @cached_property
    def image(self) -> pa.StructType:
        """Type of the column `BEFORE`."""
        return pa.struct([self.schema.field(name).remove_metadata() for name in self.values])

    def keys(self, rows: Arrays) -> KeyVector:
        """The record keys of rows."""
        return keys.key_vector(sort_keys(self.schema, rows))

    def present(self, rows: Arrays) -> _Cells:
        """Mask of the groups that are present in each row."""
        masks = [np.asarray(rows[names.arrival(group.id)].is_valid()) for group in self.groups]
        return np.stack(masks, axis=1) if masks else np.zeros((len(rows[self.schema.key[0]]), 0), np.bool_)


def diff(shape: ChangeShape, before: Arrays, after: Iterable[Arrays]) -> Iterator[pa.RecordBatch]:
    """Compute the changes between two sets of rows.

    Args:
        shape: The changes to compute, and the columns of the result.
        before: The earlier rows: `ChangeShape.earlier`, and the arrivals of all groups. Keys are distinct.
        after: The later rows, with all columns of the shape, in any number of batches. Keys are distinct.

    Yields:
        Batches with the schema `ChangeShape.arrow`, in no particular order; none is empty.
    """
    earlier = shape.keys(before)
    order = keys.stable_order(earlier)
    sorted_keys = keys.take(earlier, order)
    is_missing = np.ones(len(earlier), np.bool_)
    for rows in after:
        position, is_match = keys.find(sorted_keys, shape.keys(rows))
        partner = np.full(len(is_match), -1, np.int64)
        if is_match.any():
            partner[is_match] = order[position[is_match]]
            is_missing[partner[is_match]] = False
        batch = _upserts(shape, before, rows, partner)
        if len(batch):
            yield batch
    if is_missing.any():
        yield _deletes(shape, take_rows(before, np.flatnonzero(is_missing)))


def _upserts(shape: ChangeShape, before: Arrays, rows: Arrays, partner: Indices) -> pa.RecordBatch:
    """Inserts and updates among later rows; ``partner`` is the position of the earlier row with the same key, or -1."""
    paired = np.flatnonzero(partner >= 0)
    groups = shape.present(rows)
    if len(paired):
        columns_read = {*shape.schema.key, *shape.compared, *(names.arrival(group.id) for group in shape.groups)}
        old = {name: column for name, column in before.items() if name in columns_read}
        new = {name: column for name, column in rows.items() if name in columns_read}
        groups[paired] = _find_changed_groups(shape, take_rows(old, partner[paired]), take_rows(new, paired))
    row_numbers = np.flatnonzero((partner < 0) | groups.any(axis=1))
    partner, groups, rows = partner[row_numbers], groups[row_numbers], take_rows(rows, row_numbers)
    image = None
    if shape.before:
        missing = partner < 0
        position = pa.array(partner, mask=missing)
        image = _image(shape, {name: before[name].take(position) for name in shape.values}, missing)
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


def _find_changed_groups(shape: ChangeShape, old: Arrays, new: Arrays) -> _Cells:
    """Mask of the groups that differ in rows that are on both sides."""
    result = shape.present(old) ^ shape.present(new)
    number_of = {group.id: number for number, group in enumerate(shape.groups)}
    for name in shape.compared:
        result[:, number_of[shape.schema.group_of_column[name].id]] |= differing(old[name], new[name])
    return result


def _batch(
    shape: ChangeShape, columns: list[pa.Array], kind: Indices, groups: _Cells, image: pa.Array | None
) -> pa.RecordBatch:
    field = shape.arrow.field(CHANGED_GROUPS)
    offsets = np.concatenate([[0], np.cumsum(groups.sum(axis=1))]).astype(np.int32)
    group_names = pa.array([group.name for group in shape.groups], pa.string()).take(pa.array(np.nonzero(groups)[1]))
    lists = pa.ListArray.from_arrays(pa.array(offsets), group_names, type=field.type)
    arrays = [*columns, _KINDS.take(pa.array(kind)), lists, *([image] if image is not None else [])]
    return pa.RecordBatch.from_arrays(arrays, schema=shape.arrow)


def _image(shape: ChangeShape, rows: Arrays, missing: Mask) -> pa.Array:
    columns = [rows[name] for name in shape.values]
    return pa.StructArray.from_arrays(columns, fields=list(shape.image), mask=pa.array(missing))


def differing(old: pa.Array, new: pa.Array) -> Mask:
    """Mask of the rows in which two columns of one type differ; NULLs and NaNs are equal."""
    is_one_null = np.asarray(old.is_valid()) ^ np.asarray(new.is_valid())
    if pa.types.is_struct(old.type):
        # Fields of a NULL are NULL here.
        parts = [differing(left, right) for left, right in zip(old.flatten(), new.flatten(), strict=True)]
        return np.logical_or.reduce([is_one_null, *parts])
    if pa.types.is_map(old.type):
        entry = pa.struct([pa.field("key", old.type.key_type), pa.field("value", old.type.item_type)])
        return differing(old.cast(pa.list_(entry)), new.cast(pa.list_(entry)))
    if pa.types.is_list(old.type):
        return is_one_null | _lists_differ(old, new)
    unequal = pc.not_equal(old, new)
    if pa.types.is_floating(old.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(old), pc.is_nan(new)))
    return is_one_null | np.asarray(unequal.fill_null(False))


def _lists_differ(old: pa.Array, new: pa.Array) -> Mask:
    """Mask of the lists that differ in length or in an element; NULL counts as empty."""
    lengths = list_lengths(old)
    result = lengths != list_lengths(new)
    same_length = np.flatnonzero(~result & (lengths > 0))
    if len(same_length):
        positions = pa.array(same_length)
        elements = differing(old.take(positions).flatten(), new.take(positions).flatten())
        starts = np.concatenate([[0], np.cumsum(lengths[same_length])[:-1]])
        result[same_length] = np.logical_or.reduceat(elements, starts)
    return result
