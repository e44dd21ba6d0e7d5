"""Avro records with the wire format of a schema registry. Runs in Spark's workers, so it does not import Spark.

A record is read with the schema that wrote it (fastavro), and its fields are then converted to the declared types by
their names. So the declared fields are the reader's schema: a field that the writer does not have is NULL, fields that
are not declared are ignored, and another schema of the writer needs no restart.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final

import pyarrow as pa

from streams.formats.convert import Unmarked
from streams.formats.debezium_event import PLACEHOLDER, EventReader, decode_events, event_reader, events_type
from streams.formats.records import Reader, Rows, make_reader, rows_array
from streams.formats.registry import RegistryClient, Schemas, Split, UnknownSchema, registry_client
from streams.formats.source_type import ANY, MEANINGS, Kind, SourceType

_KINDS: Final[Mapping[str, Kind]] = {
    "boolean": "boolean",
    "int": "number",
    "long": "number",
    "float": "number",
    "double": "number",
    "string": "string",
    "enum": "string",
    "bytes": "bytes",
    "fixed": "bytes",
    "record": "struct",
    "array": "array",
    "map": "map",
}


@dataclass(frozen=True, slots=True)
class AvroSettings:
    """How to decode Avro.

    Attributes:
        declared: Declared fields and their types.
        registry: Settings of the registry's client, sorted; may hold secrets.
        placeholder: Debezium's ``unavailable.value.placeholder``; used for events only.
        metadata: What is wanted of an event besides its row, see `decode_events`.
    """

    declared: pa.Schema
    registry: tuple[tuple[str, str], ...] = field(repr=False)
    placeholder: str = PLACEHOLDER
    metadata: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class WriterSchema:
    """A schema of a writer: as fastavro needs it, and as the type of its values."""

    parsed: Any
    type: SourceType


def decode_records(settings: AvroSettings, values: pa.Array) -> pa.StructArray:
    """Decode the values of a batch.

    A value that is not a record is the value of the declared field, if exactly one is declared.

    Args:
        settings: How to decode them.
        values: Binary; NULL for a message without a value.

    Returns:
        A struct, see `streams.formats.records.rows_type`. ``schema_id`` is NULL if the value does not have the wire
        format.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    split = _schemas(settings).split(values.to_pylist())
    rows = Rows()
    alone = settings.declared.names[0] if len(settings.declared) == 1 else None

    @cache
    def reader_of(schema: WriterSchema) -> Reader:
        source = schema.type
        if source.kind != "struct":
            source = SourceType("struct", fields={settings.declared.names[0]: source})
        return make_reader(settings.declared, source, Unmarked())

    for value in _data(split):
        if not isinstance(value, tuple):
            rows.refuse(value)
            continue
        schema, datum = value
        if isinstance(datum, dict) and schema.type.kind == "struct":
            rows.add(datum, reader_of(schema))
        elif alone is not None:
            rows.add({alone: datum}, reader_of(schema))
        else:
            rows.refuse("the value is not a record of Avro")
    return rows_array(rows, split.ids, settings.declared)


