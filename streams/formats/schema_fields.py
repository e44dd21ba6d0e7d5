"""Lists the fields that the schema of a message declares: their SQL types, whether they may be NULL, and their text.

The functions are pure, and handle schemas of Avro, Kafka Connect (in JSON), Protobuf and Arrow; for JSON Schema see
`weft.streams.formats.json_schema`. The SQL type is one that the decoder of the format can fill without loss. A field
without such a type has a reason instead: it is a union of several types, contains itself, or fits no column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from weft.storage.core.types import format_type
from weft.storage.imports.column_types import stored_type
from weft.streams.formats.avro_schema import AVRO_TYPES, AvroType, decimal_scale, meaning_of
from weft.streams.formats.protobuf_messages import WRAPPERS
from weft.streams.formats.source_type import CONNECT_TYPES, MEANINGS

_LARGEST_PRECISION: Final = 38
_TIMESTAMP_TEXTS: Final = frozenset({"io.debezium.time.ZonedTimestamp", "io.debezium.time.IsoTimestamp"})
_DATE_TEXTS: Final = frozenset({"io.debezium.time.IsoDate"})
_SQL_OF_MEANING: Final = {"date": "date", "millis": "timestamp", "micros": "timestamp", "nanos": "timestamp"}
WITHIN_ITSELF: Final = "its type contains itself"
SEVERAL_TYPES: Final = "it is a union of several types"


class NoType(ValueError):
    """No SQL type fits the values; the text is the reason."""


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field of a message.

    Attributes:
        type: SQL type; "" if there is none.
        required: Whether the field is never NULL according to the schema.
        text: Documentation of the field in the schema; may be empty.
        reason: Why it has no type; "" if it has one.
    """

    type: str
    required: bool = False
    text: str = ""
    reason: str = ""


SchemaFields = dict[str, SchemaField]


def schema_field(find: Callable[[], str], text: Any, *, required: bool) -> SchemaField:
    """Make a field; ``find`` returns its type, or raises `NoType`."""
    doc = " ".join(str(text or "").split())
    try:
        return SchemaField(find(), required, doc)
    except NoType as reason:
        return SchemaField("", required, doc, str(reason))


def struct_type(fields: Mapping[str, str]) -> str:
    """Return the SQL type of an object with fields.

    Raises:
        NoType: There are no fields, or a name is not valid in SQL or differs from another only in case.
    """
    if not fields or len({name.lower() for name in fields}) < len(fields):
        raise NoType("it is an object without fields, or with names that differ only in case")
    if any(not name.isidentifier() or not name.isascii() for name in fields):
        raise NoType("it is an object whose fields have names that are not valid in SQL")
    return f"struct<{','.join(f'{name}:{kind}' for name, kind in fields.items())}>"


def _decimal(precision: Any, scale: Any) -> str:
    digits = scale if type(scale) is int and 0 <= scale <= _LARGEST_PRECISION else 0
    is_valid = type(precision) is int and max(digits, 1) <= precision <= _LARGEST_PRECISION
    return f"decimal({precision if is_valid else _LARGEST_PRECISION},{digits})"


# --- Avro ------------------------------------------------------------------------------------------------------------


def avro_fields(avro: AvroType) -> SchemaFields | None:
    """List the fields of a record of Avro, or of a union of a record with null; None for another type."""
    record = avro.value
    if record.kind != "record":
        return None
    within = frozenset({record.name})
    fields = {}
    for part in record.fields:
        optional = part.type.kind == "null" or any(branch.kind == "null" for branch in part.type.branches)
        fields[part.name] = schema_field(partial(_avro_sql, part.type, within), part.doc, required=not optional)
    return fields


def avro_sql(avro: AvroType) -> str:
    """Return the SQL type of the values of a type of Avro.

    Raises:
        NoType: No SQL type fits.
    """
    return _avro_sql(avro, frozenset())


def _avro_sql(avro: AvroType, within: frozenset[str]) -> str:
    avro = avro.value
    if avro.kind == "union":
        raise NoType(SEVERAL_TYPES if len(avro.branches) > 1 else "it is always null")
    if avro.kind == "null":
        raise NoType("it is always null")
    if avro.items is not None:
        items = _avro_sql(avro.items, within)
        return f"array<{items}>" if avro.kind == "array" else f"map<string,{items}>"
    meaning, local = meaning_of(avro)
    if meaning in {"variable_decimal", "big_decimal", "uuid"}:
        return "string"  # the scale of a decimal is not in the schema
    if avro.kind == "record":
        if avro.name in within:
            raise NoType(WITHIN_ITSELF)
        inner = within | {avro.name}
        return struct_type({part.name: _avro_sql(part.type, inner) for part in avro.fields})
    if meaning == "decimal":
        return _decimal(avro.attributes.get("precision"), decimal_scale(avro))
    connect = str(avro.attributes.get("connect.name") or "")
    if avro.kind == "string" and connect in _DATE_TEXTS:
        return "date"
    if avro.kind == "string" and connect in _TIMESTAMP_TEXTS:
        return "timestamp"
    return "timestamp_ntz" if local else _SQL_OF_MEANING.get(meaning, AVRO_TYPES[avro.kind][1])


# --- Kafka Connect ---------------------------------------------------------------------------------------------------


