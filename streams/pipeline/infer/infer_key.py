"""Chooses the key and the ordering columns of a writer from what is known of its messages. Pure.

- The *key* are the fields that the Kafka key names; or the field that has its value; else the field ``<stream>_id`` or
  ``id``; else a field that ends in ``_id``, or such a one within a field (``device.id``); else the first field that
  is never null, and no time. Fields that only the Kafka key has are read from it.
- The *ordering* columns are those that the source gives (Debezium); else a field with a usual name (``updated_at``,
  ``ts``, ``version``, ...) that is a time or an integer and is never null; else the first time that is never null;
  else the timestamp of the Kafka message.
  A field that is the same in all events of a key, such as the time when something began, orders nothing.
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
"""Functions of Spark that make a timestamp of an integer, how many of its units a second has, and their name."""
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
    """What is known of the messages of one writer.

    Attributes:
        stream: Name of the stream.
        fields: Fields of the message.
        rows: Messages of a sample, as values by field; empty if there is none.
        keys: The Kafka key of each row: values by field, a single value, or None.
        key_fields: Types of the fields of the key, as its schema or the sample says; "" is the name of a single value.
        declares_key: Whether the key has a format that needs declared fields.
        names_row: Whether the Kafka key is known to name the row, as that of a change event does. Otherwise a field
            ``id`` comes before a Kafka key of several fields, which may only spread messages over partitions.
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
    """What is proposed for one writer.

    Attributes:
        stream: Name of the stream.
        schema: Fields and their types.
        keys: Columns of the key.
        order: Columns that order the events; empty: the timestamp of the Kafka message.
        texts: What the schema says about fields.
        declared_key: Fields of the Kafka key that the writer must declare.
        notes: What the user should look at, besides key and ordering.
        guesses: How key and ordering were chosen.
        comments: What the schema says that fields mean.
        epochs: Functions of Spark that make timestamps of integers, by field.
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
        """The fields, with those within them in place of those that have some."""
        kinds = {**self.schema, **nested_fields(self.schema)}
        return [name for name, kind in kinds.items() if not kind.startswith("struct<")]

    def plain_part(self, name: str) -> Part:
        """The column of a field as it is."""
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
        """Fields that order the events; None: the timestamp of the Kafka message."""
        return ", ".join(part.name for part in self.order) or None


def fields_of(given: Messages) -> Fields | None:
    """What is proposed for a writer; None if its messages have no field that a column can hold."""
    notes = list(given.notes)
    schema: dict[str, str] = {}
    folded = Counter(name.lower() for name in given.fields)
    for name, one in given.fields.items():
        if not name or name.lower().startswith(_RESERVED) or folded[name.lower()] > 1:
            notes.append(f"field {name!r} is left out: its name is reserved, or differs from another one only in case")
        elif not one.type:
            notes.append(f"field {name!r} is left out: {one.reason}")
        else:
            schema[name] = one.type
    if not schema:
        return None
    if given.rows:
        always = {name for name in schema if all(row.get(name) is not None for row in given.rows)}
    else:
        always = {name for name in schema if given.fields[name].required} or set(schema)
    keys, how = _key_parts(given, schema, always)
    in_key = {part.name for part in keys}
    epochs = {
        name: function
        for name, kind in schema.items()
        if name not in in_key
        and (function := epoch_function(name, kind, [row.get(name) for row in given.rows])) is not None
    }
    for function, (_, unit) in EPOCHS.items():
        if names := ", ".join(name for name, found in epochs.items() if found == function):
            notes.append(f"{names}: {unit} since 1970, by name and values; the columns are timestamps")
    order, why = given.ordering, "the position in the source"
    if not order:
        fit = always - in_key - _constant_fields(given.rows, [part.name for part in keys])
        name, why = choose_ordering(schema, fit, epochs)
        order = (Part(name, quoted(name), schema[name]),) if name else ()
    names = ", ".join(part.name for part in order)
    guesses = (
        f"key: {', '.join(part.name for part in keys)} ({how})",
        f"ordering: {names}, {why}" if order else f"ordering: {given.time}, because no field looks like one",
    )
    uses_key = any(part.sql.startswith("_key.") for part in keys)
    declared = {part.name: part.type for part in keys} if uses_key else {}
    if given.declares_key and given.key_fields and not uses_key:
        fields = {name: kind for name, kind in given.key_fields.items() if name}
        declared = fields or dict.fromkeys([keys[0].name], given.key_fields.get("", ""))
    texts = {name: _shown(given.fields[name]) for name in schema}
    shown = {name: text for name, text in texts.items() if text}
    comments = {name: given.fields[name].text for name in schema if given.fields[name].text}
    return Fields(given.stream, schema, keys, order, shown, declared, tuple(notes), guesses, comments, epochs)


def quoted(name: str) -> str:
    """The name of a field in an SQL expression."""
    return name if PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _shown(one: SchemaField) -> str:
    return "; ".join(part for part in ("never null" if one.required else "", one.text) if part)


def _is_key_type(kind: str) -> bool:
    return kind in KEY_TYPES or kind.startswith("decimal(")


def _key_parts(given: Messages, schema: Mapping[str, str], always: set[str]) -> tuple[tuple[Part, ...], str]:
    """The columns of the key, and how they were found."""
    fit = [name for name, kind in schema.items() if name in always and _is_key_type(kind)]
    of_key = {name: kind for name, kind in given.key_fields.items() if name and _is_key_type(kind)}
    stream = given.stream
    wanted = [f"{stream.removesuffix('s')}_id", f"{stream}_id", "id"]
    is_clear = given.names_row or len(of_key) == 1 or not set(wanted) & set(fit)
    if of_key and of_key.keys() == given.key_fields.keys() and is_clear:
        in_value = [name for name in of_key if name in fit]
        parts = tuple(
            Part(name, quoted(name), schema[name]) if name in in_value else Part(name, f"_key.{quoted(name)}", kind)
            for name, kind in of_key.items()
        )
        if len(in_value) == len(parts):
            return parts, "the Kafka key names it" if len(parts) == 1 else "the Kafka key names them"
        return parts, "the Kafka key has it, and not every value" if len(parts) == 1 else "fields of the Kafka key"
    if given.keys and all(key is not None and not isinstance(key, dict) for key in given.keys):
        for name in fit:
            if all(str(row[name]) == str(key) for row, key in zip(given.rows, given.keys, strict=True)):
                return (Part(name, quoted(name), schema[name]),), "it has the value of the Kafka key"
    wanted += [name for name in fit if name.lower().endswith("_id")]
    for name in wanted:
        if name in fit:
            return (Part(name, quoted(name), schema[name]),), "by its name: is it right?"
    alone = given.key_fields.get("", "")
    if given.declares_key and _is_key_type(alone):
        return (Part(wanted[0], f"_key.{quoted(wanted[0])}", alone),), "the value of the Kafka key; choose its name"
    for name, kind in nested_fields(schema).items():
        last = name.rpartition(".")[2].lower()
        always_there = given.rows and all(value_of(row, name) is not None for row in given.rows)
        if (last == "id" or last.endswith("_id")) and _is_key_type(kind) and always_there:
            return (Part(name, ".".join(map(quoted, name.split("."))), kind),), "by its name: is it right?"
    times = {name for name in fit if _is_time(name, schema[name], given.rows)}
    for name in sorted(fit, key=times.__contains__):
        return (Part(name, quoted(name), schema[name]),), "the first field that is never null: is it?"
    name = next(iter(schema))
    return (Part(name, quoted(name), schema[name]),), "no field is never null: choose one"


def _is_time(name: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    return kind in _TIME_TYPES or epoch_function(name, kind, [row.get(name) for row in rows]) is not None


def _constant_fields(rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> set[str]:
    """Fields with one value in all events of a key, for each key; empty if no key has two different events."""
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_key.setdefault(repr([value_of(row, name) for name in key]), []).append(row)
    repeated = [found for found in by_key.values() if any(row != found[0] for row in found)]
    names = {name for row in rows for name in row} if repeated else set()
    return {name for name in names if all(row.get(name) == found[0].get(name) for found in repeated for row in found)}


def choose_ordering(schema: Mapping[str, str], fit: AbstractSet[str], epochs: Mapping[str, str]) -> tuple[str, str]:
    """The field that orders the events, and why; empty texts if none looks like one.

    Args:
        schema: Types by field.
        fit: Fields that may be chosen: never null, and not in the key.
        epochs: Fields that are times as integers, see `Fields`.
    """
    usable = [name for name, kind in schema.items() if name in fit and kind in _ORDERING_TYPES]
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
    """The function of Spark that makes a timestamp of an integer; None if it does not look like a time.

    Args:
        name: Name of the field.
        kind: Its type.
        values: Some values; None for those that are missing.
    """
    if kind not in {"int", "bigint"} or not _TIME_NAME.search(name):
        return None
    known = [value for value in values if value is not None]
    first, last = EPOCH_RANGE
    for function, (units, _) in EPOCHS.items():
        if known and all(isinstance(value, int) and first * units <= value < last * units for value in known):
            return function
    return None
