"""Checks references against the tables that they refer to, before they become part of a schema."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft.storage.config.table_config import TableConfig, build_schema
from weft.storage.core.log.table_state import TableState
from weft.storage.core.model import Reference
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.log.table_log import TableLog
from weft.storage.read.references.referenced_table import check_reference


def resolve_references(env: Environment, config: TableConfig, existing: Collection[Reference] = ()) -> TableSchema:
    """Build the schema of a configuration, and check its references against the referenced tables.

    Args:
        env: The environment of the table.
        config: The configuration. A reference without a list of columns gets all non-key columns of the referenced
            table.
        existing: References that the table already has. They are not checked, because their tables may be missing.

    Raises:
        InvalidInput: A reference does not fit the referenced table, or refers to the table itself.
        NotFound: A referenced table, or one of the columns, does not exist.
        StoreUnavailable: The store of a referenced table does not answer.
    """
    schema = build_schema(config)
    if not schema.references:
        return schema
    ids = {reference.name: reference.table_id for reference in existing}
    resolved_configs = {name: config.references[name] for name in ids}
    for reference in schema.references:
        if reference.name in ids:
            continue
        state = referenced_state(env, reference)
        referenced_schema = state.schema
        check_reference(schema, reference, referenced_schema)
        columns = reference.columns or tuple(
            name for name in referenced_schema.column_by_name if name not in referenced_schema.key
        )
        reference_config = config.references[reference.name]
        resolved_configs[reference.name] = reference_config.model_copy(update={"columns": list(columns)})
        ids[reference.name] = state.table_id
    # Built again, because the names of the columns may clash.
    resolved_schema = build_schema(config.model_copy(update={"references": resolved_configs}))
    references = tuple(replace(reference, table_id=ids[reference.name]) for reference in resolved_schema.references)
    return replace(resolved_schema, references=references)


def referenced_state(env: Environment, reference: Reference) -> TableState:
    """Read the newest state of a referenced table.

    Raises:
        InvalidInput: It is the table itself.
        NotFound: The referenced table does not exist.
        StoreUnavailable: The store of the referenced table does not answer.
    """
    field = f"references.{reference.name}.table"
    other_env = env.of_table(reference.table)
    if other_env.store.uri == env.store.uri:
        raise InvalidInput(
            f"{field}: {reference.table} is the table itself", hint="a table cannot refer to itself: name another table"
        )
    try:
        return TableLog.of(other_env).refresh()
    except NotFound as error:
        raise NotFound(
            f"{field}: {error.message}",
            hint="put it back, or drop the reference and add it again with the new location (weft alter)"
            if reference.table_id
            else "create the referenced table first; a relative path starts at the location of this table",
        ) from None
