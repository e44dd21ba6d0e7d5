"""Load, commits, queries and compaction of one table, beside plain Parquet in the same Spark.

1. *Load*: all columns of all keys, until a query costs no merging; plain: Spark reads the same files and writes them
   in as many files as there are buckets.
2. *Commits*: each has new values of one group for 2 % of the keys, in random places. A sixth of them is older than the
   load. Median; plain: Spark appends the same rows to a folder, in turns with the table.
3. *Queries* of seven columns while no compaction has run since the load (*dirty*), and afterwards (*compacted*), in
   turns with the plain files of the load; medians over rounds.
4. *Compaction*: of everything. Plain: the load.
5. *Bytes*: of all files of the table: after load and clean-up, after the commits, after compaction and clean-up.
6. *Wrong rows*: keys whose row is not that of the oracle.

The same story of a small table runs first and is not counted: it warms up the JVM and the code of the format.
Load and compaction run once, so they vary most from run to run.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.peers.dataset import KEY
from tests.benchmarks.peers.queries import measured_in_turns, queries, wrong_rows
from tests.benchmarks.peers.system import System

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def measure(system: System, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the story; returns seconds, bytes and numbers."""
    plain = system.folder / f"plain-{system.name}"
    try:
        return _measure(system, plain, rounds, say)
    finally:
        shutil.rmtree(plain, ignore_errors=True)


def _measure(system: System, plain: Path, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    spark, data = system.spark, system.data
    found: dict[str, Any] = {}

    def timed(name: str, run: Callable[[], object]) -> None:
        started = time.perf_counter()
        run()
        found[name] = time.perf_counter() - started
        say(f"{name}: {found[name]:.2f} s")

    timed("plain load", lambda: _load_plain(spark, data.load, plain / "load", data.buckets))
    found["plain bytes"] = sum(file.stat().st_size for file in (plain / "load").rglob("*") if file.is_file())
    system.create()
    timed("load", lambda: system.load(data.load))
    system.clean()
    found["bytes after load"] = system.stored_bytes()
    commits, appends = [], []
    for batch in data.batches:
        path = data.path(batch)
        started = time.perf_counter()
        system.commit(path, batch.group)
        between = time.perf_counter()
        spark.read.parquet(path).write.mode("append").parquet(str(plain / "appended"))
        commits.append(between - started)
        appends.append(time.perf_counter() - between)
        say(f"commit {len(commits)} of {len(data.batches)}: {commits[-1]:.2f} s")
    found["commit"], found["plain append"] = statistics.median(commits), statistics.median(appends)
    found["commits"] = len(commits)
    found["bytes after commits"] = system.stored_bytes()
    spark.read.parquet(str(plain / "load")).createOrReplaceTempView("plain")
    _query(system, "dirty", rounds, found, say)
    timed("compaction", system.compact)
    _query(system, "compacted", rounds, found, say)
    system.clean()
    found["bytes after clean"] = system.stored_bytes()
    return found


def _load_plain(spark: SparkSession, source: str, target: Path, files: int) -> None:
    spark.read.parquet(source).repartition(files, KEY).write.parquet(str(target))


def _query(system: System, state: str, rounds: int, found: dict[str, Any], say: Callable[[str], None]) -> None:
    tables = {"plain": "plain", "table": system.table}
    for name, sql in queries(system.data).items():
        seconds = measured_in_turns(system.spark, sql, tables, rounds, system.refresh)
        found[f"{state} {name}"], found[f"plain {name} beside {state}"] = seconds["table"], seconds["plain"]
        say(f"{state} query, {name}: {seconds['table']:.2f} s; plain {seconds['plain']:.2f} s")
    found[f"wrong rows {state}"] = wrong_rows(system.spark, system.table, system.data)
    say(f"wrong rows, {state}: {found[f'wrong rows {state}']:,}")
