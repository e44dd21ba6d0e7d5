"""The cost of the view compared with Spark's Parquet scan, and the benefit of reading a mix in two parts; from one run.

    python -m tests.benchmarks.view_overhead [--keys 2000000] [--rounds 7] [--folder DIR]

*Planning*: the fixed cost of a query before its first task starts, on a table of a few rows: Spark's over a folder of
Parquet files (as Spark writes them, the base of the ratios, and as pyarrow does), the view over a compacted table, over
one with logs, and over a mix; and the whole query. *Mix*: one aggregate over 7 of 63 columns while the logs of some of
the file groups wait: read in two parts, and all of it by tasks. Medians of rounds in which all take turns; the ratios
matter, the seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

from tests.benchmarks.plain import PYARROW, SPARK, write_with_pyarrow, write_with_spark
from tests.benchmarks.snapshot import QUERY, bases
from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import Shape, build
from weft import Table
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation import spark_scan
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.relation.worker import task_reader
from weft.streams.read.view import planner_of

TINY = 2_000
BATCH_ROWS = (65_536, 4_096, 16_384, 1 << 20)

IN_TWO_PARTS = PlannerTuning(mix_min_bytes=0, merged_share=2)
BY_TASKS_ALONE = PlannerTuning(mix_min_bytes=1 << 62)

Way = Callable[[], Any]


def measure(ways: Mapping[str, Way], rounds: int) -> dict[str, float]:
    """Median seconds; all ways must give the same result."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):  # the first two warm up
        answers = set()
        for name, run in ways.items():
            start = time.perf_counter()
            answers.add(str(run()))
            if number >= 2:
                seconds[name].append(time.perf_counter() - start)
        if len(answers) != 1:
            raise SystemExit(f"answers differ: {answers}")
    return {name: statistics.median(values) for name, values in seconds.items()}


def report(title: str, medians: Mapping[str, float]) -> None:
    base = next(iter(medians.values()))
    print(title)
    for name, seconds in medians.items():
        print(f"  {name:34} {seconds * 1000:8.1f} ms  x {seconds / base:5.2f}  + {(seconds - base) * 1000:7.1f} ms")


def collect(spark: SparkSession, view: str) -> Way:
    return lambda: spark.sql(QUERY.format(table=view)).collect()


def plan_only(spark: SparkSession, view: str) -> Way:
    def plan() -> None:
        spark.sql(QUERY.format(table=view))._jdf.queryExecution().executedPlan()

    return plan


def make_view(spark: SparkSession, table: Table, name: str, tuning: PlannerTuning) -> None:
    create_relation_view(spark, name, replace(planner_of(spark, table.uri, ReadOptions()), tuning=tuning))


def with_batches_of(rows: int, run: Way) -> Way:
    def patched() -> Any:
        with mock.patch.object(spark_scan, "task_reader", functools.partial(task_reader, batch_rows=rows)):
            return run()

    return patched


def compacted_copy(table: Table, folder: Path, file_groups: int) -> Table:
    """A copy in which some file groups are compacted and the others have logs."""
    if not folder.exists():
        unfinished = folder.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(table.uri.removeprefix("file://"), unfinished)
        copy = Table.open(unfinished)
        chosen = {part.group for part in copy.snapshot().slices[:file_groups]}
        copy.compact(lambda part: part.group in chosen)
        unfinished.rename(folder)
    return Table.open(folder)


def views(spark: SparkSession, folder: Path, shape: Shape, name: str, tuning: PlannerTuning) -> dict[str, str]:
    """Views by how many of the file groups are compacted, and over the same rows as plain Parquet."""
    dirty = build(folder / name, shape)
    result = {}
    for compacted in (shape.buckets, 0, 1, shape.buckets // 2, shape.buckets - 1):
        view = f"{name}_{compacted}"
        copy = compacted_copy(dirty, folder / view, compacted)
        if compacted == shape.buckets:
            plain, written = folder / f"{name}_plain", folder / f"{name}_spark"
            write_with_pyarrow(bases(copy, copy.snapshot().schema.names), plain)
            write_with_spark(spark, plain, written)
            for title, source in ((SPARK, written), (PYARROW, plain)):
                spark.read.parquet(str(source)).createOrReplaceTempView(source.name)
                result[title] = source.name
        make_view(spark, copy, view, tuning)
        result[f"{compacted} of {shape.buckets} compacted"] = view
    return result


def run(spark: SparkSession, folder: Path, keys: int, rounds: int) -> None:
    tiny = views(spark, folder, Shape(keys=TINY), "tiny", IN_TWO_PARTS)
    for title, way in (("planning alone", plan_only), ("whole query", collect)):
        ways = {name: way(spark, view) for name, view in tiny.items()}
        report(f"{TINY} rows, {title}", measure(ways, 3 * rounds))
    large = views(spark, folder, Shape(keys=keys), "large", PlannerTuning())
    ways = {name: collect(spark, view) for name, view in large.items()}
    for name, view in list(large.items())[3:]:
        make_view(spark, Table.open(folder / view), f"{view}_tasks", BY_TASKS_ALONE)
        ways[f"{name}, by tasks alone"] = collect(spark, f"{view}_tasks")
    report(f"{keys} rows x {Shape.columns} columns, 7 read", measure(ways, rounds))
    dirty = list(large.values())[3]
    batches = {f"batches of {rows}": with_batches_of(rows, collect(spark, dirty)) for rows in BATCH_ROWS}
    report("through tasks, by size of the batches", measure(batches, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keep the tables here (default: a temporary folder)")
    arguments = parser.parse_args()
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="weft-benchmark-") as folder:
            run(spark, arguments.folder or Path(folder), arguments.keys, arguments.rounds)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
