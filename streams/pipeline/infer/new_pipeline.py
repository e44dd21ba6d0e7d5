"""A new pipeline file from a few answers: topics, key, ordering columns, groups, format, location. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from weft.storage.config.table_config import build_schema, load_config
from weft.storage.core.types import parse_type
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.yaml_comments import dump
from weft.streams.pipeline.infer.infer_key import Fields, Part
from weft.streams.pipeline.infer.proposal import column_name, propose

_HEAD: Final = """\
# Written by weft init. Every field is explained in the example: weft init --example OTHER_DIR
#
#   weft check {file}                    everything that is wrong with this file
#   weft run {file}                      all writers and services, until Ctrl-C; --once: what the topics hold now
#   weft sql {file} "SELECT * FROM t"    and weft show {file}, weft ui {file}
"""


@dataclass(frozen=True, slots=True)
class NewStream:
    """A topic, and the answers about it.

    Attributes:
        topic: Its name.
        fields: The fields of its messages, inferred or declared.
        ordering: Fields that order its events; empty: the timestamp of the Kafka message.
        groups: Fields by group, if there are several; the other fields are in the group of the stream.
        key_format: Format of the Kafka keys, if the pipeline reads them.
        rows: Some of its messages.
    """

    topic: str
    fields: Fields
    ordering: Sequence[str] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    key_format: str = "json"
    rows: Sequence[Mapping[str, Any]] = ()


def stream_name(topic: str) -> str:
    """The name of the stream of a topic: what follows the last dot, as ``orders`` in ``shop.public.orders``."""
    return column_name(topic.rpartition(".")[2])


def parse_fields(text: str) -> dict[str, str]:
    """Fields and their SQL types from ``NAME TYPE, NAME TYPE``.

    Raises:
        InvalidInput: It is not in that form, or a type is unknown.
    """
    fields: dict[str, str] = {}
    for part in _split(text):
        name, _, kind = part.partition(" ")
        if not kind.strip():
            raise InvalidInput(
                f"{part!r} is not NAME TYPE", hint="for example: order_id bigint, status string, ts timestamp"
            )
        parse_type(kind.strip())
        if name in fields:
            raise InvalidInput(f"field {name!r} is given twice", hint="give each field once")
        fields[name] = kind.strip()
    if not fields:
        raise InvalidInput("there are no fields", hint="for example: order_id bigint, status string, ts timestamp")
    return fields


def parse_groups(text: str) -> dict[str, list[str]]:
    """Fields by group from ``NAME: a, b; NAME: c``; empty for one group.

    Raises:
        InvalidInput: It is not in that form.
    """
    groups: dict[str, list[str]] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, colon, rest = part.partition(":")
        names = [field_name.strip() for field_name in rest.split(",") if field_name.strip()]
        if not colon or not name.strip() or not names:
            raise InvalidInput(
                f"{part!r} is not GROUP: FIELD, FIELD", hint="for example: address: street, city; contact: email"
            )
        groups[name.strip()] = names
    return groups


def check_names(names: Sequence[str], stream: NewStream, what: str) -> None:
    """Refuse names that are not fields of a topic.

    Raises:
        InvalidInput: There is no such field.
    """
    for name in names:
        if stream.fields.kind(name) is None:
            fields = ", ".join(stream.fields.simple_fields())
            raise InvalidInput(f"{what}: topic {stream.topic} has no field {name!r}", hint=f"its fields are {fields}")


def with_key(fields: Fields, key: Sequence[str]) -> Fields:
    """The fields of a topic with another key."""
    return replace(
        fields,
        keys=tuple(map(fields.plain_part, key)),
        declared_key={},
        guesses=(f"key: {', '.join(key)}", *fields.guesses[1:]),
    )


def build(
    file: str, uri: str, brokers: str, message_format: str, streams: Sequence[NewStream], registry: str
) -> tuple[str, list[str]]:
    """Build the text of the file.

    Args:
        file: Path of the file, for the commands in its first lines.
        uri: Location of the table.
        brokers: Kafka's bootstrap servers.
        message_format: Format of the messages.
        streams: The topics; all have the same key columns.
        registry: URL of the schema registry; empty for none.

    Returns:
        The text, and its summary: lines with the key and the ordering of each topic, and what the user should check.

    Raises:
        InvalidInput: A name is not a field, or the configuration of the table is wrong.
    """
    fields: dict[str, Fields] = {}
    for stream in streams:
        check_names(stream.ordering, stream, "ordering")
        for name, names in stream.groups.items():
            check_names(names, stream, f"group {name}")
        order = tuple(map(stream.fields.part, stream.ordering))
        fields[stream.fields.stream] = replace(stream.fields, order=order or _source_order(stream))
    proposal = propose(fields)
    for stream in streams:
        _divide(proposal.config, proposal.writers[stream.fields.stream], stream)
    build_schema(load_config(proposal.config))
    whole: dict[str, Any] = {
        "table": {"uri": uri, "config": proposal.config},
        "kafka": {"bootstrap.servers": brokers},
    }
    if registry:
        whole["registry"] = {"url": registry}
    whole["writers"] = {}
    for stream in streams:
        writer = proposal.writers[stream.fields.stream]
        source = {"type": "kafka", "topic": stream.topic, "format": message_format}
        if "key" in writer and stream.key_format != "json":
            source["key_format"] = stream.key_format
        whole["writers"][stream.fields.stream] = {"source": source, **writer}
    whole |= {"compaction": {"every": "30 seconds"}, "clean": {"every": "10 minutes", "retain": "24 hours"}}
    summary: list[str] = []
    comments: dict[tuple[str, ...], str] = {}
    for stream in streams:
        name = stream.fields.stream
        joins = proposal.joins.get(name, {})
        lines = [_key_words(stream), *proposal.notes.get(name, ()), _ordering_words(stream)]
        summary += [f"{stream.topic}: {line}" for line in lines]
        comments |= {("writers", name, "select", column): text for column, text in joins.items()}
    notes = "".join(f"# {line}\n" for line in summary)
    return f"{_HEAD.format(file=file)}#\n{notes}\n{dump(whole, comments)}", summary


def _key_words(stream: NewStream) -> str:
    return next(iter(stream.fields.guesses), f"key: {stream.fields.key}")


def _ordering_words(stream: NewStream) -> str:
    """What orders the events of a topic, and why if its messages showed that."""
    fields = stream.fields
    chosen = tuple(map(fields.part, stream.ordering)) or _source_order(stream)
    if fields.guesses[1:] and [part.name for part in chosen] == [part.name for part in fields.order]:
        return fields.guesses[1]
    names = ", ".join(part.name for part in chosen)
    return f"ordering: {names or 'the timestamp of the Kafka message'}"


def _source_order(stream: NewStream) -> tuple[Part, ...]:
    """The order that the source itself gives, such as the position of a change event; empty if it gives none."""
    order = stream.fields.order
    return order if any(part.name not in stream.fields.schema for part in order) else ()


def _divide(config: dict[str, Any], writer: dict[str, Any], stream: NewStream) -> None:
    """Divide the group of a stream into the requested groups. All of them are ordered by the same values."""
    name = stream.fields.stream
    whole = config["groups"][name]
    column_of = {sql: column for column, sql in writer["select"].items()}
    ordering = list(whole["ordering"])
    for group, fields in stream.groups.items():
        if group in config["groups"]:
            raise InvalidInput(f"there is already a group {group!r}", hint="choose another name")
        nested = [field_name for field_name in fields if field_name not in stream.fields.schema]
        if nested:
            raise InvalidInput(
                f"group {group}: {nested[0]} is a part of a column",
                hint="choose the whole column",
            )
        columns = [column_of[stream.fields.part(field_name).sql] for field_name in fields]
        unusable = [column for column in columns if column not in whole["columns"] or column in ordering]
        if unusable:
            raise InvalidInput(
                f"group {group}: column {unusable[0]!r} is in the key, orders events, or is in another group",
                hint="list each column in one group only",
            )
        whole["columns"] = [column for column in whole["columns"] if column not in columns]
        copies = []
        for column in ordering:
            copy = f"{group}_{column}"
            config["columns"][copy] = config["columns"][column]
            writer["select"][copy] = writer["select"][column]
            copies.append(copy)
        config["groups"][group] = {"columns": [*columns, *copies], "ordering": copies}
        config["streams"][name]["groups"].append(group)


def _split(text: str) -> list[str]:
    """The parts between commas outside of brackets, as in ``a decimal(12,2), b array<int>``."""
    parts, depth, last = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and not depth:
            parts.append(text[last:place])
            last = place + 1
    return [part.strip() for part in (*parts, text[last:]) if part.strip()]
