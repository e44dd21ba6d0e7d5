"""The part of a commit that runs in tasks: writes rows to log files, which are visible once the writer commits them.

A task gets a `WriteTicket` from `weft.storage.write.writer.Writer.begin` and returns a `Written`. It does not read the
log, and runs in any process. It accepts all of its rows or none; or it passes bad rows to the caller and accepts the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from weft.storage.core.log.file_refs import LogFile
from weft.storage.core.merge.events import EventBatch, Problem, prepare, prepare_good
from weft.storage.core.model import Stream
from weft.storage.core.names import LaneName
from weft.storage.core.plan.watermarks import Seen, combine_seen, see
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.errors import TableError
from weft.storage.files.log_file import remove_log_file, write_log_file

Batch = tuple[str, int]
"""(query id, batch number)."""


@dataclass(frozen=True, slots=True)
class WriteTicket:
    """Permission to write files for one commit of a lane. Can be pickled, and sent to tasks.

    Attributes:
        env: The table's environment.
        schema: Schema of the table.
        stream: The stream that is written.
        lane: The writer's lane.
        epoch: The writer's claim.
        seq: Slot of the commit.
        batch: (query id, batch number) of the commit, if it has one.
        watched: Groups whose events advance the lane's watermarks (`weft.storage.core.plan.watermarks`).
    """

    env: Environment
    schema: TableSchema
    stream: Stream
    lane: LaneName
    epoch: int
    seq: int
    batch: Batch | None
    watched: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task: its files and counts.

    Attributes:
        files: Log files, in the order of the rows.
        rows_ignored: Rows without effect: ignored deletes, and upserts without any ordering value.
        seen: First ordering values of the events, for watermarks, by group.
        rows_unordered: The upserts among ``rows_ignored``: every ordering column of every group is NULL in them.
    """

    files: tuple[LogFile, ...]
    rows_ignored: int
    seen: Mapping[str, Seen] = field(default_factory=dict)
    rows_unordered: int = 0

    @classmethod
    def joined(cls, parts: Iterable[Written]) -> Written:
        """Combine the results of the tasks of one commit, in the order of ``parts``."""
        parts = list(parts)
        return cls(
            tuple(file for part in parts for file in part.files),
            sum(part.rows_ignored for part in parts),
            combine_seen(part.seen for part in parts),
            sum(part.rows_unordered for part in parts),
        )


OnProblems = Callable[[pa.Table, Sequence[Problem]], None]
"""Called with the input rows of a chunk, and the problems of bad rows."""


def write_rows(
    ticket: WriteTicket,
    rows: pa.Table | pa.RecordBatchReader,
    *,
    task: int = 0,
    on_problems: OnProblems | None = None,
) -> Written:
    """Write the log files of one task. Nothing is visible before `Writer.commit`.

    Args:
        ticket: From `Writer.begin`.
        rows: Input rows of the stream: key columns, columns of whole groups, and optionally ``_op``.
        task: Number of the task, which orders the rows of tasks within the commit.
        on_problems: Called with bad rows, which are then left out. Without it a bad row is an error.

    Raises:
        InvalidInput: A column, type or row is wrong. The files of this task were deleted.
        StoreUnavailable: The store does not accept the files.
    """
    files: list[LogFile] = []
    seen_by_chunk: list[dict[str, Seen]] = []
    ignored = unordered = 0
    try:
        for chunk in _chunks(rows, ticket.env.tuning.log_file_bytes):
            events = _prepare(ticket, chunk, on_problems)
            ignored += events.ignored
            unordered += events.unordered
            seen_by_chunk.append(see(events.rows, events.groups, ticket.watched))
            file = write_log_file(
                ticket.env, ticket.schema, events, lane=ticket.lane, epoch=ticket.epoch, seq=ticket.seq, task=task
            )
            if file is not None:
                files.append(file)
    except TableError:
        for file in files:
            # No entry can name these files yet.
            remove_log_file(ticket.env.store, file)
        raise
    return Written(tuple(files), ignored, combine_seen(seen_by_chunk), unordered)


def _prepare(ticket: WriteTicket, chunk: pa.Table, on_problems: OnProblems | None) -> EventBatch:
    if on_problems is None:
        return prepare(chunk, ticket.schema, ticket.stream)
    events, problems = prepare_good(chunk, ticket.schema, ticket.stream)
    if problems:
        on_problems(chunk, problems)
    return events


def _chunks(rows: pa.Table | pa.RecordBatchReader, limit: int) -> Iterator[pa.Table]:
    """The input as tables of about ``limit`` bytes; at least one, possibly empty, so that columns are checked."""
    if isinstance(rows, pa.Table):
        yield rows
        return
    batches: list[pa.RecordBatch] = []
    size = 0
    is_empty = True
    for batch in rows:
        batches.append(batch)
        size += batch.nbytes
        if size >= limit:
            yield pa.Table.from_batches(batches, rows.schema)
            batches, size, is_empty = [], 0, False
    if batches or is_empty:
        yield pa.Table.from_batches(batches, rows.schema)


def discard(ticket: WriteTicket, written: Iterable[Written]) -> None:
    """Delete the files of an abandoned commit. If the store does not delete a file, cleaning does later."""
    for part in written:
        for file in part.files:
            remove_log_file(ticket.env.store, file)


def check_columns(schema: pa.Schema, table: TableSchema, stream: Stream) -> None:
    """Check the columns of input rows as `write_rows` checks them, before there are rows.

    Args:
        schema: Schema of the input.
        table: Schema of the table.
        stream: The stream that is written.

    Raises:
        InvalidInput: A column is missing, unknown, or of a type that cannot be cast to the table's.
    """
    prepare(schema.empty_table(), table, stream)


def find_problems(rows: pa.Table, table: TableSchema, stream: Stream) -> tuple[Problem, ...]:
    """The problems that `write_rows` would find in input rows; empty if all rows can be stored.

    Raises:
        InvalidInput: See `check_columns`.
    """
    return prepare_good(rows, table, stream)[1]
