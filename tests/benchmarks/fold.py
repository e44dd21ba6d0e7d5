"""Reading many small commits: unchanged, fewer and larger ones, folded, compacted; all from one run.

    python -m tests.benchmarks.fold [--keys 500000] [--rows 2000000] [--commits 200] [--rounds 5]

One reader, one thread, 7 of 63 columns of a table whose first load is compacted and one of whose three streams then has
sent ``rows`` updates. *many* is ``commits`` commits, *few* a tenth of them with the same rows, *folded* is *many* after
one fold, *steps* after folds every tenth of the commits, as a service would make them. Medians; they take turns within
each round, so a change of the machine's speed affects all of them. Opening and planning are part of a read.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.benchmarks.wide_table import GROUPS, Shape, events
from weft import Table

COLUMNS = ("k", "a0", "a1", "b0", "b1", "c0", "c1")
FEWER = 10


def build(folder: Path, shape: Shape, commits: int, rows: int, after: Callable[[Table, int], None]) -> Table:
    """The first load, compacted, then ``rows`` updates of the first stream in ``commits`` commits."""
    table = Table.create(folder, shape.config())
    rng = np.random.default_rng(shape.seed)
    for group in GROUPS:
        with table.writer(group) as writer:
            writer.append(events(shape, group, np.arange(shape.keys), 0, rng))
    table.compact()
    with table.writer(GROUPS[0]) as writer:
        # The same events for any number of commits.
        updates = events(shape, GROUPS[0], rng.integers(0, shape.keys, rows), 1, rng)
        size = rows // commits
        for number in range(commits):
            writer.append(updates.slice(number * size, size))
            after(table, number + 1)
    return table


def read(folder: Path) -> tuple[float, int]:
    started = time.perf_counter()
    reader = Table.open(folder).snapshot().to_reader(list(COLUMNS))
    rows = sum(len(batch) for batch in reader)
    return time.perf_counter() - started, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    pa.set_cpu_count(1)
    shape = Shape(keys=asked.keys)
    step = asked.commits // FEWER

    def fold_now_and_then(table: Table, number: int) -> None:
        if number % step == 0:
            stepped.append(table.fold().seconds)

    stepped: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for variant in ("many", "folded", "compacted"):
            table = build(root / variant, shape, asked.commits, asked.rows, lambda *_: None)
            if variant == "folded":
                print("fold: ", table.fold())
            if variant == "compacted":
                print(f"compaction: {table.compact().seconds:.2f} s")
        build(root / "few", shape, asked.commits // FEWER, asked.rows, lambda *_: None)
        build(root / "steps", shape, asked.commits, asked.rows, fold_now_and_then)
        print(f"folds in steps: {sum(stepped):.2f} s, {', '.join(f'{seconds:.2f}' for seconds in stepped)}")
        variants = ("many", "few", "folded", "steps", "compacted")
        seconds: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(asked.rounds + 1):
            for variant in variants:
                took, rows = read(root / variant)
                assert rows == shape.keys
                seconds[variant].append(took)
        medians = {variant: statistics.median(taken[1:]) for variant, taken in seconds.items()}  # the first is warm-up
        for variant, median in medians.items():
            print(f"{variant:10} {median:7.3f} s   {median / medians['few']:5.2f} x few")


if __name__ == "__main__":
    main()
