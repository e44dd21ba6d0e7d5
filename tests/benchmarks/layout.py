"""The cost of reads by the layout of a table (width, file groups, commits, type of key), of look-ups and of compaction.

    python -m tests.benchmarks.layout [--keys 1000000] [--rows 2000000] [--rounds 5] [--folder DIR] [--only width ...]

In process, `Snapshot.to_arrow` of 5 columns, opening and planning included; 10 % of the keys of every group are in the
log unless a line says otherwise. Ratios are against the first line of their part, medians of rounds in which the lines
of a part take turns; the first round is not counted.

- *width*: 5 of 63 and 5 of 300 columns.
- *groups*: the same data in 8 and in 1024 file groups; and the time of ``pyarrow`` for these columns of the same base
  files on as many threads without merging, which is the minimum cost of so many files.
- *commits*: ``rows`` updates of one group in 20 commits, in 200 and in 1, of half as many keys.
- *checksums*: the same 20 commits, with every block of a log checked by zlib-ng, and by the zlib of Python.
- *order*: half of the events of the first commit are older than the newest of the load, as in a stream that is a little
  late; and none, as after a full load.
- *keys*: bigint keys and strings of 16 characters.
- *look-up*: one key by `Table.get`, all columns. *warm*: the same `Table`, another key each time; *cold*: the files are
  not in the page cache, and the table is opened again.
- *compaction*: all file groups with their logs, against ``pyarrow`` reading and writing the same base files in the same
  encodings; each on one thread. *compaction-threads*: the same, each on as many threads as there are cores.
- *sql*, *sql-commits*: the tables of *groups* and of *commits* through a view in Spark, the same columns aggregated.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks import fold
from tests.benchmarks.wide_table import GROUPS, Shape, base_files, batches
from weft import Table
from weft.storage.environment import Tuning
from weft.storage.files import log_file
from weft.storage.files.column_encoding import choose_encodings
from weft.storage.services.steps.parallel_tasks import in_threads

COLUMNS = ["k", "a0", "a1", "b0", "c0"]
WIDE = 300
MANY_GROUPS = 1024
MANY_COMMITS = 200
LOOK_UPS = 20
Run = Callable[[], object]
Line = tuple[str, float, float | None]
"""What, median seconds, and the target of its ratio to the first line of its part."""
Tables = dict[str, tuple[Path, float | None]]
"""Tables to read by what they are called, each with the target of its ratio to the first."""


def filled(folder: Path, shape: Shape) -> Path:
    """A table whose load is compacted and whose updates are in the log; kept between runs if it is complete."""
    if not (folder / "done").exists():
        table = Table.create(folder / "table", shape.config())
        compacted = False
        with contextlib.ExitStack() as stack:
            writers = {group: stack.enter_context(table.writer(group)) for group in GROUPS}
            for group, commit, rows in batches(shape):
                if commit and not compacted:
                    table.compact()
                    compacted = True
                writers[group].append(rows)
        (folder / "done").touch()
    return folder / "table"


def logged(folder: Path, shape: Shape, rows: int, commits: int) -> Path:
    if not (folder / "done").exists():
        fold.build(folder / "table", shape, commits, rows, lambda *_: None)
        (folder / "done").touch()
    return folder / "table"


def read(uri: Path, expected: int) -> None:
    found = len(Table.open(uri).snapshot().to_arrow(COLUMNS))
    if found != expected:
        raise SystemExit(f"{uri}: {found} rows instead of {expected}")


def read_bases(uri: Path) -> None:
    """Columns of the base files, read without merging."""

    def one(path: str) -> pa.Table:
        with pq.ParquetFile(uri / path) as file:
            return file.read(COLUMNS, use_threads=False)

    paths = Table.open(uri).snapshot().read_optimized().dataset().files
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pa.concat_tables(pool.map(one, paths))


def take_turns(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _reads(tables: Tables, keys: int, rounds: int) -> list[Line]:
    taken = take_turns({name: partial(read, uri, keys) for name, (uri, _) in tables.items()}, rounds)
    return [(name, taken[name], target) for name, (_, target) in tables.items()]


def width(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    del rows
    wide = filled(folder / "wide", replace(shape, columns=WIDE))
    tables = {
        f"5 of {shape.columns} columns": (filled(folder / "plain", shape), None),
        f"5 of {WIDE} columns": (wide, 1.3),
    }
    return _reads(tables, shape.keys, rounds)


def _few_and_many(folder: Path, shape: Shape) -> tuple[Path, Path]:
    """The same data in few file groups and in many."""
    return filled(folder / "plain", shape), filled(folder / "groups", replace(shape, buckets=MANY_GROUPS))


def groups(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    del rows
    few, many = _few_and_many(folder, shape)
    taken = take_turns(
        {
            f"{shape.buckets} file groups": partial(read, few, shape.keys),
            f"{MANY_GROUPS} file groups": partial(read, many, shape.keys),
            f"pyarrow, {shape.buckets} base files": partial(read_bases, few),
            f"pyarrow, {MANY_GROUPS} base files": partial(read_bases, many),
        },
        rounds,
    )
    return [(name, seconds, 1.3 if name == f"{MANY_GROUPS} file groups" else None) for name, seconds in taken.items()]


def sql(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    del rows
    few, many = _few_and_many(folder, shape)
    return _queries({f"{shape.buckets} file groups": (few, None), f"{MANY_GROUPS} file groups": (many, 1.3)}, rounds)


def sql_commits(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    return _queries(_of_commits(folder, replace(shape, keys=shape.keys // 2), rows), rounds)


def _queries(tables: Tables, rounds: int) -> list[Line]:
    from weft.streams.read.view import create_view
    from weft.streams.spark.session import build_session

    query = f"SELECT {', '.join(f'max({name})' for name in COLUMNS)}, count(*) FROM"
    with tempfile.TemporaryDirectory(prefix="weft-benchmark-") as scratch:
        spark = build_session("weft benchmark", {}, scratch=Path(scratch))
        try:
            views = {f"view{number}": name for number, name in enumerate(tables)}
            for view, name in views.items():
                create_view(spark, str(tables[name][0]), view)
            taken = take_turns(
                {n: lambda v=view: spark.sql(f"{query} {v}").collect() for view, n in views.items()}, rounds
            )
        finally:
            spark.stop()
    return [(name, taken[name], target) for name, (_, target) in tables.items()]


def _of_commits(folder: Path, shape: Shape, rows: int) -> Tables:
    """The same rows in few commits, in many, and in one."""
    few = MANY_COMMITS // fold.FEWER
    targets: dict[int, float | None] = {few: None, MANY_COMMITS: 1.3, 1: None}
    return {
        f"{rows:,} rows in {count} commits": (logged(folder / f"log{count}", shape, rows, count), target)
        for count, target in targets.items()
    }


def commits(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    shape = replace(shape, keys=shape.keys // 2)
    return _reads(_of_commits(folder, shape, rows), shape.keys, rounds)


def checksums(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    shape = replace(shape, keys=shape.keys // 2)
    count = MANY_COMMITS // fold.FEWER
    uri = logged(folder / f"log{count}", shape, rows, count)

    def with_zlib() -> None:
        with mock.patch.object(log_file, "crc32", zlib.crc32):
            read(uri, shape.keys)

    taken = take_turns({"zlib-ng": partial(read, uri, shape.keys), "zlib": with_zlib}, rounds)
    return [(f"checksums by {name}", seconds, None) for name, seconds in taken.items()]


def keys(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    del rows
    strings = filled(folder / "strings", replace(shape, key_type="string"))
    tables = {
        "bigint keys": (filled(folder / "plain", shape), None),
        "string keys": (strings, None),
    }
    return _reads(tables, shape.keys, rounds)


def order(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    del rows
    tables = {
        "updates overlap the load": (filled(folder / "plain", shape), None),
        "updates are newer": (filled(folder / "newer", replace(shape, hours=3)), None),
    }
    return _reads(tables, shape.keys, rounds)


def look_up(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    del rows
    uri = filled(folder / "plain", shape)
    table = Table.open(uri)
    chosen = itertools.cycle(np.random.default_rng(shape.seed).integers(0, shape.keys, LOOK_UPS).tolist())

    def one(table: Table) -> None:
        key = next(chosen)
        found = table.get([key])
        if found["k"].to_pylist() != [key]:
            raise SystemExit(f"key {key}: {found['k'].to_pylist()}")

    def cold() -> Iterator[float]:
        for _ in range(rounds):
            forget(uri)
            started = time.perf_counter()
            one(Table.open(uri))
            yield time.perf_counter() - started

    one(table)
    warm = take_turns({"warm": lambda: one(table)}, LOOK_UPS)["warm"]
    return [("one key, warm", warm, None), ("one key, cold", statistics.median(cold()), None)]


def forget(folder: Path) -> None:
    """Drop the files from the operating system's page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def compaction(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    del rows
    return _compaction(folder, shape, rounds, threads=1)


