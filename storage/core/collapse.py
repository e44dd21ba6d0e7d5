"""Collapse: the log events of one file group to one register per key and group.

Input are pieces of log files in (arrival, position) order; a piece's rows are sorted by key. Everything is a column
operation; memory is that of the logs of one file group, wanted columns only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage.core import keys, names, ordering
from storage.core.keys import KeyVector
from storage.core.modes import MODES, GroupEvents, Registers
from storage.core.schema import Group, TableSchema


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Consecutive rows of one log file that belong to one file group.

    Attributes:
        keys: Sorted, with repetitions.
        arrival: That of the commit.
        groups: Ids of the groups that the file carries.
        columns: Wanted columns by name; ``names.OP`` and ordering columns where versions matter.
    """

    keys: KeyVector
    arrival: int
    groups: Collection[int]
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.keys)


def collapse_group(pieces: Sequence[LogPiece], group: Group, values: Sequence[str]) -> Registers | None:
    """Registers of one group, with these value columns (ordering columns always); None where no piece touches it.

    Requires ``names.OP`` and the group's ordering columns in every piece that carries the group.
    """
    carrying = [piece for piece in pieces if group.id in piece.groups and len(piece)]
    if not carrying:
        return None
    columns = {
        name: pa.concat_arrays([piece.columns[name] for piece in carrying])
        for name in (*group.ordering, *(name for name in values if name not in group.ordering), names.OP)
    }
    vector = keys.concat([piece.keys for piece in carrying])
    arrival = pa.array(np.repeat([piece.arrival for piece in carrying], [len(piece) for piece in carrying]))
    if group.ordering:
        untouched = ordering.all_null([columns[name] for name in group.ordering])
        if untouched is not None:
            if untouched.all():
                return None
            keep = pa.array(~untouched)
            columns = {name: column.filter(keep) for name, column in columns.items()}
            vector, arrival = keys.take(vector, ~untouched), arrival.filter(keep)
    op = columns.pop(names.OP)
    events = GroupEvents(
        keys=vector,
        arrival=arrival,
        op=op,
        ordering={name: columns.pop(name) for name in group.ordering},
        values=columns,
    )
    return MODES[group.merge].collapse(group, events)


@dataclass(frozen=True, slots=True)
class KeyDirectory:
    """Every key among the log events, once: sorted vector, and the key columns in the same order."""

    keys: KeyVector
    columns: Mapping[str, pa.Array]

    @classmethod
    def of(cls, pieces: Sequence[LogPiece], schema: TableSchema) -> KeyDirectory:
        """Requires the key columns (and the sort key, where the schema has one) in every piece."""
        key_names = (*schema.key, names.KEY) if schema.has_sort_key else schema.key
        vector = keys.concat([piece.keys for piece in pieces])
        order = keys.stable_order(vector)
        ordered = keys.take(vector, order)
        starts = keys.run_starts(ordered)
        chosen = pa.array(order[starts])
        columns = {name: pa.concat_arrays([piece.columns[name] for piece in pieces]).take(chosen) for name in key_names}
        return cls(keys.take(ordered, starts), columns)
