"""Registers (merge state) in files: the rows of a fold, and merging registers with registers.

A fold holds events that were merged with each other, but not with the slice below them: one row per key, with at most
one register per column group. The columns are those of a slice. Values are those of the register; they are NULL where
the group is absent or has no register, and defaults are not filled in. A group has a register in a row exactly if one
of its hidden columns is not NULL: an event that leaves all of them NULL (a retraction of nothing, a merger that keeps
nothing) has no effect in any mode. Registers merge associatively and commutatively (PROTOCOL.md, S13), so any set of
events can be in a fold, as long as each event is in one fold only (PROTOCOL.md, S11 ExactlyOnceFold).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from weft.storage.core import keys, names
from weft.storage.core.arrays import scatter, take_rows
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.merge.collapse import LogRange
from weft.storage.core.merge.stitch import LogState
from weft.storage.core.model import Group
from weft.storage.core.modes import MergeMode, Mergers, Registers, merging_mode
from weft.storage.core.modes.versions import pick
from weft.storage.core.schema.table_schema import TableSchema


def group_registers(
    ranges: Sequence[LogRange], schema: TableSchema, group: Group, column_names: Collection[str]
) -> Registers | None:
    """The registers of one column group in consecutive ranges of one file; None if the ranges contain no register.

    Args:
        ranges: At least one, in the order of the file.
        schema: The schema of the snapshot.
        group: The column group.
        column_names: Names of slice columns; the result has the columns of the group among them.
    """
    if group.id not in ranges[0].groups:
        return None
    state = [field.name for field in schema.state_fields(group)]
    columns = {
        name: pa.concat_arrays([log_range.column(name, schema.slice.field(name).type) for log_range in ranges])
        for name in (*group.columns, *state)
        if name in column_names
    }
    exists = np.flatnonzero(_some_valid([columns[name] for name in state if name in columns]))
    if len(exists) == 0:
        return None
    vector = keys.take(keys.concat([log_range.keys for log_range in ranges]), exists)
    order, sorted_keys = keys.in_order(vector)
    return Registers(sorted_keys, take_rows(columns, exists[order]))


def _some_valid(columns: Sequence[pa.Array]) -> Mask:
    return np.logical_or.reduce([np.asarray(column.is_valid()) for column in columns])


def merge_registers(schema: TableSchema, group: Group, parts: Sequence[Registers], mergers: Mergers) -> Registers:
    """Merge registers of one column group into one register per key.

    Args:
        schema: The schema of the snapshot.
        group: The column group.
        parts: At least one list, older ones first; the result has the columns of the first.
        mergers: Custom mergers of the groups.
    """
    mode = merging_mode(group, mergers)
    return reduce(lambda old, new: _merge_two(schema, group, mode, old, new), parts)


def _merge_two(schema: TableSchema, group: Group, mode: MergeMode, old: Registers, new: Registers) -> Registers:
    columns = schema.column_by_name
    vector = keys.union([old.keys, new.keys])
    positions = _positions(vector, old.keys)
    frame = {name: pick(column, positions) for name, column in old.columns.items()}
    rows = keys.lower_bound(vector, new.keys)
    added = {name: new.columns[name] for name in old.columns}
    before = take_rows({name: frame[name] for name in mode.reads(group, columns, added)}, rows)
    changed, merged = mode.merge(group, columns, new.keys, before, added)
    return Registers(vector, {name: scatter(column, rows[changed], merged[name]) for name, column in frame.items()})


def _positions(vector: KeyVector, subset: KeyVector) -> Indices:
    """Position in ``subset`` of every key of ``vector``, or -1 for keys that are not in it."""
    positions = np.full(len(vector), -1, np.int64)
    positions[keys.lower_bound(vector, subset)] = np.arange(len(subset))
    return positions


@dataclass(frozen=True, slots=True)
class RegisterRows:
    """Rows of one file group for a register-form file, in key order.

    Attributes:
        columns: As in a slice: key columns, and columns of the requested groups.
        deletes: Mask of the rows with a register that is a delete, has a delete floor, or is absent for another
            reason. A reader must decide whether such a row is visible.
    """

    columns: Mapping[str, pa.Array]
    deletes: Mask

    def __len__(self) -> int:
        return len(self.deletes)


def register_rows(schema: TableSchema, groups: Sequence[Group], state: LogState) -> RegisterRows:
    """The registers of one file group as rows; keys without any register are left out.

    Args:
        schema: The schema of the snapshot.
        groups: The column groups of the rows.
        state: Collapsed logs, with all columns of these groups.
    """
    count = len(state.directory.keys)
    columns = dict(state.directory.columns)
    has_register = np.zeros(count, np.bool_)
    deletes = np.zeros(count, np.bool_)
    for group in groups:
        hidden = [field.name for field in schema.state_fields(group)]
        registers = state.registers.get(group.id)
        if registers is None:
            fields = (schema.slice.field(name) for name in (*group.columns, *hidden))
            columns |= {field.name: pa.nulls(count, field.type) for field in fields}
            continue
        positions = _positions(state.directory.keys, registers.keys)
        group_columns = {name: pick(registers.columns[name], positions) for name in (*group.columns, *hidden)}
        exists = _some_valid([group_columns[name] for name in hidden])
        has_register |= exists
        deletes |= exists & np.asarray(group_columns[names.arrival(group.id)].is_null())
        floor = group_columns.get(names.floor_arrival(group.id))
        if floor is not None:
            deletes |= np.asarray(floor.is_valid())
        columns |= group_columns
    if has_register.all():
        return RegisterRows(columns, deletes)
    return RegisterRows(take_rows(columns, has_register), deletes[has_register])
