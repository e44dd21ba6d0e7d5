"""Chooses the key and the ordering columns of a writer from its messages. Pure.

- The *key* is the first of these that exists: the fields that the Kafka key names; the field that has the value of the
  Kafka key; the field ``<stream>_id`` or ``id``; a field that ends in ``_id``; such a field within another field
  (``device.id``); the first field that is never null and is not a time. Fields that only the Kafka key has are read
  from it.
- The *ordering* columns are the first of these that exist: those that the source gives (Debezium); a field with a usual
  name (``updated_at``, ``ts``, ``version``, ...) that is a time or an integer and is never null; the first time that is
  never null; the timestamp of the Kafka message.
  A field that has the same value in all events of a key, such as a start time, cannot order them.
- *Times* are also integers with the name of a time (``*_at``, ``*_ts``, ``*_time``, ``started``, ...) whose values are
  all seconds, all milliseconds or all microseconds since 1970, between the years 2000 and 2100. Their columns are
  timestamps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from weft.streams.formats.schema_fields import SchemaField
from weft.streams.pipeline.infer.nested_fields import nested_fields, value_of

PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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
_ORDERING_TYPES: Final = frozenset({"int", "bigint", "timestamp", "timestamp_ntz", "date"})
_TIME_TYPES: Final = frozenset({"timestamp", "timestamp_ntz"})
_TIME_NAME: Final = re.compile(
    r"((^|_)(at|ts|time|timestamp|date|when)(_(s|sec|ms|millis|us|micros))?|[a-z0-9](At|Ts|Time|Timestamp|Date)(Ms|Us|Millis|Micros)?"
    r"|^(created|updated|modified|changed|started|finished|ended|opened|closed|occurred|happened|sent|received))$"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
EPOCHS: Final[Mapping[str, tuple[int, str]]] = {
    "timestamp_seconds": (1, "seconds"),
    "timestamp_millis": (1_000, "milliseconds"),
    "timestamp_micros": (1_000_000, "microseconds"),
}
"""By Spark's function that turns an integer into a timestamp: how many units a second has, and the name of the unit."""
EPOCH_RANGE: Final = (946_684_800, 4_102_444_800)  # the years 2000 to 2100, in seconds: no two units overlap
KEY_TYPES: Final = frozenset({"int", "bigint", "string", "date", "timestamp", "timestamp_ntz"})
"""Types of key columns, besides decimals."""
_RESERVED: Final = ("_kafka", "_key", "_op", "_supplied", "_debezium", "__weft_")


@dataclass(frozen=True, slots=True)
class Part:
    """A column of the key, or one that orders events.

    Attributes:
        name: Name of the field, or of the column.
        sql: Expression over the message.
        type: Its SQL type.
    """

    name: str
    sql: str
    type: str


