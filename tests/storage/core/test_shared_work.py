"""Several compactions of one table at once divide the file groups; the table itself does not depend on that."""

from __future__ import annotations

import uuid
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faulty_store import FakeClock, other_process
from tests.storage.support.shop import SHOP, append, contents, orders
from weft import DuePolicy, Table
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.table_state import OpenPlan
from weft.storage.core.plan.share_work import MAX_SHARING, next_share, rank_of, sharing_plans
from weft.storage.planned_work import plan_compaction
from weft.storage.services.compaction import compaction
from weft.storage.services.compaction.compaction import CompactionResult
from weft.storage.services.steps.service_plan import open_plan
from weft.storage.services.steps.steps import Steps, cancel

GROUPS = 64
ALL = DuePolicy(min_commits=1)
PLANS = st.lists(st.text("0123456789abcdef", min_size=4, max_size=8), unique=True, min_size=1, max_size=5)
KEYS = st.lists(st.text("abc/0123456789", min_size=1, max_size=8), unique=True, min_size=1, max_size=30)


@given(PLANS, KEYS)
def test_every_plan_has_another_rank_for_a_piece_of_work(plans: list[str], keys: list[str]) -> None:
    for key in keys:
        assert sorted(rank_of(plan, plans, key) for plan in plans) == list(range(len(plans)))


@given(PLANS, KEYS)
def test_a_plan_that_ends_leaves_its_work_and_changes_no_order_of_the_others(plans: list[str], keys: list[str]) -> None:
    *left, ended = plans
    for key in keys:
        before = sorted(left, key=lambda plan: rank_of(plan, plans, key))
        assert before == sorted(left, key=lambda plan: rank_of(plan, left, key))
        assert rank_of(ended, plans, key) in range(len(plans))


@given(PLANS, KEYS)
def test_each_plan_does_all_work_that_nobody_else_does_and_its_own_first(plans: list[str], keys: list[str]) -> None:
    for plan in plans:
        waiting, order = list(keys), []
        while waiting:
            share = [waiting[position] for position in next_share(plan, plans, waiting)]
            assert share
            order += share
            waiting = [key for key in waiting if key not in share]
        ranks = [rank_of(plan, plans, key) for key in order]
        assert sorted(order) == sorted(keys)
        assert ranks == sorted(ranks)
        own = [key for key in order if rank_of(plan, plans, key) == 0]
        assert own == [key for key in keys if key in own], "in the order of the work"


def test_only_the_newest_plans_share() -> None:
    plans = {f"plan{slot}": OpenPlan(slot, Cut(1, {}), 0) for slot in range(100)}
    newest = {f"plan{slot}" for slot in range(100 - MAX_SHARING + 1, 100)}
    assert sharing_plans("plan0", plans) == {"plan0", *newest}


@pytest.fixture
def table() -> Table:
    table = Table.create(f"memory://shared/{uuid.uuid4().hex}", {**SHOP, "buckets": GROUPS})
    append(table, orders(*range(20 * GROUPS)))
    return table


def processes(table: Table, count: int) -> list[Steps[CompactionResult]]:
    """The compactions of that many other processes, all planned now."""
    found = [other_process(table.uri, FakeClock()) for _ in range(count)]
    return [plan_compaction(process, ALL).steps for process in found]


def take_turns(works: list[Steps[CompactionResult]]) -> list[CompactionResult]:
    """Run all of them, a step of each in turn."""
    results: dict[int, CompactionResult] = {}
    while len(results) < len(works):
        for number, work in enumerate(works):
            try:
                if number not in results:
                    next(work)
            except StopIteration as done:
                results[number] = done.value
    return [results[number] for number in range(len(works))]


def wasted(results: list[CompactionResult]) -> float:
    """Share of the written bytes that were dropped."""
    return sum(result.bytes_dropped for result in results) / sum(result.bytes_written for result in results)


