"""Collapse: the log events of one file group become one register (merge state) per key and column group.

The input is ranges of log files in (arrival, position) order; the rows of a range are in the order of its file. All
operations work on whole columns. Memory is proportional to the requested columns of the logs of one file group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weft.storage.core import keys, names, ordering
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.merge.events import supplied_mask
from weft.storage.core.model import Group, Op
from weft.storage.core.modes import GroupEvents, Mergers, Registers, merging_mode, mode_of
from weft.storage.core.schema.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class LogRange:
    """Consecutive rows of log files that have the same column groups: events, or registers of one fold.

    The rows of one file and file group are sorted by key; a range of events may hold several such parts.

    Attributes:
        keys: One key per row; keys of events may repeat, keys of registers are distinct within a file group.
        groups: Ids of the column groups of the files.
        columns: Requested columns by name. Events have ``names.OP``, and ordering columns if versions matter;
            registers have the columns of a slice. The rows of a run of file groups have ``names.SLICE_ORDINAL``.
        arrival: Arrival of each event's commit, ascending; None for registers.
    """

    keys: KeyVector
    groups: Collection[int]
    columns: Arrays
    arrival: Indices | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def column(self, name: str, arrow_type: pa.DataType) -> pa.Array:
        """A column; all NULL if batches omitted it, or if the files are older."""
        column = self.columns.get(name)
        return pa.nulls(len(self), arrow_type) if column is None else column


def collapse_group(
    ranges: Sequence[LogRange], schema: TableSchema, group: Group, values: Sequence[str], mergers: Mergers
) -> Registers | None:
    """Collapse events to registers of one group, with these value columns and ordering columns; None without events.

    Requires ``names.OP`` and the group's ordering columns in every range that has the group.
    """
    touching = [log_range for log_range in ranges if group.id in log_range.groups and len(log_range)]
    if not touching:
        return None
    reads = (*group.ordering, *(name for name in group.values if name in values))
    types = {**{name: schema.event_types[name] for name in reads}, names.OP: pa.int8()}
    columns = {name: _concat([log_range.column(name, types[name]) for log_range in touching]) for name in types}
    supplied = _supplied_masks(touching, schema, reads)
    vector = keys.concat([log_range.keys for log_range in touching])
    arrival = pa.array(np.concatenate([log_range.arrival for log_range in touching if log_range.arrival is not None]))
    untouched = _find_untouched(group, columns)
    if untouched is not None:
        if untouched.all():
            return None
        keep = pa.array(~untouched)
        columns = {name: column.filter(keep) for name, column in columns.items()}
        supplied = {name: mask[~untouched] for name, mask in supplied.items()}
        vector, arrival = keys.take(vector, ~untouched), arrival.filter(keep)
    op = columns.pop(names.OP)
    events = GroupEvents(
        keys=vector,
        arrival=arrival,
        op=op,
        ordering={name: columns.pop(name) for name in group.ordering},
        values=columns,
        supplied=supplied,
    )
    return merging_mode(group, mergers).collapse(group, schema.column_by_name, events)


def _concat(parts: Sequence[pa.Array]) -> pa.Array:
    """The arrays one after the other; a single array is not copied."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _find_untouched(group: Group, columns: Mapping[str, pa.Array]) -> Mask | None:
    """Mask of events without effect on the group: without ordering values, or retractions that its mode ignores."""
    untouched = ordering.all_null([columns[name] for name in group.ordering]) if group.ordering else None
    if mode_of(group).retracts:
        return untouched
    retracts = np.asarray(columns[names.OP]) == Op.RETRACT
    if not retracts.any():
        return untouched
    return retracts if untouched is None else untouched | retracts


def _supplied_masks(ranges: Sequence[LogRange], schema: TableSchema, columns: Sequence[str]) -> dict[str, Mask]:
    """Masks of the NULLs that count as values, by column; empty if no range has such a NULL."""
    if not any(names.SUPPLIED in log_range.columns for log_range in ranges):
        return {}
    return {
        name: np.concatenate(
            [
                supplied_mask(log_range.columns.get(names.SUPPLIED), schema.column_by_name[name].id, len(log_range))
                for log_range in ranges
            ]
        )
        for name in columns
    }


@dataclass(frozen=True, slots=True)
class KeyDirectory:
    """The distinct keys of the logs: the sorted key vector, and the key columns in the same order.

    The columns of a run of file groups include ``names.SLICE_ORDINAL``.
    """

    keys: KeyVector
    columns: Mapping[str, pa.Array]

    @classmethod
    def of(cls, ranges: Sequence[LogRange], schema: TableSchema) -> KeyDirectory:
        """Collect the keys of ranges; all ranges have the key columns, and the sort key if the schema has one."""
        hidden = [name for name in (names.KEY, names.SLICE_ORDINAL) if name in ranges[0].columns]
        order, sorted_keys = keys.in_order(keys.concat([log_range.keys for log_range in ranges]))
        starts = keys.run_starts(sorted_keys)
        firsts = pa.array(order[starts])
        columns = {
            name: _concat([log_range.columns[name] for log_range in ranges]).take(firsts)
            for name in (*schema.key, *hidden)
        }
        return cls(keys.take(sorted_keys, starts), columns)
