"""The task that writes rows, in Spark's Python workers: it reads rows, writes log files and returns a small report.

A worker imports this module before it reads its first row, so it must not import Spark's SQL layer.

1. Rows stay in Arrow. Python objects are made only for refused rows.
2. A task keeps about `weft.storage.environment.Tuning.log_file_bytes` of rows in memory, whatever the size of its
   partition.
3. Input that cannot be stored is *reported* and not raised, because Spark would repeat the task with the same result.
   Other errors, such as a store that does not answer, are raised, so that Spark repeats the task.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from weft.storage.core.merge.events import Problem
from weft.storage.core.python_values import python_rows
from weft.storage.errors import InvalidInput
from weft.storage.write.write_task import WriteTicket, Written, write_rows
from weft.streams.write.batch_trace import TaskClock, TaskTimes
from weft.streams.write.dead_letter import IGNORED, SOURCE, DeadLetterFile, DeadLetters

REPORT: Final = pa.schema([pa.field("report", pa.binary())])
REPORT_TYPE: Final = "report binary"

_LETTERS_AT_ONCE: Final = 1_000  # number of refused rows that are Python objects at the same time
HINT: Final = (
    "set dead_letter to a folder and remove on_error: stop; such messages are then kept there with the reason,"
    " and the others are stored"
)
"""Hint for ``on_error="stop"`` and for `write_batch` without a folder for dead letters."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Report of one task.

    Attributes:
        task: Number of the task's partition.
        written: Its log files and counts. There may also be files if ``refused`` is set.
        letters: Number of messages in its file of dead letters.
        tombstones: Number of messages without a value that it skipped.
        refused: Why its input cannot be stored; None if it was stored.
        times: When it ran; None if its input was refused.
    """

    task: int
    written: Written
    letters: int
    refused: InvalidInput | None
    tombstones: int = 0
    times: TaskTimes | None = None


TaskFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def task_writer(ticket: WriteTicket, letters: DeadLetters | None, columns: Sequence[str]) -> TaskFunction:
    """Return a function for `DataFrame.mapInArrow`, which yields one row with a pickled `TaskReport`.

    Args:
        ticket: As in `write_task`.
        letters: As in `write_task`.
        columns: Names of the columns, in the order of the DataFrame; its own names are not used.
    """
    names = list(columns)

    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "runs in a Spark task"
        renamed_batches = (batch.rename_columns(names) for batch in batches)
        report = write_task(ticket, letters, context.partitionId(), renamed_batches)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], schema=REPORT)

    return write_partition


def write_task(
    ticket: WriteTicket, letters: DeadLetters | None, task: int, batches: Iterable[pa.RecordBatch]
) -> TaskReport:
    """Write the rows of one task.

    Args:
        ticket: From `weft.storage.write.writer.Writer.begin`.
        letters: Dead letters of the batch; if None, the first refused message ends the task.
        task: Number of the partition; it orders the rows of the batch.
        batches: Columns of the stream, and optionally `SOURCE`.
    """
    parts: list[Written] = []
    count = tombstones = 0
    clock = TaskClock()
    try:
        # An exception within the block leaves no file of letters: the whole batch fails.
        with letters.open(task) if letters is not None else contextlib.nullcontext() as file:
            for chunk in _chunks(clock.time_reading(batches), ticket.env.tuning.log_file_bytes):
                rows_to_write = _without_ignored(chunk)
                tombstones += len(chunk) - len(rows_to_write)
                parts.append(_write_chunk(ticket, rows_to_write, task, file))
            count = file.count if file is not None else 0
    except InvalidInput as error:
        return TaskReport(task, Written.joined(parts), 0, error)
    return TaskReport(task, Written.joined(parts), count, None, tombstones, clock.times)


def _chunks(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.Table]:
    """Divide rows into tables of about ``limit`` bytes. Each becomes one log file; most tasks write only one."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= limit:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


def _without_ignored(chunk: pa.Table) -> pa.Table:
    """Return the rows of a chunk without ignored tombstones."""
    if SOURCE not in chunk.schema.names:
        return chunk
    ignored = pc.equal(pc.struct_field(chunk.column(SOURCE), "reason"), IGNORED).fill_null(False)
    return chunk.filter(pc.invert(ignored)) if pc.any(ignored).as_py() else chunk


def _write_chunk(ticket: WriteTicket, chunk: pa.Table, task: int, file: DeadLetterFile | None) -> Written:
    sources: pa.ChunkedArray | None = None
    if SOURCE in chunk.schema.names:
        sources = chunk.column(SOURCE)
        chunk = chunk.drop_columns([SOURCE])
        reasons = pc.struct_field(sources, "reason")
        if reasons.null_count < len(reasons):
            bad = pc.is_valid(reasons)
            _refuse(chunk, sources, np.flatnonzero(np.asarray(bad)), reasons.filter(bad).to_pylist(), file)
            chunk, sources = chunk.filter(pc.invert(bad)), sources.filter(pc.invert(bad))

    def set_aside(rows: pa.Table, problems: Sequence[Problem]) -> None:
        if file is None and sources is None:
            raise InvalidInput(problems[0].error.message, hint=f"{problems[0].hint}; or {HINT}")
        bad_rows = np.flatnonzero(np.logical_or.reduce([problem.rows for problem in problems]))
        texts = ["; ".join(_reason(problem) for problem in problems if problem.rows[row]) for row in bad_rows]
        _refuse(rows, sources, bad_rows, texts, file)

    return write_rows(ticket, chunk, task=task, on_problems=set_aside)


def _reason(problem: Problem) -> str:
    return f"column {problem.column!r}: {problem.reason}{f'; {problem.hint}' if problem.advises else ''}"


def _refuse(
    rows: pa.Table,
    sources: pa.ChunkedArray | None,
    bad_rows: np.ndarray[Any, Any],
    reasons: Sequence[str],
    file: DeadLetterFile | None,
) -> None:
    """Write bad rows to the dead letters; if there is no file, raise the reason of the first bad row.

    Args:
        rows: Columns of the stream, n rows.
        sources: `SOURCE` of these rows, if the DataFrame has it.
        bad_rows: Numbers of the bad rows, ascending.
        reasons: One reason for each bad row.
        file: The file of dead letters.
    """
    row_indexes = pa.array(bad_rows)
    if file is None:
        assert sources is not None, "the caller raises if there are neither a source nor dead letters"
        source = sources[int(bad_rows[0])].as_py() or {}
        where = ", ".join(
            f"{name} {source[name]}" for name in ("topic", "partition", "offset") if source.get(name) is not None
        )
        raise InvalidInput(f"a message cannot be stored ({where or 'of unknown position'}): {reasons[0]}", hint=HINT)
    # In parts, so that a million refused messages are not a million Python objects at the same time.
    for start in range(0, len(row_indexes), _LETTERS_AT_ONCE):
        part = row_indexes.slice(start, _LETTERS_AT_ONCE)
        values = _as_objects(rows.take(part)) if sources is None else [{}] * len(part)
        origins = sources.take(part).to_pylist() if sources is not None else [None] * len(part)
        for reason, source, row in zip(reasons[start : start + len(part)], origins, values, strict=True):
            file.add(reason, source, row)


def _as_objects(rows: pa.Table) -> list[dict[str, Any]]:
    return [dict(zip(rows.column_names, row, strict=True)) for row in python_rows(rows, mappings=False)]
