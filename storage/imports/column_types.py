"""Maps Arrow types to the types of weft: each to the smallest type that holds all of its values."""

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
    unknown_columns: list[str] = []
    for field in schema:
        kind = stored_type(field.type)
        if kind is None:
            unknown_columns.append(f"{field.name} ({field.type})")
        else:
            types[field.name] = format_type(kind)
    if unknown_columns:
        raise InvalidInput(
            f"weft has no type for column {', '.join(unknown_columns)}",
            hint="leave them out with --leave-out, or cast them",
        )
    return types


def stored_type(arrow_type: pa.DataType) -> pa.DataType | None:
    """The type of a weft column for an Arrow type; None if weft has none."""
    if isinstance(arrow_type, pa.BaseExtensionType):
        return stored_type(arrow_type.storage_type)
    if pa.types.is_dictionary(arrow_type):
        return stored_type(arrow_type.value_type)
    if arrow_type in _WIDER:
        return _WIDER[arrow_type]
    if pa.types.is_decimal(arrow_type):
        fits = arrow_type.precision <= _MAX_PRECISION and 0 <= arrow_type.scale <= arrow_type.precision
        return pa.decimal128(arrow_type.precision, arrow_type.scale) if fits else None
    if pa.types.is_timestamp(arrow_type):
        return pa.timestamp("us", tz="UTC") if arrow_type.tz else pa.timestamp("us")
    if pa.types.is_large_string(arrow_type) or pa.types.is_string_view(arrow_type):
        return pa.string()
    binary = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    if any(test(arrow_type) for test in binary):
        return pa.binary()
    if pa.types.is_nested(arrow_type):
        return _nested_type(arrow_type)
    simple = (pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_floating, pa.types.is_string)
    if any(test(arrow_type) for test in simple) or pa.types.is_binary(arrow_type) or pa.types.is_date32(arrow_type):
        return arrow_type
    return None


def _nested_type(arrow_type: pa.DataType) -> pa.DataType | None:
    if pa.types.is_map(arrow_type):
        key, item = stored_type(arrow_type.key_type), stored_type(arrow_type.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type):
        item = stored_type(arrow_type.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if pa.types.is_struct(arrow_type):
        fields = [(field.name, stored_type(field.type)) for field in arrow_type]
        return None if any(kind is None for _, kind in fields) else pa.struct(fields)
    return None


def storable(column: pa.Array) -> pa.Array:
    """Cast extension types and unsigned 64-bit integers, which writers refuse. They cast other types themselves."""
    if isinstance(column.type, pa.BaseExtensionType):
        return storable(column.storage)
    if column.type == pa.uint64():
        return pc.cast(column, _WIDER[pa.uint64()])
    return column
