"""Tasks of a service at the same time: their number, their memory, their order, and what happens when one fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.storage.support.shop import SHOP, append, contents, new_uri, orders
from weft import Table
from weft.storage.errors import InvalidInput
from weft.storage.planned_work import plan_compaction
from weft.storage.services.steps.parallel_tasks import in_threads
from weft.storage.services.steps.steps import cancel, finish
from weft.storage.services.steps.tasks import WORKING_BYTES, one_by_one

WAIT_SECONDS = 240.0


@dataclass
class Watch:
    """Counts tasks that run at the same time, and their memory."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0
    memory: int = 0
    most: int = 0
    most_memory: int = 0
    began: list[int] = field(default_factory=list)


@dataclass
class Busy:
    """A task that runs until others have joined it."""

    watch: Watch
    number: int
    memory_bytes: int = 1
    until: Callable[[], object] = lambda: None
    bytes: int = 1

    def run(self) -> int:
        watch = self.watch
        with watch.lock:
            watch.began.append(self.number)
            watch.running += 1
            watch.memory += self.memory_bytes
            watch.most = max(watch.most, watch.running)
            watch.most_memory = max(watch.most_memory, watch.memory)
        self.until()
        with watch.lock:
            watch.running -= 1
            watch.memory -= self.memory_bytes
        return self.number


def test_tasks_run_at_the_same_time_and_their_results_come_in_order() -> None:
    watch, together = Watch(), threading.Barrier(3, timeout=WAIT_SECONDS)
    tasks = [Busy(watch, number, until=together.wait) for number in range(9)]
    assert list(in_threads(3)(tasks)) == list(range(9))
    assert watch.most == 3


def test_a_slow_task_does_not_keep_others_from_running() -> None:
    watch, begun, all_others = Watch(), threading.Event(), threading.Event()
    last = 7

    def slow() -> None:
        begun.set()
        assert all_others.wait(WAIT_SECONDS)

    others = [Busy(watch, number, until=lambda: begun.wait(WAIT_SECONDS)) for number in range(1, last)]
    tasks = [Busy(watch, 0, until=slow), *others, Busy(watch, last, until=all_others.set)]
    assert list(in_threads(2)(tasks)) == list(range(last + 1))
    assert watch.most == 2


def test_tasks_wait_until_their_memory_is_there_and_the_largest_runs_alone() -> None:
    watch = Watch()
    memory = [40, 40, 500, 30, 30, 30, 100]
    tasks = [Busy(watch, number, needed) for number, needed in enumerate(memory)]
    results = in_threads(4, 100)(tasks)
    assert list(results) == list(range(len(memory)))
    assert watch.most_memory == 500, "a task that is too large runs alone"


def test_a_task_is_taken_when_it_can_begin() -> None:
    """A compaction decides late what its next task is."""
    watch, taken, looked = Watch(), list[int](), threading.Event()

    def tasks() -> object:
        for number in range(100):
            taken.append(number)
            # Those after the first do not end before the test has looked, however long the first takes.
            yield Busy(watch, number, until=lambda number=number: number == 0 or looked.wait(WAIT_SECONDS))

    results = iter(in_threads(2)(tasks()))  # type: ignore[arg-type]
    assert next(results) == 0
    assert len(taken) <= 3
    looked.set()
    assert next(iter(one_by_one(tasks()))) == 0  # type: ignore[arg-type]


def test_no_task_begins_after_one_has_failed() -> None:
    watch, failing = Watch(), threading.Event()

    def fail() -> None:
        failing.set()
        raise OSError("disk")

    # The first ends when the second fails. Others, which begin before that is noticed, are slow.
    first, second = Busy(watch, 0, until=lambda: failing.wait(WAIT_SECONDS)), Busy(watch, 1, until=fail)
    tasks = [first, second, *(Busy(watch, number, until=lambda: time.sleep(3)) for number in range(2, 50))]
    results = iter(in_threads(2)(tasks))
    assert next(results) == 0
    with pytest.raises(OSError, match="disk"):
        next(results)
    assert len(watch.began) <= 4
    assert watch.running <= 1


@pytest.mark.parametrize(("threads", "memory"), [(0, None), (2, 0)])
def test_limits_are_positive(threads: int, memory: int | None) -> None:
    with pytest.raises(InvalidInput, match="cannot run"):
        in_threads(threads, memory)


@pytest.fixture
def table() -> Table:
    table = Table.create(new_uri(), {**SHOP, "buckets": 16})
    append(table, orders(*range(400)))
    table.compact()
    append(table, orders(*range(200), status="later", ts=2))
    return table


@pytest.mark.usefixtures("own_files")
@pytest.mark.parametrize("memory", [None, 1, 3 * WORKING_BYTES])
def test_a_compaction_and_a_fold_in_threads_give_the_same_table(table: Table, memory: int | None) -> None:
    rows = contents(table)
    together = in_threads(4, memory)
    assert len(table.fold(execute=together).done) == 16
    assert contents(table) == rows
    assert len(table.compact(execute=together).done) == 16
    assert contents(table) == rows
    assert table.verify().ok
    assert table.snapshot().files == []


@pytest.mark.usefixtures("own_files")
def test_work_in_threads_can_be_cancelled(table: Table) -> None:
    rows = contents(table)
    work = plan_compaction(table, None, execute=in_threads(4))
    assert next(work.steps) > 0
    cancel(work.steps)
    assert not table.state().plans
    assert contents(table) == rows
    sizes: list[int] = []
    work = plan_compaction(table, None, execute=in_threads(4))
    assert len(finish(work.steps, sizes.append).done) == 16
    assert sum(sizes) == work.bytes
