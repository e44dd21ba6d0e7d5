"""A table with many file groups and lanes, and a series of operations on it, to measure how costs grow with its size.

Two columns of one group besides the key; file groups are partitions of `BUCKETS` buckets. Every commit has rows of
every file group. Each lane except the first has one commit.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from weft import Table
from weft.storage.clock import Clock
from weft.storage.core.names import LaneName
from weft.storage.read.snapshot import Snapshot

BUCKETS = 4
KEYS = 32
"""Number of keys of a partition, 8 per file group, so that hardly any bucket is empty."""

CONFIG = {
    "key": ["p", "id"],
    "partition_by": ["p"],
    "buckets": BUCKETS,
    "columns": {"p": "int", "id": "bigint", "v": "bigint", "ts": "bigint"},
    "groups": {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}},
    "streams": {"s": {"groups": ["g"]}},
}

Step = tuple[str, Callable[[], object]]


def rows(partitions: int, keys: int, ts: int) -> pa.Table:
    """The first ``count`` keys of every partition."""
    p = np.repeat(np.arange(partitions, dtype=np.int32), keys)
    ids = np.tile(np.arange(keys), partitions)
    return pa.table({"p": p, "id": ids, "v": ids + ts, "ts": np.full(len(p), ts)})


def steps(uri: str, groups: int, lanes: int, clock: Clock | None = None) -> Iterator[Step]:
    """The operations on the table, in order: (name, function). An operation with an empty name prepares the next one.

    Args:
        uri: Location without a table.
        groups: Approximate number of file groups.
        lanes: Number of lanes.
        clock: By default the machine's clock.
    """
    partitions = max(groups // BUCKETS, 1)
    moment = iter(range(1, 1_000_000))
    snapshots: list[Snapshot] = []

    def table() -> Table:
        return Table.open(uri, clock=clock)

    def append(lane: int, keys: int) -> None:
        with table().writer("s", lane=LaneName(f"lane{lane}")) as writer:
            writer.append(rows(partitions, keys, next(moment)))

    def others() -> None:
        for lane in range(1, lanes):
            append(lane, 2)

    yield "create", lambda: Table.create(uri, CONFIG, clock=clock)
    yield "load", lambda: append(0, KEYS)
    yield "first compaction", lambda: table().compact()
    yield "", others
    yield "append", lambda: append(0, 4)
    yield "fold", lambda: table().fold()
    yield "", lambda: append(0, 2)
    yield "read logs", lambda: read(table())
    # Every other partition first: file groups have different cuts from here on.
    yield "compact", lambda: table().compact(lambda part: int(part.group.partition.partition("=")[2]) % 2 == 0)
    yield "", lambda: append(0, 2)
    yield "snapshot", lambda: snapshots.insert(0, table().snapshot())
    yield "plan", lambda: snapshots[0].scan(["p", "v"])
    yield "read", lambda: read(table())
    yield "get", lambda: table().get([(0, 1)])
    yield "get many", lambda: table().get([(p, 1) for p in range(partitions)])
    yield "changes", lambda: changes(table())
    yield "clean", lambda: table().clean(dt.timedelta(0))
    yield "verify", lambda: verify(table())
    yield "", lambda: table().savepoint("before")
    yield "", lambda: append(0, 2)
    yield "compact all", lambda: table().compact()
    yield "clean again", lambda: table().clean(dt.timedelta(0))
    yield "restore", lambda: table().restore("before")


def read(table: Table) -> None:
    scan = table.snapshot().scan(["p", "v"], parallelism=1)  # one thread: profiles see all of it
    for task in scan.tasks:
        for _ in scan.read(task):
            pass


def changes(table: Table) -> None:
    """The rows that the last commit of the first lane has changed."""
    snapshot = table.snapshot()
    lane = LaneName("lane0")
    before = f"cut:1:{snapshot.cut.table}:" + ",".join(
        f"{name}={seq - (name == lane)}" for name, seq in sorted(snapshot.cut.lanes.items())
    )
    for _ in table.changes(before):
        pass


def verify(table: Table) -> None:
    report = table.verify()
    assert not report.findings, report.findings[:3]


def new_uri(root: str) -> str:
    return f"{root}/{uuid.uuid4().hex}"


class CountingStore:
    """Counts requests to a store.

    Attributes:
        requests: By kind; a call for many objects counts as many.
        rounds: Calls; on a remote store each takes a round trip.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.requests: dict[str, int] = {}
        self.rounds = 0

    def __getattr__(self, name: str) -> Any:
        known = getattr(self._inner, name)
        if not callable(known):
            return known

        def counted(*arguments: Any, **named: Any) -> Any:
            self.rounds += 1
            many = name in ("get_many", "read_ranges", "delete_many")
            self.requests[name] = self.requests.get(name, 0) + (len(arguments[0]) if many else 1)
            return known(*arguments, **named)

        return counted
