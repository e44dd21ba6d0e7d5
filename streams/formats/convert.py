"""Converts values of messages, as Python objects, to Arrow arrays of the declared types.

A value is converted exactly, or it gets a reason why it cannot be converted. Only two conversions lose digits: a binary
floating-point number becomes a decimal by rounding half up, and nanoseconds become microseconds by rounding down.

Only its schema decides how a value is interpreted: bytes are a decimal only if the schema says so and has the scale, a
number is a date or a time only with its unit, and a value of a union is read as the type that was written.

Without a schema it is unknown whether a number is in milliseconds or microseconds, and whether the text of a decimal is
the number or Base64. `Unmarked` determines that. Without it such a value gets a reason.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from operator import itemgetter
from typing import Any, Final, Literal

import pyarrow as pa

from weft.streams.formats.source_type import ANY, DECIMALS, SourceType

Convert = Callable[[Any], Any]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_UNITS: Final[Mapping[str, Callable[[int], int]]] = {
    "millis": lambda value: value * 1000,
    "micros": lambda value: value,
    "nanos": lambda value: value // 1000,
}
_KINDS: Final[Mapping[type, str]] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    Decimal: "a number",
    str: "a text",
    bytes: "a sequence of bytes",
    dict: "an object",
    list: "an array",
}
_EXACT: Final = Context(prec=80, traps=[InvalidOperation])
_LARGEST_SCALE: Final = 1000  # no database has a larger one, whose integer part would fill the memory
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
"""Numbers that JSON lacks, as Debezium writes them."""
_FLOAT32_LIMIT: Final = float.fromhex("0x1.ffffffp127")  # this number and larger ones are rounded to infinity
_INTEGER_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_NUMBER: Final = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|Infinity)")
_ENTRY: Final = ("key", "value")
_PAIR: Final = itemgetter(*_ENTRY)


class Mismatch(ValueError):
    """A value cannot be converted; the text completes a sentence that begins with the field."""


TimestampUnit = Literal["millis", "micros", "nanos"]
DecimalText = Literal["text", "base64"]


@dataclass(frozen=True, slots=True)
class Unmarked:
    """How values without a schema are interpreted.

    Attributes:
        timestamps: Unit of a number for a timestamp. With None such a number cannot be converted.
        decimals: Encoding of a text for a decimal: ``text`` (``12.50``), or ``base64`` of the unscaled number with the
            scale of the declared type. With None such a text cannot be converted.
    """

    timestamps: TimestampUnit | None = None
    decimals: DecimalText | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """How the values of one declared field are converted.

    Attributes:
        name: Name of the field.
        type: Declared type.
        convert: Converts a value that is not None.
        direct: Python types of values that Arrow converts without ``convert``.
        written: Type of such values in the message, which may be narrower than the declared type.
    """

    name: str
    type: pa.DataType
    convert: Convert
    direct: frozenset[type]
    written: pa.DataType


def declared_field(name: str, target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Field:
    """Determine how values of a field are converted.

    Args:
        name: Name of the field.
        target: Declared type, as `weft.storage.core.types.parse_type` returns it.
        source: Type of the values in the message.
        unmarked: How values without a schema are interpreted.
    """
    direct: set[type] = {type(None)}
    message_type = target
    if not source.meaning and source.kind not in {"null", "union"}:
        if pa.types.is_integer(target):
            direct.add(int)
            if _INTEGER_BITS[target] > source.bits:
                message_type = pa.int32()
        elif pa.types.is_float64(target):  # not for float32: Arrow converts numbers out of its range to infinity
            direct.add(float)
        elif pa.types.is_string(target):
            direct.add(str)
        elif pa.types.is_boolean(target):
            direct.add(bool)
        elif pa.types.is_binary(target):
            direct.add(bytes)
    unit = unmarked.timestamps if source.kind == "any" else source.meaning
    if pa.types.is_timestamp(target) and unit == "micros" and source.local in {None, target.tz is None}:
        direct.add(int)
    return Field(name, target, _converter(target, source, unmarked), frozenset(direct), message_type)


def to_array(values: Sequence[Any], field: Field) -> tuple[pa.Array, dict[int, str]]:
    """Convert the values of one field to an array of its declared type.

    Returns:
        The array, with NULL for None and for values that cannot be converted; and the reasons for the latter by
        position, as sentences that name the field.
    """
    try:
        if set(map(type, values)) <= field.direct:
            array = pa.array(values, field.written)
            return array if field.written == field.type else array.cast(field.type), {}
        convert = field.convert
        return pa.array([None if value is None else convert(value) for value in values], field.type), {}
    except (Mismatch, pa.ArrowException, OverflowError, ValueError, TypeError):
        return _one_by_one(values, field)


def _one_by_one(values: Sequence[Any], field: Field) -> tuple[pa.Array, dict[int, str]]:
    converted: list[Any] = []
    problems: dict[int, str] = {}
    for position, value in enumerate(values):
        result = None
        try:
            result = None if value is None else field.convert(value)
            pa.array([result], field.type)
        except Mismatch as reason:
            problems[position] = f"field {field.name!r}: {reason}"
            result = None
        except UnicodeEncodeError:
            problems[position] = f"field {field.name!r} has half of a surrogate pair, which is not a character"
            result = None
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            problems[position] = f"field {field.name!r}: {_kind_of(value)} does not fit {type_text(field.type)}"
            result = None
        converted.append(result)
    return pa.array(converted, field.type), problems


def type_text(target: pa.DataType) -> str:
    """Format a type as the user declares it."""
    from weft.storage.core.types import format_type

    return format_type(target)


def _kind_of(value: Any) -> str:
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def _mismatch(value: Any, target: pa.DataType) -> Mismatch:
    return Mismatch(f"{_kind_of(value)} is not {type_text(target)}")


def _converter(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    if source.kind == "union":
        return _of_union(target, source, unmarked)
    if source.kind == "null":
        return lambda _: None
    if pa.types.is_integer(target):
        return _to_integer(target, source, unmarked)
    if pa.types.is_floating(target):
        return _to_float(target, source, unmarked)
    if pa.types.is_decimal(target):
        return _to_decimal(target, source, unmarked)
    if pa.types.is_boolean(target):
        return _to_boolean(target, source)
    if pa.types.is_string(target):
        return _to_text(target, source, unmarked)
    if pa.types.is_binary(target):
        return _to_bytes(target, source)
    if pa.types.is_date32(target):
        return _to_date(target, source)
    if pa.types.is_timestamp(target):
        return _to_timestamp(target, source, unmarked)
    if pa.types.is_struct(target):
        return _to_struct(target, source, unmarked)
    if pa.types.is_list(target):
        return _to_list(target, source, unmarked)
    assert pa.types.is_map(target), f"parse_type returns no other types: {target}"
    return _to_map(target, source, unmarked)


def _of_union(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    branches: dict[str, Convert] = {}

    def convert(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) != 1:
            raise _mismatch(value, target)
        [(branch, inner)] = value.items()
        if branch not in branches:
            branches[branch] = _converter(target, source.field(branch), unmarked)
        return None if inner is None else branches[branch](inner)

    return convert


def _to_integer(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    limit = 1 << (min(_INTEGER_BITS[target], source.bits) - 1)

    def convert(value: Any) -> int:
        if type(value) is not int:
            raise _mismatch(value, target)
        if not -limit <= value < limit:
            raise Mismatch(f"a number is out of the range of {type_text(target)}")
        return value

    def convert_decimal(value: Any) -> int:
        number, _ = _decimal(value, target, source, unmarked)
        if number != number.to_integral_value():
            raise Mismatch(f"a decimal with digits after the point is not {type_text(target)}")
        return convert(int(number))

    return convert_decimal if source.meaning in DECIMALS else convert


def _to_float(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    limit = math.inf if pa.types.is_float64(target) else _FLOAT32_LIMIT

    def convert(value: Any) -> float:
        if source.meaning in DECIMALS:
            value, _ = _decimal(value, target, source, unmarked)
        if type(value) is str and value in _NOT_FINITE and source.kind in {"any", "number"}:
            return float(value)
        if type(value) not in {int, float, Decimal}:
            raise _mismatch(value, target)
        number = float(value)
        is_meant = type(value) is float and not math.isfinite(value)
        if not is_meant and abs(number) >= limit:
            raise Mismatch(f"a number is out of the range of {type_text(target)}")
        return number

    return convert


def _to_decimal(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    step, limit = Decimal(f"1E{-target.scale}"), Decimal(f"1E{target.precision - target.scale}")

    def convert(value: Any) -> Decimal:
        number, exact = _decimal(value, target, source, unmarked)
        if not number.is_finite():
            raise Mismatch(f"a number that is not finite is not {type_text(target)}")
        if not -limit < number < limit:
            raise Mismatch(f"a number is out of the range of {type_text(target)}")
        fitted = number.quantize(step, rounding=None if exact else "ROUND_HALF_UP", context=_EXACT)
        if exact and fitted != number:
            raise Mismatch(f"a number has more digits after the point than {type_text(target)}")
        if not -limit < fitted < limit:
            raise Mismatch(f"a number is out of the range of {type_text(target)}")
        return fitted

    return convert


def _decimal(value: Any, target: pa.DataType, source: SourceType, unmarked: Unmarked) -> tuple[Decimal, bool]:
    """Return the number that a value stands for, and whether it is exact: a binary floating-point number is not."""
    match value:
        case bool():
            raise _mismatch(value, target)
        case Decimal():  # a number of JSON, which is a binary floating-point number unless the schema says otherwise
            return value, source.meaning == "decimal"
        case int():
            return Decimal(value), True
        case float():
            return Decimal(repr(value)), False
        case bytes() if source.meaning == "decimal":
            return _scale(value, source.scale), True
        case bytes() if source.meaning == "big_decimal":
            return _big_decimal(value), True
        case bytes():
            raise Mismatch(
                f"a sequence of bytes is not {type_text(target)}: its schema does not say which number it is"
            )
        case dict() if _may_be_decimal(source) and {"scale", "value"} <= value.keys():
            return _scale(_unbase64(value["value"], target), value["scale"]), True
        case str() if source.meaning == "decimal":
            return _scale(_unbase64(value, target), source.scale), True
        case str() if source.kind == "any" and unmarked.decimals is None:
            raise Mismatch(
                f"a text is not {type_text(target)}: the message has no schema, which would say how it is encoded "
                "(format_options: decimals)"
            )
        case str() if source.kind == "any" and unmarked.decimals == "base64":
            scale = target.scale if pa.types.is_decimal(target) else 0
            return _scale(_unbase64(value, target), scale), True
        case str() if source.kind in {"any", "string"}:
            if _NUMBER.fullmatch(value) is None:  # Python also accepts underscores, spaces and digits of other scripts
                raise _mismatch(value, target)
            try:
                return _EXACT.create_decimal(value), True
            except InvalidOperation:
                raise _mismatch(value, target) from None
    raise _mismatch(value, target)


def _may_be_decimal(source: SourceType) -> bool:
    """Whether an object with a scale and a value is a decimal: Debezium's type, or a message without a schema."""
    return source.meaning == "variable_decimal" or source.kind == "any"


