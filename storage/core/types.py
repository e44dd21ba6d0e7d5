"""Column types: Spark SQL type names to Arrow types and back, and JSON forms of single values.

Every type has one canonical name, the one that Spark's ``simpleString`` prints, and every name has one Arrow type.
Times have microseconds; ``timestamp`` is an instant (UTC), ``timestamp_ntz`` a time without a zone. JSON forms are
exact: a decoded value equals the value that was encoded. Source of the names: Spark SQL reference, "Data Types".
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa

from weft.storage.core.names import fold_case
from weft.storage.errors import InvalidInput

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_ALIASES: Final[dict[str, str]] = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_NAMES: Final[dict[pa.DataType, str]] = {arrow_type: name for name, arrow_type in _SIMPLE.items()}
_TOKEN: Final = re.compile(r"\s*(?:([A-Za-z_][A-Za-z0-9_]*)|`((?:[^`]|``)+)`|(\d+)|([<>(),:]))")
_MAX_DECIMAL_PRECISION: Final = 38
MAX_NESTING: Final = 32  # deeper types are mistakes, and the parser recurses


def parse_type(text: str) -> pa.DataType:
    """Arrow type of a Spark SQL type name, nested types included.

    Raises:
        InvalidInput: ``text`` is not a type that weft stores; the hint lists the types.
    """
    return _Parser(text).parse()


def format_type(arrow_type: pa.DataType) -> str:
    """Canonical Spark SQL name of a type that `parse_type` returned."""
    if pa.types.is_decimal128(arrow_type):
        return f"decimal({arrow_type.precision},{arrow_type.scale})"
    if pa.types.is_list(arrow_type):
        return f"array<{format_type(arrow_type.value_type)}>"
    if pa.types.is_map(arrow_type):
        return f"map<{format_type(arrow_type.key_type)},{format_type(arrow_type.item_type)}>"
    if pa.types.is_struct(arrow_type):
        return f"struct<{','.join(f'{_quote(field.name)}:{format_type(field.type)}' for field in arrow_type)}>"
    name = _NAMES.get(arrow_type)
    if name is None:
        raise InvalidInput(f"weft cannot store Arrow type {arrow_type}", hint=_supported_types())
    return name


def _quote(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"


def _supported_types() -> str:
    return f"supported: {', '.join(_SIMPLE)}, decimal(p,s), array<t>, map<k,v>, struct<name:t,...>"


class _Parser:
    """Recursive descent over ``type := name [(p,s)] | array<type> | map<type,type> | struct<name:type,...>``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error()
            word, quoted, number, mark = match.groups()
            self._tokens.append(word or number or mark or "`" + quoted.replace("``", "`"))
            position = match.end()
        self._next = 0

    def parse(self) -> pa.DataType:
        result = self._type(0)
        if self._next != len(self._tokens):
            raise self._error()
        return result

    def _error(self) -> InvalidInput:
        return InvalidInput(f"{self._text!r} is not a column type", hint=_supported_types())

    def _take(self) -> str:
        if self._next >= len(self._tokens):
            raise self._error()
        self._next += 1
        return self._tokens[self._next - 1]

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _expect(self, mark: str) -> None:
        if self._take() != mark:
            raise self._error()

    def _type(self, depth: int) -> pa.DataType:
        if depth > MAX_NESTING:
            raise InvalidInput(f"type {self._text[:60]!r}... nests deeper than {MAX_NESTING}", hint="flatten the type")
        word = self._take().lower()
        word = _ALIASES.get(word, word)
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word == "decimal":
            return self._decimal()
        if word == "array":
            self._expect("<")
            item = self._type(depth + 1)
            self._expect(">")
            return pa.list_(pa.field("element", item))
        if word == "map":
            self._expect("<")
            key = self._type(depth + 1)
            self._expect(",")
            item = self._type(depth + 1)
            self._expect(">")
            return pa.map_(key, item)
        if word == "struct":
            return self._struct(depth)
        raise self._error()

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0  # as in Spark
        if self._peek() == "(":
            self._take()
            precision = self._number()
            if self._peek() == ",":
                self._take()
                scale = self._number()
            self._expect(")")
        if not (1 <= precision <= _MAX_DECIMAL_PRECISION and scale <= precision):
            raise InvalidInput(
                f"{self._text!r}: decimal({precision},{scale}) is out of range",
                hint=f"use a precision from 1 to {_MAX_DECIMAL_PRECISION}, and a scale of at most the precision",
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not token.isdigit():
            raise self._error()
        return int(token)

    def _struct(self, depth: int) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while True:
            name = self._take().removeprefix("`")
            self._expect(":")
            fields.append(pa.field(name, self._type(depth + 1)))
            mark = self._take()
            if mark == ">":
                break
            if mark != ",":
                raise self._error()
        if len({fold_case(field.name) for field in fields}) != len(fields):
            raise InvalidInput(
                f"{self._text!r} has a field name twice", hint="rename one of them: Spark SQL ignores case"
            )
        return pa.struct(fields)


def encode_scalar(value: Any) -> Any:
    """JSON form of a Python value of a scalar column type, as ``pa.Scalar.as_py`` returns it; None stays None."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value.hex()  # exact, and NaN and the infinities have a JSON form
        case decimal.Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case dt.datetime() | dt.date():
            return value.isoformat()
    raise InvalidInput(f"cannot store a value of type {type(value).__name__}", hint="use a scalar value")


def decode_scalar(value: Any, arrow_type: pa.DataType) -> Any:
    """Decode the JSON form of `encode_scalar` to a Python value of ``arrow_type``."""
    return decode_scalars([value], arrow_type)[0]


def decode_scalars(values: Iterable[Any], arrow_type: pa.DataType) -> list[Any]:
    """Decode many values of one type, see `decode_scalar`."""
    decode = _decoder(arrow_type)
    return list(values) if decode is None else [None if value is None else decode(value) for value in values]


def _decoder(arrow_type: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that decodes a value from its JSON form; None if they are equal."""
    if pa.types.is_floating(arrow_type):
        return float.fromhex
    if pa.types.is_decimal(arrow_type):
        return decimal.Decimal
    if pa.types.is_binary(arrow_type):
        return base64.b64decode
    if pa.types.is_date(arrow_type):
        return dt.date.fromisoformat
    if pa.types.is_timestamp(arrow_type):
        return dt.datetime.fromisoformat
    return None


def can_be_indexed(arrow_type: pa.DataType) -> bool:
    """Whether a column of this type can have Bloom filters: its values are equal exactly if their bytes are."""
    return bool(
        pa.types.is_integer(arrow_type)
        or pa.types.is_date(arrow_type)
        or pa.types.is_string(arrow_type)
        or pa.types.is_binary(arrow_type)
    )
