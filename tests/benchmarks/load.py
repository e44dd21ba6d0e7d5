"""A first load through Spark: `weft.write_batch` and the first compaction, against Spark writing plain Parquet.

    python -m tests.benchmarks.load [--keys 2000000] [--rounds 3] [--folder DIR]

The rows of a wide table (63 columns by default) are Parquet files that pyarrow wrote. One stream writes all three
groups. *plain* is Spark reading them and appending them as they come, zstd; *plain, by key* the same distributed by key
and sorted, into as many files as the table has file groups, which is what a compacted table is. The compaction runs as
many tasks at once as Spark has cores. Medians of rounds in which all take turns, after one that is not counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.benchmarks.plain import write_with_spark
from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import GROUPS, Shape, events
from weft import Table, write_batch
from weft.storage.services.steps.parallel_tasks import in_threads

STREAM = "load"
CORES = 2
PART_ROWS = 250_000


def config(shape: Shape) -> dict[str, Any]:
    """The wide table with one stream for all groups."""
    return {**shape.config(), "streams": {STREAM: {"groups": list(GROUPS)}}}


def write_source(folder: Path, shape: Shape) -> None:
    """Rows in the order of arrival; kept between runs if they are complete."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shape.seed)
    keys = rng.permutation(shape.keys)
    for number, start in enumerate(range(0, shape.keys, PART_ROWS)):
        part = keys[start : start + PART_ROWS]
        first, *others = (events(shape, group, part, 0, rng) for group in GROUPS)
        for other in others:
            for name in other.schema.names[1:]:
                first = first.append_column(name, other[name])
        pq.write_table(first, folder / f"{number}.parquet", compression="zstd")
    (folder / "done").touch()


def load(spark: SparkSession, source: Path, uri: Path, shape: Shape) -> tuple[float, float]:
    """Seconds of the commit and of the compaction."""
    table = Table.create(uri, config(shape))
    moments = [time.perf_counter()]
    committed = write_batch(spark.read.parquet(f"{source}/*.parquet"), str(uri), STREAM)
    moments.append(time.perf_counter())
    compacted = table.compact(execute=in_threads(CORES))
    moments.append(time.perf_counter())
    if committed.rows != shape.keys or compacted.rows != shape.keys:
        raise SystemExit(f"{committed.rows:,} rows committed, {compacted.rows:,} compacted")
    return moments[1] - moments[0], moments[2] - moments[1]


def plain(spark: SparkSession, source: Path, target: Path) -> None:
    rows = spark.read.parquet(f"{source}/*.parquet")
    rows.write.mode("overwrite").option("compression", "zstd").parquet(str(target))


def timed(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def run(folder: Path, shape: Shape, rounds: int) -> None:
    source, target = folder / "source", folder / "written"
    # Its memory is free again before the JVM starts.
    process = multiprocessing.get_context("spawn").Process(target=write_source, args=(source, shape))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)
    pa.set_cpu_count(CORES)
    spark = session(CORES)
    seconds: dict[str, list[float]] = {name: [] for name in ("plain", "plain, by key", "commit", "compaction", "load")}
    try:
        for number in range(rounds + 1):
            shutil.rmtree(target, ignore_errors=True)
            commit, compaction = load(spark, source, target / "table", shape)
            shutil.rmtree(target)
            found = {
                "plain": timed(lambda: plain(spark, source, target)),
                "plain, by key": timed(lambda: write_with_spark(spark, source, target)),
                "commit": commit,
                "compaction": compaction,
                "load": commit + compaction,
            }
            for name, value in found.items():
                if number:
                    seconds[name].append(value)
    finally:
        spark.stop()
        shutil.rmtree(target, ignore_errors=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{shape.keys:,} keys x {shape.columns} columns, {shape.buckets} file groups, {CORES} cores")
    for name, value in medians.items():
        print(
            f"{name:16s} {value:7.2f} s {value / medians['plain']:6.2f} x plain"
            f" {value / medians['plain, by key']:6.2f} x plain, by key"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the source here (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-benchmark-") as folder:
        run(arguments.folder or Path(folder), Shape(keys=arguments.keys, words=1_000), arguments.rounds)


if __name__ == "__main__":
    main()
