"""Decides which input types a column accepts: those that can be cast without changing a value."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from weft.storage.core.keys import one_array
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput

_INTEGER_RANGE: Final = {
    pa.int8(): (7, 7),
    pa.int16(): (15, 15),
    pa.int32(): (31, 31),
    pa.int64(): (63, 63),
    pa.uint8(): (8, 0),
    pa.uint16(): (16, 0),
    pa.uint32(): (32, 0),
    pa.uint64(): (64, 0),
}
"""Integer types: number of bits of the largest value, and of the smallest (negative) value."""
_DOUBLE_EXACT_BITS: Final = 53


def cast_column(name: str, column: pa.ChunkedArray, target: pa.DataType) -> pa.Array:
    """Cast a column of a batch, if no value changes.

    Args:
        name: The column's name, for messages.
        column: Its values.
        target: The type in the table.

    Returns:
        One contiguous array of the target type.

    Raises:
        InvalidInput: The type does not fit, or a time would lose precision.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type != target and not _fits(column.type, target):
        raise InvalidInput(
            f"column {name!r} has type {column.type}, but in the table it is {format_type(target)}", hint=_hint(target)
        )
    try:
        converted = column if column.type == target else column.cast(target)
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"column {name!r}: a value does not fit {format_type(target)}: {error}",
            hint="round times to microseconds before writing",
        ) from None
    return one_array(converted)


def _hint(target: pa.DataType) -> str:
    if pa.types.is_timestamp(target):
        return (
            "add a time zone: a timestamp is an instant"
            if target.tz
            else "remove the time zone, or use the type timestamp"
        )
    return "cast it before writing; only casts that cannot change a value are automatic"


def _fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every value of ``source`` is a value of ``target``; the precision of times is checked by the cast."""
    if source == target or pa.types.is_null(source):
        return True
    if pa.types.is_integer(target):
        return source in _INTEGER_RANGE and _within(_INTEGER_RANGE[source], _INTEGER_RANGE[target])
    if pa.types.is_floating(target):
        if source in _INTEGER_RANGE:
            return target == pa.float64() and _INTEGER_RANGE[source][0] <= _DOUBLE_EXACT_BITS
        return pa.types.is_floating(source) and source.bit_width <= target.bit_width
    if pa.types.is_decimal128(target):
        return (
            pa.types.is_decimal(source)
            and source.scale <= target.scale
            and source.precision - source.scale <= target.precision - target.scale
        )
    if pa.types.is_string(target):
        return pa.types.is_large_string(source) or pa.types.is_string_view(source)
    if pa.types.is_binary(target):
        return (
            pa.types.is_large_binary(source) or pa.types.is_binary_view(source) or pa.types.is_fixed_size_binary(source)
        )
    if pa.types.is_date32(target):
        return pa.types.is_date64(source)
    if pa.types.is_timestamp(target):
        return pa.types.is_timestamp(source) and (source.tz is None) == (target.tz is None)
    return _nested_fits(source, target)


def _nested_fits(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_map(target):
        return (
            pa.types.is_map(source)
            and _fits(source.key_type, target.key_type)
            and _fits(source.item_type, target.item_type)
        )
    if pa.types.is_list(target):
        lists = pa.types.is_list(source) or pa.types.is_large_list(source) or pa.types.is_fixed_size_list(source)
        return lists and _fits(source.value_type, target.value_type)
    if pa.types.is_struct(target):
        return (
            pa.types.is_struct(source)
            and [field.name for field in source] == [field.name for field in target]
            and all(_fits(source.field(i).type, target.field(i).type) for i in range(target.num_fields))
        )
    return False


def _within(source: tuple[int, int], target: tuple[int, int]) -> bool:
    return source[0] <= target[0] and source[1] <= target[1]
