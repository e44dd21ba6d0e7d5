"""Shared by the tests of cleaning: the objects of a store, the files of a snapshot, and concurrent processes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.faulty_store import FakeClock, FaultyStore, other_process
from tests.storage.support.shop import append, new_uri, orders
from weft import Table
from weft.storage.core.log.entries import Entry
from weft.storage.core.names import TABLE_LANE, LaneName, Path
from weft.storage.environment import Environment
from weft.storage.log.commit_log import CommitLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.compaction.compaction_task import CompactionTask
from weft.storage.store import memory_store
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

NOW = dt.timedelta(0)
"""Retention that keeps only the newest snapshot."""
HOUR_MS = 3_600_000
ALL = range(16)
"""Keys, at least one in every bucket, so that every file group gets a new slice."""


def stored(table: Table, *folders: str) -> set[str]:
    """Paths of the objects below some folders; by default of all data files."""
    store = open_store(table.uri)
    return {f"{top}/{name}" for top in folders or ("log", "base", "shadow") for name, _ in store.list(Path(top))}


def used(snapshot: Snapshot) -> set[str]:
    """Data files that a snapshot reads."""
    slices = [file for made in snapshot.state.slices.values() for file in (made.base, made.shadow) if file]
    return {file.path for file in slices} | {live.file.file.path for live in snapshot.files}


def entries(table: Table, lane: str = TABLE_LANE) -> list[Entry]:
    return CommitLog(Environment(open_store(table.uri), FakeClock())).read_after(LaneName(lane), 0)


def moment(clock: FakeClock) -> dt.datetime:
    return dt.datetime.fromtimestamp(clock.time_ms / 1000, dt.UTC)


def compacted(table: Table, status: str, ts: int) -> Snapshot:
    """Rewrite all rows, and compact."""
    append(table, orders(*ALL, status=status, ts=ts))
    table.compact()
    return table.snapshot()


def copied(table: Table, clock: FakeClock) -> Table:
    """A copy of a table in memory."""
    uri = new_uri()
    memory_store._folders[uri] = dict(memory_store._folders[table.uri])
    return other_process(uri, clock)


def twice_and_clean(table: Table, abandon_after: dt.timedelta | None = None) -> None:
    """Another process compacts twice and cleans, so that only held files of earlier snapshots remain."""
    compacted(table, "second", 2)
    compacted(table, "third", 3)
    assert table.clean(NOW, abandon_after=abandon_after).files


def killed(_: Iterable[CompactionTask]) -> Iterator[None]:
    """Run the tasks of a compaction, and die at once."""
    raise KeyboardInterrupt


def killed_late(tasks: Iterable[CompactionTask]) -> Iterator[None]:
    """Run the tasks of a compaction, and die before anything is published."""
    for task in tasks:
        task.run()
    raise KeyboardInterrupt


class Killed(BaseException):
    """SIGKILL: the process has no further effect, not even by handlers of exceptions."""


class MortalStore(FaultyStore):
    """The store of a process that is killed at its call number ``dies_at``."""

    def __init__(self, inner: ObjectStore, *, dies_at: int) -> None:
        super().__init__(inner)
        self._left = dies_at

    def _call(self, call: str, path: Path, run: Callable[[], Any]) -> Any:
        if self._left == 0:
            raise Killed
        self._left -= 1
        return super()._call(call, path, run)
