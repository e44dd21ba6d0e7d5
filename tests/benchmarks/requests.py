"""The cost of operations on an object store: requests, bytes, seconds, and dollars per month.

    python -m tests.benchmarks.requests [--lanes 1 60 500] [--groups 8 1000 8000] [--commits 100 100000]
                                        [--latency-ms 30] [--megabytes 100] [--put 5.0] [--get 0.4]

Three sweeps, each from a table of 8 lanes, 8 file groups and 100 commits: the lanes, the file groups, and the commits
of the history. The store is S3 as `weft.storage.store.remote_store` uses it, request by request, in memory
(`tests.benchmarks.counting_s3`). *rounds* is the number of sequential rounds of requests. *seconds* is the time of all
requests, where those of a round run at the same time: 30 ms each, and their bytes at 100 MB/s. It does not include the
work of this machine, which is shown as CPU seconds.

The last 100 commits (at least one of each lane) wait for compaction in every table; a MARK was recorded before the last
half of them, as writers do once a minute. With 100,000 commits the others were compacted and archived.

    open            Table.open
    snapshot        the first snapshot of a process
    again           another snapshot, without new commits; `plan`, `query` and the services contain it
    plan, query     plan a scan of all columns; read it, task after task
    get             one row by key
    enter           the work of a writer before its first commit
    commit          the second and later commits of a writer
    mark            a MARK, which one process of a table records once a minute
    fold            of the waiting commits
    compact         after that fold
    idle            a round of a compaction service (`weft.streams.pipeline.run.services`) that finds nothing due
    clean           retains the newest snapshot only

Services run in a process that has opened the table and taken a snapshot before, as in `weft run`. Prices are dollars
for a million requests (S3 Standard, us-east-1: PUT, POST and LIST 5.00, GET and HEAD 0.40, DELETE free).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.benchmarks import timeline
from tests.benchmarks.counting_s3 import SERVER, URI, register
from tests.many_groups import BUCKETS, CONFIG, KEYS, rows
from weft import DuePolicy, Table
from weft.storage.core.names import LaneName
from weft.storage.core.names import Path as ObjectPath
from weft.storage.planned_work import plan_compaction, plan_fold
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.steps.steps import finish
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

BASE_LANES, BASE_GROUPS, BASE_COMMITS = 8, 8, 100
MONTH_SECONDS: Final = 30 * 24 * 3600
STREAMS, COMMIT_SECONDS = 4, 5
OFTEN: Final = {
    "commit": STREAMS / COMMIT_SECONDS,
    "mark": 1 / 60,
    "fold": 1 / 60,
    "compact": 1 / 300,
    "clean": 1 / 600,
    "query": 1 / 60,
    "again": 1 / 5,
}
"""Operations per second in the table whose cost per month is computed. A query contains a snapshot."""
HEARTBEAT_SECONDS: Final = 30  # each is a PUT and a DELETE by every writer


@dataclass(frozen=True)
class Prices:
    """Dollars per million requests."""

    put: float = 5.0
    get: float = 0.4

    def of(self, requests: Mapping[str, int]) -> float:
        """Dollars of requests by kind; DELETE is free."""
        millions = {"PUT": self.put, "POST": self.put, "LIST": self.put, "GET": self.get, "HEAD": self.get}
        return sum(millions.get(kind, 0.0) * count for kind, count in requests.items()) / 1e6


@dataclass(frozen=True)
class Figure:
    """The cost of one operation.

    Attributes:
        requests: Number of requests by kind.
        rounds: Number of sequential rounds of requests.
        megabytes: Megabytes that were sent and received.
        seconds: Time of the requests, without the work of this machine.
        cpu: CPU seconds of this process, including the store in memory.
    """

    requests: Counter[str]
    rounds: int
    megabytes: float
    seconds: float
    cpu: float

    @property
    def total(self) -> int:
        return sum(self.requests.values())


Step = tuple[str, Callable[[], object]]


def build(lanes: int, groups: int, commits: int) -> ObjectStore:
    """A table: all keys are loaded and compacted, then the lanes commit in turn, each at least once."""
    partitions = max(groups // BUCKETS, 1)
    uri = f"memory://requests/{uuid.uuid4().hex}"
    table = Table.create(uri, CONFIG)
    with table.writer("s", lane=LaneName("lane0")) as writer:
        writer.append(rows(partitions, KEYS, 1))
    table.compact()
    _commit(table, lanes, commits, rows(min(partitions, 2), 4, 2))
    return open_store(uri)


def build_history(folder: Path, commits: int) -> ObjectStore:
    """A table whose history, except the last `BASE_COMMITS`, was compacted, cleaned and archived."""
    shape = timeline.Shape(max(commits - BASE_COMMITS, 0), BASE_LANES, 0, BASE_GROUPS)
    timeline.build(folder, shape, folded=False)
    store = open_store(f"memory://requests/{uuid.uuid4().hex}")
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(ObjectPath(path.relative_to(folder).as_posix()), path.read_bytes())
    table = Table.open(store.uri)
    table.clean(dt.timedelta(0))
    _commit(table, BASE_LANES, min(commits, BASE_COMMITS), _few_rows(history=True))
    return store


def _commit(table: Table, lanes: int, commits: int, few: pa.Table) -> None:
    with contextlib.ExitStack() as stack:
        names = [LaneName(f"lane{lane}") for lane in range(lanes)]
        writers = [stack.enter_context(table.writer("s", lane=name)) for name in names]
        turns = max(1, commits // lanes)
        for turn in range(turns):
            if turn == turns // 2:
                table.mark()
            for writer in writers:
                writer.append(few)


def _few_rows(*, history: bool) -> pa.Table:
    return rows(1, 2, 3) if not history else pa.table({"k": [1, 2], "v": [1, 2], "ts": [9, 9]})


def steps(*, history: bool) -> Iterator[Step]:
    """The steps to measure, in order; a step without a name prepares the next. ``history``: for `build_history`."""
    tables: list[Table] = []

    def snapshot() -> Snapshot:
        return tables[0].snapshot()

    stack = contextlib.ExitStack()
    few, key = _few_rows(history=history), 1 if history else (0, 1)
    writers: list[Any] = []

    def query() -> None:
        scan = snapshot().scan(parallelism=1)
        for task in scan.tasks:
            for _ in scan.read(task):
                pass

    def idle_round() -> None:
        compaction = plan_compaction(tables[0], DuePolicy())
        finish(compaction.steps)
        finish(plan_fold(tables[0], DuePolicy(), compaction).steps)

    yield "open", lambda: tables.append(Table.open(URI))
    yield "snapshot", snapshot
    yield "again", snapshot
    yield "plan", lambda: snapshot().scan()
    yield "query", query
    yield "get", lambda: tables[0].get([key])
    yield "enter", lambda: writers.append(stack.enter_context(tables[0].writer("s", lane=LaneName("lane0"))))
    yield "", lambda: writers[0].append(few)
    yield "commit", lambda: writers[0].append(few)
    yield "", stack.close
    yield "mark", tables[0].mark
    yield "", snapshot
    yield "fold", tables[0].fold
    yield "compact", tables[0].compact
    yield "", snapshot
    yield "idle", idle_round
    yield "clean", lambda: tables[0].clean(dt.timedelta(0))


def measure(store: ObjectStore, latency: float, bytes_per_second: float, *, history: bool = False) -> dict[str, Figure]:
    """Load a table into the counting store, and run `steps` on it."""
    SERVER.load(store)
    SERVER.latency, SERVER.bytes_per_second = latency, bytes_per_second
    found = {}
    for name, run in steps(history=history):
        SERVER.begin()
        cpu = time.process_time()
        run()
        cpu = time.process_time() - cpu
        if name:
            found[name] = Figure(SERVER.requests, SERVER.rounds, SERVER.transferred / 1e6, SERVER.seconds, cpu)
    return found


def month(figures: Mapping[str, Figure], prices: Prices) -> dict[str, float]:
    """Dollars per month by operation, for a table of 4 streams that commit every 5 s, with services and readers."""
    beats = Counter({"PUT": 1, "DELETE": 1})
    each = {name: prices.of(figures[name].requests) * often for name, often in OFTEN.items()}
    each["heartbeats"] = prices.of(beats) * STREAMS / HEARTBEAT_SECONDS
    return {name: dollars * MONTH_SECONDS for name, dollars in each.items()}


def report(title: str, figures: Mapping[str, Figure], prices: Prices) -> None:
    by_month = month(figures, prices)
    print(f"\n{title}")
    print(f"{'':10} {'requests':>8} {'rounds':>7} {'MB':>8} {'seconds':>8} {'CPU s':>7} {'$ a month':>10}  by kind")
    for name, figure in figures.items():
        kinds = " ".join(f"{kind} {count}" for kind, count in sorted(figure.requests.items()))
        dollars = f"{by_month[name]:10.2f}" if name in by_month else f"{'':10}"
        print(
            f"{name:10} {figure.total:8} {figure.rounds:7} {figure.megabytes:8.2f} {figure.seconds:8.2f} "
            f"{figure.cpu:7.2f} {dollars}  {kinds}"
        )
    print(f"{'heartbeats':10} {by_month['heartbeats']:55.2f}")
    print(f"{'in all':10} {sum(by_month.values()):55.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 60, 500])
    parser.add_argument("--groups", type=int, nargs="*", default=[8, 1000, 8000])
    parser.add_argument("--commits", type=int, nargs="*", default=[100, 100_000])
    parser.add_argument("--latency-ms", type=float, default=30.0, help="latency of every request")
    parser.add_argument("--megabytes", type=float, default=100.0, help="bandwidth of one connection per second")
    parser.add_argument("--put", type=float, default=5.0, help="dollars per million PUT, POST or LIST requests")
    parser.add_argument("--get", type=float, default=0.4, help="dollars per million GET or HEAD requests")
    given = parser.parse_args()
    prices, speed = Prices(given.put, given.get), (given.latency_ms / 1000, given.megabytes * 1e6)
    register()
    print(f"{given.latency_ms:g} ms a request, {given.megabytes:g} MB/s a connection")
    print(
        f"$ a month: {STREAMS} streams with a commit each {COMMIT_SECONDS} s and a heartbeat each {HEARTBEAT_SECONDS} "
        "s, a mark and a fold a minute, a compaction each 5 and a clean each 10 minutes, a query a minute, and a "
        "reader that takes a snapshot each 5 s"
    )
    sizes = [(lanes, BASE_GROUPS) for lanes in given.lanes] + [(BASE_LANES, groups) for groups in given.groups]
    for lanes, groups in dict.fromkeys(sizes):
        figures = measure(build(lanes, groups, BASE_COMMITS), *speed)
        report(f"{lanes} lanes, {groups:,} file groups, {BASE_COMMITS} commits", figures, prices)
    for commits in given.commits:
        folder = Path(tempfile.mkdtemp(prefix="weft-requests-"))
        try:
            figures = measure(build_history(folder, commits), *speed, history=True)
        finally:
            shutil.rmtree(folder)
        report(f"{BASE_LANES} lanes, {BASE_GROUPS} file groups, {commits:,} commits", figures, prices)


if __name__ == "__main__":
    main()
