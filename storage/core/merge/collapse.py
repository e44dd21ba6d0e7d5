"""Collapse: the log events of one file group to one register per key and group.

Input are ranges of log files in (arrival, position) order; a range's rows are in the order of its file. Everything is a
column operation; memory is that of the logs of one file group, wanted columns only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from storage.core import keys, names, ordering
from storage.core.keys import Indices, KeyVector, Mask
from storage.core.merge.events import supplied_mask
from storage.core.model import Group, Op
from storage.core.modes import GroupEvents, Mergers, Registers, merging_mode, mode_of
from storage.core.schema.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class LogRange:
    """Consecutive rows of log files that carry the same: of one file and file group sorted by key, else by parts.

    Attributes:
        keys: With repetitions.
        arrival: Per row that of its commit; ascending.
        groups: Ids of the groups that the files carry.
        columns: Wanted columns by name; ``names.OP`` and ordering columns where versions matter.
        slice_ordinal: Per row the file group of a run that it is of; None of a single one.
    """

    keys: KeyVector
    arrival: Indices
    groups: Collection[int]
    columns: Mapping[str, pa.Array]
    slice_ordinal: Indices | None = None

    def __len__(self) -> int:
        return len(self.keys)


def collapse_group(
    ranges: Sequence[LogRange], schema: TableSchema, group: Group, values: Sequence[str], mergers: Mergers
) -> Registers | None:
    """Registers of one group, with these value columns and the ordering columns; None where no range touches it.

    Requires ``names.OP`` and the group's ordering columns in every range that carries the group.
    """
    carrying = [log_range for log_range in ranges if group.id in log_range.groups and len(log_range)]
    if not carrying:
        return None
    wanted = (*group.ordering, *(name for name in group.values if name in values))
    columns = {
        name: _concat([_column(log_range, name, schema) for log_range in carrying]) for name in (*wanted, names.OP)
    }
    supplied = _supplied(carrying, schema, wanted)
    vector = keys.concat([log_range.keys for log_range in carrying])
    arrival = pa.array(np.concatenate([log_range.arrival for log_range in carrying]))
    dropped = _untouched(group, columns)
    if dropped is not None:
        if dropped.all():
            return None
        keep = pa.array(~dropped)
        columns = {name: column.filter(keep) for name, column in columns.items()}
        supplied = {name: mask[~dropped] for name, mask in supplied.items()}
        vector, arrival = keys.take(vector, ~dropped), arrival.filter(keep)
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
    """Arrays one after the other; a single one is not copied."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _column(log_range: LogRange, name: str, schema: TableSchema) -> pa.Array:
    """A column of a range; NULLs where its batch omitted it."""
    column = log_range.columns.get(name)
    return pa.nulls(len(log_range), schema.event_types[name]) if column is None else column


def _untouched(group: Group, columns: Mapping[str, pa.Array]) -> Mask | None:
    """Events that do not touch the group: no ordering value, or a retraction where nothing can be taken back."""
    untouched = ordering.all_null([columns[name] for name in group.ordering]) if group.ordering else None
    if mode_of(group).retracts:
        return untouched
    retracts = np.asarray(columns[names.OP]) == Op.RETRACT
    if not retracts.any():
        return untouched
    return retracts if untouched is None else untouched | retracts


def _supplied(ranges: Sequence[LogRange], schema: TableSchema, columns: Sequence[str]) -> dict[str, Mask]:
    """Per column which NULLs are values; nothing for columns of which none is."""
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


class Keyed(Protocol):
    """Rows of a log file, events or registers: their keys, and columns among which the key columns are."""

    @property
    def keys(self) -> KeyVector: ...

    @property
    def columns(self) -> Mapping[str, pa.Array]: ...


@dataclass(frozen=True, slots=True)
class KeyDirectory:
    """Every key among the logs, once: sorted vector, and the key columns in the same order."""

    keys: KeyVector
    columns: Mapping[str, pa.Array]

    @classmethod
    def of(cls, ranges: Sequence[Keyed], schema: TableSchema) -> KeyDirectory:
        """Requires the key columns (and the sort key, where the schema has one) in every range."""
        key_names = (*schema.key, names.KEY) if schema.has_sort_key else schema.key
        order, ordered = keys.in_order(keys.concat([log_range.keys for log_range in ranges]))
        starts = keys.run_starts(ordered)
        chosen = pa.array(order[starts])
        columns = {name: _concat([log_range.columns[name] for log_range in ranges]).take(chosen) for name in key_names}
        return cls(keys.take(ordered, starts), columns)
