"""Runs in Spark's Python workers: turns one pickled task into record batches with exactly the planned schema.

This module must not import Spark's SQL layer, because a worker imports it before it reads its first byte. The schema is
checked here, because the JVM would read wrong Arrow data as garbage, or its Arrow reader would crash.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["BATCH_ROWS", "PlannedTask", "RelationReadError", "conform_batches", "task_reader"]

# Rows per batch that is sent to the JVM; larger batches are cut, without a copy. Speed does not differ from 4 k to 1 M
# rows (tests/benchmarks/view_overhead.py), so this only bounds memory and the rows that a LIMIT reads needlessly.
BATCH_ROWS = 65_536

TaskFunction = Callable[[Any], Iterator[pa.RecordBatch]]
WorkerFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class RelationReadError(ValueError):
    """A planner's `read` returned batches that do not match its plan. This is a bug of the planner, not bad data."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task with its own function, for a partition of another plan than that of the reader.

    Attributes:
        read: Reads the task.
        task: The task.
    """

    read: TaskFunction
    task: Any


def task_reader(read: TaskFunction, schema: pa.Schema, batch_rows: int = BATCH_ROWS) -> WorkerFunction:
    """Return the function that a Python worker runs for one input partition.

    Spark sends the partition as one batch with one binary cell, the pickled task, and expects record batches.
    """

    def read_task(partition: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        [cell] = [value for batch in partition for value in batch.column(0)]
        task = pickle.loads(cell.as_py())  # noqa: S301 - written by our own driver, as all of Spark's functions are
        batches = task.read(task.task) if isinstance(task, PlannedTask) else read(task)
        return conform_batches(batches, schema, batch_rows)

    return read_task


def conform_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows as batches of `schema`, none larger than `batch_rows` and none empty."""
    for batch in batches:
        conformed = conform(batch, schema)
        _check_nulls(conformed)
        for start in range(0, conformed.num_rows, batch_rows):
            yield conformed.slice(start, batch_rows)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, in its order and with its types.

    Raises:
        RelationReadError: A column is missing, or cannot be cast without loss.
    """
    if not len(schema):
        # A batch without columns still has a number of rows; it can only be created from a struct array.
        return pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])))
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise RelationReadError(f"column {field.name!r} was planned, but read returned {batch.schema.names}")
        column = batch.column(index)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise RelationReadError(
                    f"column {field.name!r} was planned as {field.type}, but read returned {column.type}: {error}"
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_nulls(batch: pa.RecordBatch) -> None:
    """Check that columns which are not nullable have no nulls, so that the error names the column.

    Raises:
        RelationReadError: A column has nulls, although it is not nullable.
    """
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise RelationReadError(f"column {field.name!r} was planned without nulls, but read returned some")
