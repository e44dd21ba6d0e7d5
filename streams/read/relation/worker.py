"""What runs inside Spark's Python workers: turns one pickled task into record batches of exactly the agreed schema.

Nothing of Spark's SQL layer may enter: a worker imports this module before it reads its first byte, so it stays light.
The checks stand here because Arrow data that differs from what the JVM expects shows up there as garbage or as a crash
of its Arrow reader, far from the cause.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

__all__ = ["BATCH_ROWS", "RelationReadError", "conformed_batches", "task_reader"]

# Rows handed to the JVM at once; larger batches are cut, without a copy. No difference in speed was found from 4 k to
# 1 M rows (tests/benchmarks/view_overhead.py), so this only bounds memory and what a LIMIT reads in vain.
BATCH_ROWS = 65_536

TaskFunction = Callable[[Any], Iterator[pa.RecordBatch]]
WorkerFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class RelationReadError(ValueError):
    """A planner's `read` returned batches that do not match the plan: a fault of the planner, not of the data."""


def task_reader(read: TaskFunction, schema: pa.Schema, batch_rows: int = BATCH_ROWS) -> WorkerFunction:
    """The function a Python worker runs for one input partition.

    Spark sends the partition as one batch of one binary cell, the pickled task, and takes record batches back.
    """

    def read_task(partition: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        [cell] = [value for batch in partition for value in batch.column(0)]
        task = pickle.loads(cell.as_py())  # noqa: S301 - written by our own driver, as all of Spark's functions are
        return conformed_batches(read(task), schema, batch_rows)

    return read_task


def conformed_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The same rows as batches of `schema`, none larger than `batch_rows` and none empty."""
    for batch in batches:
        conformed = conform(batch, schema)
        for start in range(0, conformed.num_rows, batch_rows):
            yield conformed.slice(start, batch_rows)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, in its order and types; casts that lose nothing are made, others refused."""
    if not len(schema):
        # A batch without columns still carries its number of rows; only the struct route can make one.
        return pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])))
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise RelationReadError(f"the plan promised column {field.name!r}, read gave {batch.schema.names}")
        column = batch.column(index)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise RelationReadError(
                    f"column {field.name!r} was planned as {field.type}, read gave {column.type}: {error}"
                ) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
