"""What compactions write if one column group of a wide table changes, with overlays and without; in one run.

    python -m tests.benchmarks.overlays [--keys 200000] [--columns 300] [--commits 40] [--spark]

A table of 300 columns: the key, a hot group of 5 columns, and three others. It is loaded and compacted, in two copies:
one may have overlays. *One update*: 1 % of the keys, anywhere, then a compaction: the bytes that it writes, to the
stored bytes of the hot group's columns in the bases. *Skewed*: in each commit 1 % of the keys, always the same, and a
compaction every ``--every`` commits: all bytes that compactions write, to the bytes of the commits.
*Reads* afterwards: CPU seconds of `to_arrow` of columns of the hot group, of the others, and of both; and with
``--spark`` the seconds of the same sums as SQL. Medians of rounds in which the tables take turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft import Table
from weft.storage.core.plan.overlaid import files_of_columns
from weft.storage.files.footers import read_footers

HOT_COLUMNS = 5
COLD_GROUPS = 3
NAMES = {True: "with overlays", False: "whole bases"}
READS = {"hot": ("hot0", "hot1"), "cold": ("cold0_0", "cold1_1"), "hot and cold": ("hot0", "cold0_0")}


def config(columns: int, buckets: int, *, overlays: bool) -> dict[str, Any]:
    groups = {"hot": ["hot_ts", *(f"hot{i}" for i in range(HOT_COLUMNS - 1))]}
    for group in range(COLD_GROUPS):
        each = (columns - 1 - HOT_COLUMNS) // COLD_GROUPS
        groups[f"cold{group}"] = [f"cold{group}_ts", *(f"cold{group}_{i}" for i in range(each - 1))]
    return {
        "key": ["k"],
        "buckets": buckets,
        "columns": {"k": "bigint"} | {name: "bigint" for names in groups.values() for name in names},
        "groups": {group: {"columns": names, "ordering": names[:1]} for group, names in groups.items()},
        "streams": {group: {"groups": [group]} for group in groups},
        "overlays": overlays,
    }


def events(table: Table, group: str, keys: np.ndarray, moment: int, rng: np.random.Generator) -> pa.Table:
    names = table.schema.group(group).columns
    values = {name: rng.integers(0, 1 << 30, len(keys)) for name in names}
    return pa.table({"k": keys, **values, names[0]: np.full(len(keys), moment)})


def load(folder: Path, keys: int, columns: int, buckets: int, *, overlays: bool) -> Table:
    """The compacted table; both have the same rows."""
    table = Table.create(folder / str(overlays), config(columns, buckets, overlays=overlays))
    rng = np.random.default_rng(1)
    for group in table.schema.groups:
        with table.writer(group.name) as writer:
            for part in np.array_split(np.arange(keys), max(1, keys // 50_000)):
                writer.append(events(table, group.name, part, 0, rng))
    table.compact()
    return table


def stored_bytes(table: Table, group: str) -> int:
    """Stored bytes of the columns of a group in the newest files."""
    schema, total = table.schema, 0
    names = schema.group_columns(schema.group(group))
    for each in table.snapshot().slices:
        assert each.slice is not None
        assert each.slice.base is not None
        for file, columns in files_of_columns(schema, each.slice.base, each.slice.overlays, names):
            (footer,) = read_footers(table.env, [file])
            row_groups = map(footer.metadata.row_group, range(footer.metadata.num_row_groups))
            total += sum(
                row_group.column(footer.leaves[name]).total_compressed_size
                for row_group in row_groups
                for name in columns
                if name in footer.leaves
            )
    return total


def update(table: Table, keys: np.ndarray, moment: int, rng: np.random.Generator) -> int:
    """Commit new values of the hot group; returns the stored bytes of the log."""
    before = sum(each.log_bytes for each in table.snapshot().slices)
    with table.writer("hot") as writer:
        writer.append(events(table, "hot", keys, moment, rng))
    return sum(each.log_bytes for each in table.snapshot().slices) - before


def medians(ways: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first warms up
        answers = set()
        for name, run in ways.items():
            start = clock()
            answers.add(str(run()))
            if number:
                seconds[name].append(clock() - start)
        if len(answers) != 1:
            raise SystemExit(f"answers differ: {answers}")
    return {name: statistics.median(values) for name, values in seconds.items()}


def report_reads(title: str, ways: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> None:
    found = medians(ways, rounds, clock)
    whole = found[NAMES[False]]
    shown = ", ".join(f"{name} {seconds * 1000:.0f} ms ({seconds / whole:.2f} x)" for name, seconds in found.items())
    print(f"{title}: {shown}", flush=True)


def sums(table: Table, columns: tuple[str, ...]) -> Callable[[], object]:
    def run() -> object:
        rows = table.snapshot().to_arrow(list(columns))
        return [pc.sum(rows[name]).as_py() for name in columns]

    return run


def of_spark(tables: Mapping[bool, Table], rounds: int) -> None:
    from tests.benchmarks.spark_session import session
    from weft.streams.read.view import create_view

    spark = session()
    for overlays, table in tables.items():
        create_view(spark, table.uri, f"t_{overlays}")
    for name, columns in READS.items():
        summed = ", ".join(f"sum({column})" for column in columns)
        queries = {overlays: f"SELECT {summed} FROM t_{overlays}" for overlays in tables}
        ways = {NAMES[overlays]: (lambda it=query: spark.sql(it).collect()) for overlays, query in queries.items()}
        report_reads(f"Spark, sums of columns: {name}", ways, rounds, time.perf_counter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=300)
    parser.add_argument("--buckets", type=int, default=4)
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="overlays-"))
    try:
        run(folder, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(folder: Path, given: argparse.Namespace) -> None:
    tables = {overlays: load(folder, given.keys, given.columns, given.buckets, overlays=overlays) for overlays in NAMES}
    hot = np.sort(np.random.default_rng(2).choice(given.keys, max(1, given.keys // 100), replace=False))
    for overlays, table in tables.items():
        rng = np.random.default_rng(3)
        changed = stored_bytes(table, "hot")
        update(table, np.sort(rng.choice(given.keys, max(1, given.keys // 100), replace=False)), 1, rng)
        written = table.compact().bytes_written
        bases = sum(each.base_bytes for each in table.snapshot().slices)
        print(
            f"{NAMES[overlays]}: bases of {bases:,} bytes, hot group {changed:,}; one update of 1 % of the keys: "
            f"{written:,} bytes written, {written / changed:.1f} x the hot group",
            flush=True,
        )
    for overlays, table in tables.items():
        rng, written, committed = np.random.default_rng(4), 0, 0
        for commit in range(given.commits):
            committed += update(table, hot, 2 + commit, rng)
            if (commit + 1) % given.every == 0:
                written += table.compact().bytes_written
        stored = sum(each.base_bytes for each in table.snapshot().slices)
        print(
            f"{NAMES[overlays]}: {given.commits} commits of the same 1 %, {committed:,} bytes of log; compactions "
            f"wrote {written:,}, {written / committed:.1f} x; {stored:,} bytes are stored",
            flush=True,
        )
    for name, columns in READS.items():
        ways = {NAMES[overlays]: sums(table, columns) for overlays, table in tables.items()}
        report_reads(f"to_arrow, CPU of the process, columns: {name}", ways, given.rounds, time.process_time)
    if given.spark:
        of_spark(tables, given.rounds)


if __name__ == "__main__":
    main()
