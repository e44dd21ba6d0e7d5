"""Proposes `schema`, `select` and the table of a pipeline from the messages of its writers. Pure.

What messages and schemas do not show is guessed by rules (`weft.streams.pipeline.infer.infer_key`); a note says so.
Each stream has one group with all its other fields. A name that two streams have gets the stream's name before it. All
writers share one key.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weft.storage.foreign_text import parse_json
from weft.streams.formats.schema_fields import NoType, SchemaField, connect_fields, connect_sql
from weft.streams.pipeline.infer.infer_key import PLAIN, Fields, Messages, Part, quoted
from weft.streams.pipeline.infer.nested_fields import nested_fields

__all__ = ["Fields", "Proposal", "infer_type", "propose"]

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_INT64: Final = 2**63
BUCKETS: Final = 8


@dataclass(slots=True)
class Proposal:
    """The proposed parts of a pipeline file.

    Attributes:
        config: Configuration of the table.
        writers: ``schema`` and ``select`` by writer, and ``key`` where the Kafka key must be declared.
        notes: What the user should look at besides the notes and guesses of `Fields`, by writer.
        joins: What the user should check of key columns that have another name in the messages, by writer and column.
    """

    config: dict[str, Any]
    writers: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    joins: dict[str, dict[str, str]] = field(default_factory=dict)


def json_messages(stream: str, sample: Sequence[tuple[bytes | None, bytes | None]]) -> Messages:
    """Infer the fields of JSON messages, with types that hold all values of a sample.

    The result has no fields if no message is an object.

    Args:
        stream: Name of the stream.
        sample: The key and the value of each message, in the order of the topic.
    """
    rows, keys, notes = [], [], []
    for key, value in sample:
        row = json_value(value)
        if isinstance(row, dict):
            rows.append(row)
            keys.append(json_key(key))
    bad = sum(value is not None for _, value in sample) - len(rows)
    if bad:
        notes.append(f"{bad:,} of {len(sample):,} messages are not JSON objects: they become dead letters")
    fields, guesses = types_of(rows)
    return Messages(stream, fields, rows, keys, typed_keys(keys), notes=(*notes, *guesses))


def types_of(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, SchemaField], list[str]]:
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


def json_value(data: bytes | None) -> Any:
    """Parse a JSON value; None if there are no bytes, or they are not JSON."""
    try:
        return None if data is None else parse_json(data)
    except ValueError:
        return None


def json_key(data: bytes | None) -> Any:
    """Parse a Kafka key of format ``json``: an object, a JSON value or any text. Unwraps Kafka Connect's envelope."""
    key = json_value(data)
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        return key["payload"]
    return key if key is not None or data is None else data.decode(errors="replace")


def typed_keys(keys: Sequence[Any]) -> dict[str, str]:
    """Infer the types of the fields of keys; empty unless all are objects with the same fields and without NULL."""
    if not keys or not all(isinstance(key, dict) and key and None not in key.values() for key in keys):
        return {}
    names = list(keys[0])
    if any(key.keys() != keys[0].keys() for key in keys):
        return {}
    return {name: infer_type([key[name] for key in keys]) for name in names}


def connect_key(data: bytes | None) -> dict[str, str]:
    """Types of the fields of a Kafka key that carries a schema of Kafka Connect; empty without one."""
    key = json_value(data)
    schema = key.get("schema") if isinstance(key, dict) and key.keys() == {"schema", "payload"} else None
    fields = connect_fields(schema)
    if fields is not None:
        return {name: schema_field.type for name, schema_field in fields.items()}
    try:
        return {} if schema is None else {"": connect_sql(schema)}
    except NoType:
        return {}


