"""Reading in process: pyarrow on the merged file : weft : DuckDB deduplicating and joining, all from one run.

    python -m tests.benchmarks.arrow [--keys 2000000] [--folder DIR] [--rounds 7] [--profile]

7 of 63 columns as one Arrow table, all on the same cores. *plain* is ``pyarrow`` reading one Parquet file with the
merged rows: as Spark writes it, which is the base of the ratios, and as pyarrow writes it, both with zstd; *weft* is
`Snapshot.to_arrow` while 10 % of the keys of every group are in the log, and again when compacted; opening the table
and planning are part of it. *DuckDB* is the alternative on one machine with the per-stream files: of each stream the
newest row of every key, then two full joins. Of three ways to write it the fastest counts: all are run once, and that
one then takes turns with the others. All results are compared before.

Medians, the first round is not counted; they take turns within each round, so a change of the machine's speed affects
all of them. Memory is the peak of resident memory, as Linux reports it, that one run adds to a separate process with
everything imported. ``--profile`` shows where the dirty read spends its time.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import os
import pstats
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.plain import PYARROW, SPARK, write_in_process_of_its_own, write_with_pyarrow
from tests.benchmarks.wide_table import GROUPS, Shape, build
from weft import Table

COLUMNS = ("k", "a0", "a1", "b0", "b1", "c0", "c1")
PLAIN_TARGET = 3.0
MEMORY_TARGET = 2.0
DUCKDB_TARGET = 3.0
PROFILE_LINES = 25

NEWEST = {
    "row_number": "SELECT * FROM stream_{g} QUALIFY row_number() OVER (PARTITION BY k ORDER BY {g}_ts DESC) = 1",
    "DISTINCT ON": "SELECT DISTINCT ON (k) * FROM stream_{g} ORDER BY k, {g}_ts DESC",
    "arg_max": "SELECT k, arg_max({g}0, {g}_ts) AS {g}0, arg_max({g}1, {g}_ts) AS {g}1 FROM stream_{g} GROUP BY k",
}
"""Queries for the newest row of every key of one stream, as DuckDB's users write them."""


def plain(folder: Path) -> pa.Table:
    (file,) = folder.glob("*.parquet")
    return pq.read_table(file, columns=list(COLUMNS))


def weft(uri: Path) -> pa.Table:
    return Table.open(uri).snapshot().to_arrow(COLUMNS)


def streamed(uri: Path) -> int:
    return sum(len(batch) for batch in Table.open(uri).snapshot().to_reader(COLUMNS))


