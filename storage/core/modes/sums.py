"""Functions ``sum`` and ``count``. They are exact, and the only functions from which deletes can subtract values."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.arrays import Arrays
from weft.storage.core.modes.aggregate_function import AggregateFunction, ColumnEvents, Context, Refusal, Takes

MAX_PRECISION: Final = 38
_CARRIED_PRECISION: Final = 28  # sums of wider values may need more than 38 digits
_WIDE_PRECISION: Final = 60  # of sums with a carry of 64 bits; Arrow's arithmetic needs the remaining digits


class Sum(AggregateFunction):
    """Sum of integers or decimals. The state is exact and always fits; the visible value may not fit its column.

    The state is a decimal(38, s). Columns with many digits also have a carry, in units of 10^38 of the last digit;
    narrower columns would need a carry only after more than 10^10 events of one key.
    """

    retractable = True
    may_overflow = True

    def refuses(self, column: pa.DataType) -> Refusal | None:
        if pa.types.is_floating(column):
            return Refusal("depends on the order of events", "declare the column as a decimal")
        if not (pa.types.is_integer(column) or pa.types.is_decimal(column)):
            return Refusal("is not possible", "sum takes integers and decimals")
        return None

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        value_type = context.column.type
        scale = value_type.scale if pa.types.is_decimal(value_type) else 0
        state: dict[str, pa.DataType] = {context.hidden("sum"): pa.decimal128(MAX_PRECISION, scale)}
        if pa.types.is_decimal(value_type) and value_type.precision > _CARRIED_PRECISION:
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

    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        total = pc.add(*(pc.fill_null(self._total(context, side), decimal.Decimal(0)) for side in (old, new)))
        sum_name = context.hidden("sum")
        is_missing = pc.and_(old[sum_name].is_null(), new[sum_name].is_null())
        return self._split(context, pc.if_else(is_missing, pa.scalar(None, total.type), total))

    def show(self, context: Context, state: Arrays) -> pa.Array:
        return _cast_or_null(self._total(context, state), context.column.type)

    def _total(self, context: Context, state: Arrays) -> pa.Array:
        """The sum as a decimal256: Arrow's arithmetic needs more digits than a decimal128 has."""
        sum_name, *carry = self.state(context)
        low = state[sum_name].cast(pa.decimal256(_WIDE_PRECISION, state[sum_name].type.scale))
        if not carry or state[carry[0]].null_count == len(low):
            return low
        units = pc.fill_null(state[carry[0]], 0).cast(pa.decimal256(MAX_PRECISION, 0))
        high = _rescale(units, low.type.scale - MAX_PRECISION).cast(low.type)
        return pc.add(low, high).cast(low.type)

    def _split(self, context: Context, total: pa.Array) -> dict[str, pa.Array]:
        """Split sums into the state columns: the sum and, if the column has one, the carry."""
        sum_name, *carry = self.state(context)
        state_type = self.state(context)[sum_name]
        if not carry:
            return {sum_name: total.cast(state_type)}
        total = total.cast(pa.decimal256(_WIDE_PRECISION, state_type.scale))
        units = total.cast(pa.decimal256(MAX_PRECISION, state_type.scale - MAX_PRECISION), safe=False)
        low = pc.subtract(total, units.cast(total.type)).cast(state_type)
        count = _rescale(units, 0).cast(pa.int64())
        return {sum_name: low, carry[0]: pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)}


def _rescale(values: pa.Array, scale: int) -> pa.Array:
    """Reinterpret the digits of decimals with another scale, which changes the values."""
    target = pa.decimal256(values.type.precision, scale)
    return pa.Array.from_buffers(target, len(values), values.buffers(), offset=values.offset)


def _as_decimal(integers: pa.Array) -> pa.Array:
    return integers.cast(pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(MAX_PRECISION, 0))


def _cast_or_null(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast values to another type; NULL where a value does not fit."""
    if values.type == target:
        return values
    if pa.types.is_integer(target):
        bits = target.bit_width - 1
        low, high = decimal.Decimal(-(1 << bits)), decimal.Decimal((1 << bits) - 1)
    else:
        # Built from digits: Python's decimal arithmetic rounds to 28 of them.
        high = decimal.Decimal((0, (9,) * target.precision, -target.scale))
        low = high.copy_negate()
    wide = values.cast(pa.decimal256(76, values.type.scale))
    limit = pa.decimal256(76, values.type.scale)
    fits = pc.and_(pc.greater_equal(wide, pa.scalar(low, limit)), pc.less_equal(wide, pa.scalar(high, limit)))
    values_that_fit = pc.if_else(fits, wide, pa.scalar(None, limit))
    return values_that_fit.cast(target)


class Count(AggregateFunction):
    """Number of non-null values, minus the number of deleted values."""

    retractable = True
    may_overflow = True

    @property
    def takes(self) -> Takes:
        return "anything"

    def refuses(self, column: pa.DataType) -> Refusal | None:
        if not pa.types.is_integer(column):
            return Refusal("is not possible", "the result is an integer: declare the column as bigint")
        return None

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        return {context.hidden("count"): pa.int64()}

    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        step = np.where(events.retracts, -1, 1) * events.valid
        return {context.hidden("count"): pa.array(np.add.reduceat(step, events.history.starts), pa.int64())}

    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        name = context.hidden("count")
        return {name: pc.add(pc.fill_null(old[name], 0), pc.fill_null(new[name], 0))}

    def show(self, context: Context, state: Arrays) -> pa.Array:
        return _cast_or_null(_as_decimal(state[context.hidden("count")]), context.column.type)

    def state_without_values(self, context: Context, present: pa.Array) -> dict[str, pa.Array]:
        zero = pa.scalar(0, pa.int64())
        return {context.hidden("count"): pc.if_else(present, zero, pa.scalar(None, pa.int64()))}