def compaction_in_threads(folder: Path, shape: Shape, rounds: int, rows: int) -> list[Line]:
    del rows
    return _compaction(folder, shape, rounds, threads=os.cpu_count() or 1)


def _compaction(folder: Path, shape: Shape, rounds: int, *, threads: int) -> list[Line]:
    uri = filled(folder / "plain", shape)
    taken: dict[str, list[float]] = {"copy": [], "compaction": []}
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            shutil.copytree(uri, Path(name) / "table")
            os.sync()  # otherwise both wait for what was written before
            started = time.perf_counter()
            copy_bases(uri, Path(name), threads)
            copied = time.perf_counter() - started
            compacted = Table.open(Path(name) / "table").compact(execute=in_threads(threads)).seconds
            if number:
                taken["copy"].append(copied)
                taken["compaction"].append(compacted)
    return [
        ("pyarrow reads and writes the bases", statistics.median(taken["copy"]), None),
        ("compaction", statistics.median(taken["compaction"]), 1.1),
    ]


def copy_bases(uri: Path, target: Path, threads: int) -> None:
    bases = [uri / base.path for base in base_files(Table.open(uri))]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy_base, bases, [target / f"{number}.parquet" for number in range(len(bases))]))


def copy_base(source: Path, target: Path) -> None:
    rows = pq.read_table(source, use_threads=False)
    encodings = choose_encodings(rows)
    with target.open("wb") as file:
        pq.write_table(
            rows,
            file,
            compression="zstd",
            row_group_size=Tuning().row_group_rows,
            write_page_index=True,
            write_page_checksum=True,
            use_dictionary=encodings.use_dictionary,
            column_encoding=encodings.column_encoding,
        )
        file.flush()
        os.fsync(file.fileno())  # as durable as a compaction's


PARTS = {
    "width": width,
    "groups": groups,
    "commits": commits,
    "checksums": checksums,
    "order": order,
    "keys": keys,
    "look-up": look_up,
    "compaction": compaction,
    "compaction-threads": compaction_in_threads,
    "sql": sql,  # these are the last: Spark's JVM stays until the end
    "sql-commits": sql_commits,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=2_000_000, help="number of rows in the parts of commits")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the data here (default: a temporary folder)")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="weft-benchmark-"))
    shape = Shape(keys=asked.keys)
    print(f"{shape.keys:,} keys x {shape.columns} columns in {shape.buckets} file groups, {os.cpu_count()} cores")
    try:
        for part in asked.only:
            lines = PARTS[part](folder, shape, asked.rounds, asked.rows)
            first = lines[0][1]
            for name, seconds, target in lines:
                note = f"   (target: at most {target:g})" if target else ""
                print(f"{part:10s} {name:36s} {seconds:8.4f} s {seconds / first:7.2f} x{note}", flush=True)
    finally:
        if asked.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
