"""Mode ``latest``: the event with the largest version wins the whole group; its NULLs are values.

If the winner is a delete the group is absent and the delete stays as the floor, so that a late older event never
resurrects anything (S14). A register is thus an upsert (arrival set) or a delete (floor set), never both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import keys, names, ordering
from storage.core.events import Op
from storage.core.keys import Indices, Mask
from storage.core.modes.base import GroupEvents, Registers, take_rows
from storage.core.schema import Group


class Latest:
    """See the module."""

    def collapse(self, group: Group, events: GroupEvents) -> Registers:
        winners, distinct = _winners(events)
        chosen = pa.array(winners)
        arrival = events.arrival.take(chosen)
        op = events.op.take(chosen)
        columns = take_rows({**events.values, **events.ordering}, chosen)
        none = pa.nulls(len(winners), pa.int64())
        state: dict[str, pa.Array] = {}
        if pc.any(pc.not_equal(op, int(Op.UPSERT))).as_py():
            upsert = pc.equal(op, int(Op.UPSERT))
            for i, name in enumerate(group.ordering):
                state[names.floor_ordering(group.id, i)] = _where(upsert, None, columns[name])
            state[names.arrival(group.id)] = _where(upsert, arrival, None)
            state[names.floor_arrival(group.id)] = _where(upsert, None, arrival)
            state[names.floor_kind(group.id)] = _where(upsert, None, op)
            columns = {name: _where(upsert, column, None) for name, column in columns.items()}
        else:
            for i, name in enumerate(group.ordering):
                state[names.floor_ordering(group.id, i)] = pa.nulls(len(winners), columns[name].type)
            state[names.arrival(group.id)] = arrival
            state[names.floor_arrival(group.id)] = none
            state[names.floor_kind(group.id)] = pa.nulls(len(winners), pa.int8())
        return Registers(distinct, {**columns, **state})

    def reads(self, group: Group) -> tuple[str, ...]:
        floors = (names.floor_ordering(group.id, i) for i in range(len(group.ordering)))
        return (names.arrival(group.id), names.floor_arrival(group.id), *group.ordering, *floors)

    def merge(
        self, group: Group, old: Mapping[str, pa.Array], new: Mapping[str, pa.Array]
    ) -> tuple[Mask, Mapping[str, pa.Array]]:
        old_arrival, old_ordering = _version(group, old)
        new_arrival, new_ordering = _version(group, new)
        newer = np.asarray(pc.greater(new_arrival, pc.fill_null(old_arrival, -1)))
        if group.ordering:
            if len(group.ordering) == 1 and old_ordering[0].null_count:
                # A register's only ordering value is never null: NULL means that there is no register. Any number
                # does for it, and a column without nulls compares as it is.
                old_ordering = [pc.coalesce(old_ordering[0], new_ordering[0])]
            old_rank, new_rank = _ranks(old_ordering, new_ordering)
            newer = (new_rank > old_rank) | ((new_rank == old_rank) & newer)
        wins = newer | np.asarray(old_arrival.is_null())
        return wins, new if wins.all() else take_rows(new, wins)


def _winners(events: GroupEvents) -> tuple[Indices, Any]:
    """Position of the largest version of every key, in key order; and the distinct keys, sorted."""
    order = keys.stable_order(events.keys)
    ordered = keys.take(events.keys, order)
    starts = keys.run_starts(ordered)
    if len(starts) == len(order):
        return order, ordered
    ends = np.append(starts[1:], len(order)) - 1
    if events.ordering:
        # Only keys with several events need their ordering values compared.
        several = np.flatnonzero(ends > starts)
        lengths = (ends - starts + 1)[several]
        run = np.repeat(np.arange(len(several)), lengths)
        offsets = np.arange(len(run)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        contested = order[np.repeat(starts[several], lengths) + offsets]
        rank = ordering.ranks([column.take(pa.array(contested)) for column in events.ordering.values()])
        # lexsort is stable: equal ordering values stay in (arrival, position) order, so the last of a run wins.
        best = np.lexsort((rank, run))[np.cumsum(lengths) - 1]
        winners = order[ends]
        winners[several] = contested[best]
    else:
        winners = order[ends]
    return winners, keys.take(ordered, starts)


def _version(group: Group, columns: Mapping[str, pa.Array]) -> tuple[pa.Array, list[pa.Array]]:
    """Arrival (null: there is no register) and ordering tuple of a register, be it an upsert or a delete."""
    arrival = columns[names.arrival(group.id)]
    floor = columns[names.floor_arrival(group.id)]
    if floor.null_count == len(floor):
        return arrival, [columns[name] for name in group.ordering]
    present = arrival.is_valid()
    return pc.coalesce(arrival, floor), [
        pc.if_else(present, columns[name], columns[names.floor_ordering(group.id, i)])
        for i, name in enumerate(group.ordering)
    ]


def _ranks(old: list[pa.Array], new: list[pa.Array]) -> tuple[ordering.Ranks, ordering.Ranks]:
    """Numbers by which old and new ordering tuples compare."""
    count = len(old[0])
    both = ordering.ranks([pa.concat_arrays([a, b]) for a, b in zip(old, new, strict=True)])
    return both[:count], both[count:]


def _where(condition: pa.Array, when_true: pa.Array | None, when_false: pa.Array | None) -> pa.Array:
    """Choose row by row; None stands for NULL of the other's type."""
    if when_true is None:
        assert when_false is not None
        when_true = pa.scalar(None, when_false.type)
    if when_false is None:
        when_false = pa.scalar(None, when_true.type)
    return pc.if_else(condition, when_true, when_false)
