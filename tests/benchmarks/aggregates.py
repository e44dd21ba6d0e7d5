"""Aggregates and first rows that the tasks of a view compute, and rows that they hand over; dirty and compacted.

    python -m tests.benchmarks.aggregates [--keys 2000000] [--rounds 7] [--folder DIR] [--only PART]

The table has 63 columns and 8 file groups, its strings have 1,000 values, and 15 commits of 2 % of the keys each, to
one of three groups, wait for compaction. Queries: an aggregate over 7 columns; GROUP BY over a string; the same with a
filter; ``count(*)``; the largest time; the 10 first rows of an order, and any 10. *pushed* is the view of the dirty
table, *rows* the same with ``push_aggregates=False``, *compacted* such a view of a compacted copy, *compacted, pushed*
one with the default, and *compacted, in tasks* that one when Spark cannot read its files, as on a store that Hadoop
does not know.

The part *sums* has the first three queries alone, for many rounds or many keys. *mixed* compares one scan with two of
tables of which some file groups are compacted, *rows* reads all 63 columns, also handed over in smaller batches, and
*process* says where the time goes in process, without Spark. *handover* asks what is the least that rows from Python
can cost: a Python data source that hands over the same number of rows with the same columns, which it neither reads nor
merges. Medians of rounds in which all take turns; the ratios matter, the seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tests.benchmarks.snapshot import COLUMNS, QUERY
from tests.benchmarks.spark_session import session
from tests.benchmarks.view_overhead import with_batches_of
from tests.benchmarks.wide_table import Shape, build
from weft import Table
from weft.storage.core.arrays import scatter
from weft.storage.read.pushed.aggregated_scan import AggregatedScan
from weft.storage.read.pushed.partial_aggregates import Aggregate, AggregateKind, Aggregation
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.view import create_view, planner_of

GROUPED = "SELECT a3, count(*) n, sum(a0) a0, round(sum(b1), 3) b1, max(c0) c0 FROM {table}"
QUERIES = {
    "aggregate over 7 columns": QUERY,
    "GROUP BY over 1,000 values": GROUPED + " GROUP BY a3",
    "the same with a filter": GROUPED + " WHERE b0 > 500000 GROUP BY a3",
    "count(*)": "SELECT count(*) FROM {table}",
    "largest time": "SELECT max(a_ts), min(b_ts), count(c0) FROM {table}",
    "10 first rows by an integer": "SELECT k, a0, a3, b1 FROM {table} ORDER BY a0 DESC, k LIMIT 10",
    "10 first rows of 63 columns": "SELECT * FROM {table} ORDER BY a0, k LIMIT 10",
    "any 10 rows": "SELECT count(*) FROM (SELECT * FROM {table} LIMIT 10)",
}
SUMS = ("aggregate over 7 columns", "GROUP BY over 1,000 values", "the same with a filter")
MIXED = ("aggregate over 7 columns", "GROUP BY over 1,000 values", "count(*)", "10 first rows by an integer")
ROWS = "SELECT k, a0, a1, b0, b1, c0, c1 FROM {table}"
ALL = "SELECT * FROM {table}"
SMALLER_BATCHES = (8_192, 2_048)  # a column of 2,048 values, or all 63 of them, may stay in a cache of the processor

Way = Callable[[], Any]


def measure(ways: Mapping[str, Way], rounds: int) -> dict[str, float]:
    """Median seconds; all ways must give the same answer."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):  # the first two warm up
        answers = set()
        for name, way in ways.items():
            start = time.perf_counter()
            answers.add(str(way()))
            if number >= 2:
                seconds[name].append(time.perf_counter() - start)
        if len(answers) != 1:
            raise SystemExit(f"answers differ: {answers}")
    return {name: statistics.median(values) for name, values in seconds.items()}


def report(title: str, found: Mapping[str, float]) -> None:
    base = found["compacted"]
    print(title)
    for name, seconds in found.items():
        print(f"  {name:22} {seconds * 1000:8.0f} ms  {seconds / base:5.2f} x")


def collect(spark: SparkSession, query: str, view: str) -> Way:
    return lambda: sorted(map(str, spark.sql(query.format(table=view)).collect()))


def unanswered(way: Way) -> Way:
    """The same without its answer, for ways that read different rows."""

    def run() -> None:
        way()

    return run


def discard(spark: SparkSession, query: str, view: str) -> Way:
    return lambda: spark.sql(query.format(table=view)).write.format("noop").mode("overwrite").save()


