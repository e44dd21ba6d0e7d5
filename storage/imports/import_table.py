"""Copies the rows of a foreign table into a new weft table, all in one commit.

The rows are written to log files first. The table is created only after all rows were read and accepted, and one commit
makes them visible: a read sees no table, an empty table, or all rows. If the process dies before the commit, the next
import begins again; if it dies later, the next import finds the commit and finishes. The rows belong to a stream that
writes all groups, so each group has the ordering values of the rows. The lane is closed at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from weft.storage.config.table_config import StreamConfig, TableConfig, configuration, load_config
from weft.storage.core.merge.events import MAX_EXAMPLES, prepare
from weft.storage.core.modes.functions import find_function
from weft.storage.core.names import lane_name
from weft.storage.core.schema.casting import cast_column
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment, open_environment
from weft.storage.errors import Conflict, CorruptData, InvalidInput, NotFound
from weft.storage.files.log_file import remove_log_file
from weft.storage.imports.column_types import storable
from weft.storage.imports.foreign_table import ForeignTable
from weft.storage.services.schema.resolve_references import resolve_references
from weft.storage.services.steps.progress import OnStage, Stage, unobserved
from weft.storage.shown import Shown
from weft.storage.table import Table
from weft.storage.write.lane_progress import read_lane
from weft.storage.write.write_task import WriteTicket, Written, write_rows
from weft.storage.write.writer import Commit, Writer

LANE: Final = "import"
"""Name of the lane of imported rows, and of their stream if no stream of the configuration writes all groups."""
BATCH: Final = ("import", 0)
_FIRST_EPOCH: Final = 1
_FIRST_COMMIT: Final = 2  # the claim is the first entry of a lane


@dataclass(frozen=True, slots=True)
class ImportResult(Shown):
    """What an import did.

    Attributes:
        uri: Location of the table.
        source: Format, location and version of the source.
        imported: False if an earlier import had already committed these rows.
        rows: Number of rows in the source.
        rows_ignored: Number of rows that have only a key: all other columns are NULL.
        keys: Number of rows in the table.
    """

    uri: str
    source: Mapping[str, str]
    imported: bool
    rows: int
    rows_ignored: int
    keys: int

    @property
    def merged(self) -> int:
        """Number of rows that lost against another row with the same key."""
        return self.rows - self.rows_ignored - self.keys


def import_table(
    uri: str | Path,
    source: ForeignTable,
    config: TableConfig | Mapping[str, Any],
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: OnStage = unobserved,
) -> ImportResult:
    """Create a table with the rows of a foreign table.

    Args:
        uri: Location of the new table.
        source: The foreign table.
        config: The configuration. If no stream writes all groups, one is added. Columns of the source that it does not
            name are not read.
        storage_options: Options of the table's store, as in `weft.Table.create`.
        progress: Called after each batch.

    Raises:
        InvalidInput: The configuration is wrong; or the source lacks a column, has a column of another type, cannot be
            read, or has rows that the table cannot store. No table was created or changed.
        Conflict: Another table already exists, or another import was faster.
        CorruptData: The numbers of rows do not agree. If that is found before the commit, no table was created.
        StoreUnavailable, CommitUnknown: See `weft.storage.write.writer.Writer.append`. Repeat the import.
    """
    return import_into(open_environment(uri, storage_options), source, config, progress=progress)


def import_into(
    env: Environment,
    source: ForeignTable,
    config: TableConfig | Mapping[str, Any],
    *,
    progress: OnStage = unobserved,
) -> ImportResult:
    """Create a table with the rows of a foreign table, in an environment; see `import_table`."""
    full_config, stream = _with_stream(load_config(config))
    schema = resolve_references(env, full_config)
    _check_columns(source, schema, stream)
    source_facts = {"format": source.kind, "location": source.location, "version": source.version}
    table = _existing(env)
    earlier_commit = None if table is None else _finished_commit(table, source_facts)
    if table is not None and earlier_commit is not None:
        _check_like(table, schema)
        commit = earlier_commit
    elif table is None:
        table, commit = _into_new_table(env, source, full_config, stream, source_facts, progress)
    else:
        _check_same(table, schema)
        commit = _into_empty_table(table, source, stream, source_facts, progress)
    assert table is not None, "it existed, or was created"
    lane = lane_name(LANE)
    if not table.writable().has_ended(lane):
        table.close_lane(lane)
    keys = _count(table, schema)
    total = commit.rows + commit.rows_ignored
    if keys > commit.rows and earlier_commit is None:
        raise CorruptData(
            f"{table.uri} shows {keys} rows, but only {commit.rows} were imported", hint="check it: weft verify URI"
        )
    return ImportResult(table.uri, source_facts, earlier_commit is None, total, commit.rows_ignored, keys)


def _existing(env: Environment) -> Table | None:
    table = Table(env)
    try:
        table.state()
    except NotFound:
        return None
    return table


def _with_stream(config: TableConfig) -> tuple[TableConfig, str]:
    """Choose or add a stream for the rows; returns the configuration, and the name of the stream.

    A stream that writes all groups is used. The closed lane of the import does not hold back its watermarks. The
    watermarks of an added stream do not advance after the import.
    """
    groups = list(config.groups)
    for name, stream in config.streams.items():
        if set(stream.groups) == set(groups):
            return config, name
    if LANE in config.streams:
        raise InvalidInput(
            f"streams.{LANE}: it does not write all groups", hint=f"rename it, or list {', '.join(groups)}"
        )
    new_stream = StreamConfig(groups=groups, on_delete="ignore")
    return config.model_copy(update={"streams": {**config.streams, LANE: new_stream}}), LANE


def _check_columns(source: ForeignTable, schema: TableSchema, stream: str) -> None:
    """Check columns and types before any row is read."""
    for column in schema.columns:
        if column.name not in source.schema.names:
            raise InvalidInput(
                f"the source has no column {column.name!r}", hint=f"its columns: {', '.join(source.schema.names)}"
            )
    for group in schema.groups:
        for function in group.functions:
            if find_function(function.name).takes == "anything":
                raise InvalidInput(
                    f"groups.{group.name}.functions.{function.column}: {function.name} would count a value once",
                    hint="use sum: imported counts go on, and new events give 1 for each value",
                )
    source_fields = [source.schema.field(column.name) for column in schema.columns]
    empty_table = pa.table({field.name: storable(pa.array([], field.type)) for field in source_fields})
    prepare(empty_table, schema, schema.stream(stream))


def _into_new_table(
    env: Environment,
    source: ForeignTable,
    config: TableConfig,
    stream: str,
    source_facts: Mapping[str, str],
    progress: OnStage,
) -> tuple[Table, Commit]:
    """Write all files for the first commit of a future lane, then create the table and commit the files."""
    schema = resolve_references(env, config)
    ticket = WriteTicket(
        env=env,
        schema=schema,
        stream=schema.stream(stream),
        lane=lane_name(LANE),
        epoch=_FIRST_EPOCH,
        seq=_FIRST_COMMIT,
        batch=BATCH,
    )
    written_files = _write(ticket, source, progress)
    try:
        table = Table.create_in(env, config)
        writer = table.writer(stream, lane=LANE)
        with writer:
            fresh_ticket = writer.begin(BATCH)
            if isinstance(fresh_ticket, Commit) or (fresh_ticket.epoch, fresh_ticket.seq) != (ticket.epoch, ticket.seq):
                raise Conflict(  # noqa: TRY301 - the files are removed below
                    f"another import into {table.uri} came in between", hint="run the import again: it shows the result"
                )
            return table, _commit(writer, fresh_ticket, written_files, source_facts)
    except (Conflict, InvalidInput):
        for file in written_files.files:
            remove_log_file(env.store, file)
        raise


def _into_empty_table(
    table: Table,
    source: ForeignTable,
    stream: str,
    source_facts: Mapping[str, str],
    progress: OnStage,
) -> Commit:
    """Import into the table that an earlier import created before it died."""
    with table.writer(stream, lane=LANE) as writer:
        ticket = writer.begin(BATCH)
        if isinstance(ticket, Commit):
            return ticket
        return _commit(writer, ticket, _write(ticket, source, progress), source_facts)


def _commit(writer: Writer, ticket: WriteTicket, result: Written, source_facts: Mapping[str, str]) -> Commit:
    return writer.commit(ticket, [result], source=dict(source_facts))


def _finished_commit(table: Table, source_facts: Mapping[str, str]) -> Commit | None:
    """The commit of an earlier import; None if there is none.

    Raises:
        Conflict: The earlier import had another source.
    """
    state = table.state()
    lane = lane_name(LANE)
    progress = read_lane(table.writable(), lane, state.rolled_back.get(lane, ()))
    recent_commit = progress.recent.get(BATCH)
    if recent_commit is None:
        return None
    if progress.source != source_facts:
        source = " ".join(map(str, progress.source.values()))
        raise Conflict(
            f"{table.uri} was imported from {source}", hint="choose another location, or import the same version again"
        )
    return Commit(lane, recent_commit.seq, recent_commit.rows, recent_commit.rows_ignored, replayed=True)


def _check_like(table: Table, schema: TableSchema) -> None:
    """Refuse a configuration whose key or ordering differs from that of the finished import.

    Other parts are not compared, because columns, groups and streams may have been added since.
    """
    new, old = configuration(schema), configuration(table.schema)
    old_orderings = {name: group["ordering"] for name, group in old["groups"].items()}
    new_orderings = {name: group["ordering"] for name, group in new["groups"].items()}
    if new["key"] != old["key"] or any(old_orderings.get(name) != ordering for name, ordering in new_orderings.items()):
        raise Conflict(
            f"{table.uri} was imported with another configuration: key {', '.join(old['key'])}, "
            f"ordering {'; '.join(f'{name}: {_join_names(ordering)}' for name, ordering in old_orderings.items())}",
            hint="choose another location, or import with the same key and ordering again",
        )


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _check_same(table: Table, schema: TableSchema) -> None:
    """Refuse a table with another configuration: no earlier import can have created it."""
    if configuration(table.schema) != configuration(schema):
        raise Conflict(
            f"there is already another table at {table.uri}",
            hint="choose another location; a table that an import left empty is continued with the same configuration",
        )


def _write(ticket: WriteTicket, source: ForeignTable, progress: OnStage) -> Written:
    """Write the log files of all rows, without making them visible.

    Raises:
        InvalidInput: A row cannot be stored, or the source cannot be read. The files were deleted.
        CorruptData: Rows are missing. The files were deleted.
    """
    schema, names = ticket.schema, [column.name for column in ticket.schema.columns]
    target = pa.schema([(name, schema.event_types[name]) for name in names])
    count = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in source.read(names):
            columns = [
                cast_column(field.name, pa.chunked_array([storable(column)]), field.type)
                for field, column in zip(target, batch, strict=True)
            ]
            cast_batch = pa.RecordBatch.from_arrays(columns, schema=target)
            _check_ordering_values(cast_batch, schema)
            count += len(batch)
            yield cast_batch
            progress(Stage("importing", count, source.rows, "rows"))

    result = write_rows(ticket, pa.RecordBatchReader.from_batches(target, batches()))
    rows = sum(file.file.rows for file in result.files)
    total = count if source.rows is None else source.rows
    if not rows + result.rows_ignored == count == total:
        for file in result.files:
            remove_log_file(ticket.env.store, file)
        raise CorruptData(
            f"the source says that it has {total} rows, {count} were read, and {rows + result.rows_ignored} written",
            hint="import a fixed version, in case the source is being changed",
        )
    return result


def _check_ordering_values(batch: pa.RecordBatch, schema: TableSchema) -> None:
    """Refuse rows that would lose values: rows with values in a group whose ordering columns are all NULL."""
    for group in schema.groups:
        if not group.ordering or not len(batch):
            continue
        is_unordered = np.logical_and.reduce([_nulls(batch, name) for name in group.ordering])
        value_columns = [name for name in group.columns if name not in group.ordering]
        if not value_columns or not is_unordered.any():
            continue
        loses_values = is_unordered & ~np.logical_and.reduce([_nulls(batch, name) for name in value_columns])
        if loses_values.any():
            rows = batch.select(list(schema.key)).filter(pa.array(loses_values)).slice(0, MAX_EXAMPLES).to_pylist()
            examples = "; ".join(", ".join(f"{name}={value!r}" for name, value in row.items()) for row in rows)
            raise InvalidInput(
                f"group {group.name!r}: {int(loses_values.sum())} of {len(batch)} rows have values, but NULL in every "
                f"ordering column ({', '.join(group.ordering)}), for example {examples}",
                hint="fill the ordering column in the source, or order the group by another column with --config",
            )


def _nulls(batch: pa.RecordBatch, name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(batch.column(name).is_null())


def _count(table: Table, schema: TableSchema) -> int:
    """Count the rows of the table."""
    reader = table.snapshot(references=False).to_reader([schema.key[0]])
    return sum(len(batch) for batch in reader)
