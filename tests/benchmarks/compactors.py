"""Several compactions of one table at once: what they write in vain, with and without sharing the work; in one run.

    python -m tests.benchmarks.compactors [--keys 300000] [--groups 64] [--processes 2] [--rounds 3]

Each round builds two equal tables in local folders, all of whose file groups have logs, and compacts each by that many
processes that begin at the same time: one table as before work was shared (every compaction does everything), the other
one as it is. *Wasted* is the share of the written bytes that were dropped because another compaction was first. The
two take turns, so a change of the machine's speed affects both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.benchmarks.wide_table import GROUPS, Shape, events
from weft import Table
from weft.storage.services.compaction import compaction

SPAWN = multiprocessing.get_context("spawn")
START_SECONDS = 300


def build(folder: Path, keys: int, groups: int) -> str:
    """A table with a compacted load, and a tenth of the keys updated."""
    shape = Shape(keys=keys)
    table = Table.create(folder, {**shape.config(), "buckets": groups})
    table = Table(table.env.tuned(small_group_bytes=0))  # as with large file groups: a task for each
    rng = np.random.default_rng(shape.seed)
    for group in GROUPS:
        with table.writer(group) as writer:
            writer.append(events(shape, group, np.arange(keys), 0, rng))
    table.compact()
    with table.writer(GROUPS[0]) as writer:
        writer.append(events(shape, GROUPS[0], rng.integers(0, keys, keys // 10), 1, rng))
    return table.uri


def unshared() -> None:
    """Let compactions of this process do everything themselves, as they did before."""

    def alone(plan_id: str, _: Any) -> frozenset[str]:
        return frozenset([plan_id])

    compaction.sharing_plans = alone  # type: ignore[attr-defined]
    compaction._Work._still_needed = lambda _self, task, _state: task  # type: ignore[method-assign]


def compact(uri: str, barrier: Barrier, results: Any, *, shared: bool) -> None:
    """One process: compact what has logs."""
    pa.set_cpu_count(1)
    if not shared:
        unshared()
    table = Table.open(uri)
    table = Table(table.env.tuned(small_group_bytes=0))
    table.snapshot()
    barrier.wait(START_SECONDS)
    began = time.perf_counter()
    result = table.compact()
    results.put((result.bytes_written, result.bytes_dropped, len(result.done), time.perf_counter() - began))


def measure(uri: str, processes: int, *, shared: bool) -> tuple[float, float, int]:
    """The share of wasted bytes, the seconds until all have ended, and the number of file groups."""
    barrier, results = SPAWN.Barrier(processes), SPAWN.Queue()
    running = [
        SPAWN.Process(target=compact, args=(uri, barrier, results), kwargs={"shared": shared}) for _ in range(processes)
    ]
    for process in running:
        process.start()
    found = [results.get(timeout=START_SECONDS) for _ in running]
    for process in running:
        process.join()
    written, dropped = sum(each[0] for each in found), sum(each[1] for each in found)
    return dropped / written, max(each[3] for each in found), sum(each[2] for each in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=300_000)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    found: dict[bool, list[tuple[float, float, int]]] = {False: [], True: []}
    for _ in range(asked.rounds):
        for shared in (False, True):
            with tempfile.TemporaryDirectory() as name:
                uri = build(Path(name) / "table", asked.keys, asked.groups)
                found[shared].append(measure(uri, asked.processes, shared=shared))
    print(f"{asked.processes} processes, {asked.groups} file groups, {asked.keys:,} keys; medians of {asked.rounds}")
    pick: Callable[[bool, int], float] = lambda shared, place: statistics.median(each[place] for each in found[shared])  # noqa: E731
    for shared, name in ((False, "each does everything"), (True, "work is shared")):
        print(f"{name:22} wasted {pick(shared, 0):6.1%}   {pick(shared, 1):6.2f} s   {pick(shared, 2):.0f} file groups")


if __name__ == "__main__":
    main()
