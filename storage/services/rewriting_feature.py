"""The feature of a table whose rows a BASE may rewrite (PROTOCOL.md, X2)."""

from __future__ import annotations

from storage.core.log.entries import ERASE, Schema
from storage.core.log.features import reader_features
from storage.core.log.table_state import TableState
from storage.log.table_log import TableLog


def add_rewriting_feature(table_log: TableLog) -> None:
    """Record that only versions that know of rewritten rows may use the table, before anything depends on it."""

    def build(state: TableState) -> Schema | None:
        if ERASE in state.writer_features:
            return None
        features = {*state.writer_features, ERASE}
        return Schema(
            **table_log.header(state),
            reader_features=reader_features(state.schema, features),
            writer_features=sorted(features),
            table_schema=state.schema.to_json(),
            change="rows may be rewritten",
        )

    table_log.publish(build)
