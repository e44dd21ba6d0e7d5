"""``spark.read.format("weft")``: a table through Spark's plain Python data source.

For places where a view cannot be made, Spark Connect among them. Spark does not tell such a source which columns a
query needs, so all are read; `streams.view` does better wherever there is a JVM session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from storage import Snapshot, Table
from storage.errors import InvalidInput
from storage.scan import ReadTask, Scan

OPTIONS = ("path", "as_of", "require")
_PARALLELISM = 16  # a reader is not told how many tasks run at once; file groups of a few MB share one anyway


def register(spark: SparkSession) -> None:
    """Make ``format("weft")`` known to a session.

    Options: ``path`` (the table), ``as_of`` (cut text), ``require`` (groups, separated by commas).
    """
    spark.dataSource.register(WeftSource)


class WeftSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "weft"

    def schema(self) -> StructType:
        return from_arrow_schema(self._snapshot().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        snapshot = self._snapshot()
        given = set(schema.names) - set(snapshot.schema.names)
        if given:
            raise InvalidInput(
                f"the table has no column {', '.join(sorted(given))}",
                hint=f"columns: {', '.join(snapshot.schema.names)}",
            )
        require = [name.strip() for name in self.options.get("require", "").split(",") if name.strip()]
        return _Reader(snapshot.scan(schema.names, require=require, parallelism=_PARALLELISM))

    def _snapshot(self) -> Snapshot:
        for name in self.options:
            if name.lower() not in OPTIONS:
                raise InvalidInput(f"format weft has no option {name!r}", hint=f"options: {', '.join(OPTIONS)}")
        path = self.options.get("path")
        if not path:
            raise InvalidInput("format weft needs the table's location", hint='.option("path", uri), or .load(uri)')
        return Table.open(path).snapshot(self.options.get("as_of"))


class _Task(InputPartition):
    value: ReadTask


class _Reader(DataSourceReader):
    def __init__(self, scan: Scan) -> None:
        self._tasks = scan.tasks
        self._scan = replace(scan, tasks=())

    def partitions(self) -> list[InputPartition]:
        # An empty list would make Spark invent a partition of its own.
        return [_Task(task) for task in self._tasks] or [_Task(ReadTask((), ()))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._scan.read(partition.value)
