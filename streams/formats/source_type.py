"""Types of the values of a message, for schemas of every language; with the types of Kafka Connect's JSON schemas.

The values of a message without a schema have the type `ANY`: only the JSON value itself shows its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

Kind = Literal["any", "null", "boolean", "number", "string", "enum", "bytes", "struct", "array", "map", "union"]
Meaning = Literal["", "date", "millis", "micros", "nanos", "decimal", "variable_decimal", "big_decimal", "uuid"]
DECIMALS: Final = frozenset({"decimal", "variable_decimal", "big_decimal"})
"""Meanings of values that are decimals."""

MEANINGS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        "io.debezium.time.Date": "date",
        "io.debezium.time.Timestamp": "millis",
        "io.debezium.time.MicroTimestamp": "micros",
        "io.debezium.time.NanoTimestamp": "nanos",
        "io.debezium.data.VariableScaleDecimal": "variable_decimal",
        "org.apache.kafka.connect.data.Date": "date",
        "org.apache.kafka.connect.data.Timestamp": "millis",
        "org.apache.kafka.connect.data.Decimal": "decimal",
    }
)
"""Logical types of Kafka Connect and Debezium whose encoded values differ from the values in SQL.

Text types such as ``io.debezium.time.ZonedTimestamp`` need no entry: their text is ISO 8601. Times of day and durations
have no entry, either: they are read as numbers.
"""

CONNECT_TYPES: Final[Mapping[str, tuple[Kind, str]]] = MappingProxyType(
    {
        "boolean": ("boolean", "boolean"),
        "int8": ("number", "tinyint"),
        "int16": ("number", "smallint"),
        "int32": ("number", "int"),
        "int64": ("number", "bigint"),
        "float": ("number", "float"),
        "double": ("number", "double"),
        "string": ("string", "string"),
        "bytes": ("bytes", "binary"),
        "struct": ("struct", ""),
        "array": ("array", ""),
        "map": ("map", ""),
    }
)
"""Types of Kafka Connect: the kind of their values, and the SQL type; empty if that depends on parts of the type."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceType:
    """Type of a value in a message. A recursive type contains itself as the same object.

    Attributes:
        kind: Kind of the value; ``any`` if there is no schema.
        meaning: How to interpret it: a unit of time since 1970, or an encoding of decimals; "" for the value itself.
        scale: Digits after the point of a ``decimal``; None if the schema does not specify them.
        fields: Fields of a ``struct`` by name; branches of a ``union`` by the name of the only member of a value.
        items: Type of the elements of an ``array`` or of the values of a ``map``; None if unknown.
        keys: Type of the keys of a ``map``; None if unknown.
        local: Whether a time has no time zone; None if the schema does not specify that.
        bits: Size of an integer in the schema.
    """

    kind: Kind = "any"
    meaning: Meaning = ""
    scale: int | None = 0
    fields: Mapping[str, SourceType] = field(default_factory=dict)
    items: SourceType | None = None
    keys: SourceType | None = None
    local: bool | None = None
    bits: int = 64

    def field(self, name: str) -> SourceType:
        """Return the type of a field; `ANY` if it is unknown."""
        return self.fields.get(name, ANY)


ANY: Final = SourceType()


def connect_type(schema: Any) -> SourceType:
    """Convert a schema of Kafka Connect's JSON converter to a type.

    Args:
        schema: The member ``schema`` of a message, as JSON. Unknown parts become `ANY`.
    """
    if not isinstance(schema, Mapping):
        return ANY
    kind, _ = CONNECT_TYPES.get(str(schema.get("type")), ("any", ""))
    meaning = MEANINGS.get(str(schema.get("name")), "")
    parameters = schema.get("parameters")
    scale = str(parameters.get("scale", "")) if isinstance(parameters, Mapping) else ""
    fields = {}
    if kind == "struct" and isinstance(schema.get("fields"), list):
        fields = {
            str(part["field"]): connect_type(part)
            for part in schema["fields"]
            if isinstance(part, Mapping) and "field" in part
        }
    inner = {"array": "items", "map": "values"}.get(kind)
    items = connect_type(schema.get(inner)) if inner else None
    keys = connect_type(schema.get("keys")) if kind == "map" else None
    digits = int(scale) if scale.removeprefix("-").isdecimal() else None
    return SourceType(kind, meaning, digits, fields, items, keys)
