"""Memory of compactions: one file group of 5 M rows x 60 columns, its first load, then 2 % of its keys updated.

    python tests/benchmarks/memory.py [--rows 5000000] [--columns 60] [--random] [--folder DIR]

The table is filled in parts; each compaction runs in a process of its own, whose peak of resident memory the operating
system reports. It is bounded by the logs of one key range (`weft.storage.services.compaction.merged_rows`), the blocks
that reach beyond it, and some row groups of the base. By default each commit of the load has the next keys; with
``--random`` each has keys from everywhere, so that each of its blocks belongs to many key ranges.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[2]))

from weft import Table

PART_ROWS = 500_000
UPDATED = 0.02


def config(columns: int) -> dict[str, object]:
    names = [f"v{i}" for i in range(columns - 2)]
    return {
        "key": ["k"],
        "buckets": 1,
        "columns": {"k": "bigint", **dict.fromkeys(names, "bigint"), "ts": "bigint"},
        "groups": {"g": {"columns": [*names, "ts"], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }


def events(keys: np.ndarray, columns: int, moment: int) -> pa.Table:
    chance = np.random.default_rng(moment)
    values = {f"v{i}": chance.integers(0, 1 << 40, len(keys)) for i in range(columns - 2)}
    return pa.table({"k": keys, **values, "ts": np.full(len(keys), moment)})


def load(uri: Path, rows: int, columns: int, *, random: bool) -> None:
    keys = np.random.default_rng(0).permutation(rows) if random else np.arange(rows)
    with Table.create(uri, config(columns)).writer("s") as writer:
        for start in range(0, rows, PART_ROWS):
            writer.append(events(keys[start : start + PART_ROWS], columns, start))


def update(uri: Path, rows: int, columns: int) -> None:
    with Table.open(uri).writer("s") as writer:
        writer.append(events(np.arange(0, rows, round(1 / UPDATED)), columns, rows))


def compact(uri: Path, what: str) -> None:
    table = Table.open(uri)
    started, logs = time.perf_counter(), sum(part.log_bytes for part in table.snapshot().slices)
    result = table.compact()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what}: {logs / 2**20:,.0f} MiB of logs, {result.rows:,} rows in {seconds:.1f} s, peak {peak:,.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--columns", type=int, default=60)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--folder", type=Path, help="build the table here (default: a temporary folder)")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weft-memory-", dir=asked.folder))
    try:
        uri, shape = folder / "t", (asked.rows, asked.columns)
        in_process(load, uri, *shape, random=asked.random)
        in_process(compact, uri, "the load")
        in_process(update, uri, *shape)
        in_process(compact, uri, "the updates")
    finally:
        shutil.rmtree(folder)


def in_process(work: Callable[..., None], *arguments: object, **named: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments, kwargs=named)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{work.__name__} ended with {process.exitcode}")


if __name__ == "__main__":
    main()
