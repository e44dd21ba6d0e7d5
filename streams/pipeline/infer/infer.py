"""Proposes `schema`, `select` and the table of a pipeline from what is known of the messages of its writers. Pure.

What messages and schemas do not show is guessed by rules (`weft.streams.pipeline.infer.infer_key`), and said in a note.
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
        joins: What is to be checked of columns of the key that have another name in the messages: by writer, by column.
    """

    config: dict[str, Any]
    writers: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    joins: dict[str, dict[str, str]] = field(default_factory=dict)


def json_messages(stream: str, sample: Sequence[tuple[bytes | None, bytes | None]]) -> Messages:
    """What a sample of JSON shows, with types that hold all of its values; without fields if it has no object.

    Args:
        stream: Name of the stream.
        sample: (key, value) of each message, as they came.
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
    """Types that hold the values of JSON objects, by field, and what is a guess."""
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    fields = {name: SchemaField(infer_type(found)) for name, found in values.items()}
    empty = [name for name, found in values.items() if all(value is None for value in found)]
    return fields, [f"field {name!r} is null in all messages: its type is a guess" for name in empty]


def infer_type(values: Iterable[Any]) -> str:
    """The Spark SQL type of JSON values; ``string`` if they have none in common, which holds any JSON value."""
    known = [value for value in values if value is not None]
    kinds = {type(value) for value in known}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int}:
        return "bigint" if all(-_INT64 <= value < _INT64 for value in known) else "decimal(38,0)"
    if kinds and kinds <= {int, float}:
        return "double"
    if kinds == {str}:
        if all(_MOMENT.fullmatch(value) for value in known):
            return "timestamp"
        return "date" if all(_DAY.fullmatch(value) for value in known) else "string"
    if kinds == {list}:
        return f"array<{infer_type([item for value in known for item in value])}>"
    if kinds == {dict}:
        inner: dict[str, list[Any]] = {}
        for value in known:
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
    """A JSON value; None if there is none, or it is not JSON."""
    try:
        return None if data is None else parse_json(data)
    except ValueError:
        return None


def json_key(data: bytes | None) -> Any:
    """A Kafka key of format ``json``: an object, a JSON value or any text, also in the envelope of Kafka Connect."""
    key = json_value(data)
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        return key["payload"]
    return key if key is not None or data is None else data.decode(errors="replace")


def typed_keys(keys: Sequence[Any]) -> dict[str, str]:
    """Types of the fields of keys, if all are objects with the same fields and without NULL."""
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
        return {name: one.type for name, one in fields.items()}
    try:
        return {} if schema is None else {"": connect_sql(schema)}
    except NoType:
        return {}


def propose(found: Mapping[str, Fields]) -> Proposal:
    """The table and the writers for what is known of their messages.

    Args:
        found: By writer.
    """
    shared = _shared_key(list(found.values()))
    parts = {writer: _parts_of(each, shared) for writer, each in found.items()}
    rest = {writer: _other_fields(each, parts[writer]) for writer, each in found.items()}
    names = Counter(name for fields in rest.values() for name in fields)
    key_types = zip(*([part.type for part in given] for given in parts.values()), strict=True)
    config: dict[str, Any] = {
        "key": list(shared),
        "buckets": BUCKETS,
        "columns": {
            column: _described(_common_type(set(types)), _key_comment(found, parts, place))
            for place, (column, types) in enumerate(zip(shared, key_types, strict=True))
        },
        "groups": {},
        "streams": {},
    }
    proposal = Proposal(config)
    for writer, each in found.items():
        columns = _Columns(each.stream, set(config["columns"]))
        for name in rest[writer]:
            columns.add(each.part(name), shared=names[name] > 1, comment=each.comments.get(name, ""))
        of_field = {sql: column for column, sql in columns.select.items()}
        order = [each.part(part.name) if part.name in each.epochs else part for part in each.order]
        ordering = [of_field.get(part.sql) or columns.add(part) for part in order]
        if not ordering:
            kafka_time = Part(f"{column_name(each.stream)}_kafka_ts", "_kafka.timestamp", "timestamp")
            ordering = [columns.add(kafka_time)]
        select = {column: part.sql for column, part in zip(shared, parts[writer], strict=True)} | columns.select
        config["columns"] |= columns.types
        config["groups"][each.stream] = {"columns": list(columns.types), "ordering": ordering}
        config["streams"][each.stream] = {"groups": [each.stream]}
        proposal.writers[writer] = {"schema": dict(each.schema), "select": select}
        if each.declared_key:
            proposal.writers[writer]["key"] = dict(each.declared_key)
        joins = _joins(shared, parts, writer)
        if joins:
            proposal.joins[writer] = joins
        notes = [f"key: {column} is {text}" for column, text in joins.items()]
        if shared == ("id",) and len(found) > 1:
            notes.append("key: every topic may call something else id: is it the same in all?")
        if len(each.keys) > len(shared):
            notes.append(f"the key that all writers share is {', '.join(shared)}: is it right?")
        if notes:
            proposal.notes[writer] = notes
    return proposal


def _joins(shared: Sequence[str], parts: Mapping[str, Sequence[Part]], writer: str) -> dict[str, str]:
    """What is to be checked of the columns of the key that have another name in the messages of a writer."""
    found = {}
    for place, (column, part) in enumerate(zip(shared, parts[writer], strict=True)):
        others = [other for other, given in parts.items() if column_name(given[place].name) == column]
        if column_name(part.name) != column:
            found[column] = f"field {part.name}, joined with {column} of {', '.join(others)}: is it the same?"
    return found


def _described(kind: str, comment: str) -> str | dict[str, str]:
    return {"type": kind, "comment": comment} if comment else kind


def _key_comment(found: Mapping[str, Fields], parts: Mapping[str, Sequence[Part]], place: int) -> str:
    """What the first writer that says something says about a column of the key."""
    said = (each.comments.get(parts[writer][place].name, "") for writer, each in found.items())
    return next(filter(None, said), "")


class _Columns:
    """The columns of one stream besides the key: their types, and expressions over the message."""

    def __init__(self, stream: str, taken: set[str]) -> None:
        self._stream, self._taken = stream, taken
        self.types: dict[str, str | dict[str, str]] = {}
        self.select: dict[str, str] = {}

    def add(self, part: Part, *, shared: bool = False, comment: str = "") -> str:
        """Add a column; returns its name, which begins with the stream's if its own one is taken or shared."""
        name = column_name(part.name)
        if shared or name in self._taken or name in self.types:
            name = f"{column_name(self._stream)}_{name}"
        self.types[name] = _described(part.type, comment)
        self.select[name] = part.sql
        return name


