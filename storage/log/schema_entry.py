"""The SCHEMA entry: a new schema, or a new feature that later entries depend on (PROTOCOL.md, X2 and W10)."""

from __future__ import annotations

from collections.abc import Collection

from weft.storage.core.log.entries import Schema
from weft.storage.core.log.features import reader_features, writer_features
from weft.storage.core.log.table_state import TableState
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.log.table_log import TableLog


def schema_entry(
    table_log: TableLog, state: TableState, schema: TableSchema, change: str, features: Collection[str] = ()
) -> Schema:
    """The entry of the table lane that follows a state.

    Args:
        table_log: The table.
        state: The state.
        schema: The schema from then on.
        change: What changes, in words.
        features: Features of readers and writers that the table has from then on, besides those of the schema.
    """
    all_features = {*state.writer_features, *features}
    return Schema(
        **table_log.header(state),
        reader_features=reader_features(schema, all_features),
        writer_features=writer_features(schema, all_features),
        table_schema=schema.to_json(),
        change=change,
    )


def add_feature(table_log: TableLog, feature: str, change: str) -> None:
    """Record that only versions that know a feature may read and write the table; nothing if that is recorded.

    Args:
        table_log: The table.
        feature: A feature of readers and writers.
        change: What the table may have from then on, in words.

    Raises:
        Conflict, CommitUnknown: See `TableLog.publish`.
    """

    def build(state: TableState) -> Schema | None:
        if feature in state.writer_features:
            return None
        return schema_entry(table_log, state, state.schema, change, [feature])

    table_log.publish(build)
