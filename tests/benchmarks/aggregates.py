"""Aggregates that the tasks of a view compute, and rows that they hand over; dirty and compacted, from one run.

    python -m tests.benchmarks.aggregates [--keys 2000000] [--rounds 7] [--folder DIR]

The table has 63 columns and 8 file groups, its strings have 1,000 values, and 15 commits of 2 % of the keys each, to
one of three groups, wait for compaction. Queries: an aggregate over 7 columns; GROUP BY over a string; the same with a
filter; ``count(*)``; and all 63 columns into nothing. *pushed* is the view of the dirty table, *rows* the same with
``push_aggregates=False``, *compacted* a view of a compacted copy, and *compacted, in tasks* the same copy when Spark
cannot read its files, as on a store that Hadoop does not know. Medians of rounds in which all take turns; the ratios
matter, the seconds depend on the machine. Then where the time of the first query goes, in process on one thread.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from storage import Table
from storage.engine import Aggregate, AggregatedScan, AggregateKind, Aggregation
from streams.read.read_options import ReadOptions
from streams.read.relation.live_view import create_relation_view
from streams.read.view import create_view, planner_of
from tests.benchmarks.snapshot import COLUMNS, QUERY
from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import Shape, build

GROUPED = "SELECT a3, count(*) n, sum(a0) a0, round(sum(b1), 3) b1, max(c0) c0 FROM {table}"
QUERIES = {
    "aggregate over 7 columns": QUERY,
    "GROUP BY over 1,000 values": GROUPED + " GROUP BY a3",
    "the same with a filter": GROUPED + " WHERE b0 > 500000 GROUP BY a3",
    "count(*)": "SELECT count(*) FROM {table}",
}
ALL = "SELECT * FROM {table}"

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


def discard(spark: SparkSession, query: str, view: str) -> Way:
    return lambda: spark.sql(query.format(table=view)).write.format("noop").mode("overwrite").save()


def in_process(table: Table) -> None:
    """Seconds of one thread: the rows, their keys alone, and what aggregating them adds."""
    snapshot = table.snapshot()
    grouped = (Aggregate(AggregateKind.COUNT_ROWS), Aggregate(AggregateKind.SUM, "a0"))
    sums = tuple(Aggregate(AggregateKind.SUM, name) for name in COLUMNS)
    read = snapshot.scan(COLUMNS, parallelism=1)
    ways = {
        "rows of 7 columns": read,
        "the same, summed": AggregatedScan(read, Aggregation((), sums)),
        "rows of 2 columns": snapshot.scan(["a3", "a0"], parallelism=1),
        "the same, GROUP BY": AggregatedScan(snapshot.scan(["a3", "a0"], parallelism=1), Aggregation(("a3",), grouped)),
        "number of rows": snapshot.scan([], parallelism=1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, scan in ways.items():
            start = time.perf_counter()
            for task in scan.tasks:
                for _batch in scan.read(task):  # type: ignore[arg-type]
                    pass
            seconds[name].append(time.perf_counter() - start)
    print("in process, one thread")
    for name, found in seconds.items():
        print(f"  {name:22} {statistics.median(found) * 1000:8.0f} ms")


def run(folder: Path, shape: Shape, rounds: int) -> None:
    dirty = build(folder / "data", shape)
    # A copy is compacted, so that the dirty table is not changed.
    shutil.rmtree(folder / "compacted", ignore_errors=True)
    shutil.copytree(folder / "data" / "table", folder / "compacted", copy_function=os.link)  # files never change
    Table.open(folder / "compacted").compact()
    spark = session()
    try:
        create_view(spark, folder / "data" / "table", "pushed")
        create_view(spark, folder / "data" / "table", "rows", push_aggregates=False)
        create_view(spark, folder / "compacted", "compacted")
        planner = planner_of(spark, folder / "compacted", ReadOptions())
        create_relation_view(spark, "in_tasks", replace(planner, hadoop_file=lambda _file: None))
        views = {"pushed": "pushed", "rows": "rows", "compacted": "compacted", "compacted, in tasks": "in_tasks"}
        for title, query in QUERIES.items():
            ways = {name: collect(spark, query, view) for name, view in views.items()}
            report(title, measure(ways, rounds))
        ways = {name: discard(spark, ALL, view) for name, view in views.items() if name != "pushed"}
        report("all 63 columns", measure(ways, max(rounds // 2, 3)))
    finally:
        spark.stop()
    in_process(dirty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    arguments = parser.parse_args()
    shape = Shape(keys=arguments.keys, words=1_000)
    with tempfile.TemporaryDirectory(prefix="weft-benchmark-") as folder:
        run(arguments.folder or Path(folder), shape, arguments.rounds)


if __name__ == "__main__":
    main()
