"""Proposes `schema`, `select` and the table of a pipeline from samples of JSON messages. Pure.

What a sample cannot show is guessed by rules, and said in a note:

- The *key* is the field that the Kafka key names, or has the value of; else the field ``<stream>_id`` or ``id``; else a
  field that ends in ``_id``. All writers share one key.
- The *ordering* column is a field with a usual name (``updated_at``, ``ts``, ``version``, ...) that is a time or an
  integer and is never null; else the timestamp of the Kafka message.
- Each stream has one group with all its other fields. A name that two streams have gets the stream's name before it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORDERING: Final = (
    "lsn",
    "version",
    "seq",
    "sequence",
    "updated_at",
    "updated",
    "modified_at",
    "changed_at",
    "event_time",
    "event_ts",
    "ts",
    "ts_ms",
    "timestamp",
    "created_at",
    "time",
)
"""Usual names of ordering columns, the best first. A name may also end in one of them, after an underscore."""
_ORDERING_TYPES: Final = frozenset({"bigint", "timestamp", "date"})
_KEY_TYPES: Final = frozenset({"bigint", "string", "date", "timestamp"})
_RESERVED: Final = ("_kafka", "_key", "_op", "_supplied", "_debezium", "__weft_")
_INT64: Final = 2**63
BUCKETS: Final = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """Messages of one writer.

    Attributes:
        stream: Name of the stream.
        messages: (key, value) of each, as they came.
    """

    stream: str
    messages: Sequence[tuple[bytes | None, bytes | None]]


@dataclass(frozen=True, slots=True)
class Fields:
    """What a sample shows of one writer.

    Attributes:
        stream: Name of the stream.
        schema: Fields and their types.
        key: Field that is the key.
        ordering: Field that orders the events; None: the timestamp of the Kafka message.
        notes: What the user should look at.
    """

    stream: str
    schema: Mapping[str, str]
    key: str
    ordering: str | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Proposal:
    """The proposed parts of a pipeline file.

    Attributes:
        config: Configuration of the table.
        writers: ``schema`` and ``select`` by writer.
    """

    config: dict[str, Any]
    writers: dict[str, dict[str, Any]] = field(default_factory=dict)


def infer_fields(sample: Sample) -> Fields | None:
    """What a sample shows; None if no message of it is a JSON object."""
    rows, keys, notes = [], [], []
    for key, value in sample.messages:
        row = _json(value)
        if isinstance(row, dict):
            rows.append(row)
            keys.append(_json(key) if _json(key) is not None else _text(key))
    if not rows:
        return None
    bad = sum(value is not None for _, value in sample.messages) - len(rows)
    if bad:
        notes.append(f"{bad:,} of {len(sample.messages):,} messages are not JSON objects: they become dead letters")
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    schema: dict[str, str] = {}
    folded = Counter(name.lower() for name in values)
    for name, found in values.items():
        if not name or name.lower().startswith(_RESERVED) or folded[name.lower()] > 1:
            notes.append(f"field {name!r} is left out: its name is reserved, or differs from another one only in case")
            continue
        schema[name] = infer_type(found)
        if all(value is None for value in found):
            notes.append(f"field {name!r} is null in all messages: its type is a guess")
    always = {name for name, found in values.items() if len(found) == len(rows) and None not in found}
    key_field, how = _key_field(sample.stream, schema, always, rows, keys)
    notes.append(f"key: {key_field} ({how})")
    ordering = _ordering_field(schema, always - {key_field})
    notes.append(
        "ordering: the timestamp of the Kafka message, because no field looks like one"
        if ordering is None
        else f"ordering: {ordering}, by its name"
    )
    return Fields(sample.stream, schema, key_field, ordering, tuple(notes))


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
            and all(_PLAIN.fullmatch(name) for name in inner)
            and len({name.lower() for name in inner}) == len(inner)
        ):
            return f"struct<{','.join(f'{name}:{infer_type(items)}' for name, items in inner.items())}>"
    return "string"


def propose(found: Mapping[str, Fields]) -> Proposal:
    """The table and the writers for what samples show.

    Args:
        found: By writer.
    """
    key = _shared_key(list(found.values()))
    types = {each.schema[each.key] for each in found.values()}
    names = Counter(name for each in found.values() for name in each.schema if name != each.key)
    config: dict[str, Any] = {
        "key": [key],
        "buckets": BUCKETS,
        "columns": {key: types.pop() if len(types) == 1 else "string"},
        "groups": {},
        "streams": {},
    }
    proposal = Proposal(config)
    for writer, each in found.items():
        select = {key: _quoted(each.key)}
        columns: dict[str, str] = {}
        for name, kind in each.schema.items():
            if name == each.key:
                continue
            column = _column(name)
            if names[name] > 1 or column == key or column in config["columns"] or column in columns:
                column = f"{_column(each.stream)}_{column}"
            columns[column] = kind
            select[column] = _quoted(name)
        ordering = next((column for column, sql in select.items() if sql == _quoted(each.ordering or "")), None)
        if ordering is None:
            ordering = f"{_column(each.stream)}_kafka_ts"
            columns[ordering] = "timestamp"
            select[ordering] = "_kafka.timestamp"
        config["columns"] |= columns
        config["groups"][each.stream] = {"columns": list(columns), "ordering": [ordering]}
        config["streams"][each.stream] = {"groups": [each.stream]}
        proposal.writers[writer] = {"schema": dict(each.schema), "select": select}
    return proposal


def _json(data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data)
    except ValueError:
        return None


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _key_field(
    stream: str, schema: Mapping[str, str], always: set[str], rows: Sequence[Mapping[str, Any]], keys: Sequence[Any]
) -> tuple[str, str]:
    """The field that is the key, and how it was found."""
    fit = [name for name, kind in schema.items() if name in always and kind in _KEY_TYPES]
    if keys and all(isinstance(key, dict) for key in keys):
        named = {name for key in keys for name in key}
        if len(named) == 1 and named <= set(fit):
            return named.pop(), "the Kafka key names it"
    if keys and all(key is not None for key in keys):
        for name in fit:
            if all(str(row[name]) == str(key) for row, key in zip(rows, keys, strict=True)):
                return name, "it has the value of the Kafka key"
    wanted = [f"{stream.removesuffix('s')}_id", f"{stream}_id", "id"]
    wanted += [name for name in fit if name.lower().endswith("_id")]
    for name in (*wanted, *fit, *schema):
        if name in fit:
            return name, "by its name: is it right?" if name in wanted else "the first field that is never null: is it?"
    return next(iter(schema)), "no field is never null: choose one"


def _ordering_field(schema: Mapping[str, str], fit: set[str]) -> str | None:
    usable = [name for name, kind in schema.items() if name in fit and kind in _ORDERING_TYPES]
    for usual in _ORDERING:
        for name in usable:
            if name.lower() == usual or name.lower().endswith(f"_{usual}"):
                return name
    return None


def _shared_key(found: Sequence[Fields]) -> str:
    """The name of the table's key: the most frequent one of the writers, which is not just ``id``."""
    counts = Counter(_column(each.key) for each in found)
    telling = [name for name, _ in counts.most_common() if name.lower() != "id"]
    return telling[0] if telling else next(iter(counts))


def _column(name: str) -> str:
    """A name of a column for a name of a field or stream."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if _PLAIN.fullmatch(plain) else f"_{plain}"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
