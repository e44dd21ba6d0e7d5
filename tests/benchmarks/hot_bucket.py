"""One hot bucket: a file group with all rows of the table, read in one task and divided by key range.

    python -m tests.benchmarks.hot_bucket [--keys 500000] [--rounds 7] [--folder DIR] [--no-spark]

It reads 7 of 63 columns. *spread*: 10 % of the keys of every group have updates in the log, in commits with keys from
the whole table; *recent*: the same number of updates, but of the largest keys; *compacted*: no logs. Each is read as
one task and divided: in process with one thread, which shows the cost of dividing (CPU seconds, and bytes read as Linux
counts them), with as many threads as cores, which shows the gain, and through a view in Spark with two cores. It prints
medians. All variants take turns within each round, so a change of the machine's speed affects all of them. The results
are compared first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa

from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import GROUPS, Shape, events
from weft import Table
from weft.storage.read.scan import divide_scan
from weft.streams.read.view import create_view

COLUMNS = ("k", "a0", "a1", "b0", "b1", "c0", "c1")
QUERY = (
    "SELECT count(k) n, sum(a0) a0, round(sum(a1), 3) a1, sum(b0) b0, round(sum(b1), 3) b1, sum(c0) c0, "
    "round(sum(c1), 3) c1 FROM {table}"
)
STATES = ("spread", "recent", "compacted")
CORES = 2


def build(folder: Path, shape: Shape, state: str) -> Table:
    """A table of one file group: its load compacted, then updates of a tenth of the keys of each group."""
    if (folder / "done").exists():
        return Table.open(folder / "table")
    table = Table.create(folder / "table", shape.config())
    rng = np.random.default_rng(shape.seed)
    with contextlib.ExitStack() as stack:
        writers = {group: stack.enter_context(table.writer(group)) for group in GROUPS}
        for group in GROUPS:
            writers[group].append(events(shape, group, rng.permutation(shape.keys), 0, rng))
        table.compact()
        count = int(shape.keys * shape.updated / shape.commits)
        for commit in range(1, shape.commits + 1):
            first = shape.keys - count * (shape.commits + 1 - commit) if state == "recent" else 0
            keys = (
                np.arange(first, first + count) if state == "recent" else rng.choice(shape.keys, count, replace=False)
            )
            for group in GROUPS:
                writers[group].append(events(shape, group, keys, commit, rng))
    if state == "compacted":
        table.compact()
    (folder / "done").touch()
    return table


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Plan in the block without dividing file groups."""
    with mock.patch.object(divide_scan, "_parts", return_value=1):
        yield


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "one task": undivided,
    "divided": contextlib.nullcontext,
}


def read(table: Table, threads: int) -> pa.Table:
    return replace(Table.open(table.uri).snapshot().scan(COLUMNS, parallelism=CORES), threads=threads).to_arrow()


def measured(run: Callable[[], pa.Table]) -> tuple[pa.Table, tuple[float, float, float]]:
    """The result, wall seconds, CPU seconds of this process, and MB that it read."""
    bytes_before, cpu, started = bytes_read(), time.process_time(), time.perf_counter()
    answer = run()
    return answer, (time.perf_counter() - started, time.process_time() - cpu, (bytes_read() - bytes_before) / 1e6)


def bytes_read() -> int:
    (line,) = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")]
    return int(line.partition(":")[2])


def in_process(tables: dict[str, Table], rounds: int) -> None:
    found: dict[tuple[str, str, int], list[tuple[float, float, float]]] = {}
    for number in range(rounds + 1):
        for state, table in tables.items():
            answers = []
            for name, way in WAYS.items():
                for threads in (1, CORES):
                    with way():
                        answer, result = measured(partial(read, table, threads))
                    if number:
                        found.setdefault((state, name, threads), []).append(result)
                    else:
                        answers.append(answer.sort_by("k"))
            if any(not answers[0].equals(other) for other in answers):
                raise SystemExit(f"answers differ: {state}")
    print("in process   threads  tasks   wall s    CPU s  MB read   wall    CPU     MB, to one task")
    for (state, name, threads), rows in found.items():
        with WAYS[name]():
            tasks = len(tables[state].snapshot().scan(COLUMNS, parallelism=CORES).tasks)
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        one_task = [statistics.median(column) for column in zip(*found[state, "one task", threads], strict=True)]
        ratios = " ".join(f"{value / of:5.2f}x" for value, of in zip(medians, one_task, strict=True))
        wall, cpu, size = medians
        print(f"{state:12} {threads:7} {tasks:6} {wall:8.3f} {cpu:8.3f} {size:8.1f} {ratios}")


def in_spark(tables: dict[str, Table], rounds: int) -> None:
    spark = session()
    seconds: dict[tuple[str, str], list[float]] = {}
    try:
        for state, table in tables.items():
            create_view(spark, table.uri, state)
        for number in range(rounds + 1):
            for state in tables:
                answers = set()
                for name, way in WAYS.items():
                    with way():
                        started = time.perf_counter()
                        (row,) = spark.sql(QUERY.format(table=state)).collect()
                        elapsed = time.perf_counter() - started
                    answers.add(tuple(row))
                    if number:
                        seconds.setdefault((state, name), []).append(elapsed)
                if len(answers) != 1:
                    raise SystemExit(f"answers differ: {answers}")
    finally:
        spark.stop()
    for state in tables:
        whole, parts = (statistics.median(seconds[state, name]) for name in ("one task", "divided"))
        print(f"Spark, 2 cores, {state:10} one task {whole:.3f} s, divided {parts:.3f} s: {parts / whole:.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    parser.add_argument("--no-spark", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="weft-benchmark-"))
    shape = Shape(keys=arguments.keys, buckets=1)
    try:
        tables = {state: build(folder / state, shape, state) for state in STATES}
        print(
            f"{shape.keys:,} keys x {shape.columns} columns in one file group, 7 columns read, {os.cpu_count()} cores"
        )
        in_process(tables, arguments.rounds)
        if not arguments.no_spark:
            # Spark's own reader reads the compacted table.
            in_spark({state: table for state, table in tables.items() if state != "compacted"}, arguments.rounds)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
