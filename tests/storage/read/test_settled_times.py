"""as_of a time: the result cannot change once the time is settled, even if clocks are wrong (S24)."""

from __future__ import annotations

import datetime as dt
import itertools

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from weft import Table
from weft.storage.core.log.entries import Mark
from weft.storage.core.names import TABLE_LANE, LaneName
from weft.storage.errors import CommitUnknown, InvalidInput, NotSettled, SnapshotExpired, StoreUnavailable
from weft.storage.log.fencing_barrier import complete_fencing_barrier
from weft.storage.log.time_marks import MARK_EVERY_MS
from weft.storage.store.open_store import open_store

NOW_MS = 1_900_000_000_000
YEAR_MS = 365 * 24 * 3_600_000


@pytest.fixture
def clock() -> FakeClock:
    """A correct clock."""
    return FakeClock(NOW_MS)


@pytest.fixture
def table(clock: FakeClock) -> Table:
    uri = new_uri()
    Table.create(uri, SHOP, clock=clock)
    return other_process(uri, clock)


def moment(time_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=time_ms)


def ids(table: Table, as_of: dt.datetime | str | None = None) -> list[int]:
    return [row[0] for row in contents(table, ["id"], as_of=as_of)]


def marks(table: Table) -> list[Mark]:
    return [entry for entry in table._table_log.commit_log.read_after(TABLE_LANE, 0) if isinstance(entry, Mark)]


def test_a_commit_with_a_clock_a_minute_behind_does_not_change_a_settled_time(table: Table, clock: FakeClock) -> None:
    behind = other_process(table.uri, late := FakeClock(NOW_MS))
    append(behind, payments(1), "payments")
    append(table, orders(1))
    clock.time_ms += 120_000
    late.time_ms += 60_000
    asked = moment(clock.time_ms - 30_000)
    table.mark()
    assert ids(table, asked) == [1]
    append(behind, payments(2), "payments")
    assert ids(table, asked) == ids(behind, asked) == [1]
    assert ids(table) == [1, 2]


def test_a_slow_put_does_not_change_a_settled_time(table: Table, clock: FakeClock) -> None:
    store = FaultyStore(open_store(table.uri))
    slow = other_process(table.uri, clock, store)
    answers = []

    def meanwhile() -> None:
        clock.time_ms += 1_500
        table.mark()
        answers.append(ids(table, asked))

    append(table, orders(1))
    with slow.writer("payments") as writer:
        asked = moment(clock.time_ms + 700)
        store.faults.append(Fault("put_if_absent", "lanes/payments", action=meanwhile))
        writer.append(payments(2))
    assert answers == [[1]]
    assert ids(table, asked) == [1]
    assert ids(table, moment(clock.time_ms)) == [1, 2]


