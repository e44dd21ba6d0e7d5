"""Load, commits, queries and compaction of one table, beside plain Parquet in the same Spark.

1. *Load*: all columns of all keys, until a query costs no merging; plain: Spark reads the same files and writes them
   in as many files as there are buckets. It does so before the load and after it; the mean counts.
2. *Commits*: each has new values of one group for 2 % of the keys, in random places. A sixth of them is older than the
   load. Median; plain: Spark appends the same rows to a folder, in turns with the table.
3. *Queries* of seven columns while no compaction has run since the load (*dirty*), and afterwards (*compacted*), in
   turns with the plain files of the load; medians over rounds.
4. *Compaction*: of everything. Plain: the load.
5. *Bytes*: of all files of the table: after load and clean-up, after the commits, after compaction and clean-up.
6. *Wrong rows*: keys whose row is not that of the oracle.

The same story of a small table runs first and is not counted: it warms up the JVM and the code of the format.
Load and compaction run once, so their seconds vary most from run to run; CPU seconds (`cost`) vary less.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.peers.cost import Cost
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

    def timed(name: str, run: Callable[[], object]) -> Cost:
        cost = Cost.of(run)
        found.update(cost.figures(name))
        say(f"{name}: {cost.seconds:.2f} s, CPU {cost.cpu:.2f} s")
        return cost

    before = timed("plain load before", lambda: _load_plain(spark, data.load, plain / "load", data.buckets))
    found["plain bytes"] = sum(file.stat().st_size for file in (plain / "load").rglob("*") if file.is_file())
    system.create()
    timed("load", lambda: system.load(data.load))
    after = timed("plain load after", lambda: _load_plain(spark, data.load, plain / "again", data.buckets))
    shutil.rmtree(plain / "again")
    found |= Cost.median([before, after]).figures("plain load")
    system.clean()
    found["bytes after load"] = system.stored_bytes()
    commits, appends = [], []
    for batch in data.batches:
        path = data.path(batch)
        commits.append(Cost.of(partial(system.commit, path, batch.group)))
        appends.append(Cost.of(partial(_append_plain, spark, path, plain / "appended")))
        say(f"commit {len(commits)} of {len(data.batches)}: {commits[-1].seconds:.2f} s")
    found |= Cost.median(commits).figures("commit") | Cost.median(appends).figures("plain append")
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


def _append_plain(spark: SparkSession, source: str, target: Path) -> None:
    spark.read.parquet(source).write.mode("append").parquet(str(target))


def _query(system: System, state: str, rounds: int, found: dict[str, Any], say: Callable[[str], None]) -> None:
    tables = {"plain": "plain", "table": system.table}
    for name, sql in queries(system.data).items():
        costs = measured_in_turns(system.spark, sql, tables, rounds, system.refresh)
        found |= costs["table"].figures(f"{state} {name}") | costs["plain"].figures(f"plain {name} beside {state}")
        say(f"{state} query, {name}: {costs['table'].seconds:.2f} s; plain {costs['plain'].seconds:.2f} s")
    found[f"wrong rows {state}"] = wrong_rows(system.spark, system.table, system.data)
    say(f"wrong rows, {state}: {found[f'wrong rows {state}']:,}")
