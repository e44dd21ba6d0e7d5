"""Costs of a table's state by its number of file groups: opening, planning, checkpoints.

    python -m tests.benchmarks.checkpoints [--groups 1000 10000 100000] [--folder DIR]

A table of 1,000 partitions (or fewer) whose file groups have slices, and no files: only the log and its checkpoint are
read. Each row is a process of its own: a writer that opens the table, a reader that takes a snapshot, the same that
plans a query for one partition, and a look-up of one key. Times are of the CPU; memory is the growth of the
peak since the imports. The
checkpoint is that after a compaction of 1 % of the file groups, in one part of the partitions.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).parents[2]))

from storage import Table
from storage.core.log.checkpoint_codec import encode_table
from storage.core.log.entries import Base, Plan
from storage.core.log.file_refs import FileRef, SliceFile
from storage.core.log.table_state import TableState
from storage.store.local_store import LocalStore

PARTITIONS: Final = 1_000
BASE_SLICES: Final = 1_000
LANES: Final = 8
ROWS: Final = 10_000
CHANCE: Final = random.Random(1)


def config(buckets: int) -> dict[str, Any]:
    return {
        "key": ["p", "k"],
        "partition_by": ["p"],
        "buckets": buckets,
        "columns": {"p": "bigint", "k": "bigint", "v": "bigint", "ts": "bigint"},
        "groups": {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }


def made(bits: int, partition: int, bucket: int, parent: dict[str, int], cut: dict[str, int]) -> SliceFile:
    folder = f"p={partition}"
    number = f"{CHANCE.getrandbits(128):032x}"
    return SliceFile(
        partition=folder,
        bits=bits,
        bucket=bucket,
        rev=1,
        parent=parent,
        cut=cut,
        groups=[1],
        base=FileRef(
            path=f"base/{folder}/b{bits:02d}-{bucket:05d}/{cut['s0']:020d}-{number}.parquet",
            size=CHANCE.randrange(4_000_000),
            crc32=CHANCE.getrandbits(32),
            tail_size=9_000,
            tail_crc32=CHANCE.getrandbits(32),
            rows=CHANCE.randrange(ROWS),
        ),
        shadow=None,
        ordering_max={1: 1_700_000_000_000 + CHANCE.randrange(10**9)},
        overflows={},
    )


def publish(table: Table, slices: Sequence[SliceFile], cut: dict[str, int]) -> None:
    log, name = table._table_log, f"{slices[0].group} {cut['s0']}"
    plan = {"plan_id": name, "table": table.state().head, "cut": cut, "file_groups": len(slices)}
    log.publish(lambda state: Plan(**log.header(state), **plan))
    base = {"plan_id": name, "covered": {}, "last": True, "slices": list(slices)}
    log.publish(lambda state: Base(**log.header(state), **base))


def build(folder: Path, groups: int) -> None:
    bits = max((groups // PARTITIONS - 1).bit_length(), 0)
    table = Table.create(folder, config(1 << bits))
    heads = {}
    for lane in range(LANES):
        with table.writer("s", lane=f"s{lane}") as writer:
            writer.append(pa.table({"p": [0], "k": [0], "v": [1], "ts": [lane]}))
            heads[f"s{lane}"] = 2
    every = [(n * PARTITIONS // groups, n % (groups // PARTITIONS)) for n in range(groups)]
    for start in range(0, groups, BASE_SLICES):
        publish(table, [made(bits, *each, {}, heads) for each in every[start : start + BASE_SLICES]], heads)
    table._table_log.checkpoints.save_table(table.state(), always=True)


def checkpoint(folder: Path, groups: int) -> tuple[float, int]:
    """Seconds to make, and bytes of a checkpoint after a compaction of 1 % of the file groups."""
    table = Table.open(folder)
    state: TableState = table.state()
    bits = max((groups // PARTITIONS - 1).bit_length(), 0)
    cut = dict(next(iter(state.slices.cuts())))
    chosen = [(n * PARTITIONS // groups, n % (groups // PARTITIONS)) for n in range(groups // 100)]
    publish(table, [made(bits, *each, cut, cut) for each in chosen], cut)
    state = table.state()
    started = time.process_time()
    data = encode_table(state)
    return time.process_time() - started, len(data)


class Read:
    """Bytes that the process reads from the table's folder."""

    def __init__(self) -> None:
        self.bytes = 0
        one = LocalStore.get

        def get(store: LocalStore, path: Any) -> bytes | None:
            data = one(store, path)
            self.bytes += len(data or b"")
            return data

        LocalStore.get = get  # type: ignore[method-assign]  # `get_many` calls it


def peak() -> float:
    """MiB of the largest resident memory so far; that of `getrusage` begins with the memory of the parent."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def child(what: str, folder: Path, groups: int) -> None:
    read, before, started = Read(), peak(), time.process_time()
    if what == "checkpoint":
        seconds, size = checkpoint(folder, groups)
        print(f"| {groups:,} | checkpoint after 1 % | {size / 1e6:.2f} MB written | {seconds * 1000:.0f} ms | |")
        return
    table = Table.open(folder)
    if what == "writer":
        with table.writer("s", lane="s0"):
            pass
    else:
        snapshot = table.snapshot()
        opened = time.process_time()
        if what == "partition":
            snapshot.scan(filter=pc.field("p") == 7)
        elif what == "key":
            snapshot.scan(filter=(pc.field("p") == 7) & (pc.field("k") == 1))
        if what != "reader":
            started = opened
    seconds = time.process_time() - started
    size, memory = read.bytes / 1e6, peak() - before
    print(f"| {groups:,} | {what} | {size:.2f} MB read | {seconds * 1000:.0f} ms | {memory:.0f} MiB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--folder", type=Path, help="build the tables here (default: a temporary folder)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.folder, asked.groups[0])
        return
    folder = Path(tempfile.mkdtemp(prefix="weft-checkpoints-", dir=asked.folder))
    try:
        print("| file groups | process | bytes | time | memory |\n|---|---|---|---|---|")
        for groups in asked.groups:
            build(folder / str(groups), groups)
            for what in ("writer", "reader", "partition", "key", "checkpoint"):
                command = [sys.executable, __file__, "--child", what, "--groups", str(groups)]
                subprocess.run([*command, "--folder", str(folder / str(groups))], check=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
