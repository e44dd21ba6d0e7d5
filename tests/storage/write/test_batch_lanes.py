"""Batches without a query id use lanes again, and fence nobody (PROTOCOL.md, W10); any writer may finish its lane."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.damage import Damage
from tests.storage.support.shop import SHOP, contents, new_uri, orders
from tests.tuning import tune
from weft import Table
from weft.storage.core.log.features import FINISH
from weft.storage.core.names import LaneName, Path
from weft.storage.errors import CommitUnknown, Fenced, InvalidInput, StoreRefused
from weft.storage.log.heartbeat import EVERY_MS
from weft.storage.services.inspect.inspect import Inspection, LaneReport
from weft.storage.store.open_store import open_store
from weft.storage.write.writer import Writer

FIRST, SECOND = LaneName("orders-batches-1"), LaneName("orders-batches-2")
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def table(clock: FakeClock) -> Table:
    uri = new_uri()
    Table.create(uri, SHOP)
    return other_process(uri, clock)


def insert(table: Table, *ids: int, **arguments: Any) -> LaneName:
    """A batch in a process of its own; returns its lane."""
    with Table.open(table.uri).batch_writer("orders", **arguments) as writer:
        return writer.append(orders(*ids)).lane


def report(table: Table, lane: LaneName) -> LaneReport:
    return next(each for each in Inspection.of(table.snapshot()).lanes() if each.lane == lane)


def held_by(table: Table) -> tuple[LaneName, ...]:
    return table.watermarks()["orders"]["order"].held_by


def test_batches_that_follow_each_other_use_one_lane(table: Table) -> None:
    insert(table, 0)
    before = table.state().head
    for number in range(1, 10):
        insert(table, number)
    assert list(table.state().lanes) == [FIRST]
    assert table.state().head == before, "a batch needs no entry of the table lane"
    assert [row[0] for row in contents(table)] == list(range(10))
    assert (report(table, FIRST).finished, report(table, FIRST).for_batch, held_by(table)) == (True, True, ())
    assert table.verify().findings == ()


def test_batches_at_the_same_time_have_a_lane_each_and_later_ones_use_these(table: Table) -> None:
    with table.batch_writer("orders") as one, Table.open(table.uri).batch_writer("orders") as other:
        assert {one.lane, other.lane} == {FIRST, SECOND} == set(held_by(table))
        one.append(orders(1))
        other.append(orders(2))
    assert {insert(table, number) for number in range(3, 12)} <= {FIRST, SECOND}
    assert (len(contents(table)), held_by(table)) == (11, ())


def test_a_batch_that_loses_a_lane_takes_another_one_and_does_not_fence_the_winner(table: Table) -> None:
    insert(table, 1)
    store = FaultyStore(open_store(table.uri))
    winner = Table.open(table.uri).batch_writer("orders")
    store.faults.append(Fault("put_if_absent", f"lanes/{FIRST}", action=lambda: (winner.__enter__(), None)[1]))
    with other_process(table.uri, FakeClock(), store).batch_writer("orders") as loser:
        assert (winner.lane, loser.lane) == (FIRST, SECOND)
        loser.append(orders(2))
    winner.append(orders(3))
    winner.__exit__(None, None, None)
    assert [row[0] for row in contents(table)] == [1, 2, 3]


def test_lanes_that_are_added_at_the_same_time_have_different_names(table: Table) -> None:
    store = FaultyStore(open_store(table.uri))
    with table.batch_writer("orders"):  # records the feature, and is in the first lane
        other = Table.open(table.uri).batch_writer("orders")
        store.faults.append(Fault("put_if_absent", "timeline/table/", action=lambda: (other.__enter__(), None)[1]))
        with other_process(table.uri, FakeClock(), store).batch_writer("orders") as writer:
            assert (other.lane, writer.lane) == (SECOND, "orders-batches-3")
        other.__exit__(None, None, None)
    assert held_by(table) == ()


def _by_zero(_: Writer) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "fail",
    [
        lambda writer: writer.append(orders(1).drop_columns(["id"])),
        lambda writer: writer.append(orders(1), batch=("q", 1)),
        _by_zero,
    ],
    ids=["bad rows", "a query id", "an error of the caller"],
)
def test_a_batch_that_fails_leaves_its_lane(table: Table, fail: Callable[[Writer], object]) -> None:
    with pytest.raises((InvalidInput, ZeroDivisionError)), table.batch_writer("orders") as writer:
        fail(writer)
    assert (held_by(table), contents(table)) == ((), [])
    assert insert(table, 2) == FIRST


def test_a_batch_without_rows_leaves_its_lane(table: Table) -> None:
    insert(table)
    assert held_by(table) == ()
    assert insert(table, 2) == FIRST


def test_a_writer_of_one_batch_commits_once(table: Table) -> None:
    with table.batch_writer("orders") as writer:
        writer.append(orders(1))
        with pytest.raises(InvalidInput, match="'orders-batches-1' is finished"):
            writer.append(orders(2))


def test_nobody_takes_the_lane_of_a_batch_that_died_until_it_is_fenced(table: Table) -> None:
    dead = table.batch_writer("orders").__enter__()
    assert insert(table, 1) == SECOND
    assert held_by(table) == (FIRST,)
    table.fence(FIRST)
    assert held_by(table) == ()
    # Each batch draws one of the two: so many do not all draw the same one.
    assert {insert(table, 2 + number % 8) for number in range(48)} == {FIRST, SECOND}
    with pytest.raises(Fenced) as lost:
        dead.append(orders(9))
    assert lost.value.hint == "repeat this batch: nothing of it was written"
    assert len(contents(table)) == 9


def test_a_clean_finishes_the_lanes_of_batches_that_died_a_day_ago(table: Table, clock: FakeClock) -> None:
    dead, alive = table.batch_writer("orders").__enter__(), table.batch_writer("orders").__enter__()
    clock.time_ms += DAY_MS - 1
    alive.heartbeat()
    table.clean()
    assert set(held_by(table)) == {dead.lane, alive.lane}
    clock.time_ms += EVERY_MS
    table.clean(dry_run=True)
    assert set(held_by(table)) == {dead.lane, alive.lane}
    table.clean()
    assert held_by(table) == (alive.lane,)
    alive.append(orders(1))
    assert (held_by(table), len(contents(table))) == ((), 1)


def test_a_commit_in_doubt_is_settled_when_the_batch_ends(table: Table) -> None:
    """The claim that finishes the lane wants the slot of the commit: one of the two is there, and the next goes on."""
    store = FaultyStore(open_store(table.uri))
    process = other_process(table.uri, FakeClock(), store)

    def append_in_doubt(writer: Writer, number: int, happens: Literal["before", "after"]) -> None:
        store.faults += [
            Fault("put_if_absent", f"lanes/{FIRST}", happens, FOREVER, OSError("away")),
            Fault("get", f"lanes/{FIRST}", "before", FOREVER, OSError("away")),
        ]
        try:
            writer.append(orders(number))
        finally:
            store.faults.clear()

    with pytest.raises(CommitUnknown), process.batch_writer("orders") as writer:
        append_in_doubt(writer, 1, "before")
    assert held_by(table) == ()
    with pytest.raises(CommitUnknown), process.batch_writer("orders") as writer:
        append_in_doubt(writer, 2, "after")
    assert held_by(table) == ()
    assert [row[0] for row in contents(table)] == [2]
    assert insert(table, 3) == FIRST


def test_a_lane_that_cannot_be_left_is_reported(table: Table) -> None:
    store = FaultyStore(open_store(table.uri))
    with (
        pytest.warns(UserWarning, match=r"(?s)lane 'orders-batches-1' stays claimed.*weft fence"),
        other_process(table.uri, FakeClock(), store).batch_writer("orders"),
    ):
        store.faults.append(Fault("put_if_absent", "lanes/", times=FOREVER, error=PermissionError("no")))
    assert held_by(table) == (FIRST,)


def test_a_batch_does_not_make_the_promises_of_the_one_before(table: Table) -> None:
    with table.batch_writer("orders", lateness=3) as writer:
        writer.append(orders(1, ts=40))
    assert table.watermarks()["orders"]["order"].value == 37
    with table.batch_writer("orders") as writer:
        assert table.watermarks()["orders"]["order"].value is None, "its events may be older"
        assert writer.append(orders(2, ts=5)).late == 0
    with table.batch_writer("orders", lateness=3) as writer:
        writer.append(orders(3, ts=20))
    assert table.watermarks()["orders"]["order"].value == 17
    assert table.verify().errors == ()


def test_a_restore_takes_back_batches_and_their_lanes_are_used_again(table: Table) -> None:
    insert(table, 1)
    savepoint = str(table.savepoint("before").cut)
    insert(table, 2)
    running = table.batch_writer("orders").__enter__()
    table.restore(savepoint)
    with pytest.raises(Fenced):
        running.append(orders(3))
    running.__exit__(None, None, None)
    assert ([row[0] for row in contents(table)], held_by(table)) == ([1], ())
    assert insert(table, 4) == FIRST
    assert [row[0] for row in contents(table)] == [1, 4]
    assert table.verify().errors == ()


def test_a_closed_lane_is_not_used_again(table: Table) -> None:
    insert(table, 1)
    table.close_lane(FIRST)
    assert insert(table, 2) == SECOND
    running = table.batch_writer("orders").__enter__()
    table.close_lane(running.lane)
    with pytest.raises(Fenced):
        running.append(orders(3))
    assert len(contents(table)) == 2


def test_only_tables_with_finished_lanes_have_the_feature(table: Table) -> None:
    with table.writer("orders") as writer:
        writer.append(orders(1))
        assert FINISH not in table.state().writer_features
    insert(table, 2)
    assert FINISH in table.state().writer_features
    head = table.state().head
    insert(table, 3)
    assert table.state().head == head


def test_a_finished_lane_is_continued_by_the_next_writer(table: Table) -> None:
    with table.writer("orders", lateness=3) as live, table.writer("orders", "fix") as writer:
        live.append(orders(1, ts=40))
        first = writer.append(orders(2), batch=("fix", 0))
        assert held_by(table) == ("fix",)
        writer.finish()
        writer.finish()
        assert (held_by(table), table.watermarks()["orders"]["order"].value) == (("orders",), 37)
        with pytest.raises(InvalidInput, match="is finished"):
            writer.append(orders(3), batch=("fix", 1))
    with table.writer("orders", "fix", query_id="fix") as writer:
        again = writer.append(orders(2), batch=("fix", 0))
        assert (again.replayed, again.seq) == (True, first.seq)
        assert held_by(table) == ("fix",)
        assert not writer.append(orders(3), batch=("fix", 1)).replayed
    assert [row[0] for row in contents(table)] == [1, 2, 3]
    assert table.verify().errors == ()


def test_a_fenced_writer_does_not_finish_the_lane_of_another(table: Table) -> None:
    with table.writer("orders") as old, table.writer("orders") as new:
        with pytest.raises(Fenced):
            old.finish()
        new.append(orders(1))
        assert held_by(table) == ("orders",)


def test_a_lane_named_by_the_user_is_never_taken(table: Table) -> None:
    with table.writer("orders", FIRST) as writer:
        writer.append(orders(1))
        assert insert(table, 2) == SECOND
        writer.append(orders(3))
    assert len(contents(table)) == 3


def test_an_undo_of_another_stream_does_not_touch_a_batch(table: Table) -> None:
    with table.writer("payments"), table.batch_writer("orders") as running:
        table.undo("payments", str(table.snapshot().cut))
        running.append(orders(1))
    assert len(contents(table)) == 1


def test_verify_finds_a_batch_that_fenced_another_writer(table: Table) -> None:
    insert(table, 1)
    insert(table, 2)
    damage = Damage(table)
    damage.edit(damage.slot(FIRST, "DATA", 0), lambda entry: entry.pop("finishes"))
    assert [finding.invariant for finding in table.verify().errors] == ["L5"]


def test_verify_finds_a_writer_that_went_on_after_it_finished(table: Table) -> None:
    insert(table, 1)
    damage = Damage(table)
    damage.append(FIRST, files=[], rows=0)
    assert "S3" in [finding.invariant for finding in table.verify().errors]


def test_nothing_but_archives_grows_with_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the checkpoints of their lanes, without which nothing would be archived: cleaning writes them."""
    tune(monkeypatch, archive_chunk=8, lane_checkpoint_every=8, table_checkpoint_every=8)
    table = Table.create(new_uri(), SHOP)
    sizes = []
    for _ in range(4):
        for number in range(20):
            insert(table, number)
        table.mark()
        table.compact()
        table.clean(dt.timedelta(0))
        stored = [name for name, _ in open_store(table.uri).list(Path("_weft"))]
        sizes.append((len(str(table.snapshot().cut)), sum(not name.startswith("archive/") for name in stored)))
    assert max(sizes[1:]) <= (sizes[0][0] + 4, sizes[0][1] + 8), sizes


