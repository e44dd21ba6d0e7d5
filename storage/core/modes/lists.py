"""Functions that collect all values: ``collect_set``, ``collect_list`` and ``listagg``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.arrays import Arrays, list_rows
from weft.storage.core.keys import Indices
from weft.storage.core.modes.aggregate_function import AggregateFunction, ColumnEvents, Context, Refusal, Takes
from weft.storage.core.modes.extremes import value_ranks
from weft.storage.core.ordering import ranks

_NOT_A_LIST: Final = Refusal("is not possible", "declare the column as array<element>")


class CollectSet(AggregateFunction):
    """Distinct values, sorted."""

    @property
    def takes(self) -> Takes:
        return "elements"

    def refuses(self, column: pa.DataType) -> Refusal | None:
        if not pa.types.is_list(column):
            return _NOT_A_LIST
        if pa.types.is_nested(column.value_type):
            return Refusal("is not possible", "nested values cannot be ordered")
        return None

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        keep = events.valid
        rows = events.history.runs[keep]
        values = events.values.filter(pa.array(keep))
        return {context.column.name: _distinct(rows, values, len(events.history.starts), context.column.type)}

    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        a, b = old[context.column.name], new[context.column.name]
        rows = np.concatenate([list_rows(a), list_rows(b)])
        values = pa.concat_arrays([a.flatten(), b.flatten()])
        return {context.column.name: _distinct(rows, values, len(a), context.column.type)}


def _distinct(rows: Indices, values: pa.Array, count: int, list_type: pa.DataType) -> pa.Array:
    if len(values) == 0:
        return pa.nulls(count, list_type)
    rank = value_ranks(values)
    order = np.lexsort((rank, rows))
    rows, rank = rows[order], rank[order]
    fresh = np.concatenate([np.ones(1, np.bool_), (rows[1:] != rows[:-1]) | (rank[1:] != rank[:-1])])
    return _lists(rows[fresh], values.take(pa.array(order[fresh])), count, list_type)


def _lists(rows: Indices, values: pa.Array, count: int, list_type: pa.DataType) -> pa.Array:
    """Build lists of the values of each row (``rows`` ascend); NULL for a row without values."""
    lengths = np.bincount(rows, minlength=count)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=list_type, mask=pa.array(lengths == 0))


@dataclass(frozen=True, slots=True)
class Collect(AggregateFunction):
    """All values in version order, as a list or as one string; keeps every value with its version."""

    as_string: bool
    ordered = True

    @property
    def takes(self) -> Takes:
        return "values" if self.as_string else "elements"

    @property
    def has_delimiter(self) -> bool:
        return self.as_string

    def refuses(self, column: pa.DataType) -> Refusal | None:
        if self.as_string:
            return None if pa.types.is_string(column) else Refusal("is not possible", "the column must be a string")
        return None if pa.types.is_list(column) else _NOT_A_LIST

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        value = context.column.type if self.as_string else context.column.type.value_type
        item = pa.struct([*context.version_fields, pa.field("value", value)])
        return {context.hidden("items"): pa.list_(pa.field("element", item))}

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        ((name, list_type),) = self.state(context).items()
        keep = pa.array(events.valid)
        parts = [column.filter(keep) for column in (*events.ordering, events.arrival, events.values)]
        items = pa.StructArray.from_arrays(parts, fields=list(list_type.value_type))
        rows = events.history.runs[events.valid]
        return {name: _lists(rows, items, len(events.history.starts), list_type)}

    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        ((name, list_type),) = self.state(context).items()
        rows = np.concatenate([list_rows(old[name]), list_rows(new[name])])
        items = pa.concat_arrays([old[name].flatten(), new[name].flatten()])
        ordering_fields = [items.field(i) for i in range(len(context.ordering))]
        arrival = np.asarray(items.field(len(context.ordering)))
        rank = ranks(ordering_fields) if ordering_fields and len(items) else np.zeros(len(items), np.int64)
        # Stable: values of one commit with equal ordering values stay in their position.
        order = np.lexsort((arrival, rank, rows))
        return {name: _lists(rows[order], items.take(pa.array(order)), len(old[name]), list_type)}

    def show(self, context: Context, state: Arrays) -> pa.Array:
        items = state[context.hidden("items")]
        values = items.flatten().field(len(context.ordering) + 1)
        plain = pa.list_(pa.field("element", values.type))
        lists = _lists(list_rows(items), values, len(items), plain)
        return pc.binary_join(lists, context.function.delimiter) if self.as_string else lists.cast(context.column.type)
