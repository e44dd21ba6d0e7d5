"""Publishes changes of a table's schema while writers are running.

The changes of a call are one entry of the log, and all or none are made. Each edits the table's configuration, which
is then checked as a whole, like that of a new table. They are applied to the newest schema, and again after every lost
race, so concurrent changes are merged: the additions of two operators are both kept. Changes that the table already
has publish nothing; a change that contradicts the table is refused. `weft.storage.alter` has the kinds of changes.
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
    """The result: ``rev``, the schema revision with the change; ``changed``, False if the table already had it."""

    rev: int
    changed: bool


def alter_schema(table_log: TableLog, changes: Sequence[Change | Mapping[str, Any]]) -> SchemaChange:
    """Make changes of the schema, as one entry; see `weft.storage.table.Table.alter`."""
    parsed = [parse_change(change) for change in changes]

    def build(state: TableState) -> Schema | None:
        schema, words = apply_changes(table_log, state.schema, parsed, state.head + 1)
        if schema == state.schema:
            return None
        return schema_entry(table_log, state, schema, words)

    published = table_log.publish(build)
    return SchemaChange(table_log.refresh().schema_rev if published is None else published.seq, published is not None)


def apply_changes(
    table_log: TableLog, schema: TableSchema, changes: Sequence[Change], slot: int
) -> tuple[TableSchema, str]:
    """The schema after all changes, and what they do; an equal schema if it has them already.

    Args:
        table_log: The table's log, for the tables and mergers that the schema refers to.
        schema: The newest schema.
        changes: The changes, in order: each may build on those before it.
        slot: The slot of the entry that will have the changed schema.
    """
    words, changed = [], schema
    for change in changes:
        before, changed = changed, _apply(table_log.env, changed, change, slot)
        if changed != before:
            words.append(change.words())
    return _with_slots(schema, changed, slot), "; ".join(words)  # a column may be as it was before


def _apply(env: Environment, schema: TableSchema, change: Change, slot: int) -> TableSchema:
    before, config = configuration(schema), configuration(schema)
    change.edit(config, schema)
    resolved = change.name if isinstance(change, AddReference | DropReference) else None
    wanted = resolve_references(env, load_config(config), [r for r in schema.references if r.name != resolved])
    if isinstance(change, AddColumn | AddGroup | AddReference) and (facts := change.facts(before)) is not None:
        check_same(
            f"{change.kind().removeprefix('add_')} {change.name!r}", facts, change.facts(configuration(wanted)) or {}
        )
    known = schema.reference_by_name.get(resolved or "")
    if isinstance(change, AddReference) and known and wanted.reference(change.name).table_id != known.table_id:
        raise Conflict(
            f"reference {change.name!r} already exists, to another table that was at {change.table} before",
            hint="drop the reference, then add it again",
        )
    added = tuple(group for group in wanted.groups if group.name not in schema.group_by_name)
    mergers.load(replace(wanted, groups=added), env.mergers)
    return _with_slots(schema, wanted, slot)


def _with_slots(before: TableSchema, wanted: TableSchema, slot: int) -> TableSchema:
    """Record the slot of the schema's entry in its new and changed columns, so that readers recognise older files."""
    columns = []
    for column in wanted.columns:
        old = before.column_by_name.get(column.name)
        if old is None:
            columns.append(replace(column, since=slot, changed=slot))
            continue
        assert old.id == column.id, "ids never change"
        same = old.type == column.type and encode_scalar(old.default) == encode_scalar(column.default)
        # The old default of an unchanged column, so that schemas are equal: NaN is not equal to itself.
        columns.append(replace(old, comment=column.comment) if same else replace(column, since=old.since, changed=slot))
    return replace(wanted, columns=tuple(columns), created_bits=before.created_bits)
