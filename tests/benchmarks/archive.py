"""Archiving the log: 2,000 commits of one writer, compacted and cleaned; and the cost of requests for archives.

    python -m tests.benchmarks.archive [--commits 2000]

First the objects of a table, the time of `verify`, and the cost of opening it, a snapshot, a commit and the look-up of
an old batch, before and after a clean. Then polling and committing with 1, 8, 64 and 512 lanes: requests of one new
snapshot and of one commit, and how many of them are requests for archives.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path as Folder

import pyarrow as pa

from tests.benchmarks.timeline import config
from tests.faulty_store import FaultyStore
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.names import Path
from weft.storage.environment import Environment
from weft.storage.store.open_store import open_store

LANES = [1, 8, 64, 512]
ROUNDS = 21
NOTHING = dt.timedelta(0)
ROW = pa.table({"k": [1], "v": [1], "ts": [1]})


def opened(uri: str) -> tuple[Table, FaultyStore]:
    """The table opened by a new process, and its store, which records requests."""
    store = FaultyStore(open_store(uri))
    return Table(Environment(store), Stamps()), store


def requests(store: FaultyStore, run: Callable[[], object]) -> tuple[int, int]:
    """The number of requests of a call, and how many of them are for archives."""
    store.calls.clear()
    run()
    return len(store.calls), sum("_weft/archive" in path for _, path in store.calls)


def milliseconds(run: Callable[[], object]) -> float:
    """Median of some runs."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def describe(name: str, uri: str) -> None:
    objects = open_store(uri).list(Path(""))
    log = [path for path, _ in objects if path.startswith(("_weft/timeline", "_weft/archive"))]
    started = time.perf_counter()
    report = opened(uri)[0].verify()
    seconds = time.perf_counter() - started
    assert report.ok, report
    print(f"\n{name}: {len(objects):,} objects, {len(log):,} of them the log; verify {seconds:.2f} s")
    table, store = opened(uri)
    steps: list[tuple[str, Callable[[], object]]] = [
        ("open and snapshot", lambda: opened(uri)[0].snapshot()),  # noqa: PLW0108 - opened anew each time
        ("snapshot again", table.snapshot),
    ]
    for step, run in steps:
        print(f"  {step:20} {milliseconds(run):8.2f} ms")
    fresh, store = opened(uri)
    print(f"  {'open and snapshot':20} %d requests, %d of them for archives" % requests(store, fresh.snapshot))
    with fresh.writer("s", lane="lane0") as writer:
        print(
            f"  {'a replayed batch':20} %d requests, %d of them for archives"
            % requests(store, lambda: writer.append(ROW, batch=("q", 3)))
        )


def history(commits: int, folder: str) -> None:
    table = Table.create(folder, config(8))
    with table.writer("s", lane="lane0") as writer:
        for number in range(commits):
            writer.append(ROW, batch=("q", number))
            if number % 500 == 499:
                table.compact()
    table.compact()
    describe(f"{commits:,} commits, compacted", folder)
    started = time.perf_counter()
    result = table.clean(NOTHING)
    seconds = time.perf_counter() - started
    print(f"\ncleaned in {seconds:.2f} s: {result.archived:,} entries into {result.archives} archives")
    describe("after cleaning", folder)


def polling(folder: str, lanes: int) -> None:
    table = Table.create(folder, config(8))
    for number in range(lanes):
        with table.writer("s", lane=f"lane{number}") as writer:
            writer.append(ROW)
    reader, store = opened(folder)
    reader.snapshot()
    asked, archives = requests(store, reader.snapshot)
    poll = milliseconds(reader.snapshot)
    committing, store = opened(folder)
    with committing.writer("s", lane="lane0") as writer:
        writer.append(ROW)
        of_commit, of_archive = requests(store, lambda: writer.append(ROW))
        commit = milliseconds(lambda: writer.append(ROW))
    print(
        f"  {lanes:4} lanes: snapshot {poll:7.2f} ms, {asked:4} requests, {archives} of them for archives; "
        f"commit {commit:6.2f} ms, {of_commit} requests, {of_archive} of them for archives"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=2_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-archive-") as root:
        history(arguments.commits, str(Folder(root) / "history"))
        print("\npolling")
        for lanes in LANES:
            polling(str(Folder(root) / f"lanes{lanes}"), lanes)


if __name__ == "__main__":
    main()
