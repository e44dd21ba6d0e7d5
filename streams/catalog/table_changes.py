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
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput


def apply_changes(table: Table, changes: Sequence[Change], properties: Mapping[str, str | None]) -> None:
    """Make the changes of one statement, as one entry of the log.

    Args:
        table: The table.
        changes: Changes of columns, in order.
        properties: The properties that are set, or None for one that is taken back, with those below it: ``ttl`` for
            ``ttl.rows`` and so on.

    Raises:
        InvalidInput: A change is not possible. Nothing was changed.
        NotFound: The table has no such column. Nothing was changed.
    """
    config = configuration(table.schema)
    shown = schema_properties(table.schema)
    for name, value in properties.items():
        if value is None:
            shown = {key: text for key, text in shown.items() if key != name and not key.startswith(f"{name}.")}
        else:
            shown[name] = value
    columns = [SqlColumn(name, **column) for name, column in config["columns"].items()]
    table.alter(*changes, *_differences(load_config(config), config_from_properties(columns, shown)))


def find_group(schema: TableSchema, name: str, after: str | None, added: Sequence[Change]) -> str:
    """The group of a new column: that of the column after which it is added, or the only one.

    Args:
        schema: The schema of the table.
        name: Name of the new column.
        after: A column of the table; None if the statement names none.
        added: The changes of the statement before this one: the column may follow another new one.

    Raises:
        InvalidInput: The statement does not say which.
    """
    new_columns = [change for change in added if isinstance(change, AddColumn)]
    columns = {
        group.name: [*group.columns, *(column.name for column in new_columns if column.group == group.name)]
        for group in schema.groups
    }
    examples = ", ".join(f"AFTER {of_group[0]} for group {group}" for group, of_group in columns.items())
    if after is None and len(columns) > 1:
        raise InvalidInput(
            f"ADD COLUMN {name}: the statement does not say to which group the column belongs",
            hint=f"name a column of the group: {examples}",
        )
    found = next((group for group, of_group in columns.items() if after is None or after in of_group), None)
    if found is None:
        raise InvalidInput(
            f"ADD COLUMN {name} AFTER {after}: {after!r} is in no group",
            hint=f"name a column of the group that the new column belongs to: {examples}",
        )
    if schema.group(found).functions:
        raise InvalidInput(
            f"ADD COLUMN {name}: a column of group {found!r} needs an aggregate function",
            hint="CALL weft.system.add_column(table => ..., group => ..., name => ..., type => ..., function => 'sum')",
        )
    return found


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
