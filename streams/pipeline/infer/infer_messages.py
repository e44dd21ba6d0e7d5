"""Infers the fields of the messages of a Kafka writer from a sample and from schemas, for `weft infer`.

The types come from the schemas of the messages, in a registry or in the messages themselves (Debezium), and without one
from the values of the sample. The sample, decoded as a writer decodes it, shows which fields are never NULL and which
have the value of the key.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from weft.storage.errors import InvalidInput
from weft.storage.plural import counted
from weft.streams.formats.registry import KEY_HEADER, VALUE_HEADER, add_schema_id, names_schema, split_header
from weft.streams.formats.schema_fields import SchemaField, SchemaFields, connect_field_schema, connect_fields
from weft.streams.pipeline.infer.infer_key import Messages, Part
from weft.streams.pipeline.infer.infer_registry import SINGLE_VALUE, Decoded, Kafka, decode_named, merge_versions
from weft.streams.pipeline.infer.json_types import (
    connect_key_types,
    infer_key_types,
    infer_types,
    json_messages,
    parse_json_key,
    parse_json_value,
)

_POSITIONS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "postgresql": [("lsn", "bigint")],
    "mysql": [("file", "string"), ("pos", "bigint"), ("row", "bigint")],
    "mariadb": [("file", "string"), ("pos", "bigint"), ("row", "bigint")],
    "sqlserver": [("commit_lsn", "string"), ("change_lsn", "string"), ("event_serial_no", "bigint")],
    "oracle": [("scn", "decimal(38,0)")],
}
"""Fields of a change event's ``source`` that order events, and their types, by connector."""


