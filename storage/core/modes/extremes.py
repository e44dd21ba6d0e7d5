"""Functions that show one value of a column: ``min``, ``max``, ``first``, ``last``, ``bool_and`` and ``bool_or``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import Indices
from weft.storage.core.modes.aggregate_function import AggregateFunction, ColumnEvents, Context, Refusal
from weft.storage.core.modes.versions import newer, pick


@dataclass(frozen=True, slots=True)
class Extreme(AggregateFunction):
    """Smallest or largest value; NaN is the largest."""

    largest: bool

    def refuses(self, column: pa.DataType) -> Refusal | None:
        return Refusal("is not possible", "nested values cannot be ordered") if pa.types.is_nested(column) else None

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        rank = value_ranks(events.values)
        reduce = np.maximum if self.largest else np.minimum
        outside = np.iinfo(np.int64).min if self.largest else np.iinfo(np.int64).max
        best = reduce.reduceat(np.where(events.valid, rank, outside), events.history.starts)
        # Any event with the best rank can win, because equal ranks mean equal values.
        winners = events.history.first(events.valid & (rank == best[events.history.runs]))
        return {context.column.name: pick(events.values, winners)}

    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        a, b = old[context.column.name], new[context.column.name]
        rank = value_ranks(pa.concat_arrays([a, b]))
        first, second = rank[: len(a)], rank[len(a) :]
        better = second > first if self.largest else second < first
        take_new = (better | np.asarray(a.is_null())) & np.asarray(b.is_valid())
        return {context.column.name: pc.if_else(pa.array(take_new), b, a)}


@dataclass(frozen=True, slots=True)
class Edge(AggregateFunction):
    """Non-null value of the smallest or largest version, which the state keeps."""

    largest: bool
    ordered = True

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        return {context.hidden(field.name): field.type for field in context.version_fields}

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        winners = (events.history.last if self.largest else events.history.first)(events.valid)
        version = [*events.ordering, events.arrival]
        hidden = {name: pick(part, winners) for name, part in zip(self.state(context), version, strict=True)}
        return {context.column.name: pick(events.values, winners), **hidden}

    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        *ordering_names, arrival = self.state(context)
        old_version = [old[name] for name in ordering_names], old[arrival]
        new_version = [new[name] for name in ordering_names], new[arrival]
        if self.largest:
            take_new = newer(old_version, new_version)
        else:
            # The new version is smaller if the old one is larger or missing; versions are unique.
            take_new = (newer(new_version, old_version) | np.asarray(old[arrival].is_null())) & np.asarray(
                new[arrival].is_valid()
            )
        mask = pa.array(take_new)
        return {name: pc.if_else(mask, new[name], old[name]) for name in (context.column.name, *self.state(context))}


@dataclass(frozen=True, slots=True)
class Logical(AggregateFunction):
    """Logical and, or logical or, of the non-null values."""

    conjunction: bool

    def refuses(self, column: pa.DataType) -> Refusal | None:
        return None if pa.types.is_boolean(column) else Refusal("is not possible", "the column must be boolean")

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        neutral = self.conjunction
        values = np.asarray(events.values.fill_null(neutral))
        reduce = np.logical_and if self.conjunction else np.logical_or
        result = reduce.reduceat(values, events.history.starts)
        has_value = np.logical_or.reduceat(events.valid, events.history.starts)
        return {context.column.name: pa.array(result, pa.bool_(), mask=~has_value)}

    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        a, b = old[context.column.name], new[context.column.name]
        both = pc.and_(a, b) if self.conjunction else pc.or_(a, b)
        return {context.column.name: pc.coalesce(both, a, b)}


def value_ranks(values: pa.Array) -> Indices:
    """int64 numbers that compare like the values, with NaN largest; arbitrary for NULL."""
    if pa.types.is_int64(values.type) or pa.types.is_timestamp(values.type):
        return np.asarray(pc.fill_null(values.view(pa.int64()), 0))
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    return np.asarray(pc.rank(values, sort_keys=[("", "ascending", "at_end")], tiebreaker="dense")).astype(np.int64)
