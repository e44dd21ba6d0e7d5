"""Aggregate functions: what they keep of a column's events, and how two states merge. One class and one entry each.

Nulls are skipped. ``sum`` and ``count`` take values back on delete events; the others cannot, and the configuration
refuses streams that would ask them to. A state is either the shown column itself or hidden columns of its own.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import names
from storage.core.columns import list_rows
from storage.core.keys import Indices, Mask
from storage.core.model import Column, Function, Group
from storage.core.modes.base import Columns
from storage.core.modes.history import History, newer, pick
from storage.core.ordering import ranks

MAX_PRECISION: Final = 38
_CARRIED_PRECISION: Final = 28  # sums of wider values may need more than 38 digits
_WIDE_PRECISION: Final = 60  # of such sums, with a carry of 64 bits; leaves Arrow digits for its own results
Takes = Literal["values", "elements", "anything"]


@dataclass(frozen=True, slots=True)
class Context:
    """One column of an aggregate group.

    Attributes:
        group: The group.
        column: The column.
        ordering: The group's ordering columns as schema columns.
        function: Its function, with options.
    """

    group: Group
    column: Column
    ordering: tuple[Column, ...]
    function: Function

    def hidden(self, what: str) -> str:
        return names.column_state(self.column.id, what)

    @property
    def version_fields(self) -> list[pa.Field]:
        """Of one version: its ordering tuple and arrival."""
        return [
            *(pa.field(f"o{i}", column.type) for i, column in enumerate(self.ordering)),
            pa.field("arrival", pa.int64()),
        ]


@dataclass(frozen=True, slots=True)
class ColumnEvents:
    """Events of one column sorted by (key, version).

    Attributes:
        history: Their order.
        values: In that order.
        retracts: In that order: which take their value back.
        ordering: Per ordering column, in that order.
        arrival: In that order.
    """

    history: History
    values: pa.Array
    retracts: Mask
    ordering: list[pa.Array]
    arrival: pa.Array

    @property
    def valid(self) -> Mask:
        return np.asarray(self.values.is_valid())


class AggregateFunction(Protocol):
    """One function; stateless.

    Attributes:
        retractable: Whether a delete can take values back.
        ordered: Whether the result depends on the order of the events.
        takes: What batches hold: values of the column's own type, elements of it, or anything.
    """

    retractable: bool
    ordered: bool

    @property
    def takes(self) -> Takes: ...

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        """Hidden columns beside the shown one."""
        ...

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        """State (and, where it is the state, the shown column) of every key."""
        ...

    def merge(self, context: Context, old: Columns, new: Columns) -> dict[str, pa.Array]:
        """States row by row; ``old`` and ``new`` have the columns that `collapse` gives, NULL for no state."""
        ...

    def show(self, context: Context, state: Columns) -> pa.Array:
        """The value that a reader sees."""
        ...

    def of_nothing(self, context: Context, present: pa.Array) -> dict[str, pa.Array]:
        """State of keys whose events all came before the column, where that is not NULL; ``present`` is a mask."""
        ...


class Sum:
    """Integers and decimals, exact: what is shown may not fit its column, what is kept always fits.

    The state is a decimal(38, s). Values that come near to that have a carry too, in units of 10^38 of the last digit;
    for narrower ones it would take more than 10^10 events of one key to need it.
    """

    retractable = True
    ordered = False
    takes: Takes = "values"

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        declared = context.column.type
        scale = declared.scale if pa.types.is_decimal(declared) else 0
        state: dict[str, pa.DataType] = {context.hidden("sum"): pa.decimal128(MAX_PRECISION, scale)}
        if pa.types.is_decimal(declared) and declared.precision > _CARRIED_PRECISION:
            state[context.hidden("carry")] = pa.int64()
        return state

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        state_type, *carry = self.state(context).values()
        working = pa.decimal256(_WIDE_PRECISION, state_type.scale) if carry else state_type
        values = events.values if pa.types.is_decimal(events.values.type) else _as_decimal(events.values)
        values = values.cast(working)
        signed = pc.if_else(pa.array(events.retracts), pc.negate(values), values)
        runs = pa.table({"run": events.history.runs, "value": signed})
        sums = runs.group_by("run", use_threads=False).aggregate([("value", "sum")]).column("value_sum")
        return self._split(context, sums.combine_chunks())

    def merge(self, context: Context, old: Columns, new: Columns) -> dict[str, pa.Array]:
        total = pc.add(*(pc.fill_null(self._total(context, side), decimal.Decimal(0)) for side in (old, new)))
        sum_name = context.hidden("sum")
        none = pc.and_(old[sum_name].is_null(), new[sum_name].is_null())
        return self._split(context, pc.if_else(none, pa.scalar(None, total.type), total))

    def show(self, context: Context, state: Columns) -> pa.Array:
        return _fitting(self._total(context, state), context.column.type)

    def of_nothing(self, context: Context, present: pa.Array) -> dict[str, pa.Array]:
        return {}

    def _total(self, context: Context, state: Columns) -> pa.Array:
        """The sum as a decimal256; Arrow gives results of arithmetic more digits than decimal128 has to spare."""
        sum_name, *carry = self.state(context)
        low = state[sum_name].cast(pa.decimal256(_WIDE_PRECISION, state[sum_name].type.scale))
        if not carry or state[carry[0]].null_count == len(low):
            return low
        units = pc.fill_null(state[carry[0]], 0).cast(pa.decimal256(MAX_PRECISION, 0))
        high = _rescaled(units, low.type.scale - MAX_PRECISION).cast(low.type)
        return pc.add(low, high).cast(low.type)

    def _split(self, context: Context, total: pa.Array) -> dict[str, pa.Array]:
        """State of sums."""
        sum_name, *carry = self.state(context)
        state_type = self.state(context)[sum_name]
        if not carry:
            return {sum_name: total.cast(state_type)}
        total = total.cast(pa.decimal256(_WIDE_PRECISION, state_type.scale))
        units = total.cast(pa.decimal256(MAX_PRECISION, state_type.scale - MAX_PRECISION), safe=False)
        low = pc.subtract(total, units.cast(total.type)).cast(state_type)
        count = _rescaled(units, 0).cast(pa.int64())
        return {sum_name: low, carry[0]: pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)}


def _rescaled(values: pa.Array, scale: int) -> pa.Array:
    """The same digits with the point elsewhere."""
    target = pa.decimal256(values.type.precision, scale)
    return pa.Array.from_buffers(target, len(values), values.buffers(), offset=values.offset)


def _as_decimal(integers: pa.Array) -> pa.Array:
    return integers.cast(pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(MAX_PRECISION, 0))


def _fitting(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Values of a type; NULL where one does not fit."""
    if values.type == target:
        return values
    if pa.types.is_integer(target):
        bits = target.bit_width - 1
        low, high = decimal.Decimal(-(1 << bits)), decimal.Decimal((1 << bits) - 1)
    else:
        # Built from its digits: arithmetic of Python's decimals rounds to 28 of them.
        high = decimal.Decimal((0, (9,) * target.precision, -target.scale))
        low = high.copy_negate()
    wide = values.cast(pa.decimal256(76, values.type.scale))
    limit = pa.decimal256(76, values.type.scale)
    fits = pc.and_(pc.greater_equal(wide, pa.scalar(low, limit)), pc.less_equal(wide, pa.scalar(high, limit)))
    kept = pc.if_else(fits, wide, pa.scalar(None, limit))
    return kept.cast(target)


