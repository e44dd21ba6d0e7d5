"""Decodes values or keys with the schemas of a registry that they name, for `weft infer`.

Fields and types come from these schemas, the newest one first. If there is no message, they come from the newest schema
of the subject ``<topic>-value`` or ``<topic>-key``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from weft.storage.core.types import parse_type
from weft.storage.errors import InvalidInput
from weft.storage.foreign_text import parse_json
from weft.streams.formats.avro_records import decode_avro_events, decode_records, registered_type
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.json_schema import json_schema_fields
from weft.streams.formats.json_validation import referenced_documents
from weft.streams.formats.protobuf_messages import (
    decode_protobuf,
    load_file,
    message_type,
    split_indexes,
)
from weft.streams.formats.registry import (
    NO_HEADER,
    RegistryClient,
    SchemaId,
    UnknownSchema,
    check_registry_settings,
    registry_client,
    split_header,
)
from weft.streams.formats.schema_fields import (
    NoType,
    SchemaFields,
    avro_fields,
    avro_sql,
    protobuf_fields,
)
from weft.streams.pipeline.infer.json_types import parse_json_value

SINGLE_VALUE: Final = "value"
"""Name of the only field of messages that are single values."""
_FIRST: Final = (0,)
_WIDER: Final = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where the messages come from.

    Attributes:
        stream: Name of the stream.
        topics: Names of the topics.
        value_format, key_format: Names of formats.
        registry: Settings of the registry's client.
    """

    stream: str
    topics: Sequence[str]
    value_format: str
    key_format: str
    registry: Mapping[str, str] = field(repr=False)


@dataclass(slots=True)
class Decoded:
    """Values or keys of one format.

    Attributes:
        fields: Fields of the messages; None if they are single values, of type ``single_type``.
        rows: For each message its values by field, or its single value; None if it cannot be decoded.
        connectors: The connector of each change event.
        notes: What the user should look at.
    """

    fields: SchemaFields | None
    single_type: str = ""
    rows: list[Any] = field(default_factory=list)
    connectors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def decode_named(name: str, values: Sequence[bytes | None], source: Kafka, what: str) -> Decoded:
    """Decode values or keys by the schemas that they name.

    Args:
        name: Name of their format.
        values: The values or keys, the newest last.
        source: Where they come from.
        what: ``value`` or ``key``.

    Raises:
        InvalidInput: They have no schema, an unknown one, or one of another type; or they have different types.
        RegistryUnavailable: The registry does not answer.
    """
    if name == "json-schema" and not source.registry.get("url"):
        raise InvalidInput(
            f"the fields of a {what} of format {name} are in the schema registry",
            hint='add registry: {url: "http://host:8081"}',
        )
    check_registry_settings("avro" if name == "json-schema" else name, source.registry)
    settings = tuple(sorted(source.registry.items()))
    client = registry_client(settings)
    client.check()  # once: an outage is an error now
    serialized = name == "protobuf"
    notes: list[str] = []
    ids = [None if value is None else split_header(value) for value in values]
    counts = Counter(header[0] for header in ids if header is not None)
    newest = list(dict.fromkeys(header[0] for header in reversed(ids) if header is not None))
    present = [value for value in values if value is not None]
    schemas: dict[SchemaId, Any] = {}
    unknown: dict[SchemaId, str] = {}
    if present and not counts:
        raise InvalidInput(
            f"none of {len(present):,} {what}s in {', '.join(source.topics)} is of format {name}: {NO_HEADER}",
            hint="check the format; use json for JSON without a schema id",
        )
    for schema_id in newest:
        try:
            schemas[schema_id] = client.schema(schema_id, serialized=serialized)
        except UnknownSchema as reason:
            unknown[schema_id] = str(reason)
            notes.append(f"{reason}, and {counts[schema_id]:,} messages name it: they become dead letters")
    if unknown and not schemas:
        raise InvalidInput(
            f"{next(iter(unknown.values()))}, and the {what}s in {', '.join(source.topics)} name it",
            hint="check url: is it the registry of the producers?",
        )
    if not present:
        schema_id, schemas = _latest_schema(client, source, what, serialized=serialized)
        counts[schema_id] = 0
        notes.append(f"there is no {what}: the fields are those of schema {schema_id}, the newest one")
    return _READERS[name](_Task(values, schemas, counts, client, settings, notes))


