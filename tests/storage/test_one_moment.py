"""S31 OneMoment: a snapshot has every commit that was visible before one of its commits began.

A store runs what other processes do at a chosen request of the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from storage import Table
from storage.clock import Stamps
from storage.core.log.entries import Data, Entry
from storage.core.names import TABLE_LANE, LaneName, slot_path
from storage.environment import Environment, RandomIds
from storage.errors import InvalidInput, NotOneMoment
from storage.log.commit_log import CommitLog
from storage.read.snapshot import Snapshot
from storage.store.open_store import open_store
from storage.write.writer import Writer
from tests.faulty_store import FakeClock, Fault, FaultyStore
from tests.storage.shop import SHOP, new_uri, orders, payments

FEW, MANY = 0, 12
"""Other lanes: with many, archives are announced (rule A3)."""


class Pipeline:
    """Writers of orders and payments that are always open, and a reader whose requests can be followed by actions."""

    def __init__(self, stack: ExitStack, others: int = FEW) -> None:
        self.uri = new_uri()
        Table.create(self.uri, SHOP)
        self._writers: dict[str, Writer] = {}
        self._stack = stack
        for lane in ["orders", "payments", *(f"other{number}" for number in range(others))]:
            self.add(lane)
            self.commit(lane, 0)
        self.store = FaultyStore(open_store(self.uri))
        self.reader = Table(Environment(self.store, FakeClock()), Stamps())

    def add(self, lane: str) -> None:
        stream = "payments" if lane.startswith("payments") else "orders"
        self._writers[lane] = self._stack.enter_context(Table.open(self.uri).writer(stream, lane=lane))

    def commit(self, lane: str, number: int) -> int:
        rows = payments(number) if lane.startswith("payments") else orders(number)
        return self._writers[lane].append(rows).seq

    def order_then_pay(self, number: int) -> Callable[[], None]:
        """A payment is made by a program that has seen its order."""

        def run() -> None:
            self.commit("orders", number)
            self.commit("payments", number)

        return run

    def after_end(self, lane: str, action: Callable[[], Any], later: int = 0) -> None:
        """Run an action after the reader has read the slot after the last entry of a lane, or a later one."""
        end = len(self.entries(lane))
        path = slot_path(LaneName(lane), end + 1 + later)
        self.store.faults.append(Fault("get", path, "after", action=action))

    def never_rest(self) -> None:
        """Let an order and its payment be committed whenever the reader has read the end of the lane of orders."""
        for number in range(20):
            self.after_end("orders", self.order_then_pay(100 + number), later=number)

    def entries(self, lane: str) -> list[Entry]:
        return CommitLog(Environment(open_store(self.uri))).read_after(LaneName(lane), 0)

    def commit_as_an_earlier_version(self, lane: str) -> None:
        last = self.entries(lane)[-1]
        assert isinstance(last, Data)
        changes = {"seq": last.seq + 1, "prev_id": last.commit_id, "stamp": last.stamp + 1}
        entry = last.model_copy(update={**changes, "commit_id": RandomIds().new(), "files": [], "rows": 0})
        assert CommitLog(Environment(open_store(self.uri))).publish(entry) == entry

    def read(self, **arguments: Any) -> Snapshot:
        """The newest snapshot; every action must have run."""
        found = self.reader.snapshot(**arguments)
        assert not any(fault.times for fault in self.store.faults)
        return found

    def orphans(self, found: Any) -> set[int]:
        """Payments in a snapshot without their order."""
        rows = found.to_arrow(["id", "status", "paid"]).to_pylist()
        return {row["id"] for row in rows if row["paid"] is not None and row["status"] is None}


@pytest.fixture
def stack() -> Any:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("others", [FEW, MANY])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_payment_is_not_seen_without_its_order(stack: ExitStack, others: int, *, is_first: bool) -> None:
    pipeline = Pipeline(stack, others)
    if not is_first:
        pipeline.reader.snapshot()
    else:
        Table.open(pipeline.uri).mark()
    # The end of the lane of orders was read; then both commit; then the lane of payments is read.
    pipeline.after_end("orders", pipeline.order_then_pay(7))
    found = pipeline.read()
    assert found.is_moment
    assert pipeline.orphans(found) == set()
    assert {7} <= {row["id"] for row in found.to_arrow(["id"]).to_pylist()}


def test_a_table_in_which_lanes_commit_in_every_round_is_no_moment(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)
    pipeline.reader.snapshot()
    pipeline.never_rest()
    found = pipeline.reader.snapshot()
    assert not found.is_moment
    assert pipeline.orphans(found) != set(), "nothing shows that it is no moment"


def test_who_insists_gets_the_moment_of_the_newest_entry_of_the_table_lane(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)
    pipeline.reader.snapshot()
    pipeline.order_then_pay(1)()
    Table.open(pipeline.uri).mark()
    pipeline.never_rest()
    found = pipeline.reader.snapshot(moment=True)
    assert found.is_moment
    assert pipeline.orphans(found) == set()
    assert {row["id"] for row in found.to_arrow(["id"]).to_pylist()} == {0, 1}
    with pytest.raises(InvalidInput, match="moment with as_of"):
        pipeline.reader.snapshot(str(found.cut), moment=True)


def test_a_savepoint_is_one_moment_and_has_all_that_was_committed_before(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)
    pipeline.order_then_pay(1)()
    pipeline.never_rest()
    kept = pipeline.reader.savepoint("kept")
    found = pipeline.reader.snapshot("kept")
    assert found.cut == kept.cut
    assert pipeline.orphans(found) == set()
    assert {0, 1} <= {row["id"] for row in found.to_arrow(["id"]).to_pylist()}


def test_a_commit_that_follows_one_of_a_new_lane_is_not_seen_without_it(stack: ExitStack) -> None:
    """The reader has read the end of the table lane, and does not know the new lane."""
    pipeline = Pipeline(stack)
    pipeline.reader.snapshot()

    def order_in_a_new_lane_then_pay() -> None:
        pipeline.add("orders-new")
        pipeline.commit("orders-new", 7)
        pipeline.commit("payments", 7)

    pipeline.after_end(TABLE_LANE, order_in_a_new_lane_then_pay)
    found = pipeline.read()
    assert found.is_moment
    assert pipeline.orphans(found) == set()
    assert {row["id"] for row in pipeline.read().to_arrow(["paid", "id"]).to_pylist()} == {0, 7}


def test_commits_of_earlier_versions_do_not_say_what_they_follow(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)
    pipeline.reader.snapshot()
    pipeline.commit_as_an_earlier_version("payments")
    assert not pipeline.read().is_moment
    assert pipeline.read().is_moment, "it was there before this read began"
    pipeline.commit_as_an_earlier_version("payments")
    with pytest.raises(NotOneMoment, match="lane 'payments' is written by an earlier version"):
        pipeline.read(moment=True)
    pipeline.commit_as_an_earlier_version("payments")
    Table.open(pipeline.uri).mark()
    assert pipeline.read().is_moment, "the mark names it"


def test_the_reader_is_told_what_the_writer_of_a_commit_had_read(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)
    table = Table.open(pipeline.uri)
    for _ in range(2):
        head = table.state().head
        seq = pipeline.commit("orders", 1)
        entry = pipeline.entries("orders")[seq - 1]
        assert isinstance(entry, Data)
        assert entry.table_seen == head
        table.mark()
