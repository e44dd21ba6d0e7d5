"""Mode ``latest``: the event with the largest version wins the whole group; its NULLs are values.

If the winner is a delete, the group is absent. The register keeps the version of the delete as its floor, so that a
older event that arrives late never restores values (PROTOCOL.md, S14). A register is an upsert (arrival set) or a
delete (floor set), never both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, names, ordering
from weft.storage.core.arrays import Arrays, nulls, take_rows
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.model import Column, Group, Op
from weft.storage.core.modes.base import GroupEvents, MergeMode, Registers
from weft.storage.core.modes.versions import newer


class Latest(MergeMode):
    """The newest event wins the whole group."""

    name = "latest"
    chooses_values = True
    replaces = True

    def state(self, group: Group, columns: Mapping[str, Column]) -> Mapping[str, pa.DataType]:
        return {
            names.arrival(group.id): pa.int64(),
            names.floor_arrival(group.id): pa.int64(),
            names.floor_kind(group.id): pa.int8(),
            **{names.floor_ordering(group.id, i): columns[name].type for i, name in enumerate(group.ordering)},
        }

    def collapse(self, group: Group, columns: Mapping[str, Column], events: GroupEvents) -> Registers:
        winners, distinct = _find_winners(events)
        winner_rows = pa.array(winners)
        arrival = events.arrival.take(winner_rows)
        op = events.op.take(winner_rows)
        values = take_rows({**events.values, **events.ordering}, winner_rows)
        state: dict[str, pa.Array] = {}
        if pc.any(pc.not_equal(op, int(Op.UPSERT))).as_py():
            upsert = pc.equal(op, int(Op.UPSERT))
            for i, name in enumerate(group.ordering):
                state[names.floor_ordering(group.id, i)] = _select(upsert, None, values[name])
            state[names.arrival(group.id)] = _select(upsert, arrival, None)
            state[names.floor_arrival(group.id)] = _select(upsert, None, arrival)
            state[names.floor_kind(group.id)] = _select(upsert, None, op)
            values = {name: _select(upsert, column, None) for name, column in values.items()}
        else:
            for i, name in enumerate(group.ordering):
                state[names.floor_ordering(group.id, i)] = nulls(values[name].type, len(winners))
            state[names.arrival(group.id)] = arrival
            state[names.floor_arrival(group.id)] = nulls(pa.int64(), len(winners))
            state[names.floor_kind(group.id)] = nulls(pa.int8(), len(winners))
        return Registers(distinct, {**values, **state})

    def reads(self, group: Group, columns: Mapping[str, Column], values: Collection[str]) -> tuple[str, ...]:
        floors = (names.floor_ordering(group.id, i) for i in range(len(group.ordering)))
        return (names.arrival(group.id), names.floor_arrival(group.id), *group.ordering, *floors)

    def merge(
        self, group: Group, columns: Mapping[str, Column], new_keys: KeyVector, old: Arrays, new: Arrays
    ) -> tuple[Mask, Arrays]:
        wins = newer(_version(group, old), _version(group, new))
        return wins, new if wins.all() else take_rows(new, wins)


def _last_of_largest(rank: ordering.Ranks, run: Indices, starts: Indices) -> Indices:
    """The last event with the largest rank in each run of consecutive events."""
    if rank.dtype.kind == "f":
        ends = np.append(starts[1:], len(rank)) - 1
        last: Indices = np.lexsort((rank, run))[ends]  # stable, and NaN is the largest
        return last
    largest = np.maximum.reduceat(rank, starts)
    return np.maximum.reduceat(np.where(rank == largest[run], np.arange(len(rank)), -1), starts)


def _find_winners(events: GroupEvents) -> tuple[Indices, Any]:
    """Position of the largest version of every key, in key order, and the distinct keys, sorted."""
    order, sorted_keys = keys.in_order(events.keys)
    starts = keys.run_starts(sorted_keys)
    if len(starts) == len(order):
        return order, sorted_keys
    ends = np.append(starts[1:], len(order)) - 1
    if events.ordering:
        # Only keys with several events need their ordering values compared.
        repeated = np.flatnonzero(ends > starts)
        lengths = (ends - starts + 1)[repeated]
        run = np.repeat(np.arange(len(repeated)), lengths)
        offsets = np.arange(len(run)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        contested = order[np.repeat(starts[repeated], lengths) + offsets]
        rank = ordering.ranks([column.take(pa.array(contested)) for column in events.ordering.values()])
        winners = order[ends]
        winners[repeated] = contested[_last_of_largest(rank, run, np.cumsum(lengths) - lengths)]
    else:
        winners = order[ends]
    return winners, keys.take(sorted_keys, starts)


def _version(group: Group, columns: Arrays) -> tuple[list[pa.Array], pa.Array]:
    """Ordering values and arrival of registers, upserts or deletes; the arrival of a missing register is NULL."""
    arrival = columns[names.arrival(group.id)]
    floor = columns[names.floor_arrival(group.id)]
    if floor.null_count == len(floor):
        return [columns[name] for name in group.ordering], arrival
    present = arrival.is_valid()
    return [
        pc.if_else(present, columns[name], columns[names.floor_ordering(group.id, i)])
        for i, name in enumerate(group.ordering)
    ], pc.coalesce(arrival, floor)


def _select(condition: pa.Array, when_true: pa.Array | None, when_false: pa.Array | None) -> pa.Array:
    """Select row by row; None means NULL of the other argument's type."""
    if when_true is None:
        assert when_false is not None
        when_true = pa.scalar(None, when_false.type)
    if when_false is None:
        when_false = pa.scalar(None, when_true.type)
    return pc.if_else(condition, when_true, when_false)
