"""Memory and CPU of compactions by shape: columns x file groups x rows of each.

    python -m tests.benchmarks.small_groups [--shapes 1021x1024x4 ...] [--folder DIR]

Each table is loaded by one commit and then compacted, and then 2 % of its keys are updated and it is compacted again.
Each compaction is a process of its own: the growth of its peak of resident memory against the estimate that `memory` of
a compaction service limits, and CPU milliseconds for each file group.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.checkpoints import peak
from weft import Table
from weft.storage.services.steps.tasks import Task

SHAPES: Final = ("9x1024x4", "1021x64x4", "1021x1024x4", "1021x16x4096", "60x4x65536")
UPDATED: Final = 50
"""Every how many keys are updated."""


def config(columns: int, groups: int) -> dict[str, object]:
    values = [f"v{i}" for i in range(columns - 2)]
    kinds = {name: ("string", "bigint", "double")[i % 3] for i, name in enumerate(values)}
    return {
        "key": ["k"],
        "buckets": groups,
        "columns": {"k": "bigint", **kinds, "ts": "bigint"},
        "groups": {"g": {"columns": [*values, "ts"], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }


def append(folder: Path, columns: int, keys: np.ndarray, moment: int) -> None:
    made = {}
    for i in range(columns - 2):
        number = keys * 7919 % (i + 97)
        made[f"v{i}"] = [number.astype(str), number, number / 7][i % 3]
    with Table.open(folder).writer("s") as writer:
        writer.append(pa.table({"k": keys, **made, "ts": np.full(len(keys), moment)}))


def compact(folder: Path, shape: str, groups: int) -> None:
    table, estimates = Table.open(folder), list[int]()

    def run(tasks: object) -> object:
        for task in tasks:  # type: ignore[attr-defined]
            known: Task[object] = task
            estimates.append(known.memory_bytes)
            yield known.run()

    before, started = peak(), time.process_time()
    result = table.compact(execute=run)  # type: ignore[arg-type]
    cpu = (time.process_time() - started) * 1000 / groups
    limit, grown = max(estimates) / 2**20, peak() - before
    print(f"| {shape} | {len(estimates)} | {result.bytes_read / 2**20:.1f} | {limit:.0f} | {grown:.0f} | {cpu:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--folder", type=Path, help="build the tables here (default: a temporary folder)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        compact(asked.folder, asked.shapes[0], int(asked.shapes[0].split("x")[1]))
        return
    folder = Path(tempfile.mkdtemp(prefix="weft-groups-", dir=asked.folder))
    try:
        print("| shape | tasks | MiB read | MiB estimated | MiB needed | CPU ms a group |\n|---|---|---|---|---|---|")
        for shape in asked.shapes:
            columns, groups, rows = map(int, shape.split("x"))
            table = folder / shape
            Table.create(table, config(columns, groups))
            for moment, keys in enumerate((np.arange(groups * rows), np.arange(0, groups * rows, UPDATED))):
                append(table, columns, keys, moment)
                command = [sys.executable, __file__, "--child", "--shapes", shape, "--folder", str(table)]
                subprocess.run(command, check=True)
            shutil.rmtree(table)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
