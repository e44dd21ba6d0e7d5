"""Proposes `schema`, `select` and the table of a pipeline from the messages of its writers. Pure.

What messages and schemas do not show is guessed by rules (`weft.streams.pipeline.infer.infer_key`); a note says so.
Each stream has one group with all its other fields. A name that two streams have gets the stream's name before it. All
writers share one key.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weft.streams.pipeline.infer.infer_key import PLAIN, Fields, Part, quoted
from weft.streams.pipeline.infer.nested_fields import nested_fields

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
    """Choose the names of the table's key: those of the shortest key of a writer; rather another name than ``id``."""
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