def in_process(table: Table, compacted: Table) -> None:
    """CPU seconds: the rows, their keys alone, what aggregating them adds, and all columns."""
    snapshot = table.snapshot()
    names = list(snapshot.schema.names)
    grouped = (Aggregate(AggregateKind.COUNT_ROWS), Aggregate(AggregateKind.SUM, "a0"))
    sums = tuple(Aggregate(AggregateKind.SUM, name) for name in COLUMNS)
    read = snapshot.scan(COLUMNS, parallelism=1)
    ways = {
        "rows of 7 columns": read,
        "the same, summed": AggregatedScan(read, Aggregation((), sums)),
        "rows of 2 columns": snapshot.scan(["a3", "a0"], parallelism=1),
        "the same, GROUP BY": AggregatedScan(snapshot.scan(["a3", "a0"], parallelism=1), Aggregation(("a3",), grouped)),
        "number of rows": snapshot.scan([], parallelism=1),
        "rows of all columns": snapshot.scan(names, parallelism=1),
        "the same, compacted": compacted.snapshot().scan(names, parallelism=1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, scan in ways.items():
            start = time.process_time()
            for task in scan.tasks:
                for _batch in scan.read(task):  # type: ignore[arg-type]
                    pass
            seconds[name].append(time.process_time() - start)
    print("in process, CPU time")
    for name, found in seconds.items():
        print(f"  {name:22} {statistics.median(found) * 1000:8.0f} ms")


def text_updates(rows: int = 65_536, words: int = 1_000, rounds: int = 60) -> None:
    """CPU milliseconds of changing some values of a column of texts that was decoded as a dictionary."""
    rng = np.random.default_rng(1)
    known = pa.array([f"word-{number:05d}" for number in range(words)])
    encoded = known.take(pa.array(rng.integers(0, words, rows))).dictionary_encode()
    for share in (0.01, 0.1, 0.3):
        positions = np.sort(rng.choice(rows, int(rows * share), replace=False))
        values = known.take(pa.array(rng.integers(0, words, len(positions))))
        mask = np.zeros(rows, np.bool_)
        mask[positions] = True

        def through_dictionary(positions: Any = positions, values: Any = values) -> pa.Array:
            new = values.dictionary_encode()
            moved = pc.add(new.indices, len(encoded.dictionary)).cast(pa.int32())
            both = pa.concat_arrays([encoded.dictionary, new.dictionary])
            return both.take(scatter(encoded.indices, positions, moved))

        ways: dict[str, Way] = {
            "decoded, take": lambda rows=positions, new=values: scatter(encoded.cast(pa.string()), rows, new),
            "decoded, replace_with_mask": lambda rows=mask, new=values: pc.replace_with_mask(
                encoded.cast(pa.string()), pa.array(rows), new
            ),
            "in the dictionary": through_dictionary,
        }
        right = ways["decoded, take"]()
        print(f"texts, {share:.0%} of {rows} changed, CPU time")
        for name, way in ways.items():
            if not way().equals(right):
                raise SystemExit(f"answers differ: {name}")
            start = time.process_time()
            for _ in range(rounds):
                way()
            print(f"  {name:26} {(time.process_time() - start) / rounds * 1000:6.2f} ms")


def copy(folder: Path, compacted: int) -> Path:
    """A copy of the table in which the first file groups are compacted. Kept between runs if it is complete."""
    table, result = folder / "data" / "table", folder / f"compacted-{compacted}"
    if not result.exists():
        unfinished = result.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(table, unfinished, copy_function=os.link)  # files never change
        made = Table.open(unfinished)
        chosen = {part.group for part in made.snapshot().slices[:compacted]}
        made.compact(lambda part: part.group in chosen)
        unfinished.rename(result)
    return result


def create_views(spark: SparkSession, folder: Path, shape: Shape) -> dict[str, str]:
    """Views over the table, and over a compacted copy."""
    compacted = copy(folder, shape.buckets)
    create_view(spark, folder / "data" / "table", "pushed")
    create_view(spark, folder / "data" / "table", "rows", push_aggregates=False)
    create_view(spark, compacted, "compacted", push_aggregates=False)
    create_view(spark, compacted, "compacted_pushed")
    planner = planner_of(spark, compacted, ReadOptions())
    create_relation_view(spark, "in_tasks", replace(planner, hadoop_file=lambda _file: None))
    return {
        "pushed": "pushed",
        "rows": "rows",
        "compacted": "compacted",
        "compacted, pushed": "compacted_pushed",
        "compacted, in tasks": "in_tasks",
    }


def queries(spark: SparkSession, folder: Path, shape: Shape, rounds: int) -> None:
    views = create_views(spark, folder, shape)
    for title, query in QUERIES.items():
        report(title, measure({name: collect(spark, query, view) for name, view in views.items()}, rounds))


def sums(spark: SparkSession, folder: Path, shape: Shape, rounds: int) -> None:
    create_views(spark, folder, shape)
    for title in SUMS:
        ways = {name: collect(spark, QUERIES[title], name) for name in ("compacted", "pushed", "rows")}
        report(title, measure(ways, rounds))


HANDED_OVER = {  # by query, the columns that it reads
    "aggregate over 7 columns": "k BIGINT, a0 BIGINT, a1 DOUBLE, b0 BIGINT, b1 DOUBLE, c0 BIGINT, c1 DOUBLE",
    "GROUP BY over 1,000 values": "a3 STRING, a0 BIGINT, b1 DOUBLE, c0 BIGINT",
}
HANDED_OVER_TASKS = 8  # as many as the table has file groups


class FixedRows(DataSource):
    """``rows`` rows, the same batch of random values again and again; option ``columns`` is the schema."""

    @classmethod
    def name(cls) -> str:
        return "fixed_rows"

    def schema(self) -> str:
        return str(self.options["columns"])

    def reader(self, schema: Any) -> DataSourceReader:
        return FixedRowsReader([(field.name, field.dataType.typeName()) for field in schema], int(self.options["rows"]))


class FixedRowsReader(DataSourceReader):
    def __init__(self, columns: Sequence[tuple[str, str]], rows: int) -> None:
        self._columns, self._rows = columns, rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // HANDED_OVER_TASKS) for _ in range(HANDED_OVER_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rng, count = np.random.default_rng(1), 65_536
        words = pa.array([f"word-{number:05d}" for number in range(1_000)])
        values = {
            "long": lambda: pa.array(rng.integers(0, 1_000_000, count)),
            "double": lambda: pa.array(rng.random(count)),
            "string": lambda: words.take(pa.array(rng.integers(0, len(words), count))),
        }
        batch = pa.record_batch({name: values[kind]() for name, kind in self._columns})
        for first in range(0, partition.value, count):
            yield batch.slice(0, min(count, partition.value - first))


def handover(spark: SparkSession, folder: Path, shape: Shape, rounds: int) -> None:
    """The least that rows from Python can cost, beside the compacted table and the rows of the dirty one."""
    create_views(spark, folder, shape)
    spark.dataSource.register(FixedRows)
    for title, columns in HANDED_OVER.items():
        options = {"columns": columns, "rows": str(shape.keys)}
        spark.read.format(FixedRows.name()).options(**options).load().createOrReplaceTempView("fixed")
        ways = {name: unanswered(collect(spark, QUERIES[title], name)) for name in ("compacted", "rows", "fixed")}
        report(title, measure(ways, rounds))


def mixed(spark: SparkSession, folder: Path, shape: Shape, rounds: int) -> None:
    """One scan and two of a table of which some file groups are compacted."""
    create_views(spark, folder, shape)
    for compacted in (shape.buckets // 4, shape.buckets // 2, shape.buckets * 3 // 4):
        planner = planner_of(spark, copy(folder, compacted), ReadOptions())
        one, two = PlannerTuning(mix_min_bytes=1 << 62), PlannerTuning(mix_min_bytes=0, merged_share=1.1)
        create_relation_view(spark, "one_scan", replace(planner, tuning=one))
        create_relation_view(spark, "two_scans", replace(planner, tuning=two))
        views = {"one scan": "one_scan", "two scans": "two_scans", "compacted": "compacted"}
        for title in MIXED:
            ways = {name: collect(spark, QUERIES[title], view) for name, view in views.items()}
            report(f"{compacted} of {shape.buckets} compacted, {title}", measure(ways, rounds))
        ways = {name: discard(spark, ROWS, view) for name, view in views.items()}
        report(f"{compacted} of {shape.buckets} compacted, rows of 7 columns", measure(ways, rounds))


def all_columns(spark: SparkSession, folder: Path, shape: Shape, rounds: int) -> None:
    views = create_views(spark, folder, shape)
    aggregate = "SELECT " + ", ".join(f"max({name})" for name in shape.config()["columns"]) + " FROM {table}"
    report(
        "max of 63 columns", measure({name: collect(spark, aggregate, view) for name, view in views.items()}, rounds)
    )
    ways = {name: discard(spark, ALL, view) for name, view in views.items() if "pushed" not in name}
    for size in SMALLER_BATCHES:
        ways[f"rows, by {size}"] = with_batches_of(size, ways["rows"])
    report("rows of 63 columns", measure(ways, rounds))


PARTS: Mapping[str, Callable[[SparkSession, Path, Shape, int], None]] = {
    "queries": queries,
    "sums": sums,
    "mixed": mixed,
    "rows": all_columns,
    "handover": handover,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    parser.add_argument("--only", choices=[*PARTS, "process"], help="one part (default: all but `sums`)")
    arguments = parser.parse_args()
    shape = Shape(keys=arguments.keys, words=1_000)
    with tempfile.TemporaryDirectory(prefix="weft-benchmark-") as temporary:
        folder = arguments.folder or Path(temporary)
        table = build(folder / "data", shape)
        wanted = {arguments.only} if arguments.only else {*PARTS} - {"sums"}
        chosen = [part for name, part in PARTS.items() if name in wanted]
        spark = session() if chosen else None
        for part in chosen:
            part(spark, folder, shape, arguments.rounds)
        if spark is not None:
            spark.stop()
        if arguments.only in {None, "process"}:
            in_process(table, Table.open(copy(folder, shape.buckets)))
            text_updates()


if __name__ == "__main__":
    main()
