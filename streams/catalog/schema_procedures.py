"""Procedures that add columns, groups and streams. ALTER TABLE does the other changes of a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from storage.engine import (
    SchemaChange,
    parse_names,
)
from streams.catalog.procedure import Row, Session, open_table, procedure
from streams.read.text_values import parse_default

_CHANGE: Final = {"revision": "bigint", "changed": "boolean"}


@procedure(_CHANGE)
def add_column(
    session: Session,
    table: str,
    group: str,
    name: str,
    type: str,  # noqa: A002 - the parameter's name
    default: str | None = None,
    function: str | None = None,
    comment: str = "",
) -> Row:
    """Add a column, the last of the table, to a group. ``default`` is JSON or plain text."""
    target, value = open_table(session, table), parse_default(default)
    return _changed(target.add_column(group, name, type, default=value, function=function, comment=comment))


@procedure(_CHANGE)
def add_group(
    session: Session,
    table: str,
    name: str,
    columns: Mapping[str, str],
    ordering: str | None = None,
    merge: str = "latest",
    functions: Mapping[str, str] | None = None,
    streams: str | None = None,
) -> Row:
    """Add a group of new columns, ``columns => map('tip', 'double')``, and say which streams write it.

    ``ordering`` and ``streams`` are names, separated by commas. A stream that does not exist is added.
    """
    target = open_table(session, table)
    given = _list(streams)
    known = {stream.name for stream in target.schema.streams}
    return _changed(
        target.add_group(
            name,
            dict(columns),
            ordering=_list(ordering),
            merge=merge,
            functions=dict(functions or {}),
            streams=[stream for stream in given if stream in known],
            new_streams={stream: "group" for stream in given if stream not in known},
        )
    )


@procedure(_CHANGE)
def add_stream(session: Session, table: str, name: str, groups: str, on_delete: str = "group") -> Row:
    """Add a stream that writes existing groups."""
    return _changed(open_table(session, table).add_stream(name, _list(groups), on_delete=on_delete))


def _changed(change: SchemaChange) -> Row:
    return {"revision": change.rev, "changed": change.changed}


def _list(names: str | None) -> list[str]:
    return [] if names is None else parse_names(names)
