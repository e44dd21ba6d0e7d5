"""Time until new values of one column group are visible: weft in process and through Spark, and a MERGE of Delta Lake.

    pip install deltalake    (without it weft alone is measured)
    python -m tests.benchmarks.append [--keys 2000000] [--rows 40000] [--rounds 5] [--folder DIR]

A wide table (63 columns by default) exists as a compacted weft table and as a Delta table with the same rows. Each
round sends the same ``rows`` new events of one group, with keys from the whole table, to all of them. *In process*:
`Writer.append` until its commit is durable, then another reader opens the table, plans a snapshot and looks up one of
the keys, which must show the new value; Delta's ``MERGE ... WHEN MATCHED UPDATE ... WHEN NOT MATCHED INSERT`` with
``deltalake`` until it is committed, without a read. *Through Spark*: the rows are in a Parquet file, which
`weft.write_batch` commits (a job that opens the table, claims a lane, runs tasks, commits and closes the lane); for
comparison Spark appends the same rows to a folder of plain Parquet, and sends them to Python tasks that do nothing,
which is the minimum cost of a writer in Spark's Python tasks. Medians; the first round is not counted.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import GROUPS, Shape, build, events
from weft import Table, write_batch
from weft.storage.write.writer import Writer

try:
    from deltalake import DeltaTable, write_deltalake
except ImportError:
    DeltaTable = None

GROUP = GROUPS[0]
TARGET = 30.0
PARTS = ("append", "open", "plan", "look-up")
THROUGH_SPARK, PLAIN, BARE, DELTA = "through Spark", "plain", "bare", "Delta"


def show(uri: Path, writer: Writer, rows: pa.Table) -> dict[str, float]:
    """Seconds of each part of making new rows visible; the reader has an empty cache."""
    key, value = rows["k"][0].as_py(), rows[f"{GROUP}_ts"][0].as_py()
    moments = [time.perf_counter()]
    writer.append(rows)
    moments.append(time.perf_counter())
    snapshot = Table.open(uri).snapshot()
    moments.append(time.perf_counter())
    snapshot.scan([f"{GROUP}_ts"])
    moments.append(time.perf_counter())
    found = snapshot.get([key], [f"{GROUP}_ts"])
    moments.append(time.perf_counter())
    if found.to_pylist() != [{f"{GROUP}_ts": value}]:
        raise SystemExit(f"key {key}: {found.to_pylist()} instead of {value}")
    return dict(zip(PARTS, np.diff(moments).tolist(), strict=True))


def merge(delta: DeltaTable, rows: pa.Table) -> float:
    started = time.perf_counter()
    columns = {name: f"s.{name}" for name in rows.column_names}
    update = {name: value for name, value in columns.items() if name != "k"}
    (
        delta.merge(rows, predicate="t.k = s.k", source_alias="s", target_alias="t")
        .when_matched_update(update)
        .when_not_matched_insert(columns)
        .execute()
    )
    return time.perf_counter() - started


def append_with_spark(spark: SparkSession, uri: Path, rows: Path) -> float:
    started = time.perf_counter()
    write_batch(spark.read.parquet(str(rows)), str(uri), GROUP)
    return time.perf_counter() - started


def append_plain(spark: SparkSession, folder: Path, rows: Path) -> float:
    started = time.perf_counter()
    spark.read.parquet(str(rows)).write.mode("append").option("compression", "zstd").parquet(str(folder))
    return time.perf_counter() - started


def run_bare_job(spark: SparkSession, rows: Path) -> float:
    def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"report": pa.array([b""], pa.binary())})

    started = time.perf_counter()
    spark.read.parquet(str(rows)).mapInArrow(take, "report binary").collect()
    return time.perf_counter() - started


def compare(folder: Path, shape: Shape, count: int, rounds: int) -> dict[str, float]:
    """Median seconds of weft's parts in process, and of the other systems."""
    built = build(folder / "data", shape)
    for name in ("weft", "spark", "delta", "appended"):
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(folder / "data" / "table", folder / "weft")
    table = Table.open(folder / "weft")
    table.compact()
    shutil.copytree(folder / "weft", folder / "spark")
    delta = None
    if DeltaTable is not None:
        write_deltalake(str(folder / "delta"), built.snapshot().to_arrow())
        delta = DeltaTable(str(folder / "delta"))
    chance = np.random.default_rng(shape.seed)
    taken: list[dict[str, float]] = []
    spark = session()
    try:
        with table.writer(GROUP) as writer:
            for number in range(rounds + 1):
                keys = chance.choice(shape.keys, count, replace=False)
                # Events lie within two hours of the time of their round, so later rounds have later events.
                rows = events(shape, GROUP, keys, shape.commits + 2 + 2 * number, chance)
                pq.write_table(rows, folder / "rows.parquet")
                times = show(folder / "weft", writer, rows)
                times[THROUGH_SPARK] = append_with_spark(spark, folder / "spark", folder / "rows.parquet")
                times[PLAIN] = append_plain(spark, folder / "appended", folder / "rows.parquet")
                times[BARE] = run_bare_job(spark, folder / "rows.parquet")
                if delta is not None:
                    times[DELTA] = merge(delta, rows)
                if number:
                    taken.append(times)
    finally:
        spark.stop()
    return {name: statistics.median(times[name] for times in taken) for name in taken[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="weft-benchmark-"))
    shape = Shape(keys=asked.keys)
    try:
        seconds = compare(folder, shape, min(asked.rows, asked.keys), asked.rounds)
    finally:
        if asked.folder is None:
            shutil.rmtree(folder)
    print(f"{asked.keys:,} keys x {shape.columns} columns, {asked.rows:,} new rows of one group")
    for name in PARTS:
        print(f"weft in process, {name:12s} {seconds[name] * 1000:8.1f} ms")
    in_process, spark = sum(seconds[name] for name in PARTS), seconds[THROUGH_SPARK]
    print(f"weft in process, in all       {in_process * 1000:8.1f} ms")
    print(f"weft through Spark            {spark * 1000:8.1f} ms   {spark / in_process:.1f} x in process")
    print(
        f"Spark appends plain Parquet   {seconds[PLAIN] * 1000:8.1f} ms   weft is {spark / seconds[PLAIN]:.2f} x that"
    )
    print(f"Spark, Python tasks alone     {seconds[BARE] * 1000:8.1f} ms   weft is {spark / seconds[BARE]:.2f} x that")
    if DELTA in seconds:
        found = seconds[DELTA]
        ratio = f"weft in process is {found / in_process:.1f} x sooner (target: at least {TARGET:g})"
        print(f"Delta in process, MERGE       {found * 1000:8.1f} ms   {ratio}, through Spark {found / spark:.1f} x")


if __name__ == "__main__":
    main()
