"""S31 OneMoment: a snapshot has every commit that was visible before one of its commits began.

A store runs what other processes do at a chosen request of the reader.
"""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.paying import Pipeline
from tests.storage.support.reference_shop import CUSTOMER, Shop
from tests.storage.support.shop import SHOP, new_uri, orders, payments
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.log.entries import Data
from weft.storage.core.names import TABLE_LANE, LaneName, slot_path
from weft.storage.environment import Environment
from weft.storage.errors import InvalidInput, NotOneMoment, NotSettled
from weft.storage.log import one_moment
from weft.storage.publish.delta import publish_delta
from weft.storage.read.changes.consumer_cuts import WINDOW, bounded_cut
from weft.storage.read.snapshot import Snapshot
from weft.storage.store.open_store import open_store
from weft.storage.write.writer import Writer

FEW, MANY = 0, 12
"""Other lanes: with many, archives are announced (rule A3)."""


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
    with pytest.raises(InvalidInput, match="moment: not possible with as_of"):
        pipeline.reader.snapshot(str(found.cut), moment=True)


def test_a_time_is_one_moment_for_who_insists_whatever_the_clocks_of_writers_say() -> None:
    uri, right, ahead = new_uri(), FakeClock(), FakeClock()
    table = Table.create(uri, SHOP, clock=right)

    def order_then_pay(number: int) -> None:
        right.time_ms += 10
        ahead.time_ms = right.time_ms + 30_000  # it records no mark
        orders_writer.append(orders(number))
        right.time_ms += 10
        payments_writer.append(payments(number))
        right.time_ms += 10

    def read(time: dt.datetime, **arguments: bool) -> tuple[set[int], Snapshot]:
        found = table.snapshot(time, **arguments)
        rows = found.to_arrow(["id", "status"]).to_pylist()
        assert not arguments.get("moment") or (found.is_moment and all(row["status"] for row in rows))
        return {row["id"] for row in rows}, found

    with (
        other_process(uri, ahead).writer("orders") as orders_writer,
        other_process(uri, right).writer("payments") as payments_writer,
    ):
        order_then_pay(1)
        marked = table.mark()
        order_then_pay(2)
        last = table.mark()
        order_then_pay(3)
        now = dt.datetime.fromtimestamp(right.time_ms / 1000, dt.UTC)
        ids, found = read(now)
        assert ids == {1, 2, 3}
        assert not found.is_moment
        assert found.to_arrow(["id", "status"]).filter(pc.field("id") == 3).column("status").to_pylist() == [None]
        ids, unsettled = read(now, moment=True)
        assert ids == {1, 2}
        assert not unsettled.settled
        with pytest.raises(NotSettled):
            table.snapshot(now, moment=True, settled=True)
        order_then_pay(4)
        table.mark()
        ids, settled = read(now, moment=True, settled=True)
        assert (ids, settled.cut) == ({1, 2}, unsettled.cut)
        for time, expected in ((marked, set()), (last, {1})):
            # A mark settles the times before it; its own moment is that of the first time it does not settle.
            assert read(time, moment=True, settled=True)[0] == expected
            later = time + dt.timedelta(milliseconds=1)
            assert read(later, moment=True)[0] == expected | {max(expected, default=0) + 1}


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
    with pytest.raises(NotOneMoment, match="commits to lane 'payments' of stream 'payments', and does not"):
        pipeline.read(moment=True)
    pipeline.commit_as_an_earlier_version("payments")
    Table.open(pipeline.uri).mark()
    assert pipeline.read().is_moment, "the mark names it"


def test_a_savepoint_that_cannot_be_one_moment_says_which_lanes_are_the_cause(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)

    def commit_as_earlier_versions() -> None:
        for lane in ("orders", "payments"):
            pipeline.commit_as_an_earlier_version(lane)

    for number in range(20):
        pipeline.after_end("orders", commit_as_earlier_versions, later=number)
    with pytest.raises(NotOneMoment, match="lane 'orders' of stream 'orders', lane 'payments' of stream") as refused:
        pipeline.reader.savepoint("kept")
    assert "weft mark" in refused.value.hint
    assert pipeline.reader.savepoints() == []
    pipeline.store.faults.clear()
    pipeline.reader.savepoint("kept", str(pipeline.reader.snapshot().cut))


def test_base_files_are_one_moment_after_a_compaction_of_a_table_that_never_rests(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)
    table = Table.open(pipeline.uri)
    assert publish_delta(table).is_moment, "nothing is published yet"
    pipeline.order_then_pay(1)()
    table.mark()
    pipeline.never_rest()
    pipeline.reader.compact()
    published = publish_delta(table)
    assert published.is_moment
    assert published.rows == 2
    shown = table.snapshot(published.cut).read_optimized().to_arrow(["id", "status", "paid"]).to_pylist()
    assert {row["id"] for row in shown if row["status"] and row["paid"]} == {0, 1}
    pipeline.order_then_pay(2)()
    table.compact(lambda each: each.group == table.snapshot().slices[0].group)
    assert not publish_delta(table).is_moment, "the other file groups are older"
    table.compact()
    assert publish_delta(table).is_moment


