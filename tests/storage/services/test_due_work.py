"""File groups of real tables that are due by age, before and after folds; and work in steps, which may be cancelled."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.faulty_store import FakeClock
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from tests.tuning import tuned
from weft import DuePolicy, Table
from weft.storage.core.plan.due_policy import Work
from weft.storage.planned_work import plan_compaction, plan_fold
from weft.storage.services.due_work import find_due
from weft.storage.services.steps.steps import cancel, finish

HOUR = 3_600_000
OLD = DuePolicy(min_commits=1_000, max_log_ratio=1e9, max_age=dt.timedelta(hours=1), fold_commits=2)
ALL = DuePolicy(min_commits=1)


@pytest.fixture
def table(clock: FakeClock) -> Table:
    """Its file groups have slices without logs."""
    table = Table.create(new_uri(), SHOP, clock=clock)
    append(table, orders(*range(40)))
    table.compact()
    return tuned(table, small_group_bytes=1, fold_file_bytes=1, compaction_part_bytes=1)


def aged(table: Table) -> set[str]:
    """The file groups that are due because of their age."""
    due = find_due(table.snapshot(), OLD, {Work.COMPACT})
    assert {why.reason for why in due.values()} <= {"age"}
    return {str(group) for group in due}


def test_a_commit_is_due_when_it_has_waited_for_too_long(table: Table, clock: FakeClock) -> None:
    append(table, orders(1, ts=2))
    (first,) = {str(s.group) for s in table.snapshot().slices if len(s.rows)}
    clock.time_ms += HOUR
    assert aged(table) == set()
    clock.time_ms += 1
    append(table, orders(*range(40), ts=3))
    assert aged(table) == {first}, "the others have only a new commit"
    assert {str(group) for group in table.compact(policy=OLD).done} == {first}
    assert aged(table) == set()


def test_folds_do_not_make_commits_younger(table: Table, clock: FakeClock) -> None:
    append(table, orders(1, ts=2))
    clock.time_ms += HOUR // 2
    append(table, orders(1, ts=3))
    (group,) = table.fold(policy=OLD).done
    assert aged(table) == set()
    clock.time_ms += HOUR // 2 + 1
    assert aged(table) == {str(group)}
    # A second fold takes the place of the first.
    append(table, orders(1, ts=4))
    append(table, payments(1), "payments")
    assert table.fold(policy=OLD).done == (group,)
    assert aged(table) == {str(group)}
    assert table.compact(policy=OLD).done == (group,)
    assert aged(table) == set()


def test_a_policy_without_age_asks_no_clock(table: Table, clock: FakeClock) -> None:
    append(table, orders(1, ts=2))
    clock.time_ms += 1_000 * HOUR
    patient = DuePolicy(min_commits=1_000, max_log_ratio=1e9)
    assert find_due(table.snapshot(), patient) == {}


def base_files(table: Table) -> set[str]:
    return {name for name, _ in table.env.store.list("base")}  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", range(5))
def test_a_compaction_that_is_cancelled_leaves_what_it_published(table: Table, steps: int) -> None:
    append(table, orders(*range(40), ts=2))
    before, slices, files = contents(table), table.state().slices, base_files(table)
    work = plan_compaction(table, ALL)
    assert work.bytes > 0
    for _ in range(steps):
        assert next(work.steps) > 0
    cancel(work.steps)
    state = table.state()
    assert not state.plans
    changed = [group for group, made in state.slices.items() if made != slices[group]]
    assert len(changed) == steps, "each step is published"
    assert len(base_files(table) - files) == steps
    assert contents(table) == before
    assert table.verify().ok
    finish(plan_compaction(table, ALL).steps)
    assert not [s for s in table.snapshot().slices if len(s.rows)]


@pytest.mark.parametrize("steps", range(4))
def test_a_fold_that_is_cancelled_changes_nothing(table: Table, steps: int) -> None:
    append(table, orders(*range(40), ts=2))
    append(table, orders(*range(40), ts=3))
    before = contents(table)
    work = plan_fold(table, OLD)
    for _ in range(steps):
        next(work.steps)
    cancel(work.steps)
    assert not table.state().plans
    assert not table.state().folds
    assert not [name for name, _ in table.env.store.list("log/_fold")]  # type: ignore[arg-type]
    assert contents(table) == before
    assert finish(plan_fold(table, OLD).steps).commits == 2
    assert contents(table) == before


def test_nothing_is_published_before_the_first_step(table: Table) -> None:
    head = table.state().head
    append(table, orders(1, ts=2))
    plan_compaction(table, ALL).steps.close()
    plan_fold(table, OLD).steps.close()
    assert table.state().head == head
    idle = plan_compaction(table, DuePolicy(max_log_ratio=1e9))
    assert (idle.bytes, finish(idle.steps).done) == (0, ())
    assert (plan_fold(table, OLD).bytes, table.state().head) == (0, head)
