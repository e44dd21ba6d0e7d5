"""Records that a table uses a feature, before the first entry that depends on it (PROTOCOL.md, X2 and W10)."""

from __future__ import annotations

from weft.storage.core.log.entries import Schema
from weft.storage.core.log.features import reader_features
from weft.storage.core.log.table_state import TableState
from weft.storage.log.table_log import TableLog


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
        features = {*state.writer_features, feature}
        return Schema(
            **table_log.header(state),
            reader_features=reader_features(state.schema, features),
            writer_features=sorted(features),
            table_schema=state.schema.to_json(),
            change=change,
        )

    table_log.publish(build)
