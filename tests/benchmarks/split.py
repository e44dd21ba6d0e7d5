"""The price of a split: bytes that it reads and writes, and its time, beside a rewrite of the whole table.

    python -m tests.benchmarks.split [--rows 400000] [--columns 20]

A table of 4 buckets with one base file each is split into 8 and into 32 buckets, and merged to 4 again. Bytes are those
of the base files before; the time is that of `Table.rewrite`, which also reads and writes each file group once, in the
same run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from weft import Table


def build(folder: Path, rows: int, columns: int) -> Table:
    """A compacted table of random numbers, which compress as little in many files as in few."""
    names = [f"c{number}" for number in range(columns)]
    config = {
        "key": ["id"],
        "buckets": 4,
        "columns": {"id": "bigint", "ts": "bigint", **dict.fromkeys(names, "bigint")},
        "groups": {"g": {"columns": [*names, "ts"], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(folder / "t", config)
    random = np.random.default_rng(1)
    values = {name: random.integers(0, 1 << 62, rows) for name in names}
    with table.writer("s") as writer:
        writer.append(pa.table({"id": random.permutation(rows), "ts": np.ones(rows, np.int64), **values}))
    table.compact()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--columns", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = build(Path(folder), given.rows, given.columns)
        table = Table(table.env.tuned(small_group_bytes=0))
        began = time.perf_counter()
        table.rewrite("c0", lambda column: column)
        rewrite = time.perf_counter() - began
        print(f"{'':<12}{'written':>10}{'read':>10}{'time':>10}   (1.00: the table; the time of a rewrite)")
        for buckets in (8, 4, 32, 4):
            before = sum(part.base_bytes for part in table.snapshot().slices)
            done = table.split(buckets)
            name = f"{done.before} to {done.buckets}"
            ratios = (done.bytes_written / before, done.bytes_read / before, done.seconds / rewrite)
            print(f"{name:<12}" + "".join(f"{ratio:>10.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
