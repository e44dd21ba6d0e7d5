"""Infers the types of JSON messages and of JSON keys from their values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from weft.storage.foreign_text import parse_json
from weft.streams.formats.schema_fields import NoType, SchemaField, connect_fields, connect_sql
from weft.streams.pipeline.infer.infer_key import PLAIN, Messages

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_INT64: Final = 2**63


def json_messages(stream: str, sample: Sequence[tuple[bytes | None, bytes | None]]) -> Messages:
    """Infer the fields of JSON messages, with types that hold all values of a sample.

    The result has no fields if no message is an object.

    Args:
        stream: Name of the stream.
        sample: The key and the value of each message, in the order of the topic.
    """
    rows, keys, notes = [], [], []
    for key, value in sample:
        row = parse_json_value(value)
        if isinstance(row, dict):
            rows.append(row)
            keys.append(parse_json_key(key))
    bad = sum(value is not None for _, value in sample) - len(rows)
    if bad:
        notes.append(f"{bad:,} of {len(sample):,} messages are not JSON objects: they become dead letters")
    fields, guesses = infer_types(rows)
    return Messages(stream, fields, rows, keys, infer_key_types(keys), notes=(*notes, *guesses))


def infer_types(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, SchemaField], list[str]]:
    """Infer types that hold the values of JSON objects, by field. Also returns notes on types that are guesses."""
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    fields = {name: SchemaField(infer_type(items)) for name, items in values.items()}
    empty = [name for name, items in values.items() if all(value is None for value in items)]
    return fields, [f"field {name!r} is null in all messages: its type is a guess" for name in empty]


def infer_type(values: Iterable[Any]) -> str:
    """Infer the Spark SQL type of JSON values; ``string``, which holds any JSON value, if they have different types."""
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int}:
        return "bigint" if all(-_INT64 <= value < _INT64 for value in present) else "decimal(38,0)"
    if kinds and kinds <= {int, float}:
        return "double"
    if kinds == {str}:
        if all(_MOMENT.fullmatch(value) for value in present):
            return "timestamp"
        return "date" if all(_DAY.fullmatch(value) for value in present) else "string"
    if kinds == {list}:
        return f"array<{infer_type([item for value in present for item in value])}>"
    if kinds == {dict}:
        inner: dict[str, list[Any]] = {}
        for value in present:
            for name, item in value.items():
                inner.setdefault(name, []).append(item)
        if (
            inner
            and all(PLAIN.fullmatch(name) for name in inner)
            and len({name.lower() for name in inner}) == len(inner)
        ):
            return f"struct<{','.join(f'{name}:{infer_type(items)}' for name, items in inner.items())}>"
    return "string"


def parse_json_value(data: bytes | None) -> Any:
    """Parse a JSON value; None if there are no bytes, or they are not JSON."""
    try:
        return None if data is None else parse_json(data)
    except ValueError:
        return None


def parse_json_key(data: bytes | None) -> Any:
    """Parse a Kafka key of format ``json``: an object, a JSON value or any text. Unwraps Kafka Connect's envelope."""
    key = parse_json_value(data)
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        return key["payload"]
    return key if key is not None or data is None else data.decode(errors="replace")


def infer_key_types(keys: Sequence[Any]) -> dict[str, str]:
    """Infer the types of the fields of keys; empty unless all are objects with the same fields and without NULL."""
    if not keys or not all(isinstance(key, dict) and key and None not in key.values() for key in keys):
        return {}
    names = list(keys[0])
    if any(key.keys() != keys[0].keys() for key in keys):
        return {}
    return {name: infer_type([key[name] for key in keys]) for name in names}


def connect_key_types(data: bytes | None) -> dict[str, str]:
    """Types of the fields of a Kafka key that carries a schema of Kafka Connect; empty without one."""
    key = parse_json_value(data)
    schema = key.get("schema") if isinstance(key, dict) and key.keys() == {"schema", "payload"} else None
    fields = connect_fields(schema)
    if fields is not None:
        return {name: schema_field.type for name, schema_field in fields.items()}
    try:
        return {} if schema is None else {"": connect_sql(schema)}
    except NoType:
        return {}