class Count:
    """Non-null values, minus those taken back."""

    retractable = True
    ordered = False
    takes: Takes = "anything"

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        return {context.hidden("count"): pa.int64()}

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        step = np.where(events.retracts, -1, 1) * events.valid
        return {context.hidden("count"): pa.array(np.add.reduceat(step, events.history.starts), pa.int64())}

    def merge(self, context: Context, old: Columns, new: Columns) -> dict[str, pa.Array]:
        name = context.hidden("count")
        return {name: pc.add(pc.fill_null(old[name], 0), pc.fill_null(new[name], 0))}

    def show(self, context: Context, state: Columns) -> pa.Array:
        return _fitting(_as_decimal(state[context.hidden("count")]), context.column.type)

    def of_nothing(self, context: Context, present: pa.Array) -> dict[str, pa.Array]:
        zero = pa.scalar(0, pa.int64())
        return {context.hidden("count"): pc.if_else(present, zero, pa.scalar(None, pa.int64()))}


class _Shown:
    """Functions whose state holds what is shown as it is, and by default nothing else."""

    __slots__ = ()

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        return {}

    def show(self, context: Context, state: Columns) -> pa.Array:
        return state[context.column.name]

    def of_nothing(self, context: Context, present: pa.Array) -> dict[str, pa.Array]:
        return {}