def propose(writers: Mapping[str, Fields]) -> Proposal:
    """Propose the table and the writers.

    Args:
        writers: The proposed fields of each writer.
    """
    shared_key = _shared_key(list(writers.values()))
    key_parts = {writer: _key_parts(fields, shared_key) for writer, fields in writers.items()}
    other_fields = {writer: _other_fields(fields, key_parts[writer]) for writer, fields in writers.items()}
    name_counts = Counter(name for names in other_fields.values() for name in names)
    key_types = zip(*([part.type for part in parts] for parts in key_parts.values()), strict=True)
    config: dict[str, Any] = {
        "key": list(shared_key),
        "buckets": BUCKETS,
        "columns": {
            column: _with_comment(_common_type(set(types)), _key_comment(writers, key_parts, place))
            for place, (column, types) in enumerate(zip(shared_key, key_types, strict=True))
        },
        "groups": {},
        "streams": {},
    }
    proposal = Proposal(config)
    for writer, fields in writers.items():
        columns = _Columns(fields.stream, set(config["columns"]))
        for name in other_fields[writer]:
            columns.add(fields.part(name), is_shared=name_counts[name] > 1, comment=fields.comments.get(name, ""))
        column_of = {sql: column for column, sql in columns.select.items()}
        order = [fields.part(part.name) if part.name in fields.epochs else part for part in fields.order]
        ordering = [column_of.get(part.sql) or columns.add(part) for part in order]
        if not ordering:
            kafka_time = Part(f"{column_name(fields.stream)}_kafka_ts", "_kafka.timestamp", "timestamp")
            ordering = [columns.add(kafka_time)]
        select = {column: part.sql for column, part in zip(shared_key, key_parts[writer], strict=True)} | columns.select
        config["columns"] |= columns.types
        config["groups"][fields.stream] = {"columns": list(columns.types), "ordering": ordering}
        config["streams"][fields.stream] = {"groups": [fields.stream]}
        proposal.writers[writer] = {"schema": dict(fields.schema), "select": select}
        if fields.declared_key:
            proposal.writers[writer]["key"] = dict(fields.declared_key)
        joins = _joins(shared_key, key_parts, writer)
        if joins:
            proposal.joins[writer] = joins
        notes = [f"key: {column} is {text}" for column, text in joins.items()]
        if shared_key == ("id",) and len(writers) > 1:
            notes.append("key: every topic may call something else id: is it the same in all?")
        if len(fields.keys) > len(shared_key):
            notes.append(f"the key that all writers share is {', '.join(shared_key)}: is it right?")
        if notes:
            proposal.notes[writer] = notes
    return proposal


def _joins(shared_key: Sequence[str], key_parts: Mapping[str, Sequence[Part]], writer: str) -> dict[str, str]:
    """What the user should check of key columns that have another name in the messages of a writer, by column."""
    joins = {}
    for place, (column, part) in enumerate(zip(shared_key, key_parts[writer], strict=True)):
        others = [other for other, parts in key_parts.items() if column_name(parts[place].name) == column]
        if column_name(part.name) != column:
            joins[column] = f"field {part.name}, joined with {column} of {', '.join(others)}: is it the same?"
    return joins


def _with_comment(kind: str, comment: str) -> str | dict[str, str]:
    """A column of the table's configuration: its type, and its comment if there is one."""
    return {"type": kind, "comment": comment} if comment else kind


def _key_comment(writers: Mapping[str, Fields], key_parts: Mapping[str, Sequence[Part]], place: int) -> str:
    """The first comment of a writer on a key column; empty if no writer has one."""
    comments = (fields.comments.get(key_parts[writer][place].name, "") for writer, fields in writers.items())
    return next(filter(None, comments), "")


class _Columns:
    """The columns of one stream besides the key: their types, and expressions over the message."""

    def __init__(self, stream: str, existing: set[str]) -> None:
        self._stream, self._existing = stream, existing
        self.types: dict[str, str | dict[str, str]] = {}
        self.select: dict[str, str] = {}

    def add(self, part: Part, *, is_shared: bool = False, comment: str = "") -> str:
        """Add a column, and return its name.

        The name begins with that of the stream if another stream shares it, or another column has it already.
        """
        name = column_name(part.name)
        if is_shared or name in self._existing or name in self.types:
            name = f"{column_name(self._stream)}_{name}"
        self.types[name] = _with_comment(part.type, comment)
        self.select[name] = part.sql
        return name


def _shared_key(writers: Sequence[Fields]) -> tuple[str, ...]:
    """Names of the table's key: those of the shortest key of a writer; of several with one column a telling name."""
    shortest = min(len(fields.keys) for fields in writers)
    counts = Counter(
        tuple(column_name(part.name) for part in fields.keys) for fields in writers if len(fields.keys) == shortest
    )
    inner = {
        column_name(part.name)
        for fields in writers
        for part in fields.keys
        if part.name in nested_fields(fields.schema)
    }
    telling = [names for names, _ in counts.most_common() if names != ("id",)]
    telling.sort(key=lambda names: not inner.isdisjoint(names))  # bed before device_id, for device.id
    return telling[0] if telling else next(iter(counts))


def _key_parts(fields: Fields, shared_key: tuple[str, ...]) -> tuple[Part, ...]:
    """The parts of a writer's key for the columns that all writers share: by their names, else by their order."""
    by_name = {column_name(part.name): part for part in fields.keys}
    if set(shared_key) <= by_name.keys():
        return tuple(by_name[name] for name in shared_key)
    return fields.keys[: len(shared_key)]


def _other_fields(fields: Fields, key: Sequence[Part]) -> list[str]:
    used = {part.sql for part in key}
    return [name for name in fields.schema if quoted(name) not in used]


def _common_type(types: set[str]) -> str:
    if len(types) == 1:
        return types.pop()
    return "bigint" if types == {"int", "bigint"} else "string"


def column_name(name: str) -> str:
    """The column name for the name of a field or stream."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if PLAIN.fullmatch(plain) else f"_{plain}"
