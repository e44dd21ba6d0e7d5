"""When to compact and to fold: what policies write, and what readers find, for very many small commits; in one run.

    python -m tests.benchmarks.due_policy [--groups 64] [--keys 200000] [--commits 2000] [--rows 200]

A table of ``groups`` file groups is compacted. Then each commit has ``rows`` rows of random keys, so that it has rows
for most file groups, and a service does one round every ``--every`` commits: what is due for compaction, then what is
due for a fold. *Written* are the bytes that the service writes, for each byte of the commits: write amplification.
The rest is measured half-way between two rounds: *read* is the mean of
``weft.storage.core.plan.read_cost.read_amplification`` of all file groups, *ranges* that of their log ranges. *Scan*
and
*look-up* are CPU seconds to read 3 columns of the whole table, and all columns of one key, in relation to the same
table when it is compacted: medians of some reads.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from weft import DuePolicy, Table
from weft.storage.core.plan.read_cost import read_amplification

POLICIES = {
    "8 commits, folds of 64 (before)": DuePolicy(min_commits=8, min_fold_ratio=0),
    "32 commits, folds of 64": DuePolicy(min_commits=32, min_fold_ratio=0),
    "128 commits, folds of 64": DuePolicy(min_commits=128, min_fold_ratio=0),
    "128 commits, small folds postponed": DuePolicy(min_commits=128),
    "by size, small folds postponed (default)": DuePolicy(),
    "bytes alone": DuePolicy(min_commits=1_000_000, fold_commits=None),
}
COLUMNS = [f"v{number}" for number in range(8)]


@dataclass
class Found:
    """What one policy costs."""

    written: int = 0
    compactions: int = 0
    groups: int = 0
    folds: int = 0
    amplification: list[float] = field(default_factory=list)
    ranges: list[float] = field(default_factory=list)
    scans: list[float] = field(default_factory=list)
    look_ups: list[float] = field(default_factory=list)


def config(groups: int) -> dict[str, object]:
    columns = {"k": "bigint", "ts": "bigint"} | dict.fromkeys(COLUMNS, "bigint")
    return {
        "key": ["k"],
        "buckets": groups,
        "columns": columns,
        "groups": {"g": {"columns": ["ts", *COLUMNS], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }


def events(keys: np.ndarray[tuple[int], np.dtype[np.int64]], ts: int, rng: np.random.Generator) -> pa.Table:
    values = {name: rng.integers(0, 1 << 40, len(keys)) for name in COLUMNS}
    return pa.table({"k": keys, "ts": np.full(len(keys), ts), **values})


def cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def scan(table: Table) -> Callable[[], object]:
    return lambda: table.snapshot().to_arrow(["k", "v0", "v1"])


def look_up(table: Table, key: int) -> Callable[[], object]:
    return lambda: table.get([key])


def run(policy: DuePolicy, asked: argparse.Namespace) -> tuple[Found, int]:
    """What the policy costs, and the stored bytes of the commits."""
    rng = np.random.default_rng(20261)
    table = Table.create(f"memory://due-policy/{uuid.uuid4().hex}", config(asked.groups))
    found = Found()
    with table.writer("s") as writer:
        writer.append(events(np.arange(asked.keys), 0, rng))
        table.compact()
        base = [cpu(scan(table)) for _ in range(5)], [cpu(look_up(table, 7)) for _ in range(5)]
        for number in range(1, asked.commits + 1):
            writer.append(events(rng.integers(0, asked.keys, asked.rows), number, rng))
            if number % asked.every == asked.every // 2:
                _measure(table, found, timed=number // asked.every % asked.sample == 0)
            if number % asked.every:
                continue
            compacted = table.compact(policy=policy)
            folded = table.fold(policy=policy)
            found.written += compacted.bytes_written + folded.bytes_written
            found.compactions += bool(compacted.done)
            found.groups += len(compacted.done)
            found.folds += bool(folded.done)
    found.scans = [each / statistics.median(base[0]) for each in found.scans]
    found.look_ups = [each / statistics.median(base[1]) for each in found.look_ups]
    logs = sum(
        size
        for name, size in table.env.store.list("log")  # type: ignore[arg-type]
        if not name.startswith("_fold")
    )
    return found, logs


def _measure(table: Table, found: Found, *, timed: bool) -> None:
    """What a reader finds now."""
    snapshot = table.snapshot()
    found.amplification.append(statistics.mean(read_amplification(each, snapshot.files) for each in snapshot.slices))
    found.ranges.append(statistics.mean(len(each.rows) for each in snapshot.slices))
    if timed:
        found.scans.append(cpu(scan(table)))
        found.look_ups.append(cpu(look_up(table, 7)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--commits", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="commits between two rounds of the service")
    parser.add_argument("--sample", type=int, default=5, help="rounds between two reads that are timed")
    parser.add_argument("--policy", default="", help="only policies whose names contain this text")
    asked = parser.parse_args()
    pa.set_cpu_count(1)
    print(
        f"{asked.commits:,} commits of {asked.rows:,} rows, {asked.groups} file groups, {asked.keys:,} keys; "
        "scan and look-up in relation to the compacted table"
    )
    print(f"{'':40} {'written':>9} {'groups':>8} {'folds':>6} {'read':>6} {'ranges':>7} {'scan':>6} {'look-up':>8}")
    for name, policy in ((name, policy) for name, policy in POLICIES.items() if asked.policy in name):
        found, logs = run(policy, asked)
        print(
            f"{name:40} {found.written / logs:8.1f}x {found.groups:8,} {found.folds:6,} "
            f"{statistics.mean(found.amplification):5.2f}x {statistics.mean(found.ranges):7.1f} "
            f"{statistics.median(found.scans):5.1f}x {statistics.median(found.look_ups):7.1f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