def keys_and_values(rows: pa.Table, source: Kafka) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values of messages, each with the schema that a header names.

    Args:
        rows: Messages of a Kafka source, with ``key``, ``value``, and ``headers`` if they were read.
        source: Where they come from.
    """
    headers = rows["headers"].to_pylist() if "headers" in rows.column_names else [None] * len(rows)
    keys, values = rows["key"].to_pylist(), rows["value"].to_pylist()
    if names_schema(source.key_format):
        keys = [add_schema_id(key, more, KEY_HEADER) for key, more in zip(keys, headers, strict=True)]
    if names_schema(source.value_format):
        values = [add_schema_id(value, more, VALUE_HEADER) for value, more in zip(values, headers, strict=True)]
    return list(zip(keys, values, strict=True))


def kafka_messages(source: Kafka, sample: Sequence[tuple[bytes | None, bytes | None]]) -> Messages:
    """Infer the fields of the messages of a writer.

    Args:
        source: Where they come from.
        sample: The keys and values of some messages, the newest last; empty if the topics have none.

    Raises:
        InvalidInput: No field can be inferred, or the messages have different types; the message says why.
        RegistryUnavailable: The registry does not answer.
    """
    value_format = source.value_format
    if value_format == "json" or (value_format == "json-schema" and not source.registry.get("url")):
        messages = _from_json(source, sample)
    else:
        messages = _from_schemas(source, sample)
    if source.key_format == "json":
        return messages
    keys = decode_named(source.key_format, [key for key, _ in sample], source, "key")
    types = {"": keys.single_type} if keys.fields is None else {name: item.type for name, item in keys.fields.items()}
    notes = (*messages.notes, *(f"key: {note}" for note in keys.notes))
    return replace(messages, keys=(), key_fields=types, declares_key=True, names_row=True, notes=notes)


def _from_json(source: Kafka, sample: Sequence[tuple[bytes | None, bytes | None]]) -> Messages:
    pairs, notes = list(sample), []
    if source.value_format == "json-schema":
        pairs = [(key, None if value is None else (split_header(value) or (0, b""))[1]) for key, value in sample]
        notes = ["types are those of the sample: add registry to the pipeline file, and they are those of the schema"]
    messages = json_messages(source.stream, pairs)
    if not messages.rows:
        raise _no_message_error(source, sample, "is a JSON object", "send some, or write schema by hand")
    return replace(messages, notes=(*notes, *messages.notes))


def _from_schemas(source: Kafka, sample: Sequence[tuple[bytes | None, bytes | None]]) -> Messages:
    values = [value for _, value in sample]
    if source.value_format == "debezium":
        decoded = _decode_change_events(source, values)
    else:
        decoded = decode_named(source.value_format, values, source, "value")
    if decoded.fields is None:
        decoded.fields = {SINGLE_VALUE: SchemaField(decoded.single_type)}
        decoded.rows = [None if row is None else {SINGLE_VALUE: row} for row in decoded.rows]
        decoded.notes.append(f"a message is a single value, here the field {SINGLE_VALUE}")
    pairs = [(key, row) for (key, _), row in zip(sample, decoded.rows, strict=True) if row is not None]
    keys = [parse_json_key(key) for key, _ in pairs]
    types = next((key_type for key, _ in sample if (key_type := connect_key_types(key))), infer_key_types(keys))
    is_event = source.value_format.startswith("debezium")
    return Messages(
        source.stream,
        decoded.fields,
        [row for _, row in pairs],
        keys,
        types if source.key_format == "json" else {},
        names_row=is_event,
        ordering=_positions(decoded) if is_event else (),
        notes=tuple(decoded.notes),
    )


def _no_message_error(source: Kafka, sample: Sequence[Any], what: str, hint: str) -> InvalidInput:
    text = f"none of {counted(len(sample), 'message')} {what}" if sample else "there is no message"
    return InvalidInput(f"{text} in {', '.join(source.topics)}", hint=hint)


# --- change events as JSON -------------------------------------------------------------------------------------------


def _decode_change_events(source: Kafka, values: Sequence[bytes | None]) -> Decoded:
    versions: dict[str, tuple[str, SchemaFields, int]] = {}
    plain: list[Any] = []
    decoded = Decoded({})
    for value in values:
        event = parse_json_value(value)
        schema = None
        if isinstance(event, dict) and event.keys() == {"schema", "payload"}:
            schema, event = event["schema"], event["payload"]
        row = _row_of(event)
        decoded.rows.append(row)
        if row is None:
            continue
        decoded.connectors.append(str((event.get("source") or {}).get("connector")))
        text = json.dumps(schema)
        name, fields, count = versions.pop(text, ("", None, 0))
        if fields is None:
            after = connect_field_schema(schema, "after") or connect_field_schema(schema, "before")
            name, fields = str((after or {}).get("name") or ""), connect_fields(after) or {}
        if fields:
            versions[text] = name, fields, count + 1  # the newest last
        else:
            plain.append(row)
    bad = sum(value is not None for value in values) - sum(row is not None for row in decoded.rows)
    if all(row is None for row in decoded.rows):
        raise _no_message_error(
            source, values, "is a change event of Debezium with a row", "check format, or send some"
        )
    if bad:
        decoded.notes.append(f"{bad:,} of {len(values):,} messages are not change events with a row: dead letters")
    if versions:
        decoded.fields = merge_versions(list(reversed(versions.values())), decoded.notes)
    if plain:
        decoded.notes.append(
            f"{len(plain):,} messages have no schema: times and decimals are numbers and texts. Change their types, "
            "and say in format_options how they are encoded"
        )
    if plain and not versions:
        decoded.fields, guesses = infer_types(plain)
        decoded.notes += guesses
    return decoded


def _row_of(event: Any) -> dict[str, Any] | None:
    if not isinstance(event, dict):
        return None
    row = event.get("before") if event.get("op") == "d" else event.get("after")
    return row if isinstance(row, dict) and isinstance(event.get("op"), str) else None


def _positions(decoded: Decoded) -> tuple[Part, ...]:
    """The columns that order change events. Adds notes on the connector."""
    [(connector, _)] = Counter(decoded.connectors).most_common(1) or [("", 0)]
    if connector == "postgresql":
        decoded.notes.append(
            "PostgreSQL does not send large values that did not change: use merge: latest_non_null, "
            "or REPLICA IDENTITY FULL"
        )
    if connector in _POSITIONS:
        return tuple(Part(name, f"_debezium.source.{name}", kind) for name, kind in _POSITIONS[connector])
    decoded.notes.append("the connector is not known: ts_ms is equal for events of the same millisecond")
    return (Part("source_ts_ms", "_debezium.source.ts_ms", "bigint"),)