def test_a_time_is_unsettled_until_a_mark_is_recorded(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    asked = moment(clock.time_ms)
    assert not table.snapshot(asked).settled
    with pytest.raises(NotSettled, match="may still change") as raised:
        table.snapshot(asked, settled=True)
    assert "weft mark" in raised.value.hint
    assert str(table.snapshot(asked).cut) in raised.value.hint
    table.mark()
    assert not table.snapshot(asked).settled, "a time in the same millisecond as the mark is not before the mark"
    clock.time_ms += 1
    assert table.mark() == asked
    settled = table.snapshot(asked, settled=True)
    assert settled.settled
    assert settled.to_arrow(["id"]).to_pydict() == {"id": [1]}


def test_cuts_savepoints_and_the_newest_snapshot_are_settled(table: Table) -> None:
    append(table, orders(1))
    table.savepoint("one")
    for as_of in (None, "one", str(table.snapshot().cut)):
        assert table.snapshot(as_of, settled=True).settled


def test_commits_seen_by_a_mark_are_included_even_if_their_clock_is_ahead(table: Table) -> None:
    append(other_process(table.uri, FakeClock(NOW_MS + YEAR_MS)), payments(9), "payments")
    # The lane was declared by a host whose clock is a year ahead, so times of this year are before all that follows.
    assert ids(table, moment(NOW_MS)) == []
    assert ids(table, moment(NOW_MS + YEAR_MS)) == [9]


def test_a_commit_with_a_future_time_is_included_from_the_next_mark_on(table: Table, clock: FakeClock) -> None:
    append(table, payments(1), "payments")
    ahead = other_process(table.uri, FakeClock(NOW_MS + 50_000))
    with ahead.writer("payments") as writer:
        writer.append(payments(9))
        before = moment(clock.time_ms)
        clock.time_ms += 10_000
        table.mark()
        clock.time_ms += 10_000
        table.mark()
    assert ids(table, before) == [1]
    assert ids(table, moment(clock.time_ms)) == [1, 9]


def test_an_idle_lane_and_a_lane_that_was_added_later(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    clock.time_ms += 1_000
    table.mark()
    clock.time_ms += 1_000
    before = moment(clock.time_ms)
    clock.time_ms += 1_000
    table.mark()
    append(other_process(table.uri, FakeClock(NOW_MS - YEAR_MS)), payments(2), "payments")
    clock.time_ms += 1_000
    table.mark()
    assert ids(table, before) == [1]
    assert table.snapshot(before).settled
    assert ids(table, moment(clock.time_ms)) == [1, 2]


def test_settled_times_do_not_change_by_a_restore_or_an_undo(table: Table, clock: FakeClock) -> None:
    answers = {}
    for number in range(1, 5):
        append(table, orders(number))
        append(table, payments(10 * number), "payments")
        answers[moment(clock.time_ms)] = ids(table)
        clock.time_ms += 1_000
        table.mark()
    first = next(iter(answers))
    table.restore(first)
    assert ids(table) == answers[first]
    clock.time_ms += 1_000
    table.undo("payments", moment(NOW_MS))
    table.compact()
    for asked, answer in answers.items():
        assert ids(table, asked) == answer, asked
        assert ids(other_process(table.uri, clock), asked) == answer


def test_later_times_include_all_earlier_commits(table: Table, clock: FakeClock) -> None:
    """For any clocks: the snapshot of a later time has at least the entries of the earlier one, in every lane."""
    clocks = [FakeClock(NOW_MS + skew) for skew in (0, -60_000, 60_000, YEAR_MS, -YEAR_MS)]
    with table.writer("orders", lane="first") as first, table.writer("payments", lane="second") as second:
        for number, skewed in enumerate(clocks * 2):
            other_process(table.uri, skewed).mark()
            first.append(orders(number))
            other_process(table.uri, skewed).compact()
            second.append(payments(number))
            clock.time_ms += 500
    entries = [entry for lane in (TABLE_LANE, LaneName("first"), LaneName("second")) for entry in _lane(table, lane)]
    times = sorted({max(entry.committed_at_ms, NOW_MS) for entry in entries})
    cuts = [table.snapshot(moment(time_ms)).cut for time_ms in times]
    for earlier, later in itertools.pairwise(cuts):
        assert earlier.table <= later.table
        assert all(seq <= later.lanes.get(lane, 0) for lane, seq in earlier.lanes.items())


def _lane(table: Table, lane: LaneName) -> list[object]:
    return list(table._table_log.commit_log.read_after(lane, 0))


# Which processes record marks.


def test_a_writer_records_a_mark_once_a_minute(table: Table, clock: FakeClock) -> None:
    with table.writer("orders") as first, table.writer("payments") as second:
        for number in range(60):
            first.append(orders(number))
            second.append(payments(number))
            clock.time_ms += 10_000
    assert 9 <= len(marks(table)) <= 10
    assert table.verify().ok


@pytest.mark.parametrize(("jump", "made"), [(-YEAR_MS, 0), (YEAR_MS, 1)])
def test_a_process_whose_clock_is_behind_the_table_records_no_mark(
    table: Table, clock: FakeClock, jump: int, made: int
) -> None:
    with table.writer("orders") as writer:
        clock.time_ms += jump
        for number in range(5):
            writer.append(orders(number))
            clock.time_ms += 1_000
        assert len(marks(table)) == made
        clock.time_ms += MARK_EVERY_MS
        writer.append(orders(9))
    assert len(marks(table)) == 2 * made


def test_services_record_a_mark_if_something_was_committed_since(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    for service in (table.compact, table.fold, lambda: table.clean(dt.timedelta(0))):
        clock.time_ms += MARK_EVERY_MS
        service()
    assert len(marks(table)) == 2, "one after the compaction, and one after the clean, which has deleted something"
    for _ in range(3):
        clock.time_ms += MARK_EVERY_MS
        table.compact()
    assert len(marks(table)) == 2


@pytest.mark.parametrize("error", [OSError("the network is down"), PermissionError("read only")])
def test_a_failed_mark_does_not_fail_the_commit(table: Table, clock: FakeClock, error: Exception) -> None:
    store = FaultyStore(open_store(table.uri))
    same_table = other_process(table.uri, clock, store)
    with same_table.writer("orders") as writer:
        writer.append(orders(1))
        clock.time_ms += MARK_EVERY_MS
        store.faults.append(Fault("put_if_absent", "timeline/table", times=FOREVER, error=error))
        writer.append(orders(2))
        store.calls.clear()
        writer.append(orders(3))
    assert ids(table) == [1, 2, 3]
    assert marks(table) == []
    assert not [path for call, path in store.calls if call == "put_if_absent" and "table" in path], "not every time"


def test_a_failed_mark_on_demand_is_an_error(table: Table, clock: FakeClock) -> None:
    store = FaultyStore(open_store(table.uri))
    store.faults.append(Fault("put_if_absent", "timeline/table", times=FOREVER, error=PermissionError("read only")))
    with pytest.raises((StoreUnavailable, CommitUnknown)):
        other_process(table.uri, clock, store).mark()


def test_a_mark_that_lost_a_race_reads_the_lanes_again(table: Table, clock: FakeClock) -> None:
    """A mark reads the lanes after the entry that it follows, so it includes commits that came with that entry."""
    append(table, orders(1))
    store = FaultyStore(open_store(table.uri))
    slow = other_process(table.uri, clock, store)

    def meanwhile() -> None:
        clock.time_ms += 1_000
        append(table, payments(2), "payments")

    store.faults.append(Fault("put_if_absent", "timeline/table", action=meanwhile))
    slow.mark()
    (made,) = marks(table)
    assert made.lanes == table.snapshot().cut.lanes
    assert made.began_at_ms == clock.time_ms


# Undo.


def test_an_undo_rolls_back_commits_that_became_visible_later_despite_clocks(table: Table, clock: FakeClock) -> None:
    behind = other_process(table.uri, FakeClock(NOW_MS - 60_000))
    append(table, orders(1))
    clock.time_ms += 30_000
    table.mark()
    since = moment(clock.time_ms)
    with behind.writer("orders", lane="late") as writer:
        writer.append(orders(2))
        writer.append(orders(3))
    clock.time_ms += 1_000
    result = table.undo("orders", since)
    assert ids(table) == [1]
    assert result.kept == {"orders": 2, "late": 0}
    assert result.in_doubt == {"orders": (1, 2)}, "no mark was recorded before"
    assert result.rolled_back_ms[LaneName("late")] == (NOW_MS - 60_000, NOW_MS - 60_000)


def test_an_undo_reports_commits_kept_only_because_of_clocks(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    clock.time_ms += 10_000
    table.mark()
    behind = other_process(table.uri, FakeClock(NOW_MS + 12_000))
    with behind.writer("orders") as writer:
        writer.append(orders(2))
        writer.append(orders(3))
    clock.time_ms += 10_000
    result = table.undo("orders", moment(clock.time_ms - 5_000))
    assert ids(table) == [1, 2, 3]
    assert result.in_doubt == {"orders": (3, 5)}
    assert result.kept_ms == {"orders": NOW_MS + 12_000}
    assert result.rolled_back == {"orders": 1}


def test_an_undo_since_a_cut_or_a_savepoint_is_exact(table: Table) -> None:
    append(table, orders(1))
    table.savepoint("one")
    at = str(table.snapshot().cut)
    append(other_process(table.uri, FakeClock(NOW_MS - YEAR_MS)), orders(2))
    append(table, payments(3), "payments")
    assert table.undo("orders", "one").in_doubt == {}
    assert ids(table) == [1, 3]
    append(table, orders(4))
    table.undo("orders", at)
    assert ids(table) == [1, 3]


def test_an_undo_reports_closed_lanes_too(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    clock.time_ms += 10_000
    table.mark()
    since = moment(clock.time_ms)
    with table.writer("orders", lane="fix") as writer:
        writer.append(orders(2))
    table.close_lane("fix")
    result = table.undo("orders", since)
    assert ids(table) == [1]
    assert result.kept == {"orders": 2, "fix": 0}
    assert result.rolled_back[LaneName("fix")] == 3


def test_a_restore_to_a_time_settles_it_first(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    asked = moment(clock.time_ms)
    clock.time_ms += 1_000
    append(table, orders(2))
    table.restore(asked)
    assert table.snapshot(asked).settled
    assert ids(table) == ids(table, asked) == [1]


def test_a_savepoint_of_a_time_settles_it_first(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    asked = moment(clock.time_ms)
    clock.time_ms += 1_000
    table.savepoint("then", asked)
    assert table.snapshot(asked, settled=True).cut == table.snapshot("then").cut


def test_an_expired_time_is_refused(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    asked = moment(clock.time_ms)
    clock.time_ms += 10_000
    append(table, orders(2))
    table.compact()
    table.clean(dt.timedelta(0))
    with pytest.raises(SnapshotExpired):
        table.snapshot(asked)
    with pytest.raises(InvalidInput, match="did not exist yet"):
        table.snapshot(moment(NOW_MS - 1))


def test_marks_survive_checkpoints(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    asked = moment(clock.time_ms)
    for _ in range(70):
        clock.time_ms += 1
        table.mark()
    assert table._table_log.store.list("_weft/checkpoints/table"), "a checkpoint was written"
    anew = other_process(table.uri, clock)
    assert anew.state() == table.state()
    assert anew.snapshot(asked, settled=True).to_arrow(["id"]).to_pydict() == {"id": [1]}
    assert table.verify().ok


def test_an_undo_reports_a_closed_lane_kept_only_because_of_clocks(table: Table, clock: FakeClock) -> None:
    behind = other_process(table.uri, FakeClock(NOW_MS + 12_000))
    append(table, orders(1))
    with behind.writer("orders", lane="late") as writer:
        writer.append(orders(2))
    clock.time_ms += 20_000
    store = FaultyStore(open_store(table.uri))
    # The close begins with a correct clock, and its claim is put by a process whose clock is behind.
    store.faults.append(
        Fault("put_if_absent", "lanes/late", action=lambda: complete_fencing_barrier(behind._table_log))
    )
    assert other_process(table.uri, clock, store).close_lane("late") == 3
    result = table.undo("orders", moment(clock.time_ms - 5_000))
    assert ids(table) == [1, 2]
    assert result.in_doubt == {"orders": (1, 2), "late": (1, 3)}
    assert result.rolled_back == {"orders": 1}


def test_an_undo_does_not_report_earlier_rollbacks_of_a_closed_lane(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    with table.writer("orders", lane="job") as writer:
        writer.append(orders(2))
        at = str(table.snapshot().cut)
        writer.append(orders(3))
    table.close_lane("job")
    first = table.undo("orders", at)
    assert (first.kept[LaneName("job")], first.rolled_back[LaneName("job")]) == (2, 2)
    clock.time_ms += 10_000
    append(table, orders(4))
    second = table.undo("orders", moment(clock.time_ms))
    assert ids(table) == [1, 2]
    assert set(second.kept) == set(second.rolled_back) == {"orders"}


def test_an_undo_reports_commits_whose_clock_contradicts_the_table_lane(table: Table, clock: FakeClock) -> None:
    append(table, orders(1))
    clock.time_ms += 10_000
    table.mark()
    clock.time_ms += 40_000
    append(table, orders(2))
    # The new mark has the time of the previous one, because that is the newest time that it knows.
    other_process(table.uri, FakeClock(NOW_MS)).savepoint("late")
    result = table.undo("orders", moment(clock.time_ms - 10_000))
    assert ids(table) == [1, 2]
    assert result.in_doubt == {"orders": (3, 4)}
