"""A table of counts, which shows every event that is read twice or not at all; and helpers of the fold tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.faulty_store import FakeClock, Fault, FaultyStore
from tests.storage.support.shop import append
from weft import Table
from weft.storage.core.keys import buckets
from weft.storage.core.log.entries import TableEntry
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.names import Path
from weft.storage.environment import Environment
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.store.open_store import open_store

COUNTS: dict[str, Any] = {
    "key": ["id"],
    "buckets": 4,
    "columns": {"id": "bigint", "n": "bigint", "events": "bigint", "seen": "array<bigint>"},
    "groups": {
        "all": {
            "columns": ["n", "events", "seen"],
            "ordering": [],
            "merge": "aggregate",
            "functions": {"n": "sum", "events": "count", "seen": "collect_list"},
        }
    },
    "streams": {"events": {"groups": ["all"], "on_delete": "ignore"}},
}
BITS = 2
MANY = range(5000)


def event_rows(*ids: int) -> pa.Table:
    one = [1] * len(ids)
    return pa.table({"id": list(ids), "n": one, "events": one, "seen": one})


def count(table: Table, *ids: int) -> None:
    append(table, event_rows(*ids), "events")


def entries(uri: str) -> list[TableEntry]:
    return list(read_table_lane(CommitLog(Environment(open_store(uri), FakeClock())), 0))


def fold_files(uri: str) -> list[str]:
    store = open_store(uri)
    return sorted(path for folder in ("log/_fold", "_weft/index/_fold") for path, _ in store.list(Path(folder)))


def named_files(table: Table) -> list[str]:
    return sorted(file.file.path.removeprefix("log/_fold/") for fold in table.state().folds for file in fold.files)


def chain(table: Table, group: FileGroup) -> list[int]:
    return [fold.slot for fold in table.state().folds if group in fold.groups]


def home(key: int) -> FileGroup:
    return FileGroup("", BITS, int(buckets([pa.array([key])], BITS)[0]))


def during(store: FaultyStore, what: Callable[[], object]) -> None:
    """Run a function after the fold has read its input, and before it publishes."""

    def act() -> None:
        what()

    store.faults.append(Fault("put", "log/_fold", action=act))