def _big_decimal(data: bytes) -> Decimal:
    """Decode Avro's big-decimal: the number of bytes, the unscaled number as bytes, and the scale."""
    size, place = _avro_number(data, 0)
    scale, end = _avro_number(data, place + size) if size >= 0 else (0, 0)
    if end != len(data):
        raise Mismatch("a sequence of bytes is not a decimal with its scale")
    return _scale(data[place : place + size], scale)


def _avro_number(data: bytes, place: int) -> tuple[int, int]:
    """Decode a zigzag number of at most 32 bits; returns it and the position after it, or -1 and -1 without one."""
    value = 0
    for count, byte in enumerate(data[place : place + 5]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place + count + 1
    return -1, -1


def _scale(unscaled: bytes, scale: Any) -> Decimal:
    if type(scale) is not int or abs(scale) > _LARGEST_SCALE:
        raise Mismatch("a decimal has no usable scale")
    return Decimal(f"{int.from_bytes(unscaled, 'big', signed=True)}E{-scale}")


def _unbase64(value: Any, target: pa.DataType) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _mismatch(value, target)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise Mismatch(f"a text is not Base64, as {type_text(target)} is encoded") from None


def _to_boolean(target: pa.DataType, source: SourceType) -> Convert:
    def convert(value: Any) -> bool:
        if value is True or value is False:
            return value
        if type(value) is int and value in {0, 1} and not source.meaning:  # MySQL's tinyint(1)
            return value == 1
        raise _mismatch(value, target)

    return convert


def _to_text(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    def convert(value: Any) -> str:
        if type(value) is not str:
            raise _mismatch(value, target)
        return value

    def convert_uuid(value: Any) -> str:
        return str(uuid.UUID(bytes=value)) if isinstance(value, bytes) else convert(value)

    def convert_decimal(value: Any) -> str:
        number, _ = _decimal(value, target, source, unmarked)
        return format(number, "f")

    if source.meaning in DECIMALS:
        return convert_decimal
    return convert_uuid if source.meaning == "uuid" else convert


def _to_bytes(target: pa.DataType, source: SourceType) -> Convert:
    def convert(value: Any) -> bytes:
        if isinstance(value, str) and source.kind in {"string", "enum"}:
            raise Mismatch("a text is not binary: declare the field as string")
        return _unbase64(value, target)

    return convert


def _to_date(target: pa.DataType, source: SourceType) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int and (source.meaning == "date" or source.kind == "any"):
            return value
        if type(value) is str and source.kind in {"any", "string"}:
            try:
                return (dt.date.fromisoformat(value.removesuffix("Z")) - _EPOCH.date()).days
            except ValueError:
                raise _mismatch(value, target) from None
        raise _mismatch(value, target)

    return convert


def _to_timestamp(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    unit = _UNITS.get(source.meaning)
    if source.kind == "any" and unmarked.timestamps is not None:
        unit = _UNITS[unmarked.timestamps]

    def convert(value: Any) -> int:
        if type(value) is int:
            if unit is not None:
                if source.local is True and target.tz is not None:
                    raise Mismatch(f"a time without a time zone is not {type_text(target)}: declare timestamp_ntz")
                if source.local is False and target.tz is None:
                    raise Mismatch(f"a time with a time zone is not {type_text(target)}: declare timestamp")
                return unit(value)
            if source.kind == "any":
                raise Mismatch(
                    f"a number is not {type_text(target)}: the message has no schema, which would say its unit "
                    "(format_options: timestamps)"
                )
        if type(value) is str and source.kind in {"any", "string"}:
            return _instant(value, target)
        raise _mismatch(value, target)

    return convert


def _instant(value: str, target: pa.DataType) -> int:
    """Parse a text to microseconds since 1970. Without an offset it is in UTC."""
    try:
        moment = dt.datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        elif target.tz is None:
            raise Mismatch(f"a text with an offset from UTC is not {type_text(target)}")
        return (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        if isinstance(error, Mismatch):
            raise
        raise _mismatch(value, target) from None


def _to_struct(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    fields = [(field.name, _converter(field.type, source.field(field.name), unmarked)) for field in target]

    def convert(value: Any) -> dict[str, Any]:
        if source.kind == "map":
            raise Mismatch(f"a map is not {type_text(target)}")
        if not isinstance(value, dict):
            raise _mismatch(value, target)
        return {name: None if (item := value.get(name)) is None else inner(item) for name, inner in fields}

    return convert


def _to_list(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    inner = _converter(target.value_type, source.items or ANY, unmarked)

    def convert(value: Any) -> list[Any]:
        if source.kind == "map":
            raise Mismatch(f"a map is not {type_text(target)}")
        if not isinstance(value, list):
            raise _mismatch(value, target)
        return [None if item is None else inner(item) for item in value]

    return convert


def _to_map(target: pa.DataType, source: SourceType, unmarked: Unmarked) -> Convert:
    keys, items = source.keys, source.items
    # Kafka Connect writes a map whose keys are not texts as an array of pairs: arrays in JSON, records in Avro.
    is_array = source.kind == "array" and items is not None and items.fields.keys() == set(_ENTRY)
    if is_array and items is not None:
        keys, items = items.field("key"), items.field("value")
    key = _converter(target.key_type, keys or ANY, unmarked)
    inner = _converter(target.item_type, items or ANY, unmarked)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, dict) and source.kind in {"any", "map"}:
            pairs: Iterable[Any] = value.items()
        elif not isinstance(value, list) or (source.kind == "array" and not is_array):
            raise _mismatch(value, target)
        elif source.kind != "any" and all(isinstance(pair, dict) and pair.keys() >= set(_ENTRY) for pair in value):
            pairs = map(_PAIR, value)
        elif all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            pairs = value
        else:
            raise _mismatch(value, target)
        entries = [(key(name), None if item is None else inner(item)) for name, item in pairs]
        if _distinct(entries) < len(entries):
            raise Mismatch("a map has a key twice")
        return entries

    return convert


def _distinct(entries: Sequence[tuple[Any, Any]]) -> int:
    try:
        return len(dict(entries))
    except TypeError:  # keys that are not hashable, such as structs
        return len({repr(name) for name, _ in entries})
