"""Mode ``aggregate``: every value column shows a function of all events of the group.

The group is present once there is an upsert; its ordering columns show those of the newest upsert. A delete is never a
tombstone: it subtracts its values, even if it arrives before the event that it undoes. If the state of a column can
differ from the value that it shows, the state is in hidden columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import KeyVector, Mask
from weft.storage.core.model import Column, Group, Op
from weft.storage.core.modes.aggregate_function import AggregateFunction, ColumnEvents, Context
from weft.storage.core.modes.base import GroupEvents, MergeMode, Registers
from weft.storage.core.modes.functions import find_function, function_features, function_names
from weft.storage.core.modes.versions import History, newer, pick


class Aggregate(MergeMode):
    """The merge mode `aggregate`: each value column has a function."""

    name = "aggregate"
    retracts = True
    takes_functions = True
    null_if_added_later = False  # a count shows 0
    may_overflow = True

    @property
    def known_features(self) -> frozenset[str]:
        return super().known_features | function_features(function_names())

    def features(self, group: Group) -> frozenset[str]:
        return super().features(group) | function_features(function.name for function in group.functions)

    def in_commit_order(self, group: Group) -> bool:
        return not group.ordering and any(find_function(function.name).ordered for function in group.functions)

    def state(self, group: Group, columns: Mapping[str, Column]) -> Mapping[str, pa.DataType]:
        result: dict[str, pa.DataType] = {names.arrival(group.id): pa.int64()}
        for function, context in _functions(group, columns, group.values):
            result |= function.state(context)
        return result

    def reads(self, group: Group, columns: Mapping[str, Column], values: Collection[str]) -> tuple[str, ...]:
        column_names = [names.arrival(group.id), *group.ordering]
        for function, context in _functions(group, columns, values):
            column_names += [context.column.name, *function.state(context)]
        return tuple(column_names)

    def collapse(self, group: Group, columns: Mapping[str, Column], events: GroupEvents) -> Registers:
        history = History.of(events)
        retracts = np.asarray(history.sort(events.op)) != Op.UPSERT
        top = history.last(~retracts)
        arrival = history.sort(events.arrival)
        ordering = {name: history.sort(column) for name, column in events.ordering.items()}
        registers = {name: pick(column, top) for name, column in ordering.items()}
        registers[names.arrival(group.id)] = pick(arrival, top)
        for function, context in _functions(group, columns, events.values):
            values = history.sort(events.values[context.column.name])
            sorted_events = ColumnEvents(history, values, retracts, list(ordering.values()), arrival)
            registers |= function.collapse(context, sorted_events)
        return Registers(history.keys, _show_values(group, columns, registers))

    def merge(
        self, group: Group, columns: Mapping[str, Column], new_keys: KeyVector, old: Arrays, new: Arrays
    ) -> tuple[Mask, Arrays]:
        present = names.arrival(group.id)
        # An absent group shows defaults: they are not part of the state.
        is_present = old[present].is_valid()
        old = {
            name: pc.if_else(is_present, column, pa.scalar(None, column.type)) if name in group.columns else column
            for name, column in old.items()
        }
        later = pa.array(
            newer(
                ([old[name] for name in group.ordering], old[present]),
                ([new[name] for name in group.ordering], new[present]),
            )
        )
        registers = {name: pc.if_else(later, new[name], old[name]) for name in (*group.ordering, present)}
        for function, context in _functions(group, columns, new):
            registers |= function.merge(context, old, new)
        # Every event counts, so every row with a new register is changed.
        return np.ones(len(later), np.bool_), _show_values(group, columns, registers)

    def renewal_reads(
        self, group: Group, columns: Mapping[str, Column], changed: Collection[str], requested: Collection[str]
    ) -> tuple[str, ...]:
        state_columns: list[str] = []
        for function, context in _functions(group, columns, changed):
            columns_of = (context.column.name, *function.state(context))
            if any(name in requested for name in columns_of):
                state_columns += columns_of
        return (names.arrival(group.id), *state_columns) if state_columns else ()

    def renew(self, group: Group, columns: Mapping[str, Column], added: Collection[str], rows: Arrays) -> Arrays:
        """No event has a value in an added column; a widened column may show a result that did not fit before."""
        registers = dict(rows)
        for function, context in _functions(group, columns, added):
            if context.column.name in registers:
                registers |= function.state_without_values(context, rows[names.arrival(group.id)].is_valid())
        return _show_values(group, columns, registers)

    def overflows(self, group: Group, columns: Mapping[str, Column], rows: Arrays) -> dict[int, int]:
        counts = {}
        present = rows[names.arrival(group.id)].is_valid()
        for function, context in _functions(group, columns, group.values):
            if function.may_overflow:
                has_state = rows[next(iter(function.state(context)))].is_valid()
                hidden = pc.and_(has_state, rows[context.column.name].is_null())
                count = pc.sum(pc.and_(hidden, present)).as_py()
                if count:
                    counts[context.column.id] = count
        return counts


def _functions(
    group: Group, columns: Mapping[str, Column], values: Collection[str]
) -> Iterator[tuple[AggregateFunction, Context]]:
    """The functions of these value columns."""
    ordering = tuple(columns[name] for name in group.ordering)
    for function in group.functions:
        if function.column in values:
            yield find_function(function.name), Context(group, columns[function.column], ordering, function)


def _show_values(group: Group, columns: Mapping[str, Column], merged: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Add the values to show to the states; an absent group shows NULL."""
    present = merged[names.arrival(group.id)].is_valid()
    computed = {function.column for function in group.functions}
    columns_to_show = [
        name for name in computed if name in merged or any(s in merged for s in _state_columns(group, columns, name))
    ]
    for function, context in _functions(group, columns, columns_to_show):
        value = function.show(context, merged)
        merged[context.column.name] = pc.if_else(present, value, pa.scalar(None, value.type))
    return merged


def _state_columns(group: Group, columns: Mapping[str, Column], name: str) -> list[str]:
    return [state for function, context in _functions(group, columns, [name]) for state in function.state(context)]