@pytest.mark.usefixtures("own_files")
@pytest.mark.parametrize("count", [2, 3])
def test_compactions_at_once_divide_the_file_groups(table: Table, count: int) -> None:
    rows = contents(table)
    results = take_turns(processes(table, count))
    done = [group for result in results for group in result.done]
    assert sorted(done) == sorted(set(done)), "no file group is published twice"
    assert len(done) == GROUPS
    assert min(len(result.done) for result in results) >= GROUPS // count // 3
    assert wasted(results) < 0.1
    assert not table.state().plans
    assert contents(table) == rows
    assert table.verify().ok


@pytest.mark.usefixtures("own_files")
def test_without_sharing_the_same_compactions_do_everything_twice(table: Table) -> None:
    """What `test_compactions_at_once_divide_the_file_groups` measures can be much."""
    with (
        mock.patch.object(compaction, "sharing_plans", lambda plan_id, _: frozenset([plan_id])),
        mock.patch.object(compaction._Work, "_still_needed", lambda _self, task, _state: task),
    ):
        assert wasted(take_turns(processes(table, 2))) == 0.5


@pytest.mark.usefixtures("own_files")
def test_a_compaction_that_begins_later_takes_a_part(table: Table) -> None:
    first, second = processes(table, 2)
    for _ in range(GROUPS // 4):
        next(first)
    results = take_turns([first, second])
    assert sum(len(result.done) for result in results) == GROUPS
    assert len(results[1].done) > GROUPS // 8
    assert wasted(results) < 0.15


@pytest.mark.usefixtures("own_files")
def test_the_work_of_a_dead_compaction_is_done_by_the_others(table: Table) -> None:
    dead, *alive = processes(table, 3)
    next(dead)
    results = take_turns(alive)
    assert sum(len(result.done) for result in results) == GROUPS
    assert wasted(results) < 0.15
    assert len(table.state().plans) == 1
    assert not [file_slice for file_slice in table.snapshot().slices if len(file_slice.rows)]
    cancel(dead)
    assert table.verify().ok


@pytest.mark.usefixtures("own_files")
def test_shared_work_lets_readers_skip_older_logs(table: Table) -> None:
    """K3: all rows are in slices, whoever made them; then no reader looks at older entries any more."""
    take_turns(processes(table, 3))
    snapshot = table.snapshot()
    assert snapshot.state.covered == snapshot.cut.lanes
    assert snapshot.files == []


@pytest.mark.usefixtures("own_files")
def test_two_cuts_cover_what_both_contain(table: Table) -> None:
    (first,) = processes(table, 1)
    next(first)
    append(table, orders(*range(20 * GROUPS), status="later", ts=2))
    (second,) = processes(table, 1)
    take_turns([first, second])
    snapshot = table.snapshot()
    assert snapshot.state.covered, "all file groups contain at least the first commit"
    assert contents(table) == contents(Table.open(table.uri))
    table.compact()
    assert table.snapshot().files == []
    assert table.verify().ok


@pytest.mark.usefixtures("own_files")
def test_a_compaction_whose_plan_was_closed_does_no_further_work(table: Table) -> None:
    (work,) = processes(table, 1)
    next(work)
    append(table, orders(1, ts=9))
    table.restore(str(table.snapshot().cut))
    (result,) = take_turns([work])
    assert result.done == ()
    assert len(result.skipped) == GROUPS
    assert all("its plan was closed" in reason for reason in result.skipped.values())
    dropped_one = table.env.store.list("base")  # type: ignore[arg-type]
    assert list(dropped_one) == []


def test_one_that_works_alone_publishes_in_large_parts(table: Table) -> None:
    head = table.state().head
    table.compact()
    assert table.state().head == head + 2, "PLAN and BASE"
    append(table, orders(*range(20 * GROUPS), ts=2))
    with open_plan(other_process(table.uri, FakeClock()).writable(), table.snapshot().cut, 1) as plan:
        assert plan.previous_state is not None
        assert len(table.compact().done) == GROUPS
