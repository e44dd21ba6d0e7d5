"""The reader of a plain Python data source whose tasks the driver has planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from weft.streams.read.relation.worker import conform_batches
from weft.streams.spark.for_workers import ForWorkers

__all__ = ["TaskPartition", "TaskReader"]


class TaskPartition(InputPartition):
    """A partition whose `value` is a planned task. Without tasks Spark adds a partition of type `InputPartition`."""


class TaskReader(ForWorkers, DataSourceReader):
    """Reads planned tasks."""

    def __init__(
        self, read: Callable[[Any], Iterator[pa.RecordBatch]], tasks: Sequence[Any], schema: StructType
    ) -> None:
        """Remember a plan.

        Args:
            read: Reads one task; pickled.
            tasks: The tasks; each is pickled with its partition.
            schema: The columns of the rows. ``read`` may return them in another order.
        """
        self._read = read
        self._tasks = tasks
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tasks": ()}  # Spark sends the reader to all tasks, and each task in its partition

    def partitions(self) -> list[InputPartition]:
        """One partition per task."""
        return [TaskPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        batches = self._read(partition.value) if isinstance(partition, TaskPartition) else iter(())
        # Spark also compares nullability, and a schema given by the user may declare keys nullable.
        return conform_batches(batches, to_arrow_schema(self._schema, timezone="UTC"))
