"""ALTER TABLE: the changes of a statement as changes of `weft.storage.alter`, which the table makes together or not at
all.

    ADD COLUMN tip double AFTER paid             a column of the group of ``paid``; the last one of the table
    ALTER COLUMN paid TYPE ...                   a wider type
    ALTER COLUMN status SET DEFAULT 'new'        also DROP DEFAULT
    ALTER COLUMN status COMMENT '...'            COMMENT ON TABLE sets the property 'comment'
    SET TBLPROPERTIES ('ttl.rows' = '90 days')   the time to live, new streams, new references; UNSET takes back the
                                                 time to live and references

Everything else that a statement can ask for is refused, with what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.storage import Table
from weft.storage.alter import (
    AddColumn,
    AddReference,
    AddStream,
    Change,
    DropReference,
    SetComment,
    SetIndex,
    SetOverlays,
    SetTtl,
)
from weft.storage.config.table_config import TableConfig, configuration, load_config
from weft.storage.config.table_properties import SqlColumn, config_from_properties, schema_properties
from weft.storage.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A new column. ``after`` is a column of the table, which names the group; None if the statement has none."""

    name: str
    type: str
    default: Any = None
    after: str | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class SetProperty:
    """A property of TBLPROPERTIES."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class RemoveProperty:
    """A property, and those below it, that are taken back: ``ttl`` for ``ttl.rows`` and so on."""

    name: str


Part = NewColumn | SetProperty | RemoveProperty | Change
"""A part of a statement."""


def apply_changes(table: Table, parts: Sequence[Part]) -> None:
    """Make the changes of one statement, as one entry of the log.

    Args:
        table: The table.
        parts: The parts of the statement, in order.

    Raises:
        InvalidInput: A change is not possible. Nothing was changed.
        NotFound: The table has no such column. Nothing was changed.
    """
    schema = table.schema
    config = configuration(schema)
    properties = schema_properties(schema)
    before = load_config(config)
    changes: list[Change] = []
    for part in parts:
        match part:
            case NewColumn():
                group = _group_for(config, part)
                config["groups"][group]["columns"].append(part.name)
                changes.append(
                    AddColumn(group=group, name=part.name, type=part.type, default=part.default, comment=part.comment)
                )
            case SetProperty(name, value):
                properties[name] = value
            case RemoveProperty(name):
                properties = {
                    key: value for key, value in properties.items() if key != name and not key.startswith(f"{name}.")
                }
            case Change():
                changes.append(part)
    columns = [SqlColumn(name, **column) for name, column in config["columns"].items()]
    table.alter(*changes, *_differences(before, config_from_properties(columns, properties)))


def _group_for(config: Mapping[str, Any], change: NewColumn) -> str:
    """The group of a new column: that of the column after which it is added, or the only one.

    Raises:
        InvalidInput: The statement does not say which.
    """
    groups: Mapping[str, Any] = config["groups"]
    examples = ", ".join(f"AFTER {group['columns'][0]} for group {name}" for name, group in groups.items())
    if change.after is None:
        if len(groups) > 1:
            raise InvalidInput(
                f"ADD COLUMN {change.name}: the statement does not say to which group the column belongs",
                hint=f"name a column of the group: {examples}",
            )
        (group,) = groups
    else:
        found = next((name for name, each in groups.items() if change.after in each["columns"]), None)
        if found is None:
            raise InvalidInput(
                f"ADD COLUMN {change.name} AFTER {change.after}: {change.after!r} is in no group",
                hint=f"name a column of the group that the new column belongs to: {examples}",
            )
        group = found
    if groups[group]["functions"]:
        raise InvalidInput(
            f"ADD COLUMN {change.name}: a column of group {group!r} needs an aggregate function",
            hint="CALL weft.system.add_column(table => ..., group => ..., name => ..., type => ..., function => 'sum')",
        )
    return group


def _differences(before: TableConfig, after: TableConfig) -> Iterator[Change]:
    """Changes from one configuration to another with the same columns.

    Raises:
        InvalidInput: They differ in something that cannot be changed.
    """
    if before.buckets != after.buckets:
        raise InvalidInput(
            "property 'buckets' of a table is not changed by a statement that returns at once",
            hint=f"CALL weft.system.split(table => ..., buckets => {after.buckets})",
        )
    for what in ("key", "partition_by"):
        if getattr(before, what) != getattr(after, what):
            raise InvalidInput(
                f"property '{what}' of a table cannot be changed", hint="create another table, and write to that"
            )
    for name in {**before.groups, **after.groups}:
        if name not in before.groups:
            raise InvalidInput(
                f"property 'group.{name}' names a new group, whose columns have no types",
                hint="CALL weft.system.add_group(table => ..., name => ..., columns => map('tip', 'double'), ...)",
            )
        if before.groups[name] != after.groups.get(name):
            raise InvalidInput(
                f"properties of group {name!r} cannot be changed",
                hint="ALTER TABLE ... ADD COLUMN adds columns to it; for another merge mode or ordering add a group",
            )
    for name, stream in before.streams.items():
        if stream != after.streams.get(name):
            raise InvalidInput(
                f"properties of stream {name!r} cannot be changed", hint="add another stream: 'stream.<name>' = ..."
            )
    for name, stream in after.streams.items():
        if name not in before.streams:
            yield AddStream(name=name, **stream.model_dump())
    for name, reference in before.references.items():
        if name not in after.references:
            yield DropReference(name=name)
        elif reference != after.references[name]:
            raise InvalidInput(
                f"properties of reference {name!r} cannot be changed",
                hint=f"UNSET TBLPROPERTIES ('reference.{name}') first, then SET all of them",
            )
    for name, reference in after.references.items():
        if name not in before.references:
            yield AddReference(name=name, **reference.model_dump())
    if before.comment != after.comment:
        yield SetComment(comment=after.comment)
    if before.overlays != after.overlays:
        yield SetOverlays(on=after.overlays)
    if before.index != after.index:
        yield SetIndex(columns=after.index)
    if before.ttl != after.ttl:
        ttl = {} if after.ttl is None else after.ttl.model_dump(exclude_none=True)
        yield SetTtl.model_validate(
            {name: f"{value} ms" if isinstance(value, int) else value for name, value in ttl.items()}
        )
