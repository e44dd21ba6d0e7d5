"""Inspects the references of a table for operators: their problems, and the watermarks of the referenced tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.storage.core.log.table_state import TableState
from weft.storage.core.model import Reference
from weft.storage.core.names import TABLE_LANE
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment, open_environment
from weft.storage.errors import TableError
from weft.storage.log import snapshot_cut
from weft.storage.log.table_log import TableLog
from weft.storage.read.lane_watermarks import read_watermarks
from weft.storage.read.references.referenced_table import check_reference, check_table_id
from weft.storage.services.inspect.stream_report import StreamReport, stream_report
from weft.storage.services.schema.resolve_references import referenced_state


@dataclass(frozen=True, slots=True)
class ReferenceReport:
    """One reference of a table. Times are Unix milliseconds.

    Attributes:
        name: Name of the reference.
        table: Location of the referenced table.
        on: The columns of the foreign key.
        columns: The columns that it adds to the table, with their prefix.
        problem: What is wrong, beginning with the field of the configuration; "" if its columns can be read.
        hint: What to do about the problem.
        guide: Document and section that explain the problem; "" if there is none.
        kept_since_ms: Time of the oldest snapshot that the referenced table keeps; None if it keeps all snapshots, or
            cannot be read.
        streams: Watermarks of the referenced table, for the groups of these columns.
    """

    name: str
    table: str
    on: tuple[str, ...]
    columns: tuple[str, ...]
    problem: str = ""
    hint: str = ""
    guide: str = ""
    kept_since_ms: int | None = None
    streams: tuple[StreamReport, ...] = ()


def inspect_references(env: Environment, schema: TableSchema) -> Iterator[ReferenceReport]:
    """Inspect the references of a table, in order. No data file is opened.

    Args:
        env: The environment of the table, which need not exist.
        schema: The schema of the table or of a configuration.
    """
    for reference in schema.references:
        try:
            yield _inspect_reference(env, schema, reference)
        except TableError as error:
            field = f"references.{reference.name}"
            message = error.message if error.message.startswith(field) else f"{field}: {error.message}"
            yield replace(_new_report(env, reference), problem=message, hint=error.hint, guide=error.guide)


def reference_reports(
    uri: str | Path, schema: TableSchema, storage_options: Mapping[str, Any] | None = None
) -> list[ReferenceReport]:
    """Inspect the references of a schema; see `ReferenceReport`.

    Args:
        uri: The location of the table, which need not exist.
        schema: The schema of the table or of a configuration.
        storage_options: Options of the table's store.
    """
    return list(inspect_references(open_environment(uri, storage_options), schema))


def _inspect_reference(env: Environment, schema: TableSchema, reference: Reference) -> ReferenceReport:
    state = referenced_state(env, reference)
    if reference.table_id:  # empty in a configuration
        check_table_id(reference, state.table_id)
    check_reference(schema, reference, state.schema)
    table_log = TableLog.of(env.of_table(reference.table))
    state, cut, _ = snapshot_cut.newest_cut(table_log)
    groups = {state.schema.group_of_column[name].name for name in reference.columns if name not in state.schema.key}
    watermarks = read_watermarks(table_log.commit_log, state, cut)
    now_ms = table_log.clock.now_ms()
    marks = (mark for stream_marks in watermarks.values() for name, mark in stream_marks.items() if name in groups)
    return replace(
        _new_report(env, reference),
        kept_since_ms=_kept_since(table_log, state),
        streams=tuple(stream_report(mark, now_ms) for mark in marks),
    )


def _kept_since(table_log: TableLog, state: TableState) -> int | None:
    """The time of the oldest retained snapshot; None if none has expired."""
    oldest = state.oldest_retained
    if oldest <= 1:
        return None
    entry = table_log.commit_log.entry(TABLE_LANE, oldest)
    return None if entry is None else entry.committed_at_ms


def _new_report(env: Environment, reference: Reference) -> ReferenceReport:
    try:
        location = env.of_table(reference.table).store.uri
    except TableError:  # the kind of store is unknown
        location = reference.table
    return ReferenceReport(reference.name, location, reference.on, reference.shown_names)
