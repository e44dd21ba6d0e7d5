"""Ingest and query with 1 and 2 executor cores: `python -m tests.benchmarks.cores [--rows 300000] [--keys 500000]`.

The same work under ``local[1]`` and ``local[2]``, in turns, each time in a process of its own whose first run of each
kind is not counted:

- *ingest*: Kafka JSON of an embedded broker into a table, as in `tests.benchmarks.writer`; rows a second.
- *query*: an aggregate over 7 columns of the table of `tests.benchmarks.snapshot` through a view, 10 % of its keys in
  the log; seconds.

Beside the tasks run the broker, the planning of the stream and Spark's driver, on whatever cores the machine has. So
on a machine of 2 cores the ratio is less than the 2 that tasks alone would give. Medians over all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from tests.benchmarks.snapshot import QUERY
from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import Shape, build
from tests.benchmarks.writer import produce, run_weft
from weft import create_view
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.kafka import register

CORES = (1, 2)
QUERIES = 5  # in each process, after one that warms up


@dataclass(frozen=True)
class Work:
    """What is done: ``rows`` messages in batches of ``batch``, and a table of so many ``keys`` in ``folder``."""

    rows: int
    batch: int
    keys: int
    folder: Path


def measure(cores: int, work: Work) -> dict[str, float]:
    """Rows a second and seconds of a query, in this process."""
    spark = session(cores)
    register(spark)
    ingest = _ingest(spark, work)
    query = _query(spark, work)
    spark.stop()
    return {"ingest": ingest, "query": query}


def _ingest(spark: SparkSession, work: Work) -> float:
    with EmbeddedBroker() as broker:
        produce(broker, work.rows)
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                seconds = run_weft(spark, broker, Path(folder), work.rows, work.batch).seconds[0]
    return work.rows / seconds


def _query(spark: SparkSession, work: Work) -> float:
    create_view(spark, work.folder / "table", "measured")
    seconds = []
    for number in range(QUERIES + 1):
        started = time.perf_counter()
        spark.sql(QUERY.format(table="measured")).collect()
        if number:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="messages")
    parser.add_argument("--batch", type=int, default=100_000, help="messages of a batch")
    parser.add_argument("--keys", type=int, default=500_000, help="of the table that is queried")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, help="measure in this process with so many cores, and print JSON")
    parser.add_argument("--folder", type=Path, help="of the table that is queried (default: a temporary one)")
    given = parser.parse_args()
    if given.cores is not None:
        print(json.dumps(measure(given.cores, Work(given.rows, given.batch, given.keys, given.folder))))
        return
    with tempfile.TemporaryDirectory(prefix="weft-cores-") as folder:
        build(Path(folder), Shape(keys=given.keys))
        found: dict[int, list[dict[str, float]]] = {cores: [] for cores in CORES}
        for _ in range(given.rounds):
            for cores in CORES:
                found[cores].append(_in_process(cores, given, folder))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {given.rounds} processes each")
    ingest = {cores: statistics.median(each["ingest"] for each in found[cores]) for cores in CORES}
    query = {cores: statistics.median(each["query"] for each in found[cores]) for cores in CORES}
    for cores in CORES:
        print(f"  local[{cores}]   ingest {ingest[cores]:10,.0f} rows/s   query {query[cores]:6.2f} s")
    print(f"  2 cores are {ingest[2] / ingest[1]:.2f} x as fast at ingest, {query[1] / query[2]:.2f} x at the query")


def _in_process(cores: int, given: argparse.Namespace, folder: str) -> dict[str, float]:
    sizes = {"rows": given.rows, "batch": given.batch, "keys": given.keys, "cores": cores, "folder": folder}
    arguments = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tests.benchmarks.cores", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr)
    return dict(json.loads(run.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