def connect_fields(schema: Any) -> SchemaFields | None:
    """List the fields of a struct of Kafka Connect's JSON converter; None for a schema that is not a struct."""
    if not isinstance(schema, Mapping) or schema.get("type") != "struct":
        return None
    by_name = {}
    for part in _connect_parts(schema):
        required = part.get("optional") is not True
        by_name[str(part["field"])] = schema_field(partial(connect_sql, part), part.get("doc"), required=required)
    return by_name


def connect_sql(schema: Any) -> str:
    """Return the SQL type of the values of a schema of Kafka Connect.

    Raises:
        NoType: No SQL type fits.
    """
    if not isinstance(schema, Mapping):
        raise NoType("it has no schema")
    kind, name = schema.get("type"), str(schema.get("name") or "")
    meaning = MEANINGS.get(name, "")
    if meaning == "variable_decimal":
        return "string"
    if meaning == "decimal":
        parameters = schema.get("parameters")
        settings = parameters if isinstance(parameters, Mapping) else {}
        return _decimal(_number(settings.get("connect.decimal.precision")), _number(settings.get("scale")))
    if name in _DATE_TEXTS:
        return "date"
    if name in _TIMESTAMP_TEXTS:
        return "timestamp"
    if kind == "array":
        return f"array<{connect_sql(schema.get('items'))}>"
    if kind == "map":
        return f"map<{connect_sql(schema.get('keys'))},{connect_sql(schema.get('values'))}>"
    if kind == "struct":
        return struct_type({str(part["field"]): connect_sql(part) for part in _connect_parts(schema)})
    _, sql = CONNECT_TYPES.get(str(kind), ("any", ""))
    if not sql:
        raise NoType(f"its type {kind} is not known")
    return _SQL_OF_MEANING.get(meaning, sql)


def connect_field_schema(schema: Any, name: str) -> Any:
    """Return the schema of a field of a struct; None if it has no such field."""
    return next((part for part in _connect_parts(schema) if part["field"] == name), None)


def _connect_parts(schema: Any) -> list[Mapping[str, Any]]:
    parts = schema.get("fields") if isinstance(schema, Mapping) else None
    part_list = parts if isinstance(parts, list) else []
    return [part for part in part_list if isinstance(part, Mapping) and "field" in part]


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() else None


# --- Protobuf --------------------------------------------------------------------------------------------------------

_PROTOBUF: Final = {
    "DOUBLE": "double",
    "FLOAT": "float",
    "INT64": "bigint",
    "SINT64": "bigint",
    "SFIXED64": "bigint",
    "UINT64": "decimal(20,0)",
    "FIXED64": "decimal(20,0)",
    "INT32": "int",
    "SINT32": "int",
    "SFIXED32": "int",
    "UINT32": "bigint",
    "FIXED32": "bigint",
    "BOOL": "boolean",
    "STRING": "string",
    "BYTES": "binary",
    "ENUM": "string",
}


def protobuf_fields(message: Any) -> SchemaFields:
    """List the fields of a message type, from its descriptor."""
    within = frozenset({str(message.full_name)})
    return {
        str(field.name): schema_field(
            partial(_protobuf_sql, field, within), "", required=not field.is_repeated and not field.has_presence
        )
        for field in message.fields
    }


def _protobuf_sql(field: Any, within: frozenset[str]) -> str:
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name
            return f"map<{_protobuf_value(inner['key'], within)},{_protobuf_value(inner['value'], within)}>"
        return f"array<{_protobuf_value(field, within)}>"
    return _protobuf_value(field, within)


def _protobuf_value(field: Any, within: frozenset[str]) -> str:
    message = field.message_type
    if message is None:
        kinds = {getattr(field, f"TYPE_{name}"): kind for name, kind in _PROTOBUF.items()}
        return kinds[field.type]
    name = str(message.full_name)
    if name == "google.protobuf.Timestamp":
        return "timestamp"
    if name == "confluent.type.Decimal":
        return "string"  # its scale is not in the schema
    if name in WRAPPERS:
        return _protobuf_value(message.fields_by_name["value"], within)
    if name in within:
        raise NoType(WITHIN_ITSELF)
    inner = within | {name}
    return struct_type({str(part.name): _protobuf_sql(part, inner) for part in message.fields})


# --- Arrow -----------------------------------------------------------------------------------------------------------


def arrow_fields(schema: pa.Schema) -> SchemaFields:
    """List the fields of a Parquet file, from its schema in Arrow."""
    return {
        field.name: schema_field(partial(_arrow_sql, field.type), "", required=not field.nullable) for field in schema
    }


def _arrow_sql(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _arrow_sql(kind.value_type)
    if pa.types.is_decimal(kind):
        if kind.precision > _LARGEST_PRECISION:
            raise NoType(f"a decimal of {kind.precision} digits is too long")
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns":
            raise NoType("Spark does not read timestamps in nanoseconds from Parquet")
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    if pa.types.is_map(kind):
        return f"map<{_arrow_sql(kind.key_type)},{_arrow_sql(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"array<{_arrow_sql(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return struct_type({field.name: _arrow_sql(field.type) for field in kind})
    refused = pa.types.is_float16(kind) or isinstance(kind, pa.BaseExtensionType)  # by Spark
    stored = None if refused else stored_type(kind)
    if stored is None:
        raise NoType(f"no column has the type {kind}")
    return format_type(stored)