def dedupe_and_join(streams: Path, way: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        for group in GROUPS:
            connection.execute(f"CREATE VIEW stream_{group} AS SELECT * FROM '{streams / group}/*.parquet'")
        joined = " FULL JOIN ".join(
            f"({NEWEST[way].format(g=group)}) AS {group}" + (" USING (k)" if number else "")
            for number, group in enumerate(GROUPS)
        )
        return connection.sql(f"SELECT {', '.join(COLUMNS)} FROM {joined}").to_arrow_table()


def write_merged(table: Table, folder: Path) -> None:
    """All columns of the table as one sorted Parquet file, with zstd like base files."""
    write_with_pyarrow([table.snapshot().to_arrow().sort_by("k")], folder / "pyarrow")
    write_in_process_of_its_own(folder / "pyarrow", folder / "spark")


def check(runs: dict[str, Callable[[], pa.Table]]) -> dict[str, float]:
    """Run each once and compare the results; returns the seconds that each took."""
    expected = runs[SPARK]().sort_by("k")
    seconds = {}
    for name, run in runs.items():
        started = time.perf_counter()
        answer = run()
        seconds[name] = time.perf_counter() - started
        if not answer.sort_by("k").cast(expected.schema).equals(expected):
            raise SystemExit(f"{name} has another answer than plain Parquet")
    return seconds


def take_turns(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            answer = run()
            elapsed = time.perf_counter() - started
            del answer
            if number:
                seconds[name].append(elapsed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _highest_kib() -> int:
    # Not `getrusage`: its value starts with that of the parent process.
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None, "the peak of resident memory is only known on Linux"
    return int(found.group(1))


def _peak(run: Callable[[], object], found: multiprocessing.SimpleQueue[int]) -> None:
    before = _highest_kib()
    answer = run()
    found.put(_highest_kib() - before)
    del answer


def peak_mib(run: Callable[[], object]) -> float:
    """Peak of the resident memory that one run adds, in a separate process."""
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    process = context.Process(target=_peak, args=(run, found))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)
    return found.get() / 1024


def profile(uri: Path) -> None:
    """One thread, so that the profile covers all of the work."""
    recorder = cProfile.Profile()
    recorder.enable()
    scan = Table.open(uri).snapshot().scan(COLUMNS, parallelism=1)
    for task in scan.tasks:
        for _ in scan.read(task):
            pass
    recorder.disable()
    pstats.Stats(recorder).sort_stats("tottime").print_stats(PROFILE_LINES)


def prepare(folder: Path, shape: Shape) -> None:
    """``data`` (dirty table and streams), ``compacted``, ``merged``; kept between runs if they are complete."""
    table = build(folder / "data", shape)
    if not (folder / "merged").exists():
        shutil.rmtree(folder / "compacted", ignore_errors=True)
        shutil.copytree(folder / "data" / "table", folder / "compacted")
        Table.open(folder / "compacted").compact()
        write_merged(table, folder / "merging")
        (folder / "merging").rename(folder / "merged")


def run(folder: Path, shape: Shape, rounds: int, *, profiled: bool) -> None:
    prepare(folder, shape)
    dirty, compacted = folder / "data" / "table", folder / "compacted"
    ways: dict[str, Callable[[], pa.Table]] = {
        f"DuckDB, {way}": partial(dedupe_and_join, folder / "data" / "streams", way) for way in NEWEST
    }
    runs: dict[str, Callable[[], pa.Table]] = {
        SPARK: partial(plain, folder / "merged" / "spark"),
        PYARROW: partial(plain, folder / "merged" / "pyarrow"),
        "weft": partial(weft, dirty),
        "weft, compacted": partial(weft, compacted),
    }
    once = check({**runs, **ways})
    print("once: " + ", ".join(f"{name} {once[name]:.2f} s" for name in ways))
    fastest = min(ways, key=lambda name: once[name])
    runs[fastest] = ways[fastest]
    seconds = take_turns(runs, rounds)
    memory = {name: peak_mib(run) for name, run in runs.items()}
    memory["weft, streamed"] = peak_mib(partial(streamed, dirty))
    report(shape, seconds, memory, fastest)
    if profiled:
        profile(dirty)


def report(shape: Shape, seconds: dict[str, float], memory: dict[str, float], fastest: str) -> None:
    print(f"{shape.keys:,} keys x {shape.columns} columns, {len(COLUMNS)} read, {os.cpu_count()} cores")
    print(f"{'':28s} {'seconds':>8s} {'x Spark':>8s} {'x pyarrow':>9s} {'peak MiB':>9s} {'x Spark':>8s}")
    for name, peak in memory.items():
        taken = " " * 27
        if name in seconds:
            elapsed = seconds[name]
            taken = f"{elapsed:8.3f} {elapsed / seconds[SPARK]:8.2f} {elapsed / seconds[PYARROW]:9.2f}"
        print(f"{name:28s} {taken} {peak:9.0f} {peak / memory[SPARK]:8.2f}")
    elapsed, base = seconds["weft"], SPARK
    print(f"weft : {base}  {elapsed / seconds[base]:5.2f} x the time (target: at most {PLAIN_TARGET:g})")
    print(f"weft : {base}  {memory['weft'] / memory[base]:5.2f} x the memory (target: at most {MEMORY_TARGET:g})")
    print(
        f"weft : DuckDB     {seconds[fastest] / elapsed:5.2f} x faster than {fastest} "
        f"(target: at least {DUCKDB_TARGET:g})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="weft-benchmark-"))
    try:
        run(folder, Shape(keys=asked.keys), asked.rounds, profiled=asked.profile)
    finally:
        if asked.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