def test_a_store_that_refuses_any_request_of_a_batch_leaves_lanes_that_can_be_used(table: Table) -> None:
    insert(table, 0)
    store = FaultyStore(open_store(table.uri))
    with other_process(table.uri, FakeClock(), store).batch_writer("orders") as writer:
        writer.append(orders(1))
    writes = [path for call, path in store.calls if call == "put_if_absent" and "lanes/" in path]
    assert len(writes) == 2, "a claim and a commit"
    for nth in range(2):
        store = FaultyStore(open_store(table.uri))
        store.faults += [Fault("put_if_absent", "lanes/", action=lambda: None) for _ in range(nth)]
        store.faults.append(Fault("put_if_absent", "lanes/", error=PermissionError("no access")))
        process = other_process(table.uri, FakeClock(), store)
        with pytest.raises(StoreRefused), process.batch_writer("orders") as writer:
            writer.append(orders(2 + nth))
    insert(table, 9)
    assert {0, 1, 9} <= {row[0] for row in contents(table)}


def test_a_finish_that_a_restore_rolls_back_is_none(table: Table) -> None:
    """Its source sends the events again, so the lane holds back the watermark as before."""
    with table.writer("orders", lane="fast", lateness=0) as fast, table.writer("orders", "slow", lateness=0) as slow:
        fast.append(orders(1, ts=90))
        slow.append(orders(2, ts=50))
        table.savepoint("before")
        slow.append(orders(3, ts=200))
        slow.finish()
    assert table.watermarks()["orders"]["order"].value == 90
    table.restore("before")
    assert table.watermarks()["orders"]["order"].value == 50
    assert not report(table, LaneName("slow")).finished


def test_a_lane_whose_batch_died_before_its_claim_is_finished_by_a_clean(table: Table) -> None:
    with table.writer("orders", lateness=0) as writer:
        writer.append(orders(1, ts=50))
    died = table.batch_writer("orders")
    died._claim.add_feature(table.state())
    died._claim._declare_lane()
    assert table.watermarks()["orders"]["order"].value is None
    table.clean(dt.timedelta(0), abandon_after=dt.timedelta(0))
    assert table.watermarks()["orders"]["order"].value == 50
