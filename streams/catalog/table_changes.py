"""ALTER TABLE: the changes of a statement, checked together and then applied by the methods of `storage.Table`.

    ADD COLUMN tip double AFTER paid             a column of the group of ``paid``; the last one of the table
    ALTER COLUMN paid TYPE ...                   a wider type
    ALTER COLUMN status SET DEFAULT 'new'        also DROP DEFAULT
    ALTER COLUMN status COMMENT '...'            COMMENT ON TABLE sets the property 'comment'
    SET TBLPROPERTIES ('ttl.rows' = '90 days')   the time to live, new streams, new references; UNSET takes back the
                                                 time to live and references

Everything else that a statement can ask for is refused, with what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage import Table
from storage.config import TableConfig, build_schema, configuration, load_config
from storage.engine import SqlColumn, TableSchema, config_from_properties, schema_properties
from storage.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column. ``after`` is a column of the table, which names the group; None if the statement has none."""

    name: str
    type: str
    default: Any = None
    after: str | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """A wider type for a column."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class SetDefault:
    """A default for a column; None for NULL."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class SetComment:
    """A comment for a column; empty to remove it."""

    name: str
    comment: str


@dataclass(frozen=True, slots=True)
class SetProperty:
    """A property of TBLPROPERTIES."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class RemoveProperty:
    """A property, and those below it, that are taken back: ``ttl`` for ``ttl.rows`` and so on."""

    name: str


Change = AddColumn | WidenColumn | SetDefault | SetComment | SetProperty | RemoveProperty
_Step = Callable[[Table], object]


def apply_changes(table: Table, changes: Sequence[Change]) -> None:
    """Apply the changes of one statement.

    Additions and properties are checked together before anything is changed.

    Args:
        table: The table.
        changes: The changes, in the order of the statement.

    Raises:
        InvalidInput: A change is not possible. The table is unchanged, unless a type, a default or a comment of a
            column before it in the same statement was changed already.
        NotFound: The table has no such column.
    """
    schema = table.schema
    steps: list[_Step] = []
    added = [change for change in changes if isinstance(change, AddColumn)]
    if added:
        steps.extend(_additions(schema, added))
    steps.extend(_properties(schema, changes))
    for change in changes:
        match change:
            case WidenColumn(name, type_name):
                table.widen_column(name, type_name)
            case SetDefault(name, value):
                table.set_default(name, value)
            case SetComment(name, comment):
                table.set_comment(comment, name)
    for step in steps:
        step(table)


def _additions(schema: TableSchema, added: Sequence[AddColumn]) -> list[_Step]:
    config = configuration(schema)
    steps: list[_Step] = []
    for change in added:
        group = _group_for(config, change)
        config["columns"][change.name] = {"type": change.type, "default": change.default}
        config["groups"][group]["columns"].append(change.name)
        steps.append(
            lambda table, change=change, group=group: table.add_column(  # type: ignore[misc]
                group, change.name, change.type, default=change.default, comment=change.comment
            )
        )
    build_schema(load_config(config))
    return steps


def _group_for(config: Mapping[str, Any], change: AddColumn) -> str:
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


def _properties(schema: TableSchema, changes: Sequence[Change]) -> list[_Step]:
    given = schema_properties(schema)
    for change in changes:
        match change:
            case SetProperty(name, value):
                given[name] = value
            case RemoveProperty(name):
                given = {key: value for key, value in given.items() if key != name and not key.startswith(f"{name}.")}
    stored = configuration(schema)
    before = load_config(stored)
    columns = [SqlColumn(name, **column) for name, column in stored["columns"].items()]
    return _differences(before, config_from_properties(columns, given))


def _differences(before: TableConfig, after: TableConfig) -> list[_Step]:
    """Steps from one configuration to another with the same columns.

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
    steps: list[_Step] = []
    for name in {**before.streams, **after.streams}:
        known, wanted = before.streams.get(name), after.streams.get(name)
        if known is not None and known != wanted:
            raise InvalidInput(
                f"properties of stream {name!r} cannot be changed", hint="add another stream: 'stream.<name>' = ..."
            )
        if known is None and wanted is not None:
            steps.append(
                lambda table, name=name, it=wanted: table.add_stream(name, it.groups, on_delete=it.on_delete)  # type: ignore[misc]
            )
    for name in {**before.references, **after.references}:
        old, new = before.references.get(name), after.references.get(name)
        if old is not None and new is not None and old != new:
            raise InvalidInput(
                f"properties of reference {name!r} cannot be changed",
                hint=f"UNSET TBLPROPERTIES ('reference.{name}') first, then SET all of them",
            )
        if old is not None and new is None:
            steps.append(lambda table, name=name: table.drop_reference(name))  # type: ignore[misc]
        if old is None and new is not None:
            steps.append(
                lambda table, name=name, it=new: table.add_reference(  # type: ignore[misc]
                    name, it.table, it.on, columns=it.columns, prefix=it.prefix
                )
            )
    if before.comment != after.comment:
        steps.append(lambda table: table.set_comment(after.comment))
    if before.overlays != after.overlays:
        steps.append(lambda table: table.set_overlays(after.overlays))
    if before.index != after.index:
        steps.append(lambda table: table.set_index(after.index))
    if before.ttl != after.ttl:
        ttl = {} if after.ttl is None else after.ttl.model_dump(exclude_none=True)
        times = {name: f"{value} ms" if isinstance(value, int) else value for name, value in ttl.items()}
        steps.append(lambda table: table.set_ttl(**times))
    return steps
