"""Merging on read, per mode: weft against reading without merging, and against a group-by in DuckDB.

    python tests/benchmarks/merge.py [--keys 2000000] [--rounds 5]

One group of 8 columns, a full load compacted, then 10 % of the keys updated over 5 commits in the log. All three read
the same columns on one thread: (a) pyarrow, the base files as they are; weft, base and logs stitched; (b) DuckDB, load
and updates as Parquet files, merged by GROUP BY. The three take turns in each round; medians and ratios of one run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.wide_table import base_files
from weft import Table

VALUES = [f"v{i}" for i in range(6)]
COLUMNS = ["k", *VALUES, "ts"]
COMMITS = 5
UPDATED = 0.1

MODES: dict[str, tuple[dict[str, Any], str]] = {
    "latest": ({"merge": "latest"}, "SELECT k, " + ", ".join(f"arg_max({v}, ts)" for v in VALUES) + ", max(ts)"),
    "latest_non_null": (
        {"merge": "latest_non_null"},
        "SELECT k, " + ", ".join(f"arg_max({v}, ts) FILTER ({v} IS NOT NULL)" for v in VALUES) + ", max(ts)",
    ),
    "aggregate": (
        {
            "merge": "aggregate",
            "functions": {"v0": "sum", "v1": "count", "v2": "max", "v3": "min", "v4": "last", "v5": "first"},
        },
        "SELECT k, sum(v0), count(v1), max(v2), min(v3), arg_max(v4, ts), arg_min(v5, ts), max(ts)",
    ),
    "commit order": (
        {"merge": "latest", "ordering": []},
        "SELECT k, " + ", ".join(f"arg_max({v}, file)" for v in [*VALUES, "ts"]),
    ),
}


def events(keys: np.ndarray, moment: int, chance: np.random.Generator) -> pa.Table:
    columns: dict[str, pa.Array] = {"k": pa.array(keys)}
    for name in VALUES:
        columns[name] = pa.array(chance.integers(0, 1_000_000, len(keys)), mask=chance.random(len(keys)) < UPDATED)
    columns["ts"] = pa.array(moment * 1_000_000_000 + chance.integers(0, 2_000_000_000, len(keys)))
    return pa.table(columns)


def build(folder: Path, group: dict[str, Any], keys: int) -> Table:
    """The table, and per commit a Parquet file ``folder/<n>.parquet`` for DuckDB."""
    config = {
        "key": ["k"],
        "columns": dict.fromkeys(COLUMNS, "bigint"),
        "groups": {"g": {"columns": COLUMNS[1:], "ordering": ["ts"], **group}},
        "streams": {"s": {"groups": ["g"], "on_delete": "ignore"}},
    }
    table = Table.create(folder / "table", config)
    chance = np.random.default_rng(3)
    with table.writer("s") as writer:
        for commit in range(COMMITS + 1):
            chosen = chance.choice(keys, int(keys * UPDATED / COMMITS), replace=False) if commit else np.arange(keys)
            rows = events(chosen, commit, chance)
            pq.write_table(
                rows.append_column("file", pa.array(np.full(len(rows), commit))), folder / f"{commit}.parquet"
            )
            writer.append(rows)
            if commit == 0:
                table.compact()
    return table


def weft(table: Table) -> int:
    scan = table.snapshot().scan(COLUMNS, parallelism=1)
    return sum(len(batch) for task in scan.tasks for batch in scan.read(task))


def without_merging(table: Table, folder: Path) -> int:
    rows = 0
    for base in base_files(table):
        # Not `read_table`: it decodes on a second thread even with use_threads=False.
        with pq.ParquetFile(folder / "table" / base.path, memory_map=True) as file:
            rows += len(file.read(columns=COLUMNS, use_threads=False))
    return rows


def group_by(folder: Path, query: str) -> int:
    with duckdb.connect(config={"threads": 1}) as connection:
        result = connection.sql(f"{query} FROM '{folder}/*.parquet' GROUP BY k").to_arrow_table()
    return len(result)


def seconds(run: Callable[[], int], expected: int) -> float:
    started = time.perf_counter()
    rows = run()
    elapsed = time.perf_counter() - started
    if rows != expected:
        raise SystemExit(f"{rows} rows instead of {expected}")
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(
        f"{arguments.keys:,} keys, {UPDATED:.0%} of them in {COMMITS} log commits, {len(COLUMNS)} columns, one thread"
    )
    print(f"{'mode':16s} {'(a) pyarrow':>12s} {'weft':>9s} {'(b) DuckDB':>11s}   weft/(a)  weft/(b)   rows/s of weft")
    for name, (group, query) in MODES.items():
        folder = Path(tempfile.mkdtemp(prefix="weft-merge-"))
        try:
            table = build(folder, group, arguments.keys)
            runs: list[Callable[[], int]] = [
                lambda table=table, folder=folder: without_merging(table, folder),  # type: ignore[misc]
                lambda table=table: weft(table),  # type: ignore[misc]
                lambda folder=folder, query=query: group_by(folder, query),  # type: ignore[misc]
            ]
            taken = [[seconds(run, arguments.keys) for run in runs] for _ in range(arguments.rounds + 1)][1:]
            pyarrow_s, weft_s, duckdb_s = (statistics.median(column) for column in zip(*taken, strict=True))
            print(
                f"{name:16s} {pyarrow_s:10.3f} s {weft_s:7.3f} s {duckdb_s:9.3f} s   "
                f"{weft_s / pyarrow_s:8.2f} {weft_s / duckdb_s:9.2f} {arguments.keys / weft_s:16,.0f}"
            )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
