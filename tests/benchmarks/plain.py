"""The same rows as plain Parquet, written by Spark and by pyarrow: the baseline of the benchmarks of reads.

Both with zstd, sorted by key within each file, in as many files. Spark's are smaller (it writes dictionaries of larger
pages), and its reader reads them faster, so they are the main baseline; pyarrow's are typical for Python jobs.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.benchmarks.spark_session import session

SPARK = "plain, as Spark writes it"
PYARROW = "plain, as pyarrow writes it"
ROW_GROUP_ROWS = 128 * 1024


def write_with_pyarrow(parts: Iterable[pa.Table], folder: Path) -> None:
    """One file per part."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, rows in enumerate(parts):
        pq.write_table(rows, folder / f"{number}.parquet", compression="zstd", row_group_size=ROW_GROUP_ROWS)


def write_with_spark(spark: SparkSession, source: Path, folder: Path, key: str = "k") -> None:
    """The rows of another folder, in as many files, but distributed differently."""
    files = len(list(source.glob("*.parquet")))
    rows = spark.read.parquet(str(source)).repartition(files, key).sortWithinPartitions(key)
    rows.write.mode("overwrite").option("compression", "zstd").parquet(str(folder))


def write_in_process_of_its_own(source: Path, folder: Path) -> None:
    """`write_with_spark` for benchmarks that do not need a JVM otherwise: it ends with the process."""
    process = multiprocessing.get_context("spawn").Process(target=_write, args=(source, folder))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)


def _write(source: Path, folder: Path) -> None:
    spark = session()
    try:
        write_with_spark(spark, source, folder)
    finally:
        spark.stop()


def size_mb(folder: Path) -> float:
    """Total size of the Parquet files of a folder, in MB (10^6 bytes)."""
    return sum(file.stat().st_size for file in folder.rglob("*.parquet")) / 1e6
