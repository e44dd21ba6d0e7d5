"""What the live view costs beside Spark's own Parquet scan, from one run: `python -m tests.benchmarks.view_overhead`.

Three ways to the same rows (2 M x 63 columns in 8 files, one aggregate over 7 of the columns): Spark's Parquet source,
the view reading natively, the view reading through Python tasks. Then the fixed cost, on a table of three rows, with
Spark's plain Python data source for comparison. Medians of interleaved repetitions; the ratios are what counts, the
seconds belong to the machine.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from streams import relation_scan
from streams.relation import PinnedPlanner, Plan, create_relation_view
from streams.relation_worker import task_reader

COLUMNS = 63
FILES = 8
AGGREGATE = ", ".join(f"sum(c{index})" for index in range(1, 7))
QUERY = f"SELECT {AGGREGATE}, count(*) FROM {{}} WHERE c7 >= 0"


def read_parquet(task: tuple[str, tuple[str, ...]]) -> Iterator[pa.RecordBatch]:
    path, columns = task
    return iter(pq.read_table(path, columns=list(columns), use_threads=False).to_batches())


class ParquetFiles:
    """A planner over a fixed list of files."""

    def __init__(self, paths: Sequence[Path], *, native: bool) -> None:
        self._paths = [str(path) for path in paths]
        self._native = native
        self._schema = from_arrow_schema(pq.read_schema(paths[0]))

    def pin(self) -> PinnedPlanner:
        return self

    def schema(self) -> StructType:
        return self._schema

    def exact(self, _filters: Sequence[Filter]) -> Sequence[int]:
        return ()

    def plan(self, columns: Sequence[str], _filters: Sequence[Filter]) -> Plan:
        return Plan(
            description=f"{len(self._paths)} files",
            tasks=[(path, tuple(columns)) for path in self._paths],
            read=read_parquet,
            parquet_paths=[f"file://{path}" for path in self._paths] if self._native else None,
        )


def plain_source(paths: Sequence[Path]) -> type[DataSource]:
    """The same through Spark's own Python data source API: no pruning, planned by a Python worker."""
    schema = from_arrow_schema(pq.read_schema(paths[0]))
    names = tuple(schema.names)

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(str(path)) for path in paths]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return read_parquet((partition.value, names))

    class Plain(DataSource):
        @classmethod
        def name(cls) -> str:
            return "plain"

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return Plain


def write_files(folder: Path, rows: int, files: int) -> list[Path]:
    random = np.random.default_rng(7)
    folder.mkdir()
    paths = []
    for number in range(files):
        count = rows // files
        columns: dict[str, Any] = {"key": np.arange(count) + number * count}
        for index in range(1, COLUMNS):
            kind = index % 3
            values = random.integers(0, 1 << 30, count)
            columns[f"c{index}"] = values if kind else values / 7.0
        paths.append(folder / f"{number}.parquet")
        pq.write_table(pa.table(columns), paths[-1], compression="zstd", row_group_size=131_072)
    return paths


def measure(ways: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(repetitions + 2):  # the first two warm up
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if repetition >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def report(title: str, medians: dict[str, float]) -> None:
    base = next(iter(medians.values()))
    print(title)
    for name, seconds in medians.items():
        print(f"  {name:34} {seconds * 1000:8.0f} ms  x {seconds / base:5.2f}  + {(seconds - base) * 1000:6.0f} ms")


def collect(spark: SparkSession, query: str) -> Callable[[], Any]:
    return lambda: spark.sql(query).collect()


def plan_only(spark: SparkSession, query: str) -> Callable[[], Any]:
    return lambda: spark.sql(query)._jdf.queryExecution().toRdd()


def with_batches_of(rows: int, run: Callable[[], Any]) -> Callable[[], Any]:
    def patched() -> Any:
        with mock.patch.object(relation_scan, "task_reader", functools.partial(task_reader, batch_rows=rows)):
            return run()

    return patched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parser.parse_args()
    spark = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        for name, rows, files in (("large", arguments.rows, FILES), ("tiny", 3, 1)):
            paths = write_files(Path(folder) / name, rows, files)
            spark.read.parquet(*map(str, paths)).createOrReplaceTempView(f"{name}_spark")
            create_relation_view(spark, f"{name}_native", ParquetFiles(paths, native=True))
            create_relation_view(spark, f"{name}_tasks", ParquetFiles(paths, native=False))
            spark.dataSource.register(plain_source(paths))
            spark.read.format("plain").load().createOrReplaceTempView(f"{name}_plain")

        kinds = ("spark", "native", "tasks")
        ways = {kind: collect(spark, QUERY.format(f"large_{kind}")) for kind in kinds}
        report(f"{arguments.rows} rows x {COLUMNS} columns, 7 read", measure(ways, arguments.repetitions))

        ways = {
            f"batches of {rows}": with_batches_of(rows, collect(spark, QUERY.format("large_tasks")))
            for rows in (65_536, 4_096, 10_000, 32_768, 131_072, 1 << 20)
        }
        report("through tasks, by size of the batches", measure(ways, arguments.repetitions))

        ways = {kind: collect(spark, QUERY.format(f"tiny_{kind}")) for kind in kinds}
        # Spark keeps the partitions of a relation over a Python source, so a new one is made to see its planning.
        ways["plain data source"] = lambda: (
            spark.read.format("plain").load().createOrReplaceTempView("tiny_plain"),
            spark.sql(QUERY.format("tiny_plain")).collect(),
        )
        report("three rows, whole query", measure(ways, 3 * arguments.repetitions))
        ways = {kind: plan_only(spark, QUERY.format(f"tiny_{kind}")) for kind in kinds}
        report("three rows, planning alone", measure(ways, 3 * arguments.repetitions))
    spark.stop()


if __name__ == "__main__":
    main()
