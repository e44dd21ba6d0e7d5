"""Snapshot query: plain Parquet : weft view : dedupe and join, all from one run.

    python tests/benchmarks/snapshot.py [--keys 2000000] [--folder DIR] [--rounds 7]

One aggregate over 7 of 63 columns through ``spark.sql``. *plain* is Spark's scan of the merged table as one Parquet
folder: as Spark writes it (the baseline), as pyarrow writes it (both zstd), and as pyarrow writes it with the encodings
of base files; *view* is the weft view while 10 % of the keys of every group are in the log, and again when compacted;
*join* is the query that the view replaces: the latest row of every key of each stream, then two full outer joins. Warm,
medians; all take turns within each round, so a change of the machine's speed affects all of them.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.plain import size_mb, write_with_pyarrow, write_with_spark
from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import GROUPS, Shape, base_files, build
from weft import Table
from weft.storage.environment import Tuning
from weft.storage.files.column_encoding import choose_encodings
from weft.streams.read.view import create_view

COLUMNS = ("k", "a0", "a1", "b0", "b1", "c0", "c1")
QUERY = (
    "SELECT count(k) n, sum(a0) a0, round(sum(a1), 3) a1, sum(b0) b0, round(sum(b1), 3) b1, sum(c0) c0, "
    "round(sum(c1), 3) c1 FROM {table}"
)
STAGES = {
    "log read": ("files/fetch_blocks.py", "take"),
    "collapse": ("files/log_reader.py", "collapse"),
    "base read": ("files/base_file.py", "file"),
    "apply": ("stitch.py", "run"),
    "all": ("read/scan/scan.py", "read"),
}


def join_query(columns: tuple[str, ...] = COLUMNS) -> str:
    """Dedupe each stream by its ordering value, then join them on the key."""
    latest = [
        f"(SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY {g}_ts DESC) AS nth FROM stream_{g}) "
        f"WHERE nth = 1) {g}"
        for g in GROUPS
    ]
    chosen = ", ".join("k" if name == "k" else f"{name[0]}.{name}" for name in columns)
    return (
        f"(SELECT {chosen} FROM {latest[0]} "
        + " ".join(f"FULL OUTER JOIN {part} USING (k)" for part in latest[1:])
        + ")"
    )


def timed(run: Callable[[], object]) -> tuple[float, object]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def stages(table: Table) -> dict[str, float]:
    """Seconds of each stage of the stitch, in this process on one thread."""
    scan = table.snapshot().scan(COLUMNS, parallelism=1)
    profile = cProfile.Profile()
    profile.enable()
    for task in scan.tasks:
        for _ in scan.read(task):
            pass
    profile.disable()
    found = {
        name: sum(
            entry[3]
            for place, entry in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
            if place[0].endswith(file) and place[2] == function
        )
        for name, (file, function) in STAGES.items()
    }
    unknown = [name for name, seconds in found.items() if not seconds]
    if unknown:
        raise SystemExit(f"the profile has no {unknown}: name their functions of today in STAGES")
    found["collapse"] -= found["log read"]
    found["apply"] -= found["base read"]
    return found


def rounds(spark: SparkSession, names: list[str], count: int) -> dict[str, float]:
    """Median seconds per table name; the results must be equal."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(count + 1):
        answers = set()
        for name in names:
            elapsed, rows = timed(lambda name=name: spark.sql(QUERY.format(table=name)).collect())  # type: ignore[misc]
            answers.add(tuple(rows[0]))  # type: ignore[index]
            if number:
                seconds[name].append(elapsed)
        if len(answers) != 1:
            raise SystemExit(f"answers differ: {answers}")
    return {name: statistics.median(values) for name, values in seconds.items()}


def planning(spark: SparkSession, name: str, count: int) -> float:
    return statistics.median(
        timed(lambda: spark.sql(QUERY.format(table=name))._jdf.queryExecution().executedPlan())[0] for _ in range(count)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="weft-benchmark-"))
    try:
        run(folder, Shape(keys=arguments.keys), arguments.rounds)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