def _shared_key(found: Sequence[Fields]) -> tuple[str, ...]:
    """Names of the table's key: those of the shortest key of a writer; of several with one column a telling name."""
    shortest = min(len(each.keys) for each in found)
    counts = Counter(
        tuple(column_name(part.name) for part in each.keys) for each in found if len(each.keys) == shortest
    )
    inner = {column_name(part.name) for each in found for part in each.keys if part.name in nested_fields(each.schema)}
    telling = [names for names, _ in counts.most_common() if names != ("id",)]
    telling.sort(key=lambda names: not inner.isdisjoint(names))  # bed before device_id, for device.id
    return telling[0] if telling else next(iter(counts))


def _parts_of(each: Fields, shared: tuple[str, ...]) -> tuple[Part, ...]:
    """The parts of a writer's key for the columns that all writers share: by their names, else by their order."""
    by_name = {column_name(part.name): part for part in each.keys}
    if set(shared) <= by_name.keys():
        return tuple(by_name[name] for name in shared)
    return each.keys[: len(shared)]


def _other_fields(each: Fields, key: Sequence[Part]) -> list[str]:
    used = {part.sql for part in key}
    return [name for name in each.schema if quoted(name) not in used]


def _common_type(types: set[str]) -> str:
    if len(types) == 1:
        return types.pop()
    return "bigint" if types == {"int", "bigint"} else "string"


def column_name(name: str) -> str:
    """A name of a column for a name of a field or stream."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if PLAIN.fullmatch(plain) else f"_{plain}"