@dataclass(frozen=True, slots=True)
class Extreme(_Shown):
    """Least or largest value; NaN is the largest."""

    largest: bool
    retractable = False
    ordered = False
    takes: ClassVar[Takes] = "values"

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        rank = _value_ranks(events.values)
        reduce = np.maximum if self.largest else np.minimum
        outside = np.iinfo(np.int64).min if self.largest else np.iinfo(np.int64).max
        best = reduce.reduceat(np.where(events.valid, rank, outside), events.history.starts)
        # Any event with the best rank will do: equal ranks are equal values.
        chosen = events.history.first(events.valid & (rank == best[events.history.runs]))
        return {context.column.name: pick(events.values, chosen)}

    def merge(self, context: Context, old: Columns, new: Columns) -> dict[str, pa.Array]:
        a, b = old[context.column.name], new[context.column.name]
        rank = _value_ranks(pa.concat_arrays([a, b]))
        first, second = rank[: len(a)], rank[len(a) :]
        better = second > first if self.largest else second < first
        take_new = (better | np.asarray(a.is_null())) & np.asarray(b.is_valid())
        return {context.column.name: pc.if_else(pa.array(take_new), b, a)}


def _value_ranks(values: pa.Array) -> Indices:
    """int64 that compare like the values, NaN above all; anything where a value is NULL."""
    if pa.types.is_int64(values.type) or pa.types.is_timestamp(values.type):
        return np.asarray(pc.fill_null(values.view(pa.int64()), 0))
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    return np.asarray(pc.rank(values, sort_keys=[("", "ascending", "at_end")], tiebreaker="dense")).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Edge(_Shown):
    """Value of the smallest or largest version among non-null ones; keeps that version."""

    largest: bool
    retractable = False
    ordered = True
    takes: ClassVar[Takes] = "values"

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        return {context.hidden(field.name): field.type for field in context.version_fields}

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        chosen = (events.history.last if self.largest else events.history.first)(events.valid)
        version = [*events.ordering, events.arrival]
        hidden = {name: pick(part, chosen) for name, part in zip(self.state(context), version, strict=True)}
        return {context.column.name: pick(events.values, chosen), **hidden}

    def merge(self, context: Context, old: Columns, new: Columns) -> dict[str, pa.Array]:
        *ordering_names, arrival = self.state(context)
        old_version = [old[name] for name in ordering_names], old[arrival]
        new_version = [new[name] for name in ordering_names], new[arrival]
        if self.largest:
            take_new = newer(old_version, new_version)
        else:
            # Smaller: the old one is larger, or there is none; versions are unique.
            take_new = (newer(new_version, old_version) | np.asarray(old[arrival].is_null())) & np.asarray(
                new[arrival].is_valid()
            )
        chosen = pa.array(take_new)
        return {name: pc.if_else(chosen, new[name], old[name]) for name in (context.column.name, *self.state(context))}


@dataclass(frozen=True, slots=True)
class Logical(_Shown):
    """All, or any, of the non-null values."""

    conjunction: bool
    retractable = False
    ordered = False
    takes: ClassVar[Takes] = "values"

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        neutral = self.conjunction
        values = np.asarray(events.values.fill_null(neutral))
        reduce = np.logical_and if self.conjunction else np.logical_or
        result = reduce.reduceat(values, events.history.starts)
        some = np.logical_or.reduceat(events.valid, events.history.starts)
        return {context.column.name: pa.array(result, pa.bool_(), mask=~some)}

    def merge(self, context: Context, old: Columns, new: Columns) -> dict[str, pa.Array]:
        a, b = old[context.column.name], new[context.column.name]
        both = pc.and_(a, b) if self.conjunction else pc.or_(a, b)
        return {context.column.name: pc.coalesce(both, a, b)}


