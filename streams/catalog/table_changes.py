"""ALTER TABLE: translates a statement to changes of `weft.storage.alter`, which are applied together or not at all.

    ADD COLUMN tip double AFTER paid             a column of the group of ``paid``; the last one of the table
    ALTER COLUMN paid TYPE ...                   a wider type
    ALTER COLUMN status SET DEFAULT 'new'        also DROP DEFAULT
    ALTER COLUMN status COMMENT '...'            COMMENT ON TABLE sets the property 'comment'
    SET TBLPROPERTIES ('ttl.rows' = '90 days')   the time to live, new streams, new references; UNSET removes the
                                                 time to live and references

All other changes are refused, with a hint.
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
    """Apply the changes of one statement, as one entry of the log.

    Args:
        table: The table.
        changes: Changes of columns, in order.
        properties: Values of properties to set, and None for properties to remove. Removing ``ttl`` also removes
            ``ttl.rows`` and so on.

    Raises:
        InvalidInput: A change is not possible. Nothing was changed.
        NotFound: The table has no such column. Nothing was changed.
    """
    config = configuration(table.schema)
    new_properties = schema_properties(table.schema)
    for name, value in properties.items():
        if value is None:
            new_properties = {
                key: text for key, text in new_properties.items() if key != name and not key.startswith(f"{name}.")
            }
        else:
            new_properties[name] = value
    columns = [SqlColumn(name, **column) for name, column in config["columns"].items()]
    table.alter(*changes, *_differences(load_config(config), config_from_properties(columns, new_properties)))


def find_group(schema: TableSchema, name: str, after: str | None, earlier: Sequence[Change]) -> str:
    """Find the group of a new column: the group of the column that it follows, or the only group.

    Args:
        schema: The schema of the table.
        name: Name of the new column.
        after: The column that the new column follows; None if the statement names none.
        earlier: The changes before this one in the statement; the new column may follow a column that they add.

    Raises:
        InvalidInput: The statement does not determine the group, or the group needs an aggregate function.
    """
    new_columns = [change for change in earlier if isinstance(change, AddColumn)]
    columns_by_group = {
        group.name: [*group.columns, *(column.name for column in new_columns if column.group == group.name)]
        for group in schema.groups
    }
    examples = ", ".join(f"AFTER {columns[0]} for group {group}" for group, columns in columns_by_group.items())
    if after is None and len(columns_by_group) > 1:
        raise InvalidInput(
            f"ADD COLUMN {name}: the statement does not say to which group the column belongs",
            hint=f"name a column of the group: {examples}",
        )
    match = next(
        (group for group, columns in columns_by_group.items() if after is None or after in columns),
        None,
    )
    if match is None:
        raise InvalidInput(
            f"ADD COLUMN {name} AFTER {after}: {after!r} is in no group",
            hint=f"name a column of the group to which the new column belongs: {examples}",
        )
    if schema.group(match).functions:
        raise InvalidInput(
            f"ADD COLUMN {name}: a column of group {match!r} needs an aggregate function",
            hint="use CALL weft.system.add_column(table => ..., group => ..., name => ..., type => ..., "
            "function => 'sum')",
        )
    return match


def _differences(before: TableConfig, after: TableConfig) -> Iterator[Change]:
    """Yield the changes from one configuration to another one with the same columns.

    Raises:
        InvalidInput: The configurations differ in a property that cannot be changed.
    """
    if before.buckets != after.buckets:
        raise InvalidInput(
            "property 'buckets' of a table cannot be changed by ALTER TABLE, because the files have to be rewritten",
            hint=f"use CALL weft.system.split(table => ..., buckets => {after.buckets})",
        )
    for name in ("key", "partition_by"):
        if getattr(before, name) != getattr(after, name):
            raise InvalidInput(
                f"property '{name}' of a table cannot be changed", hint="create another table, and write to it"
            )
    for name in {**before.groups, **after.groups}:
        if name not in before.groups:
            raise InvalidInput(
                f"property 'group.{name}' names a new group, whose columns have no types",
                hint="use CALL weft.system.add_group(table => ..., name => ..., columns => map('tip', 'double'), ...)",
            )
        if before.groups[name] != after.groups.get(name):
            raise InvalidInput(
                f"properties of group {name!r} cannot be changed",
                hint="use ALTER TABLE ... ADD COLUMN to add columns; for another merge mode or ordering add a group",
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
                hint=f"use UNSET TBLPROPERTIES ('reference.{name}') first, then SET all of them",
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
