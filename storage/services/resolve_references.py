"""Checks references against the tables that they refer to, before they become part of a schema."""

from __future__ import annotations

from storage.config import TableConfig, build_schema
from storage.core.model import Reference
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.errors import InvalidInput, NotFound
from storage.log.table_log import TableLog
from storage.read.referenced_table import check_reference


def resolve_references(env: Environment, config: TableConfig) -> TableSchema:
    """The schema of a configuration whose references were checked against the referenced tables.

    Args:
        env: The environment of the table.
        config: The configuration. A reference without a list of columns gets those of the referenced table outside of
            its key.

    Raises:
        InvalidInput: A reference does not fit the referenced table, or refers to the table itself.
        NotFound: A referenced table, or one of the columns, does not exist.
        StoreUnavailable: The store of a referenced table does not answer.
    """
    schema = build_schema(config)
    if not schema.references:
        return schema
    given = {}
    for reference in schema.references:
        referenced = _schema_of(env, reference)
        check_reference(schema, reference, referenced)
        columns = reference.columns or tuple(name for name in referenced.column_by_name if name not in referenced.key)
        given[reference.name] = config.references[reference.name].model_copy(update={"columns": list(columns)})
    return build_schema(config.model_copy(update={"references": given}))  # the names of the columns may clash


def _schema_of(env: Environment, reference: Reference) -> TableSchema:
    field = f"references.{reference.name}.table"
    other = env.of_table(reference.table)
    if other.store.uri == env.store.uri:
        raise InvalidInput(
            f"{field}: {reference.table} is the table itself", hint="a table cannot refer to itself: name another table"
        )
    try:
        return TableLog.of(other).refresh().schema
    except NotFound as error:
        raise NotFound(
            f"{field}: {error.message}",
            hint="create the referenced table first; a relative path starts at the location of this table",
        ) from None
