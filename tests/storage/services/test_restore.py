"""Savepoints, restore, undo of one stream and closing of lanes, with live writers."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from weft import Table
from weft.storage.core.log.entries import Claim, Done, Intent
from weft.storage.core.names import TABLE_LANE, LaneName
from weft.storage.errors import Conflict, Fenced, GapError, InvalidInput, NotFound, SnapshotExpired, StoreUnavailable
from weft.storage.log.fencing_barrier import complete_fencing_barrier, fence_lane
from weft.storage.services.compaction.compaction import compaction_steps
from weft.storage.services.steps.steps import finish
from weft.storage.store.open_store import open_store


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str) -> Table:
    return Table.create(uri, SHOP)


def test_a_restore_rolls_back_commits_after_a_savepoint(table: Table) -> None:
    append(table, orders(1, 2))
    append(table, payments(1), "payments")
    before = contents(table)
    table.savepoint("before", note="the good state")
    append(table, orders(1, status="bad", ts=9))
    append(table, orders(7, status="bad", ts=9))
    result = table.restore("before")
    assert contents(table) == before
    assert contents(Table.open(table.uri)) == before
    assert result.rolled_back == {
        LaneName("orders"): 5,
        LaneName("payments"): 1,
    }  # claims, commits, and the fence itself


@pytest.mark.parametrize("compacted", ["never", "before", "after", "both"])
def test_a_restore_works_across_compactions(table: Table, compacted: str) -> None:
    append(table, orders(1, 2))
    if compacted in {"before", "both"}:
        table.compact()
    before = contents(table)
    table.savepoint("before")
    append(table, orders(1, op="D", ts=9))
    append(table, payments(2, paid=3.0, ts=9), "payments")
    if compacted in {"after", "both"}:
        table.compact()
    table.restore("before")
    assert contents(table) == before
    append(table, payments(1, paid=5.0, ts=1), "payments")
    wanted = contents(table)
    table.compact()
    assert contents(table) == wanted
    assert contents(Table.open(table.uri)) == wanted
    assert wanted != before


def test_only_older_snapshots_see_rolled_back_commits(table: Table) -> None:
    append(table, orders(1))
    table.savepoint("one")
    append(table, orders(2))
    with_two = table.snapshot()
    rows = contents(table)
    table.restore("one")
    append(table, orders(3))
    assert contents(table, as_of=str(with_two.cut)) == rows
    assert [row[0] for row in contents(table)] == [1, 3]


def test_a_restore_can_be_reverted_by_a_restore(table: Table) -> None:
    append(table, orders(1))
    table.savepoint("one")
    append(table, orders(2))
    table.savepoint("two")
    two = contents(table)
    table.restore("one")
    append(table, orders(3))
    table.restore("two")
    assert contents(table) == two
    table.restore("one")
    assert [row[0] for row in contents(table)] == [1]


def test_a_restore_fences_a_live_writer_and_a_new_one_continues(table: Table) -> None:
    append(table, orders(1))
    table.savepoint("one")
    with table.writer("orders") as writer:
        writer.append(orders(2))
        table.restore("one")
        with pytest.raises(Fenced, match="claimed for the restore of entry") as error:
            writer.append(orders(3))
    assert "open a new writer" in error.value.hint
    append(table, orders(4))
    assert [row[0] for row in contents(table)] == [1, 4]


def test_batch_numbers_continue_after_the_live_commits(table: Table) -> None:
    with table.writer("orders") as writer:
        writer.append(orders(1), batch=("q", 0), source={"offset": 10})
        table.savepoint("after-batch-0")
        writer.append(orders(2), batch=("q", 1), source={"offset": 20})
        writer.append(orders(3), batch=("q", 2), source={"offset": 30})
    table.restore("after-batch-0")
    with table.writer("orders") as writer:
        assert writer.last_batch("q") == 0
        assert writer.source == {"offset": 10}
        with pytest.raises(GapError):
            writer.append(orders(4), batch=("q", 3))
        assert not writer.append(orders(2), batch=("q", 1)).replayed  # it was rolled back, so it is written again
        assert writer.append(orders(1), batch=("q", 0)).replayed
    assert [row[0] for row in contents(table)] == [1, 2]


def test_a_query_without_live_commits_cannot_continue_in_the_middle(table: Table) -> None:
    # A query's first batch may have any number. But a query with rolled-back batches is not new: batches would be lost.
    table.savepoint("empty")
    with table.writer("orders") as writer:
        for number in range(3):
            writer.append(orders(number), batch=("q", number))
    table.restore("empty")
    with table.writer("orders") as writer:
        assert writer.last_batch("q") is None
        with pytest.raises(
            GapError, match=r"batch 3 of query 'q' has no predecessor: .* rolled back its batches, from batch 0 on"
        ):
            writer.append(orders(9), batch=("q", 3))
        for number in range(3):
            assert not writer.append(orders(number), batch=("q", number)).replayed
    assert [row[0] for row in contents(table)] == [0, 1, 2]


def test_undo_rolls_back_one_stream_only(uri: str) -> None:
    clock = FakeClock()
    table = Table.create(uri, SHOP, clock=clock)
    append(table, orders(1, status="good", ts=1))
    clock.time_ms += 60_000
    since = dt.datetime.fromtimestamp(clock.time_ms / 1000, dt.UTC)
    with table.writer("payments") as payer:
        payer.append(payments(1, paid=1.0, ts=1))
        append(table, orders(1, status="bad", ts=5))
        append(table, orders(2, status="bad", ts=5))
        table.undo("orders", since)
        payer.append(payments(3, paid=3.0, ts=1))  # the other writer never noticed
    assert [(row[0], row[1]) for row in contents(table)] == [(1, "good"), (3, None)]
    append(table, orders(2, status="again", ts=2))
    assert [(row[0], row[1]) for row in contents(table)] == [(1, "good"), (2, "again"), (3, None)]
    wanted = contents(table)
    table.compact()
    assert contents(table) == wanted


def test_a_second_undo_of_the_same_time_counts_what_is_new(table: Table) -> None:
    append(table, orders(1))
    table.savepoint("good")
    append(table, orders(2))
    append(table, orders(3))
    first = table.undo("orders", "good")
    assert (first.rolled_back, first.before) == ({"orders": 5}, {}), "two commits, two claims of writers, and its own"
    again = table.undo("orders", "good")
    assert (again.kept, again.rolled_back, again.before) == (first.kept, {"orders": 1}, {"orders": 5})
    assert again.rolled_back_ms == {}
    append(table, orders(4))
    third = table.undo("orders", "good")
    assert (third.rolled_back, third.before) == ({"orders": 3}, {"orders": 6})
    assert list(third.rolled_back_ms) == ["orders"]
    assert [row[0] for row in contents(table)] == [1]


def test_undo_restores_slices_without_the_undone_commits(uri: str) -> None:
    clock = FakeClock()
    table = Table.create(uri, SHOP, clock=clock)
    append(table, orders(1, status="good", ts=1))
    table.compact()
    clock.time_ms += 60_000
    since = dt.datetime.fromtimestamp(clock.time_ms / 1000, dt.UTC)
    append(table, orders(1, status="bad", ts=5))
    append(table, payments(1, paid=2.0, ts=1), "payments")
    table.compact()
    append(table, payments(2, paid=2.5, ts=1), "payments")
    table.undo("orders", since)
    assert [(row[0], row[1], row[3]) for row in contents(table)] == [(1, "good", 2.0), (2, None, 2.5)]


def test_an_undo_that_is_not_possible_is_refused(table: Table) -> None:
    with pytest.raises(NotFound, match="no stream 'nobody'"):
        table.undo("nobody", dt.datetime.now(dt.UTC))
    with pytest.raises(NotFound, match="nothing of stream 'orders' to undo"):
        table.undo("orders", dt.datetime.now(dt.UTC))
    append(table, orders(1))
    with pytest.raises(InvalidInput, match="no time zone"):
        table.undo("orders", dt.datetime(2026, 1, 1))  # noqa: DTZ001
    assert [row[0] for row in contents(table)] == [1]


def test_savepoints_are_listed_read_and_released(table: Table) -> None:
    append(table, orders(1))
    made = table.savepoint("release-1.0", note="checked")
    append(table, orders(2))
    assert [row[0] for row in contents(table, as_of="release-1.0")] == [1]
    assert table.savepoints() == [made]
    assert (made.name, made.note) == ("release-1.0", "checked")
    with pytest.raises(Conflict, match="a savepoint"):
        table.savepoint("release-1.0")
    table.release_savepoint("release-1.0")
    assert table.savepoints() == []
    with pytest.raises(NotFound, match="no savepoint") as caught:
        table.snapshot("release-1.0")
    assert caught.value.hint.startswith("the table has no savepoints; or use a time")
    with pytest.raises(NotFound, match="no savepoint") as caught:
        table.release_savepoint("release-1.0")
    assert caught.value.hint == "the table has no savepoints", "a time or a cut cannot be released"


@pytest.mark.parametrize("name", ["", "cut:1:2:", "a b", "../x", "x" * 101, "-x"])
def test_a_savepoint_needs_a_name(table: Table, name: str) -> None:
    with pytest.raises(InvalidInput, match="not a savepoint name"):
        table.savepoint(name)
    assert table.savepoints() == []


@pytest.mark.parametrize(
    "name",
    ["now", "Today", "epoch", "earliest", "2026", "2026-01", "2026-1-1", "20260101", "2026-W01-1", "2026-01-01T10"],
)
def test_a_savepoint_has_no_name_that_is_a_time(table: Table, name: str) -> None:
    with pytest.raises(InvalidInput, match="could take it for a time") as caught:
        table.savepoint(name)
    assert caught.value.hint == f"put a word before it, for example 'before-{name}'"
    assert table.savepoints() == []
    table.savepoint(f"before-{name}")
    table.savepoint(f"{name}-migration")


def test_a_closed_lane_keeps_its_rows_and_accepts_no_commits(table: Table) -> None:
    append(table, orders(1))
    with table.writer("orders", lane="fix") as writer:
        writer.append(orders(2))
        table.close_lane("fix")
        with pytest.raises(Fenced, match="claimed for the closing"):
            writer.append(orders(3))
    with pytest.raises(Conflict, match="lane 'fix' is closed"), table.writer("orders", lane="fix"):
        pass
    with pytest.raises(Conflict, match="already closed"):
        table.close_lane("fix")
    with pytest.raises(Conflict, match="already closed"):
        table.fence("fix")
    with pytest.raises(NotFound, match="no lane 'nobody'"):
        table.close_lane("nobody")
    append(table, orders(4))
    assert [row[0] for row in contents(table)] == [1, 2, 4]
    table.compact()
    assert [row[0] for row in contents(table)] == [1, 2, 4]


def test_the_end_of_a_closed_lane_is_not_searched(table: Table) -> None:
    with table.writer("orders", lane="fix") as writer:
        writer.append(orders(2))
    closed = table.close_lane("fix")
    store = FaultyStore(open_store(table.uri))
    reader = other_process(table.uri, FakeClock(), store)
    assert len(contents(reader)) == 1
    assert not [path for _, path in store.calls if path.endswith(f"lanes/fix/{closed + 1:020d}.json")]


def test_a_slice_may_include_a_claim_after_the_end_of_a_closed_lane(table: Table, uri: str) -> None:
    """Such claims have no effect; a compaction that began before the lane was closed may have read one."""
    with table.writer("orders", lane="fix") as writer:
        writer.append(orders(*range(1, 9)))
    before = contents(table)
    dying_store = FaultyStore(open_store(uri))
    done = f"timeline/table/{table.snapshot().cut.table + 2:020d}.json"
    dying_store.faults.append(Fault("put_if_absent", done, times=FOREVER, error=PermissionError("killed")))
    with pytest.raises(StoreUnavailable):
        other_process(uri, FakeClock(), dying_store).close_lane("fix")
    late = fence_lane(table._table_log, LaneName("fix"), "somebody who had not looked")
    snapshot = table.snapshot()
    assert snapshot.cut.lanes["fix"] == late
    complete_fencing_barrier(table._table_log)
    assert table.state().lanes[LaneName("fix")].closed == late - 1
    first = snapshot.slices[0].group
    finish(compaction_steps(table._table_log, snapshot, lambda file_slice: file_slice.group == first))
    assert contents(table) == before
    assert contents(Table.open(uri), as_of=str(table.snapshot().cut)) == before
    table.compact()
    assert contents(table) == before
    assert table.verify().ok


def test_a_restore_rolls_back_commits_of_a_closed_lane(table: Table) -> None:
    append(table, orders(1))
    table.savepoint("one")
    with table.writer("orders", lane="fix") as writer:
        writer.append(orders(2))
    table.close_lane("fix")
    table.restore("one")
    assert [row[0] for row in contents(table)] == [1]


def test_a_fenced_writer_loses_nothing(table: Table) -> None:
    with table.writer("orders") as writer:
        writer.append(orders(1))
        table.fence("orders")
        with pytest.raises(Fenced, match="an operator"):
            writer.append(orders(2))
    assert [row[0] for row in contents(table)] == [1]


@pytest.mark.parametrize("died", ["timeline/lanes/orders", "timeline/lanes/payments", "DONE"])
@pytest.mark.parametrize("helper", ["writer", "service", "reader"])
def test_the_next_process_completes_an_interrupted_restore(table: Table, uri: str, died: str, helper: str) -> None:
    append(table, orders(1))
    append(table, payments(1), "payments")
    table.savepoint("one")
    before = contents(table)
    append(table, orders(2))
    after = contents(table)
    store = FaultyStore(open_store(uri))
    path = f"{table.snapshot().cut.table + 2:020d}.json" if died == "DONE" else died
    store.faults.append(Fault("put_if_absent", path, times=FOREVER, error=PermissionError("killed")))
    dying = other_process(uri, FakeClock(), store)
    with pytest.raises(StoreUnavailable):
        dying.restore("one")
    assert contents(table) == after  # nothing has changed yet
    if helper == "writer":
        with table.writer("orders"):
            pass
    elif helper == "service":
        table.compact()
    else:
        return
    assert contents(table) == before
    kinds = [entry for entry in _table_lane(table) if isinstance(entry, Intent | Done)]
    assert [entry.kind for entry in kinds] == ["INTENT", "DONE"]


def test_two_processes_completing_one_barrier_agree_on_its_first_claims(table: Table, uri: str) -> None:
    append(table, orders(1))
    table.savepoint("one")
    store = FaultyStore(open_store(uri))
    other = other_process(uri, FakeClock(), store)
    # Just before the first one publishes DONE, a second one completes the barrier.
    done = f"{table.snapshot().cut.table + 2:020d}.json"
    store.faults.append(
        Fault("put_if_absent", done, action=lambda: complete_fencing_barrier(table._table_log) and None)
    )
    other.restore("one")
    claims = [
        e for e in table._table_log.commit_log.read_after(LaneName("orders"), 0) if isinstance(e, Claim) and e.intent
    ]
    assert len(claims) == 1
    assert [entry.kind for entry in _table_lane(table)].count("DONE") == 1


def test_a_compaction_overtaken_by_a_restore_publishes_nothing(table: Table, uri: str) -> None:
    append(table, orders(1))
    table.savepoint("one")
    append(table, orders(2))
    store = FaultyStore(open_store(uri))
    slow = other_process(uri, FakeClock(), store)
    store.faults.append(Fault("open_output", "base/", action=lambda: table.restore("one") and None))
    result = slow.compact()
    assert not result.done
    assert "plan was closed meanwhile" in next(iter(result.skipped.values()))
    assert [row[0] for row in contents(table)] == [1]
    assert not open_store(uri).list("base")


def test_a_compaction_of_a_snapshot_from_before_a_restore_does_not_begin(table: Table, uri: str) -> None:
    """The parents of its slices would be the newest again, and the slices would contain rolled-back commits."""
    append(table, orders(1))
    table.savepoint("one")
    append(table, orders(2))
    store = FaultyStore(open_store(uri))
    slow = other_process(uri, FakeClock(), store)
    plan = f"timeline/table/{table.snapshot().cut.table + 1:020d}"
    store.faults.append(Fault("put_if_absent", plan, action=lambda: table.restore("one") and None))
    with pytest.raises(Conflict, match="restored since"):
        slow.compact()
    assert [row[0] for row in contents(table)] == [1]
    table.compact()
    assert [row[0] for row in contents(table)] == [1]


def test_a_writer_that_starts_during_a_restore_writes_after_it(table: Table, uri: str) -> None:
    append(table, orders(1))
    table.savepoint("one")
    append(table, orders(2))
    store = FaultyStore(open_store(uri))
    late = other_process(uri, FakeClock(), store)
    # Between its claim and its read of the table lane, a restore begins and dies after its INTENT.
    dying_store = FaultyStore(open_store(uri))
    dying_store.faults.append(Fault("put_if_absent", "lanes/", times=FOREVER, error=PermissionError("killed")))
    dying = other_process(uri, FakeClock(), dying_store)

    def begin() -> None:
        with pytest.raises(StoreUnavailable):
            dying.restore("one")

    store.faults.append(Fault("put_if_absent", "lanes/orders", when="after", action=begin))
    with late.writer("orders") as writer:
        writer.append(orders(3))
    assert [row[0] for row in contents(table)] == [1, 3]


def test_a_restore_to_an_expired_snapshot_is_refused(table: Table) -> None:
    with pytest.raises(NotFound, match="no savepoint 'never'"):
        table.restore("never")
    assert SnapshotExpired.code == "SNAPSHOT_EXPIRED"


def _table_lane(table: Table) -> list[object]:
    return table._table_log.commit_log.read_after(TABLE_LANE, 0)