def decode_avro_events(settings: AvroSettings, values: pa.Array) -> pa.StructArray:
    """Decode change events of Debezium.

    Returns:
        See `streams.formats.debezium_event.decode_events`, and ``schema_id``.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    split = _schemas(settings).split(values.to_pylist())

    @cache
    def reader_of(schema: WriterSchema) -> EventReader:
        return event_reader(settings.declared, schema.type, Unmarked())

    events: list[tuple[Any, EventReader] | str | None] = [
        (value[1], reader_of(value[0])) if isinstance(value, tuple) else value for value in _data(split)
    ]
    decoded = decode_events(events, settings.declared, placeholder=settings.placeholder, metadata=settings.metadata)
    fields = list(avro_events_type(settings.declared, settings.metadata))
    return pa.StructArray.from_arrays([*decoded.flatten(), pa.array(split.ids, pa.int32())], fields=fields)


def avro_events_type(declared: pa.Schema, metadata: frozenset[str]) -> pa.DataType:
    """Type of what `decode_avro_events` returns."""
    return pa.struct([*events_type(declared, metadata), pa.field("schema_id", pa.int32())])


@lru_cache(maxsize=8)
def _schemas(settings: AvroSettings) -> Schemas[WriterSchema]:
    """The schemas of a worker, remembered between batches."""
    client = registry_client(settings.registry)

    def fetch(schema_id: int) -> WriterSchema:
        schema = client.schema(schema_id)
        if schema.schema_type not in {None, "AVRO"}:
            raise UnknownSchema(f"schema {schema_id} is of type {schema.schema_type}, not AVRO")
        return parse_schema(schema, client, f"schema {schema_id}")

    return Schemas(fetch)


def parse_schema(schema: Any, client: RegistryClient, what: str) -> WriterSchema:
    """Parse a schema of the registry and those that it refers to.

    Args:
        schema: From the client, with ``schema_str`` and ``references``.
        client: For the references.
        what: Name of the schema in errors.

    Raises:
        UnknownSchema: It is not a schema of Avro, or the registry does not know a reference.
        RegistryUnavailable: The registry does not answer.
    """
    from fastavro.schema import SchemaParseException, UnknownType
    from fastavro.schema import parse_schema as parse

    named: dict[str, Any] = {}
    try:
        plain, types = plain_schemas(schema, client)
        for one in plain:
            parsed = parse(_without_logical_types(one), named_schemas=named)
        return WriterSchema(parsed, avro_type(plain[-1], types))
    except (ValueError, SchemaParseException, UnknownType, KeyError, TypeError, RecursionError) as error:
        raise UnknownSchema(f"{what} is not a schema of Avro: {error}") from None


def plain_schemas(schema: Any, client: RegistryClient) -> tuple[list[Any], dict[str, Any]]:
    """A schema of the registry as JSON, after those that it refers to, and all named types by name.

    Raises:
        ValueError: A schema is not JSON.
        UnknownSchema: The registry does not know a reference.
        RegistryUnavailable: The registry does not answer.
    """
    plain = [json.loads(text) for text in (*_all_references(schema, client, set()), schema.schema_str)]
    named: dict[str, Any] = {}
    for one in plain:
        named.update(_named_types(one, ""))
    return plain, named


def _all_references(schema: Any, client: RegistryClient, seen: set[tuple[str, int]]) -> list[str]:
    """The texts of all schemas that one refers to, each after those that it needs itself."""
    texts = []
    for reference in schema.references or ():
        if (reference.subject, reference.version) in seen:
            continue
        seen.add((reference.subject, reference.version))
        found = client.version(reference.subject, reference.version)
        texts += [*_all_references(found, client, seen), found.schema_str]
    return texts


def _without_logical_types(schema: Any) -> Any:
    """The schema without logical types, so that values arrive as numbers and bytes; `convert` does the rest."""
    if isinstance(schema, dict):
        return {name: _without_logical_types(value) for name, value in schema.items() if name != "logicalType"}
    if isinstance(schema, list):
        return [_without_logical_types(value) for value in schema]
    return schema


def _named_types(schema: Any, namespace: str) -> dict[str, Any]:
    """All named types within a schema, by full name and by name."""
    found: dict[str, Any] = {}
    if isinstance(schema, list):
        for part in schema:
            found.update(_named_types(part, namespace))
    elif isinstance(schema, dict):
        inner = str(schema.get("namespace", namespace))
        if str(schema.get("type")) in {"record", "error", "enum", "fixed"} and "name" in schema:
            name = str(schema["name"])
            inner = name.rpartition(".")[0] if "." in name else inner
            found[name.rpartition(".")[2]] = schema
            found[name if "." in name or not inner else f"{inner}.{name}"] = schema
        for part in (*schema.get("fields", ()), schema.get("type"), schema.get("items"), schema.get("values")):
            if isinstance(part, dict | list):
                found.update(_named_types(part, inner))
    return found


def avro_type(schema: Any, named: Mapping[str, Any], within: frozenset[str] = frozenset()) -> SourceType:
    """The type that a schema of Avro describes, with the logical types of Avro and of Kafka Connect.

    Args:
        schema: A schema, as JSON.
        named: Schemas of named types.
        within: Names of the types around it; a type within itself becomes `ANY`.
    """
    if isinstance(schema, list):
        parts = [part for part in schema if part != "null"]
        return avro_type(parts[0], named, within) if len(parts) == 1 else ANY
    if isinstance(schema, str):
        if schema in _KINDS:
            return SourceType(_KINDS[schema])
        if schema not in named or schema in within:
            return ANY
        return avro_type(named[schema], named, within | {schema})
    if not isinstance(schema, dict):
        return ANY
    given = schema.get("type")
    if isinstance(given, dict | list) or (isinstance(given, str) and given not in _KINDS):
        return avro_type(given, named, within)
    kind = _KINDS.get(str(given), "any")
    meaning = MEANINGS.get(str(schema.get("connect.name")), "") or MEANINGS.get(str(schema.get("logicalType")), "")
    if kind == "struct":
        inner = within | {str(schema.get("name"))}
        fields = {str(part["name"]): avro_type(part["type"], named, inner) for part in schema.get("fields", ())}
        return SourceType(kind, meaning, fields=fields)
    items = {"array": schema.get("items"), "map": schema.get("values")}.get(kind)
    scale = schema.get("scale", 0)
    return SourceType(
        kind,
        meaning,
        scale if type(scale) is int else 0,
        items=None if items is None else avro_type(items, named, within),
    )


def _data(split: Split[WriterSchema]) -> Iterator[tuple[WriterSchema, Any] | str | None]:
    """Of each value its schema and datum, or the reason why it has none, or None."""
    from fastavro import schemaless_reader

    for part in split.parts:
        if not isinstance(part, tuple):
            yield part
            continue
        schema, data = part
        file = io.BytesIO(data)
        try:
            datum = schemaless_reader(file, schema.parsed, None)
        except Exception:  # whatever fastavro raises for bytes that are no data of this schema
            yield "the value cannot be read with its schema of Avro"
            continue
        yield (schema, datum) if file.tell() == len(data) else "the value is longer than its record of Avro"