def _latest_schema(
    client: RegistryClient, source: Kafka, what: str, *, serialized: bool
) -> tuple[int, dict[SchemaId, Any]]:
    for topic in source.topics:
        try:
            schema_id, schema = client.latest(f"{topic}-{what}", serialized=serialized)
        except UnknownSchema:
            continue
        return schema_id, {schema_id: schema}
    raise InvalidInput(
        f"there is no message in {', '.join(source.topics)}, and the registry has no subject {source.topics[0]}-{what}",
        hint="send some, or write schema by hand",
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """Arguments of the reader of a format.

    Attributes:
        values: Values or keys, the newest last.
        schemas: The schemas that they name, the newest first.
        counts: How many values name each schema.
        client: Client of the registry.
        settings: Its settings.
        notes: Notes for the user are added to this list.
    """

    values: Sequence[bytes | None]
    schemas: Mapping[SchemaId, Any]
    counts: Counter[SchemaId]
    client: RegistryClient
    settings: tuple[tuple[str, str], ...]
    notes: list[str]


def _read_avro(task: _Task) -> Decoded:
    return _decode_avro(task, None)


def _read_avro_events(task: _Task) -> Decoded:
    return _decode_avro(task, "after")


def _decode_avro(task: _Task, inner: str | None) -> Decoded:
    versions: list[tuple[str, SchemaFields, int]] = []
    singles: list[str] = []
    for schema_id, schema in task.schemas.items():
        _check_kind(schema_id, schema, "AVRO")
        try:
            record = registered_type(schema, task.client)
            parts = {part.name: part.type for part in record.value.fields}
            row = record if inner is None else parts.get(inner)
            fields = None if row is None else avro_fields(row)
            if inner is not None and fields is None:
                raise InvalidInput(
                    f"schema {schema_id} does not describe a change event of Debezium: it has no record {inner}",
                    hint="use the format avro for flattened events",
                )
            if fields is not None:
                versions.append((record.value.name, fields, task.counts[schema_id]))
            else:
                singles.append(avro_sql(record))
        except (UnknownSchema, NoType, ValueError, RecursionError) as error:
            raise InvalidInput(f"schema {schema_id} cannot be used: {error}", hint="write schema by hand") from None
    if versions and singles:
        raise InvalidInput(
            "the topic mixes records and single values", hint="use a topic for each: a writer reads one type"
        )
    if singles:
        decoded = Decoded(None, singles[0], notes=task.notes)
        types = {SINGLE_VALUE: singles[0]}
    else:
        decoded = Decoded(merge_versions(versions, task.notes), notes=task.notes)
        types = _type_names(decoded.fields)
    settings = FormatSettings(
        _arrow_schema(types), task.settings, metadata=frozenset({"source.connector"} if inner else ())
    )
    decode = decode_records if inner is None else decode_avro_events
    events = decode(settings, pa.array(task.values, pa.binary())).to_pylist()
    _add_rows(decoded, events, task.values)
    if singles:
        decoded.rows = [None if row is None else row[SINGLE_VALUE] for row in decoded.rows]
    if inner is not None:
        decoded.connectors = [str((row["source"] or {}).get("connector")) for row in events if row["reason"] is None]
    return decoded


def _read_protobuf(task: _Task) -> Decoded:
    used: Counter[tuple[SchemaId, tuple[int, ...]]] = Counter()
    for value in reversed(task.values):
        header = None if value is None else split_header(value)
        split = None if header is None else split_indexes(header[1])
        if header is not None and split is not None and header[0] in task.schemas:
            used[header[0], split[0]] += 1
    versions = []
    files = {}
    for schema_id, indexes in used or {(schema_id, _FIRST): 0 for schema_id in task.schemas}:
        _check_kind(schema_id, task.schemas[schema_id], "PROTOBUF")
        try:
            if schema_id not in files:
                files[schema_id] = load_file(task.schemas[schema_id], task.client, f"schema {schema_id}")
        except UnknownSchema as error:
            raise InvalidInput(str(error), hint="weft needs a registry that gives Protobuf as descriptors") from None
        message = message_type(files[schema_id], indexes)
        if message is not None:
            versions.append((str(message.full_name), protobuf_fields(message), used[schema_id, indexes]))
    if not versions:
        raise InvalidInput("no message names a message type of its schema", hint="check the format")
    decoded = Decoded(merge_versions(versions, task.notes), notes=task.notes)
    settings = FormatSettings(_arrow_schema(_type_names(decoded.fields)), task.settings)
    events = decode_protobuf(settings, pa.array(task.values, pa.binary())).to_pylist()
    _add_rows(decoded, events, task.values)
    return decoded


def _read_json_schema(task: _Task) -> Decoded:
    versions = []
    for schema_id, schema in task.schemas.items():
        _check_kind(schema_id, schema, "JSON")
        try:
            plain = parse_json(schema.schema_str)
            fields = json_schema_fields(plain, referenced_documents(schema, task.client))
        except (UnknownSchema, NoType, ValueError) as error:
            raise InvalidInput(f"schema {schema_id} cannot be used: {error}", hint="write schema by hand") from None
        if fields is None:
            raise InvalidInput(
                f"schema {schema_id} does not describe an object with properties", hint="write schema by hand"
            )
        versions.append((str(plain.get("title") or ""), fields, task.counts[schema_id]))
    decoded = Decoded(merge_versions(versions, task.notes), notes=task.notes)
    for value in task.values:
        header = None if value is None else split_header(value)
        row = parse_json_value(None if header is None else header[1])
        decoded.rows.append(row if isinstance(row, dict) else None)
    return decoded


_READERS: Final[Mapping[str, Callable[[_Task], Decoded]]] = {
    "avro": _read_avro,
    "debezium-avro": _read_avro_events,
    "protobuf": _read_protobuf,
    "json-schema": _read_json_schema,
}


def _check_kind(schema_id: SchemaId, schema: Any, expected: str) -> None:
    kind = schema.schema_type or "AVRO"
    if kind != expected:
        raise InvalidInput(
            f"schema {schema_id} is of type {kind}, not {expected}", hint="change format, or key_format for keys"
        )


def merge_versions(versions: Sequence[tuple[str, SchemaFields, int]], notes: list[str]) -> SchemaFields:
    """Merge the fields of several versions of a schema. If a field has two types, the wider one is taken.

    Args:
        versions: Name of the type, its fields, and the number of messages; the newest first.
        notes: Notes for the user are added to this list.

    Raises:
        InvalidInput: They are different types rather than versions of one.
    """
    names = Counter[str]()
    for name, _, count in versions:
        names[name] += count
    if len(names) > 1 and len({frozenset(fields) for _, fields, _ in versions}) > 1:
        kinds = ", ".join(f"{name or 'without a name'} ({count:,})" for name, count in names.most_common())
        raise InvalidInput(
            f"messages are of {len(names)} types: {kinds}",
            hint="a writer reads one type: write schema by hand",
        )
    merged: SchemaFields = {}
    for number, (_, fields, _) in enumerate(versions):
        for name, item in fields.items():
            newer = merged.get(name)
            if newer is None:
                merged[name] = item if number == 0 else replace(item, required=False)
            elif newer.type != item.type:
                wider = next((order for order in _WIDER if {newer.type, item.type} <= set(order)), None)
                if wider is None:
                    notes.append(f"field {name!r} is {newer.type} in the newest schema, and {item.type} in another one")
                else:
                    merged[name] = replace(newer, type=max(newer.type, item.type, key=wider.index))
        for name in merged.keys() - fields.keys():
            merged[name] = replace(merged[name], required=False)
    if len(versions) > 1:
        notes.append(f"the messages have {len(versions)} versions of the schema: these are the fields of all")
    return merged


def _type_names(fields: SchemaFields | None) -> dict[str, str]:
    return {name: item.type for name, item in (fields or {}).items() if item.type}


def _arrow_schema(types: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, parse_type(kind)) for name, kind in types.items()])


def _add_rows(decoded: Decoded, events: Sequence[Mapping[str, Any]], values: Sequence[bytes | None]) -> None:
    """Add the decoded messages; a note says how many of them cannot be decoded."""
    reasons = Counter(row["reason"] for row in events if row["reason"] is not None)
    if reasons:
        [(reason, _)] = reasons.most_common(1)
        decoded.notes.append(f"{reasons.total():,} of {len(values):,} messages become dead letters: {reason}")
    for row, value in zip(events, values, strict=True):
        is_valid = value is not None and row["reason"] is None
        decoded.rows.append(row["message"] if is_valid else None)
