"""Memory of one compaction: one file group of 5 M rows x 60 columns, 2 % of its keys updated.

    python tests/benchmarks/memory.py [--rows 5000000] [--columns 60]

The table is built by this process in parts; the compaction that is measured runs in a separate process, whose peak of
resident memory the operating system reports. Bounded by the logs of one file group plus one row group of the base.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[2]))

from storage import Table

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


def fill(uri: Path, rows: int, columns: int) -> None:
    """Fill the table: append and compact the load, then append the updates."""
    table = Table.create(uri, config(columns))
    with table.writer("s") as writer:
        for start in range(0, rows, PART_ROWS):
            writer.append(events(np.arange(start, min(start + PART_ROWS, rows)), columns, start))
        table.compact()
        writer.append(events(np.arange(0, rows, round(1 / UPDATED)), columns, rows))


def compact(uri: Path) -> None:
    started = time.perf_counter()
    result = Table.open(uri).compact()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"compacted {result.rows:,} rows in {time.perf_counter() - started:.1f} s, peak {peak:,.0f} MiB resident")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--columns", type=int, default=60)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weft-memory-"))
    try:
        context = multiprocessing.get_context("spawn")
        for target, values in ((fill, (folder / "t", arguments.rows, arguments.columns)), (compact, (folder / "t",))):
            process = context.Process(target=target, args=values)
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