class CollectSet(_Shown):
    """Distinct values, sorted."""

    retractable = False
    ordered = False
    takes: Takes = "elements"

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        keep = events.valid
        rows = events.history.runs[keep]
        values = events.values.filter(pa.array(keep))
        return {context.column.name: _distinct(rows, values, len(events.history.starts), context.column.type)}

    def merge(self, context: Context, old: Columns, new: Columns) -> dict[str, pa.Array]:
        a, b = old[context.column.name], new[context.column.name]
        rows = np.concatenate([list_rows(a), list_rows(b)])
        values = pa.concat_arrays([a.flatten(), b.flatten()])
        return {context.column.name: _distinct(rows, values, len(a), context.column.type)}


def _distinct(rows: Indices, values: pa.Array, count: int, list_type: pa.DataType) -> pa.Array:
    if len(values) == 0:
        return pa.nulls(count, list_type)
    rank = _value_ranks(values)
    order = np.lexsort((rank, rows))
    rows, rank = rows[order], rank[order]
    fresh = np.concatenate([np.ones(1, np.bool_), (rows[1:] != rows[:-1]) | (rank[1:] != rank[:-1])])
    return _lists(rows[fresh], values.take(pa.array(order[fresh])), count, list_type)


def _lists(rows: Indices, values: pa.Array, count: int, list_type: pa.DataType) -> pa.Array:
    """Lists of the values of each row (``rows`` ascend); NULL where a row has none."""
    lengths = np.bincount(rows, minlength=count)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=list_type, mask=pa.array(lengths == 0))


@dataclass(frozen=True, slots=True)
class Collect:
    """All values in version order, as a list or joined to a text; keeps every value with its version."""

    joined: bool
    retractable = False
    ordered = True

    @property
    def takes(self) -> Takes:
        return "values" if self.joined else "elements"

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        value = context.column.type if self.joined else context.column.type.value_type
        item = pa.struct([*context.version_fields, pa.field("value", value)])
        return {context.hidden("items"): pa.list_(pa.field("element", item))}

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        ((name, list_type),) = self.state(context).items()
        keep = pa.array(events.valid)
        parts = [column.filter(keep) for column in (*events.ordering, events.arrival, events.values)]
        items = pa.StructArray.from_arrays(parts, fields=list(list_type.value_type))
        rows = events.history.runs[events.valid]
        return {name: _lists(rows, items, len(events.history.starts), list_type)}

    def merge(self, context: Context, old: Columns, new: Columns) -> dict[str, pa.Array]:
        ((name, list_type),) = self.state(context).items()
        rows = np.concatenate([list_rows(old[name]), list_rows(new[name])])
        items = pa.concat_arrays([old[name].flatten(), new[name].flatten()])
        ordering_fields = [items.field(i) for i in range(len(context.ordering))]
        arrival = np.asarray(items.field(len(context.ordering)))
        rank = ranks(ordering_fields) if ordering_fields and len(items) else np.zeros(len(items), np.int64)
        # Stable: values of one commit with equal ordering values stay in their position.
        order = np.lexsort((arrival, rank, rows))
        return {name: _lists(rows[order], items.take(pa.array(order)), len(old[name]), list_type)}

    def show(self, context: Context, state: Columns) -> pa.Array:
        items = state[context.hidden("items")]
        values = items.flatten().field(len(context.ordering) + 1)
        plain = pa.list_(pa.field("element", values.type))
        lists = _lists(list_rows(items), values, len(items), plain)
        return pc.binary_join(lists, context.function.delimiter) if self.joined else lists.cast(context.column.type)

    def of_nothing(self, context: Context, present: pa.Array) -> dict[str, pa.Array]:
        return {}


FUNCTIONS: Final[Mapping[str, AggregateFunction]] = {
    "sum": Sum(),
    "count": Count(),
    "min": Extreme(largest=False),
    "max": Extreme(largest=True),
    "first": Edge(largest=False),
    "last": Edge(largest=True),
    "bool_and": Logical(conjunction=True),
    "bool_or": Logical(conjunction=False),
    "collect_set": CollectSet(),
    "collect_list": Collect(joined=False),
    "listagg": Collect(joined=True),
}


def input_type(function: Function, column: pa.DataType) -> pa.DataType:
    """Type of the events of a column of this type; those of `count` are turned into numbers when they are written."""
    return column.value_type if FUNCTIONS[function.name].takes == "elements" else column
