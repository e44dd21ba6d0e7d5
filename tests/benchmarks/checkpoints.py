"""Costs of a table's state by its number of file groups: opening, planning, checkpoints.

    python -m tests.benchmarks.checkpoints [--groups 1000 10000 100000] [--folder DIR]

A table of 1,000 partitions (or fewer) whose file groups have slices, and no files: only the log and its checkpoint are
read. Each row is a process of its own: a writer that opens the table, a reader that takes a snapshot, the same that
plans a query for one partition, a look-up of one key, and a query of everything. Times are of the CPU; memory is the
growth of the peak since the imports. The checkpoint is that of a writer after a compaction of 1 % of the file groups,
in one part of the partitions. At last one fold of all file groups is published: a writer opens the table again.
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

from weft import Table
from weft.storage.core.log.entries import Base, Data, Fold, FoldedGroup, Plan
from weft.storage.core.log.file_refs import FileRef, SliceFile
from weft.storage.core.names import LaneName
from weft.storage.store.local_store import LocalStore

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
    every = buckets_of(groups)
    for start in range(0, groups, BASE_SLICES):
        publish(table, [made(bits, *each, {}, heads) for each in every[start : start + BASE_SLICES]], heads)
    table._table_log.save_checkpoint()


def buckets_of(groups: int) -> list[tuple[int, int]]:
    """(number of the partition, bucket) of each file group."""
    return [(n * PARTITIONS // groups, n % max(groups // PARTITIONS, 1)) for n in range(groups)]


def compact(folder: Path, groups: int) -> None:
    """Compact 1 % of the file groups, in another process."""
    table = Table.open(folder)
    bits = max((groups // PARTITIONS - 1).bit_length(), 0)
    cut = dict(next(iter(table.state().slices.cuts())))
    publish(table, [made(bits, *each, cut, cut) for each in buckets_of(groups)[: groups // 100]], cut)


def fold(folder: Path, groups: int) -> None:
    """Publish a fold of all file groups, with the file of a commit as its only file, and a checkpoint."""
    table = Table.open(folder)
    log, bits = table._table_log, max((groups // PARTITIONS - 1).bit_length(), 0)
    parent = dict(next(iter(table.state().slices.cuts())))
    last = log.commit_log.entry(LaneName("s0"), parent["s0"])
    assert isinstance(last, Data)
    plan = {"plan_id": "fold", "table": table.state().head, "cut": parent, "file_groups": groups}
    log.publish(lambda state: Plan(**log.header(state), **plan))
    folded = [
        FoldedGroup(partition=f"p={partition}", bits=bits, bucket=bucket, parent=parent, start=parent)
        for partition, bucket in buckets_of(groups)
    ]
    files = [last.files[0].model_copy(update={"form": "register"})]
    entry = {"plan_id": "fold", "to": parent, "covered": {}, "files": files, "file_groups": folded}
    log.publish(lambda state: Fold(**log.header(state), **entry))
    log.save_checkpoint()


class Read:
    """Bytes that the process reads from the table's folder."""

    def __init__(self) -> None:
        self.bytes = 0
        get, read_ranges = LocalStore.get, LocalStore.read_ranges

        def counted(store: LocalStore, path: Any) -> bytes | None:
            data = get(store, path)
            self.bytes += len(data or b"")
            return data

        def counted_ranges(store: LocalStore, wanted: Any) -> Any:
            data = read_ranges(store, wanted)
            self.bytes += sum(part.size for parts in data for part in parts)
            return data

        LocalStore.get = counted  # type: ignore[method-assign]  # `get_many` calls it
        LocalStore.read_ranges = counted_ranges  # type: ignore[method-assign]


def peak() -> float:
    """MiB of the largest resident memory so far; that of `getrusage` begins with the memory of the parent."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def child(what: str, folder: Path, groups: int) -> None:
    read, before, started = Read(), peak(), time.process_time()
    table = Table.open(folder)
    written = 0
    if what.startswith("writer"):
        with table.writer("s", lane="s0"):
            pass
    elif what == "checkpoint":
        state = table.state()
        read.bytes, before, started = 0, peak(), time.process_time()
        table._table_log.save_checkpoint()
        newest = max(folder.glob(f"_weft/checkpoints/table/{state.head:020d}-*"))
        written = newest.stat().st_size
    else:
        snapshot = table.snapshot()
        opened = time.process_time()
        if what == "partition":
            snapshot.scan(filter=pc.field("p") == 7)
        elif what == "key":
            snapshot.scan(filter=(pc.field("p") == 7) & (pc.field("k") == 1))
        elif what == "everything":
            snapshot.scan()
        if what != "reader":
            started = opened
    seconds = time.process_time() - started
    memory = peak() - before
    moved = f"{read.bytes / 1e6:.3f} MB read" + (f", {written / 1e6:.2f} MB written" if written else "")
    print(f"| {groups:,} | {what} | {moved} | {seconds * 1000:.0f} ms | {memory:.1f} MiB |")


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
            for what in ("writer", "reader", "partition", "key", "everything", "checkpoint", "writer, folded"):
                if what == "checkpoint":
                    compact(folder / str(groups), groups)
                elif what == "writer, folded":
                    fold(folder / str(groups), groups)
                command = [sys.executable, __file__, "--child", what, "--groups", str(groups)]
                subprocess.run([*command, "--folder", str(folder / str(groups))], check=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