def run(folder: Path, shape: Shape, count: int) -> None:
    built = build(folder / "data", shape)
    # The compacted variant is a copy, so that the dirty one is not changed.
    shutil.rmtree(folder / "compacted", ignore_errors=True)
    shutil.copytree(folder / "data" / "table", folder / "compacted", copy_function=os.link)  # files never change
    compacted = Table.open(folder / "compacted")
    result = compacted.compact()
    plain, encoded, written = folder / "plain", folder / "encoded", folder / "spark"
    write_with_pyarrow(bases(compacted, built.schema.arrow.names), plain)
    shutil.rmtree(encoded, ignore_errors=True)
    encoded.mkdir()
    for number, source in enumerate(bases(compacted, built.schema.arrow.names)):
        chosen = choose_encodings(source.slice(0, Tuning().row_group_rows))
        pq.write_table(
            source,
            encoded / f"{number}.parquet",
            compression="zstd",
            use_dictionary=chosen.use_dictionary,
            column_encoding=chosen.column_encoding,
            row_group_size=Tuning().row_group_rows,
        )
    spark = session()
    try:
        write_with_spark(spark, plain, written)
        spark.read.parquet(str(written)).createOrReplaceTempView("spark_written")
        spark.read.parquet(str(plain)).createOrReplaceTempView("plain")
        spark.read.parquet(str(encoded)).createOrReplaceTempView("encoded")
        for group in GROUPS:
            spark.read.parquet(str(folder / "data" / "streams" / group)).createOrReplaceTempView(f"stream_{group}")
        create_view(spark, folder / "data" / "table", "dirty")
        create_view(spark, folder / "compacted", "clean")
        spark.sql(f"CREATE OR REPLACE TEMP VIEW joined AS SELECT * FROM {join_query()}")
        fast = rounds(spark, ["spark_written", "plain", "encoded", "dirty", "clean"], count)
        slow = rounds(spark, ["dirty", "joined"], max(count // 3, 1))
        planned = {name: planning(spark, name, count) for name in ("spark_written", "dirty", "clean")}
    finally:
        spark.stop()
    stage = stages(built)
    sizes = {name: size_mb(path) for name, path in (("spark_written", written), ("plain", plain), ("encoded", encoded))}
    sizes |= {"dirty": stored_mb(built), "clean": sum(file.size for file in base_files(compacted)) / 1e6}
    report(shape, fast, slow, planned, stage, sizes, result.seconds)


def bases(table: Table, columns: list[str]) -> Iterator[pa.Table]:
    """The rows of a compacted table, one base file at a time."""
    for file in base_files(table):
        yield pq.read_table(Path(table.uri.removeprefix("file://")) / file.path, columns=columns, partitioning=None)


def stored_mb(table: Table) -> float:
    """Bytes that a snapshot reads: base files, shadows and logs."""
    return sum(file_slice.base_bytes + file_slice.log_bytes for file_slice in table.snapshot().slices) / 1e6


def report(
    shape: Shape,
    fast: dict[str, float],
    slow: dict[str, float],
    planned: dict[str, float],
    stage: dict[str, float],
    sizes: dict[str, float],
    compaction: float,
) -> None:
    base, plain = fast["spark_written"], fast["plain"]
    print(f"\n{shape.keys:,} keys x {shape.columns} columns, {shape.buckets} file groups, 7 columns read")
    print(f"plain Parquet, as Spark writes it   {base:7.3f} s   {sizes['spark_written']:6.0f} MB")
    for name, text in (("plain", "as pyarrow writes it"), ("encoded", "  in weft's encodings")):
        print(f"               {text:20s} {fast[name]:7.3f} s   {sizes[name]:6.0f} MB   {fast[name] / base:5.2f} x")
    for name, text, targets in (("dirty", "dirty", "2.5, from 20 M keys 1.8"), ("clean", "compacted", "1.1")):
        print(
            f"weft view, {text:9s}                {fast[name]:7.3f} s   {sizes[name]:6.0f} MB   "
            f"{fast[name] / base:5.2f} x (target: at most {targets}), {fast[name] / plain:.2f} x as pyarrow writes it, "
            f"{fast[name] / fast['encoded']:.2f} x the same encodings"
        )
    ratio = slow["joined"] / slow["dirty"]
    print(f"dedupe and join      {slow['joined']:7.3f} s   {ratio:5.2f} x the dirty view (target: at least 10)")
    print(f"  the view beside it {slow['dirty']:7.3f} s")
    print("where the dirty view's time goes (stages: one thread in process; the query has two):")
    for name in ("log read", "collapse", "base read", "apply"):
        print(f"  {name:18s} {stage[name]:7.3f} s")
    rest = max(fast["dirty"] - planned["dirty"] - stage["all"] / 2, 0.0)
    others = f"plain {planned['spark_written']:.3f} s, compacted {planned['clean']:.3f} s"
    print(f"  planning           {planned['dirty']:7.3f} s  ({others})")
    print(f"  hand-over, the rest {rest:6.3f} s")
    print(f"compaction of all file groups: {compaction:.2f} s (pyarrow {pa.__version__})")


if __name__ == "__main__":
    main()
