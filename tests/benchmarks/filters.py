"""Reads that need few of the rows: joins with a small side, look-ups by value, and logs that touch few row groups.

    python -m tests.benchmarks.filters [--keys 1000000] [--rounds 5] [--folder DIR] [--only joins|values|recent]

The table has 63 columns and 8 file groups, in *recent* 2. The seconds depend on the machine, the ratios come from
rounds in which all take turns.

*joins*: 4 of 63 columns for the 20 keys of a small table with a filter, of a table with 10 % of the keys in the log and
of a compacted copy; with Spark's dynamic partition pruning and without it.

*values*: ``WHERE a3 = 'value'`` of a column with distinct values, with ``index: [a3]`` and without it, 10 % of the keys
in the log and compacted: in process on one thread, and through a view. What the index costs: seconds and bytes of the
first compaction.

*recent*: an aggregate over 7 columns, and all columns into nothing, where the log has the newest 2 % of the keys and as
many new ones: divided by touch, merged as a whole, and compacted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tests.benchmarks.aggregates import Way, measure
from tests.benchmarks.snapshot import QUERY
from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import Shape, events
from weft import Table
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.view import create_view, planner_of

PRUNING = "spark.sql.optimizer.dynamicPartitionPruning.enabled"


def report(title: str, ways: Mapping[str, Way], rounds: int) -> None:
    """Print median seconds, and the ratio to the last way; all ways must give the same answer."""
    medians = measure(ways, rounds)
    print(title)
    for name, median in medians.items():
        print(f"  {name:32} {median * 1000:8.0f} ms  {median / list(medians.values())[-1]:5.2f} x", flush=True)


def table_of(folder: Path, shape: Shape, index: list[str], share: float, *, recent: bool = False) -> Table:
    """A loaded and compacted table, then commits to a share of the keys: any, or the newest ones and new ones."""
    shutil.rmtree(folder, ignore_errors=True)
    table = Table.create(folder, {**shape.config(), "index": index})
    rng = np.random.default_rng(shape.seed)
    loaded = {group: events(shape, group, np.arange(shape.keys), 0, rng) for group in ("a", "b", "c")}
    distinct = pc.binary_join_element_wise("value", pa.array(rng.permutation(shape.keys)).cast(pa.string()), "-")
    loaded["a"] = loaded["a"].set_column(loaded["a"].schema.get_field_index("a3"), "a3", distinct)
    for group, rows in loaded.items():
        with table.writer(group) as writer:
            writer.append(rows)
    start = time.perf_counter()
    table.compact()
    size = sum(one.slice.base_bytes for one in table.snapshot().slices if one.slice is not None)
    print(
        f"compaction with index {index}: {time.perf_counter() - start:.2f} s, {size / 1e6:.1f} MB of bases", flush=True
    )
    for commit in range(1, 6):
        count = int(shape.keys * share / 5)
        keys = rng.choice(shape.keys, count, replace=False)
        if recent:
            keys = np.unique(shape.keys - int(shape.keys * share) + rng.integers(0, int(shape.keys * share * 2), count))
        for group in ("a", "b", "c"):
            with table.writer(group) as writer:
                writer.append(events(shape, group, keys, commit, rng))
    return table


def compacted_copy(table: Table, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(table.uri.removeprefix("file://"), folder, copy_function=os.link)  # files never change
    Table.open(folder).compact()
    return folder


def joins(spark: SparkSession, folder: Path, shape: Shape, rounds: int) -> None:
    table = table_of(folder / "joins", shape, [], 0.1)
    rng = np.random.default_rng(1)
    few = [(int(key), "new") for key in rng.integers(0, shape.keys, 20)]
    spark.createDataFrame(few, "k bigint, kind string").coalesce(1).write.mode("overwrite").parquet(f"{folder}/few")
    spark.read.parquet(f"{folder}/few").createOrReplaceTempView("few")
    create_view(spark, table.uri, "dirty")
    create_view(spark, compacted_copy(table, folder / "joins-compacted"), "compacted")
    for view in ("dirty", "compacted"):
        query = f"SELECT w.k, a0, b1, c0 FROM {view} w JOIN few USING (k) WHERE few.kind = 'new' ORDER BY 1"

        def run(pruning: str, query: str = query) -> Any:
            spark.conf.set(PRUNING, pruning)
            return spark.sql(query).collect()

        ways = {"pruned by the join": lambda run=run: run("true"), "not pruned": lambda run=run: run("false")}
        report(f"join with 20 keys, {view}", ways, rounds)
    spark.conf.unset(PRUNING)


def values(spark: SparkSession, folder: Path, shape: Shape, rounds: int) -> None:
    tables = {
        "index": table_of(folder / "index", shape, ["a3"], 0.1),
        "no index": table_of(folder / "plain", shape, [], 0.1),
    }
    for state in ("dirty", "compacted"):
        if state == "compacted":
            for table in tables.values():
                table.compact()
        of_process: dict[str, Way] = {}
        of_spark: dict[str, Way] = {}
        for name, table in tables.items():
            scan = table.snapshot().scan(["k", "a0", "b1"], pc.field("a3") == "value-4711", parallelism=1)
            of_process[name] = lambda scan=scan: scan.to_arrow().to_pylist()  # type: ignore[misc]
            view = f"by_value_{name.replace(' ', '_')}"
            create_view(spark, table.uri, view)
            query = f"SELECT k, a0, b1 FROM {view} WHERE a3 = 'value-4711'"
            of_spark[name] = lambda query=query: spark.sql(query).collect()  # type: ignore[misc]
        report(f"one row by value, {state}, in process on one thread", of_process, rounds)
        report(f"one row by value, {state}, through a view", of_spark, rounds)


def recent(spark: SparkSession, folder: Path, shape: Shape, rounds: int) -> None:
    table = table_of(folder / "recent", replace(shape, buckets=2), [], 0.02, recent=True)
    planner = planner_of(spark, table.uri, ReadOptions())
    create_relation_view(spark, "divided", planner)
    create_relation_view(spark, "merged", replace(planner, tuning=PlannerTuning(mix_min_bytes=2**60)))
    create_view(spark, compacted_copy(table, folder / "recent-compacted"), "compacted")
    names = ("divided", "merged", "compacted")
    if "ParquetScan" not in str(spark.sql("SELECT a0 FROM divided")._jdf.queryExecution().executedPlan().toString()):
        print("the table is too small: nothing is divided")

    def aggregate(view: str) -> Any:
        return spark.sql(QUERY.format(table=view)).collect()

    def discard(view: str) -> Any:
        return spark.sql(f"SELECT * FROM {view}").write.format("noop").mode("overwrite").save()

    ways = {name: lambda name=name: aggregate(name) for name in names}  # type: ignore[misc]
    report("aggregate over 7 columns, newest keys in the log", ways, rounds)
    ways = {name: lambda name=name: discard(name) for name in names}  # type: ignore[misc]
    report("all columns, newest keys in the log", ways, max(rounds // 2, 3))


PARTS = {"joins": joins, "values": values, "recent": recent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    parser.add_argument("--only", choices=PARTS, help="one part (default: all)")
    arguments = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory(prefix="weft-benchmark-") as folder:
        for name, part in PARTS.items():
            if arguments.only in (None, name):
                part(spark, arguments.folder or Path(folder), Shape(keys=arguments.keys), arguments.rounds)
    spark.stop()


if __name__ == "__main__":
    main()
