"""Expiries beside other services, beside each other, and those that die."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from tests.storage.support.cleaning import Killed, MortalStore
from tests.tuning import tuned
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.names import TABLE_LANE
from weft.storage.core.plan.reservation import SHORTEST_RESERVATION_MS
from weft.storage.environment import Environment
from weft.storage.errors import SnapshotExpired
from weft.storage.planned_work import expire_in_steps
from weft.storage.services.steps.service_plan import abort_plan, open_plan
from weft.storage.services.steps.steps import cancel
from weft.storage.services.steps.tasks import Task
from weft.storage.store import memory_store
from weft.storage.store.open_store import open_store

T = TypeVar("T")

DAY = dt.timedelta(days=1)
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
OLD, NEW = NOW - 30 * DAY, NOW - DAY
CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {"id": "bigint", "v": "string", "at": "timestamp"},
    "groups": {"g": {"columns": ["v", "at"], "ordering": ["at"]}},
    "streams": {"s": {"groups": ["g"]}},
    "buckets": 4,
    "ttl": {"rows": "10 days", "by": "at", "within": "0 s"},
}
KEYS = range(40)
KEPT = [key for key in KEYS if key % 2]


@pytest.fixture
def uri() -> str:
    return f"memory://ttl_races/{uuid.uuid4().hex}"


@pytest.fixture
def table(uri: str) -> Table:
    """Rows of which every second one is old, compacted into file groups that are published one by one."""
    table = tuned(Table.create(uri, CONFIG), small_group_bytes=1, compaction_part_bytes=1)
    write(table, KEYS, lambda key: NEW if key % 2 else OLD)
    table.compact()
    return table


def write(table: Table, ids: Iterable[int], at: Callable[[int], dt.datetime]) -> None:
    ids = list(ids)
    with table.writer("s") as writer:
        writer.append(pa.table({"id": ids, "v": ["x"] * len(ids), "at": [at(key) for key in ids]}))


def ids(table: Table) -> list[int]:
    return sorted(Table.open(table.uri).snapshot().to_arrow(["id"]).column("id").to_pylist())


def first(action: Callable[[], object]) -> Callable[[Iterable[Task[T]]], Iterator[T]]:
    """Runs tasks, and the first time does something else between a task and its publication."""
    left = [action]

    def run(tasks: Iterable[Task[T]], /) -> Iterator[T]:
        for task in tasks:
            made = task.run()
            while left:
                left.pop()()
            yield made

    return run


def test_each_part_is_published_in_its_own_entry(table: Table) -> None:
    result = table.apply_ttl(NOW)
    assert (result.rows, result.file_groups, len(result.entries), result.skipped) == (20, 4, 4, 0)
    assert ids(table) == KEPT


def test_what_is_committed_meanwhile_stays(table: Table) -> None:
    result = table.apply_ttl(NOW, execute=first(lambda: write(table, [0, 100], lambda _: NEW)))
    assert result.rows >= 19
    assert ids(table) == [0, *KEPT, 100]
    assert Table.open(table.uri).verify().ok


def test_what_a_compaction_overtakes_is_left_for_the_next_expiry(table: Table) -> None:
    def overtake() -> None:
        other = Table.open(table.uri)
        write(other, KEPT, lambda _: NOW)
        other.compact()

    result = table.apply_ttl(NOW, execute=first(overtake))
    assert (result.skipped, result.file_groups) == (1, 3)
    assert len(ids(table)) > len(KEPT)
    again = table.apply_ttl(NOW)
    assert (again.skipped, again.file_groups, result.rows + again.rows) == (0, 1, 20)
    assert ids(table) == KEPT
    assert Table.open(table.uri).verify().ok


def test_two_at_once_remove_each_row_once(table: Table) -> None:
    results = []
    result = table.apply_ttl(NOW, execute=first(lambda: results.append(Table.open(table.uri).apply_ttl(NOW))))
    assert result.skipped >= 1
    assert result.rows + results[0].rows == 20
    assert ids(table) == KEPT
    assert not Table.open(table.uri).state().plans


def test_a_restore_meanwhile_ends_the_part(table: Table) -> None:
    table.savepoint("before")
    result = table.apply_ttl(NOW, execute=first(lambda: Table.open(table.uri).restore("before")))
    assert result.skipped == 1
    table.apply_ttl(NOW)
    assert ids(table) == KEPT
    assert Table.open(table.uri).verify().ok


def test_an_undo_does_not_go_back_before_an_expiry(table: Table) -> None:
    before = str(table.snapshot().cut)
    write(table, [7], lambda _: NOW)
    table.apply_ttl(NOW)
    with pytest.raises(SnapshotExpired):
        table.undo("s", before)
    assert ids(table) == KEPT


def test_cancelled_work_leaves_no_plan(table: Table) -> None:
    table.set_ttl(rows="1 ms", within="0 s")
    steps = expire_in_steps(table)
    while not table.state().rewritten:
        next(steps)
    cancel(steps)
    assert not table.state().plans
    assert 0 < len(ids(table)) < len(KEYS)
    table.apply_ttl()
    assert ids(table) == []


def test_one_that_dies_at_any_request_is_completed_by_the_next(table: Table) -> None:
    died = 0
    for dies_at in range(0, 1_000, 9):
        copy = f"{table.uri}-{dies_at}"
        memory_store._folders[copy] = dict(memory_store._folders[table.uri])
        mortal = MortalStore(open_store(copy), dies_at=dies_at)
        ended = True
        try:
            Table(Environment(mortal, table.env.clock, tuning=table.env.tuning), Stamps()).apply_ttl(NOW)
        except Killed:
            ended = False
            died += 1
        assert set(KEPT) <= set(ids(Table.open(copy))), "no row goes that is not old"
        Table.open(copy).apply_ttl(NOW)
        assert ids(Table.open(copy)) == KEPT
        assert Table.open(copy).verify().ok
        if ended:
            break
    assert died > 5


def test_an_expiry_yields_to_a_rewrite_that_has_reserved_the_table(table: Table) -> None:
    """Its BASE would end the plan of the rewrite, so that neither a rewrite nor an erase would ever end (K6)."""
    snapshot, log = table.snapshot(), Table.open(table.uri).writable()
    with open_plan(log, snapshot.cut, 4, SHORTEST_RESERVATION_MS) as reserving:
        result = table.apply_ttl(NOW)
        assert (result.skipped, result.entries, result.rows) == (4, (), 0)
        assert set(table.state().plans) == {reserving.plan_id}
        assert [entry.kind for entry in log.commit_log.read_after(TABLE_LANE, reserving.slot)] == [], (
            "no PLAN, no ABORT"
        )
        assert abort_plan(log, reserving.plan_id, "the rewrite failed")
    assert table.apply_ttl(NOW).rows == len(KEYS) - len(KEPT)
    assert ids(table) == KEPT
