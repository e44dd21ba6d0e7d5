"""Changes of what compactions write besides the rows: overlays, and Bloom filters of indexed columns."""

from __future__ import annotations

from collections.abc import Sequence

from storage.config import configuration
from storage.core.schema.table_schema import TableSchema
from storage.log.table_log import TableLog
from storage.services.schema_changes import SchemaChange, checked_schema, publish_schema


def set_overlays(table_log: TableLog, on: bool) -> SchemaChange:  # noqa: FBT001 - the value of a setting
    """Allow compactions to write overlays; if not, the next ones end those that exist (PROTOCOL.md, "Overlays").

    Args:
        table_log: The table's log.
        on: Whether compactions may write overlays.

    Raises:
        InvalidInput: The value is no boolean.
    """

    def change(schema: TableSchema) -> TableSchema | None:
        wanted = checked_schema({**configuration(schema), "overlays": on})
        return wanted if wanted.overlays != schema.overlays else None

    return publish_schema(table_log, "compactions write overlays" if on else "compactions write no overlays", change)


def set_index(table_log: TableLog, columns: Sequence[str]) -> SchemaChange:
    """Set the columns for which compactions write Bloom filters, instead of those before.

    A read with ``column = value``, or with a few values, then skips row groups that do not have them. Base files get
    filters when they are written next.

    Args:
        table_log: The table's log.
        columns: Names of columns: integers, strings, binaries or dates; none for no filters.

    Raises:
        InvalidInput: A column does not exist, or cannot be indexed. Nothing was changed.
    """

    def change(schema: TableSchema) -> TableSchema | None:
        wanted = checked_schema({**configuration(schema), "index": list(columns)})
        return wanted if wanted.index != schema.index else None

    return publish_schema(table_log, f"index {', '.join(columns)}" if columns else "index no column", change)