@dataclass(frozen=True, slots=True)
class Messages:
    """The fields of the messages of one writer, and a sample of the messages.

    Attributes:
        stream: Name of the stream.
        fields: Fields of the message.
        rows: Messages of a sample, as values by field; empty if there is none.
        keys: The Kafka key of each row: values by field, a single value, or None.
        key_fields: Types of the fields of the key, as its schema or the sample says; "" is the name of a single value.
        declares_key: Whether the key has a format that needs declared fields.
        names_row: Whether the Kafka key certainly names the row, as that of a change event does. Otherwise a field
            ``id`` is preferred to a Kafka key of several fields, which may only spread messages over partitions.
        ordering: Columns that order the events, if the source gives them.
        time: What ``_kafka.timestamp`` is.
        notes: What the user should look at.
    """

    stream: str
    fields: Mapping[str, SchemaField]
    rows: Sequence[Mapping[str, Any]] = ()
    keys: Sequence[Any] = ()
    key_fields: Mapping[str, str] = field(default_factory=dict)
    declares_key: bool = False
    names_row: bool = False
    ordering: tuple[Part, ...] = ()
    time: str = "the timestamp of the Kafka message"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """The proposed fields, key and ordering of one writer.

    Attributes:
        stream: Name of the stream.
        schema: Fields and their types.
        keys: Columns of the key.
        order: Columns that order the events; empty: the timestamp of the Kafka message.
        texts: Descriptions of fields from their schema.
        declared_key: Fields of the Kafka key that the writer must declare.
        notes: What the user should look at, besides key and ordering.
        guesses: How key and ordering were chosen, one text each.
        comments: Comments of fields from their schema.
        epochs: Spark's functions that turn integers into timestamps, by field.
    """

    stream: str
    schema: Mapping[str, str]
    keys: tuple[Part, ...]
    order: tuple[Part, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    declared_key: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    comments: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[str, str] = field(default_factory=dict)

    def kind(self, name: str) -> str | None:
        """The type of a field, or of one within a field (``device.id``); None if there is none."""
        return self.schema.get(name) or nested_fields(self.schema).get(name)

    def simple_fields(self) -> list[str]:
        """The fields; a field that has fields within it is replaced by them."""
        kinds = {**self.schema, **nested_fields(self.schema)}
        return [name for name, kind in kinds.items() if not kind.startswith("struct<")]

    def plain_part(self, name: str) -> Part:
        """The column of a field, without a conversion."""
        kind = self.kind(name)
        assert kind is not None, "names are checked"
        path = [name] if name in self.schema else name.split(".")
        return Part(name, ".".join(map(quoted, path)), kind)

    def part(self, name: str) -> Part:
        """The column of a field that is not in the key."""
        function = self.epochs.get(name)
        plain = self.plain_part(name)
        return plain if function is None else Part(name, f"{function}({plain.sql})", "timestamp")

    @property
    def key(self) -> str:
        """Fields of the key."""
        return ", ".join(part.name for part in self.keys)

    @property
    def ordering(self) -> str | None:
        """Fields that order the events; None if the timestamp of the Kafka message does."""
        return ", ".join(part.name for part in self.order) or None


def propose_fields(messages: Messages) -> Fields | None:
    """Propose fields, key and ordering of a writer; None if its messages have no field that a column can hold."""
    notes = list(messages.notes)
    schema: dict[str, str] = {}
    folded = Counter(name.lower() for name in messages.fields)
    for name, item in messages.fields.items():
        if not name or name.lower().startswith(_RESERVED) or folded[name.lower()] > 1:
            notes.append(f"field {name!r} is left out: its name is reserved, or differs from another one only in case")
        elif not item.type:
            notes.append(f"field {name!r} is left out: {item.reason}")
        else:
            schema[name] = item.type
    if not schema:
        return None
    if messages.rows:
        never_null = {name for name in schema if all(row.get(name) is not None for row in messages.rows)}
    else:
        never_null = {name for name in schema if messages.fields[name].required} or set(schema)
    keys, key_reason = _choose_key(messages, schema, never_null)
    in_key = {part.name for part in keys}
    epochs = {
        name: function
        for name, kind in schema.items()
        if name not in in_key
        and (function := epoch_function(name, kind, [row.get(name) for row in messages.rows])) is not None
    }
    for function, (_, unit) in EPOCHS.items():
        if names := ", ".join(name for name, choice in epochs.items() if choice == function):
            notes.append(f"{names}: {unit} since 1970, by name and values; the columns are timestamps")
    order, order_reason = messages.ordering, "the position in the source"
    if not order:
        candidates = never_null - in_key - _constant_fields(messages.rows, [part.name for part in keys])
        name, order_reason = choose_ordering(schema, candidates, epochs)
        order = (Part(name, quoted(name), schema[name]),) if name else ()
    names = ", ".join(part.name for part in order)
    guesses = (
        f"key: {', '.join(part.name for part in keys)} ({key_reason})",
        f"ordering: {names}, {order_reason}"
        if order
        else f"ordering: {messages.time}, because no field looks like one",
    )
    uses_key = any(part.sql.startswith("_key.") for part in keys)
    declared = {part.name: part.type for part in keys} if uses_key else {}
    if messages.declares_key and messages.key_fields and not uses_key:
        fields = {name: kind for name, kind in messages.key_fields.items() if name}
        declared = fields or dict.fromkeys([keys[0].name], messages.key_fields.get("", ""))
    texts = {name: _describe(messages.fields[name]) for name in schema}
    descriptions = {name: text for name, text in texts.items() if text}
    comments = {name: messages.fields[name].text for name in schema if messages.fields[name].text}
    return Fields(messages.stream, schema, keys, order, descriptions, declared, tuple(notes), guesses, comments, epochs)


def quoted(name: str) -> str:
    """The name of a field in an SQL expression."""
    return name if PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _describe(item: SchemaField) -> str:
    return "; ".join(part for part in ("never null" if item.required else "", item.text) if part)


def _is_key_type(kind: str) -> bool:
    return kind in KEY_TYPES or kind.startswith("decimal(")


def _choose_key(messages: Messages, schema: Mapping[str, str], never_null: set[str]) -> tuple[tuple[Part, ...], str]:
    """Choose the columns of the key; also returns why, in words."""
    candidates = [name for name, kind in schema.items() if name in never_null and _is_key_type(kind)]
    of_key = {name: kind for name, kind in messages.key_fields.items() if name and _is_key_type(kind)}
    stream = messages.stream
    preferred = [f"{stream.removesuffix('s')}_id", f"{stream}_id", "id"]
    is_clear = messages.names_row or len(of_key) == 1 or not set(preferred) & set(candidates)
    if of_key and of_key.keys() == messages.key_fields.keys() and is_clear:
        in_value = [name for name in of_key if name in candidates]
        parts = tuple(
            Part(name, quoted(name), schema[name]) if name in in_value else Part(name, f"_key.{quoted(name)}", kind)
            for name, kind in of_key.items()
        )
        if len(in_value) == len(parts):
            return parts, "the Kafka key names it" if len(parts) == 1 else "the Kafka key names them"
        return parts, "the Kafka key has it, and not every value" if len(parts) == 1 else "fields of the Kafka key"
    if messages.keys and all(key is not None and not isinstance(key, dict) for key in messages.keys):
        for name in candidates:
            if all(str(row[name]) == str(key) for row, key in zip(messages.rows, messages.keys, strict=True)):
                return (Part(name, quoted(name), schema[name]),), "it has the value of the Kafka key"
    preferred += [name for name in candidates if name.lower().endswith("_id")]
    for name in preferred:
        if name in candidates:
            return (Part(name, quoted(name), schema[name]),), "by its name: is it right?"
    single_type = messages.key_fields.get("", "")
    if messages.declares_key and _is_key_type(single_type):
        name = preferred[0]
        return (Part(name, f"_key.{quoted(name)}", single_type),), "the value of the Kafka key; choose its name"
    for name, kind in nested_fields(schema).items():
        last = name.rpartition(".")[2].lower()
        always_there = messages.rows and all(value_of(row, name) is not None for row in messages.rows)
        if (last == "id" or last.endswith("_id")) and _is_key_type(kind) and always_there:
            return (Part(name, ".".join(map(quoted, name.split("."))), kind),), "by its name: is it right?"
    times = {name for name in candidates if _is_time(name, schema[name], messages.rows)}
    for name in sorted(candidates, key=times.__contains__):
        return (Part(name, quoted(name), schema[name]),), "the first field that is never null: is it?"
    name = next(iter(schema))
    return (Part(name, quoted(name), schema[name]),), "no field is never null: choose one"


def _is_time(name: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    return kind in _TIME_TYPES or epoch_function(name, kind, [row.get(name) for row in rows]) is not None


def _constant_fields(rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> set[str]:
    """Fields whose values never differ between events of one key; empty if no key has two different events."""
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_key.setdefault(repr([value_of(row, name) for name in key]), []).append(row)
    repeated = [events for events in by_key.values() if any(row != events[0] for row in events)]
    names = {name for row in rows for name in row} if repeated else set()
    return {
        name for name in names if all(row.get(name) == events[0].get(name) for events in repeated for row in events)
    }


def choose_ordering(
    schema: Mapping[str, str], candidates: AbstractSet[str], epochs: Mapping[str, str]
) -> tuple[str, str]:
    """Choose the field that orders the events; also returns why. Empty texts if no field fits.

    Args:
        schema: Types by field.
        candidates: Fields that may be chosen: never null, and not in the key.
        epochs: Fields that are times as integers, see `Fields`.
    """
    usable = [name for name, kind in schema.items() if name in candidates and kind in _ORDERING_TYPES]
    for usual in _ORDERING:
        for name in usable:
            words = _CAMEL.sub("_", name).lower()
            if words == usual or words.endswith(f"_{usual}"):
                return name, "by its name"
    for name in usable:
        if schema[name] in _TIME_TYPES or name in epochs:
            return name, "the first time that is never null: is it right?"
    return "", ""


def epoch_function(name: str, kind: str, values: Iterable[Any]) -> str | None:
    """The function of Spark that turns an integer field into a timestamp; None if it does not look like a time.

    Args:
        name: Name of the field.
        kind: Its type.
        values: Some values; None for those that are missing.
    """
    if kind not in {"int", "bigint"} or not _TIME_NAME.search(name):
        return None
    present = [value for value in values if value is not None]
    first, last = EPOCH_RANGE
    for function, (units, _) in EPOCHS.items():
        if present and all(isinstance(value, int) and first * units <= value < last * units for value in present):
            return function
    return None
