"""Types of values as the schema of a message gives them: Kafka Connect's JSON schemas, and their logical types.

A message without a schema has the type `ANY`: then only the JSON value itself tells what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

Kind = Literal["any", "boolean", "number", "string", "bytes", "struct", "array", "map"]
Meaning = Literal["", "date", "millis", "micros", "nanos", "decimal", "variable_decimal"]

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
        "date": "date",
        "timestamp-millis": "millis",
        "timestamp-micros": "micros",
        "timestamp-nanos": "nanos",
        "local-timestamp-millis": "millis",
        "local-timestamp-micros": "micros",
        "local-timestamp-nanos": "nanos",
        "decimal": "decimal",
    }
)
"""Logical types of Kafka Connect, Debezium and Avro whose values differ from the values that SQL shows.

Text types such as ``io.debezium.time.ZonedTimestamp`` need no entry: their text is ISO 8601. Times of day and durations
have none either: their value is a number.
"""

_KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "boolean": "boolean",
        "int8": "number",
        "int16": "number",
        "int32": "number",
        "int64": "number",
        "float": "number",
        "double": "number",
        "string": "string",
        "bytes": "bytes",
        "struct": "struct",
        "array": "array",
        "map": "map",
    }
)


@dataclass(frozen=True, slots=True)
class SourceType:
    """Type of a value in a message.

    Attributes:
        kind: What the value is; ``any`` if there is no schema.
        meaning: How to interpret it: a unit of time since 1970, or an encoding of decimals; "" for the value itself.
        scale: Of a ``decimal``: number of digits after the point.
        fields: Of a ``struct``, by name.
        items: Type of the elements of an ``array`` or of the values of a ``map``; None if it is not known.
    """

    kind: Kind = "any"
    meaning: Meaning = ""
    scale: int = 0
    fields: Mapping[str, SourceType] = field(default_factory=dict)
    items: SourceType | None = None

    def field(self, name: str) -> SourceType:
        """Type of a field; `ANY` if it is not known."""
        return self.fields.get(name, ANY)


ANY: Final = SourceType()


def connect_type(schema: Any) -> SourceType:
    """The type that a schema of Kafka Connect's JSON converter describes.

    Args:
        schema: The member ``schema`` of a message, as JSON. What is not understood becomes `ANY`.
    """
    if not isinstance(schema, Mapping):
        return ANY
    kind = _KINDS.get(str(schema.get("type")), "any")
    meaning = MEANINGS.get(str(schema.get("name")), "")
    parameters = schema.get("parameters")
    scale = str(parameters.get("scale", "")) if isinstance(parameters, Mapping) else ""
    fields = {}
    if kind == "struct" and isinstance(schema.get("fields"), list):
        fields = {
            str(given["field"]): connect_type(given)
            for given in schema["fields"]
            if isinstance(given, Mapping) and "field" in given
        }
    inner = {"array": "items", "map": "values"}.get(kind)
    items = connect_type(schema.get(inner)) if inner else None
    return SourceType(kind, meaning, int(scale) if scale.removeprefix("-").isdecimal() else 0, fields, items)
