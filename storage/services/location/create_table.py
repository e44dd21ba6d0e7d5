"""Creates a table by publishing the first entry of its table lane."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.storage import mergers
from weft.storage.config.table_config import TableConfig, load_config
from weft.storage.core.log.entries import Create
from weft.storage.core.log.features import reader_features, writer_features
from weft.storage.core.names import TABLE_LANE
from weft.storage.errors import Conflict
from weft.storage.log.table_log import TableLog
from weft.storage.services.schema.resolve_references import resolve_references
from weft.storage.store.object_store import check_capability


def create_table(table_log: TableLog, config: TableConfig | Mapping[str, Any] | str | Path) -> None:
    """Publish the CREATE entry of a table.

    Args:
        table_log: The log of a location without a table.
        config: The configuration: an object, a mapping, or the path of a YAML file.

    Raises:
        InvalidInput: The configuration is wrong. Nothing was created.
        NotFound: A reference names a table or a column that does not exist.
        Conflict: A table, or a part of one, already exists.
        StoreUnavailable: The store cannot be written, or cannot create objects exclusively.
    """
    env = table_log.env
    schema = resolve_references(env, load_config(config))
    mergers.load(schema, env.mergers)
    exists = Conflict(f"there is already a table at {env.store.uri}", hint="open it with Table.open")
    if table_log.commit_log.entry(TABLE_LANE, 1) is not None:
        raise exists
    if table_log.lacks_first():
        raise Conflict(
            f"at {env.store.uri} are entries of a table whose first entry is missing",
            hint="restore it from a copy of the store (weft verify shows what is wrong), or choose another folder",
        )
    check_capability(env.store, env.ids.new)
    create = Create(
        **table_log.header(None),
        table_id=env.ids.new(),
        reader_features=reader_features(schema, writer_features(schema)),
        writer_features=writer_features(schema),
        table_schema=schema.to_json(),
    )
    if table_log.commit_log.publish(create).commit_id != create.commit_id:
        raise exists
