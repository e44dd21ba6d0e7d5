"""Publishes changes of a table's schema while writers are running.

The changes of a call are one entry of the log: all of them are made, or none. Each edits the table's configuration,
which is then checked as a whole, like that of a new table. They are applied to the newest schema, and again after every
lost race, so concurrent changes are merged: the additions of two operators are both kept. Changes that the table
already has publish nothing. A change that contradicts the table is refused. `weft.storage.alter` defines the changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.storage import mergers
from weft.storage.alter import AddColumn, AddGroup, AddReference, Change, DropReference, check_same, parse_change
from weft.storage.config.table_config import configuration, load_config
from weft.storage.core.log.entries import Schema
from weft.storage.core.log.table_state import TableState
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import encode_scalar
from weft.storage.environment import Environment
from weft.storage.errors import Conflict
from weft.storage.log.schema_entry import schema_entry
from weft.storage.log.table_log import TableLog
from weft.storage.services.schema.resolve_references import resolve_references
from weft.storage.shown import Shown


@dataclass(frozen=True, slots=True)
class SchemaChange(Shown):
    """The schema revision with the changes, and whether anything changed (False: the table already had them)."""

    rev: int
    changed: bool


def alter_schema(table_log: TableLog, changes: Sequence[Change | Mapping[str, Any]]) -> SchemaChange:
    """Change the schema in one entry of the log, see `weft.storage.table.Table.alter`."""
    parsed = [parse_change(change) for change in changes]

    def build(state: TableState) -> Schema | None:
        schema, words = apply_changes(table_log, state.schema, parsed, state.head + 1)
        if schema == state.schema:
            return None
        return schema_entry(table_log, state, schema, words)

    entry = table_log.publish(build)
    return SchemaChange(table_log.refresh().schema_rev if entry is None else entry.seq, entry is not None)


def apply_changes(
    table_log: TableLog, schema: TableSchema, changes: Sequence[Change], slot: int
) -> tuple[TableSchema, str]:
    """Apply changes to a schema; returns the new schema and a description. Equal if the schema already has them.

    Args:
        table_log: The table's log, for the tables and mergers that the schema refers to.
        schema: The newest schema.
        changes: The changes, in order. Each may depend on those before it.
        slot: Slot of the entry that will record the changed schema.
    """
    words, current = [], schema
    for change in changes:
        previous, current = current, _apply(table_log.env, current, change, slot)
        if current != previous:
            words.append(change.words())
    return _with_slots(schema, current, slot), "; ".join(words)  # a later change may have restored a column


def _apply(env: Environment, schema: TableSchema, change: Change, slot: int) -> TableSchema:
    config_before, config = configuration(schema), configuration(schema)
    change.edit(config, schema)
    changed_reference = change.name if isinstance(change, AddReference | DropReference) else None
    others = [reference for reference in schema.references if reference.name != changed_reference]
    new_schema = resolve_references(env, load_config(config), others)
    if isinstance(change, AddColumn | AddGroup | AddReference) and (facts := change.facts(config_before)) is not None:
        new_facts = change.facts(configuration(new_schema)) or {}
        check_same(f"{change.kind().removeprefix('add_')} {change.name!r}", facts, new_facts)
    existing = schema.reference_by_name.get(changed_reference or "")
    if (
        isinstance(change, AddReference)
        and existing
        and new_schema.reference(change.name).table_id != existing.table_id
    ):
        raise Conflict(
            f"reference {change.name!r} already exists, to another table that was at {change.table} before",
            hint="drop the reference, then add it again",
        )
    new_groups = tuple(group for group in new_schema.groups if group.name not in schema.group_by_name)
    mergers.load(replace(new_schema, groups=new_groups), env.mergers)
    return _with_slots(schema, new_schema, slot)


def _with_slots(previous: TableSchema, new_schema: TableSchema, slot: int) -> TableSchema:
    """Record the slot of the schema's entry in new and changed columns, so that readers recognise older files."""
    columns = []
    for column in new_schema.columns:
        old_column = previous.column_by_name.get(column.name)
        if old_column is None:
            columns.append(replace(column, since=slot, changed=slot))
            continue
        assert old_column.id == column.id, "ids never change"
        is_same = old_column.type == column.type and encode_scalar(old_column.default) == encode_scalar(column.default)
        # Keep the default of an unchanged column, so that schemas are equal: NaN does not equal itself.
        changed_column = replace(column, since=old_column.since, changed=slot)
        columns.append(replace(old_column, comment=column.comment) if is_same else changed_column)
    return replace(new_schema, columns=tuple(columns), created_bits=previous.created_bits)