def test_base_files_of_a_cut_that_commits_of_earlier_versions_follow_may_be_no_moment(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)
    table = Table.open(pipeline.uri)
    table.compact()
    assert publish_delta(table).is_moment
    pipeline.commit_as_an_earlier_version("orders")
    assert not publish_delta(table).is_moment


def test_lanes_rest_again_after_more_commits_than_are_read_at_once(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_moment, "MANY_LANES", 4)
    pipeline = Pipeline(stack, MANY)
    pipeline.reader.snapshot()
    for number in range(MANY):
        pipeline.commit(f"other{number}", 5)
    pipeline.after_end("orders", pipeline.order_then_pay(7))
    found = pipeline.read()
    assert found.is_moment
    assert pipeline.orphans(found) == set()


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


def test_steps_of_changes_are_moments_where_the_commits_between_two_marks_are_few(stack: ExitStack) -> None:
    pipeline = Pipeline(stack)
    since, table = pipeline.reader.snapshot(), Table.open(pipeline.uri)
    for number in range(1, 4):
        pipeline.order_then_pay(number)()
        table.mark()
    until = pipeline.read(moment=True)
    sizes, lanes = [], dict(since.cut.lanes)
    for commits in range(1, 7):
        found = pipeline.reader.snapshot(str(bounded_cut(since, until, commits)))
        lanes = {lane: seq - since.cut.lanes[lane] for lane, seq in found.cut.lanes.items()}
        sizes.append((lanes["orders"], lanes["payments"]))
        assert pipeline.orphans(found) == set()
    assert sizes == [(1, 0), (1, 1), (1, 1), (2, 2), (2, 2), (3, 3)]


def test_steps_of_changes_choose_only_among_commits_that_are_known_to_be_all(stack: ExitStack) -> None:
    """A lane with more commits than are read at once may have more that began before an entry of the table lane."""
    pipeline = Pipeline(stack)
    since, table = pipeline.reader.snapshot(), Table.open(pipeline.uri)
    for number in range(WINDOW + 5):
        pipeline.commit("orders", number)
    pipeline.commit("payments", 1)
    table.mark()
    pipeline.commit("payments", 2)
    until = pipeline.read()
    for commits in (1, 2, 3, WINDOW + 5, WINDOW + 6):
        step = bounded_cut(since, until, commits)
        added = sum(step.lanes.values()) - sum(since.cut.lanes.values())
        assert added == commits
    whole = pipeline.reader.snapshot(str(bounded_cut(since, until, WINDOW + 6)))
    assert whole.cut.lanes == {**until.cut.lanes, "payments": until.cut.lanes["payments"] - 1}


def test_tables_that_are_read_together_are_of_one_moment_if_none_of_them_changes(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"customer": CUSTOMER})
    shop.customer(1, "Anna")
    shop.order(1, 1)
    assert not shop.orders.snapshot().is_moment, "nobody has looked"
    assert shop.orders.snapshot(moment=True).is_moment

    store = FaultyStore(open_store(shop.orders.uri))
    reader = Table(Environment(store), Stamps())
    reader.snapshot()
    state = reader.snapshot().cut

    def order_then_rename() -> None:
        shop.order(2, 1)
        shop.customer(1, "Bob", ts=2)

    # After the end of the lane of orders was read, and before the referenced table is read; in the first try.
    end = slot_path(LaneName("orders"), state.lanes[LaneName("orders")] + 1)
    store.faults.append(Fault("get", end, "after", action=order_then_rename))
    found = reader.snapshot(moment=True)
    assert found.is_moment
    rows = found.to_arrow(["order_id", "customer_name"]).sort_by("order_id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "Bob"), (2, "Bob")]


def test_a_step_of_changes_has_the_cause_of_what_it_has_although_a_lane_ends_with_claims() -> None:
    uri, clock = new_uri(), FakeClock(1_900_000_000_000)
    config = {
        "key": ["id"],
        "buckets": 1,
        "columns": {"id": "bigint", "ts": "bigint"},
        "groups": {"g": {"columns": ["ts"], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(uri, config, clock=clock)

    def append(writer: Writer, key: int) -> None:
        clock.time_ms += 10
        writer.append(pa.table({"id": [key], "ts": [1]}))

    with table.writer("s", lane="b") as b:
        append(b, 0)
        since = table.snapshot()
        with table.writer("s", lane="a") as a:
            append(a, 1)
            append(a, 2)
            a.finish()
        table.compact()  # its cut names the claim that finishes the lane
        with table.writer("s", lane="c") as c:
            append(c, 100)
            append(b, 200)  # began after 100 was visible
            clock.time_ms += 10
            table.mark()
            for key in range(300, 303):
                append(c, key)
    until = table.snapshot(moment=True)
    step = table.snapshot(str(bounded_cut(since, until, 4))).to_arrow(["id"]).column("id").to_pylist()
    assert sorted(step) == [0, 1, 2, 100, 200]
