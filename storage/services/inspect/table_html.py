"""A table as HTML, for notebooks."""

from __future__ import annotations

from weft.storage import shown
from weft.storage.core.types import format_type
from weft.storage.plural import counted
from weft.storage.services.inspect.inspect import Inspection


def table_html(inspection: Inspection) -> str:
    """Describe a table: its sizes, columns by group, and streams."""
    overview = inspection.overview()
    schema = overview.schema
    about = {
        "table": overview.uri,
        "comment": schema.comment,
        "key": ", ".join(schema.key),
        "rows": f"{overview.rows_in_base:,} compacted, {counted(overview.events_in_logs, 'event')} in logs",
        "stored": f"{overview.base_bytes / 1e6:,.1f} MB in bases, {overview.log_bytes / 1e6:,.1f} MB in logs",
        "waiting for compaction": f"{counted(overview.commits_waiting, 'commit')}",
        "snapshot": overview.cut,
    }
    columns = [
        (
            group.name,
            ", ".join(f"{name} {format_type(schema.column_by_name[name].type)}" for name in group.columns),
            ", ".join(group.ordering) or "as committed",
            group.merge,
            ", ".join(stream.name for stream in schema.streams if group.name in stream.groups),
        )
        for group in schema.groups
    ]
    text = shown.facts("Table", {name: value for name, value in about.items() if value})
    return text + shown.rows("", ("group", "columns", "ordering", "merge", "streams"), columns)
