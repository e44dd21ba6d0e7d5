"""Which type a column of another format has in weft: the smallest that holds all of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput

_MAX_PRECISION: Final = 38
_WIDER: Final[Mapping[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Spark SQL type names of the columns of an Arrow schema, in its order.

    Raises:
        InvalidInput: Columns have a type that weft cannot store. The message names all of them.
    """
    types: dict[str, str] = {}
    unknown: list[str] = []
    for field in schema:
        kind = stored_type(field.type)
        if kind is None:
            unknown.append(f"{field.name} ({field.type})")
        else:
            types[field.name] = format_type(kind)
    if unknown:
        raise InvalidInput(
            f"weft has no type for column {', '.join(unknown)}", hint="leave them out with --leave-out, or cast them"
        )
    return types


def stored_type(given: pa.DataType) -> pa.DataType | None:
    """The type that a column of an Arrow type has in a table; None if there is none."""
    if isinstance(given, pa.BaseExtensionType):
        return stored_type(given.storage_type)
    if pa.types.is_dictionary(given):
        return stored_type(given.value_type)
    if given in _WIDER:
        return _WIDER[given]
    if pa.types.is_decimal(given):
        fits = given.precision <= _MAX_PRECISION and 0 <= given.scale <= given.precision
        return pa.decimal128(given.precision, given.scale) if fits else None
    if pa.types.is_timestamp(given):
        return pa.timestamp("us", tz="UTC") if given.tz else pa.timestamp("us")
    if pa.types.is_large_string(given) or pa.types.is_string_view(given):
        return pa.string()
    if pa.types.is_large_binary(given) or pa.types.is_binary_view(given) or pa.types.is_fixed_size_binary(given):
        return pa.binary()
    if pa.types.is_nested(given):
        return _nested_type(given)
    simple = (pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_string)
    if any(test(given) for test in simple) or pa.types.is_binary(given) or pa.types.is_date32(given):
        return given
    return None


def _nested_type(given: pa.DataType) -> pa.DataType | None:
    if pa.types.is_map(given):
        key, item = stored_type(given.key_type), stored_type(given.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_list(given) or pa.types.is_large_list(given) or pa.types.is_fixed_size_list(given):
        item = stored_type(given.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if pa.types.is_struct(given):
        fields = [(field.name, stored_type(field.type)) for field in given]
        return None if any(kind is None for _, kind in fields) else pa.struct(fields)
    return None


def storable(column: pa.Array) -> pa.Array:
    """A column as a writer accepts it: without extension types and unsigned 64-bit integers; others are cast there."""
    if isinstance(column.type, pa.BaseExtensionType):
        return storable(column.storage)
    if column.type == pa.uint64():
        return pc.cast(column, _WIDER[pa.uint64()])
    return column
