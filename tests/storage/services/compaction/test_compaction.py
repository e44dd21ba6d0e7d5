"""Compaction with concurrent operations: parts, races, failures, and older cuts (S9, S10, S11, S12, S14)."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments, statuses
from tests.tuning import tune, tuned
from weft import Table
from weft.storage.core.log.entries import Abort, Base, Plan
from weft.storage.core.log.file_refs import Sidecar
from weft.storage.core.names import TABLE_LANE, Path
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, CorruptData, NotFound, StoreUnavailable
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.planned_work import plan_compaction
from weft.storage.services.steps.steps import cancel
from weft.storage.store.open_store import open_store


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str) -> Table:
    return Table.create(uri, SHOP, clock=FakeClock())


def table_lane(uri: str) -> list[str]:
    return [entry.kind for entry in read_table_lane(CommitLog(Environment(open_store(uri), FakeClock())), 0)]


def slice_files(uri: str) -> list[str]:
    store = open_store(uri)
    return [path for folder in ("base", "shadow") for path, _ in store.list(Path(folder))]


def test_nothing_to_do_publishes_nothing(table: Table, uri: str) -> None:
    append(table, orders(1))
    before = table.compact()
    assert (before.rows, len(before.done), before.skipped) == (1, 1, {})
    entries = table_lane(uri)
    again = table.compact()
    assert (again.done, again.rows) == ((), 0)
    assert table_lane(uri) == entries


def test_results_report_what_was_done(table: Table) -> None:
    append(table, orders(*range(20)))
    append(table, orders(3, 4, op="D", ts=2))
    result = table.compact()
    assert result.rows == 18
    assert sorted(result.done) == [file_slice.group for file_slice in table.snapshot().slices]
    assert result.bytes_read > 0
    assert result.bytes_written > 0
    assert result.seconds >= 0


def test_one_of_two_compactions_skips_and_nothing_is_lost(table: Table, uri: str) -> None:
    """Both plan at the same cut; for the slower one the parents of its slices are no longer the newest."""
    append(table, orders(1, 2, 3, 4))
    store = FaultyStore(open_store(uri))
    slow = other_process(uri, FakeClock(), store)

    def overtake() -> None:
        append(table, orders(5))
        assert table.compact().skipped == {}

    # After the slow compactor's PLAN and files, before its BASE.
    store.faults.append(Fault("open_output", "base/", action=overtake))
    result = slow.compact()
    assert result.done == ()
    assert set(result.skipped.values()) == {"another compaction published a newer slice first"}
    assert sorted(statuses(table)) == [1, 2, 3, 4, 5]
    assert sorted(statuses(slow)) == [1, 2, 3, 4, 5]
    assert table_lane(uri)[-1] == "ABORT"
    assert table.state().plans == {}
    # Unreferenced files were deleted.
    live = {f.path for s in table.snapshot().slices if s.slice for f in (s.slice.base, s.slice.shadow) if f}
    assert len(slice_files(uri)) == len(live)


def test_older_snapshots_still_read_file_groups_that_were_compacted_again(table: Table, uri: str) -> None:
    append(table, orders(*range(8)))
    past = table.snapshot()
    rows = contents(table)
    store = FaultyStore(open_store(uri))
    slow = other_process(uri, FakeClock(), store)
    overtaken = past.slices[0].group

    def overtake() -> None:
        append(table, orders(*range(8), status="newer", ts=2))
        table.compact(only=lambda file_slice: file_slice.group == overtaken)

    store.faults.append(Fault("open_output", "base/", action=overtake))
    result = slow.compact()
    assert list(result.skipped) == [overtaken]
    head = table.snapshot().cut
    assert contents(table, as_of=str(past.cut)) == rows
    # The newest table lane with the old cut was never a state, because slices contain later commits.
    with pytest.raises(NotFound, match="was never a state of the table"):
        table.snapshot(str(past.cut).replace(f":{past.cut.table}:", f":{head.table}:"))


def test_a_lost_race_for_the_table_lane_is_retried(table: Table, uri: str) -> None:
    append(table, orders(1))
    store = FaultyStore(open_store(uri))
    other = other_process(uri, FakeClock(), store)

    def add_lane() -> None:
        append(table, payments(1), "payments")

    store.faults.append(Fault("put_if_absent", "timeline/table", action=add_lane))
    assert other.compact().rows == 1
    assert contents(table) == [(1, "new", 1, 1.0, 1)]
    assert table_lane(uri) == ["CREATE", "LANE_ADD", "LANE_ADD", "PLAN", "BASE"]


def test_a_missing_log_file_aborts_the_compaction_and_leaves_the_table_as_it_is(table: Table, uri: str) -> None:
    append(table, orders(*range(8)))
    append(table, payments(*range(8)), "payments")
    store = open_store(uri)
    (lost,) = [path for path, _ in store.list(Path("log/payments"))]
    store.delete(Path(f"log/payments/{lost}"))
    with pytest.raises(CorruptData, match=f"log/payments/{lost} is missing"):
        table.compact()
    assert table_lane(uri)[-2:] == ["PLAN", "ABORT"]
    assert table.state().plans == {}
    assert slice_files(uri) == []
    with pytest.raises(CorruptData, match="is missing"):
        contents(table)


@pytest.mark.usefixtures("own_files")
def test_parts_published_before_a_failure_remain(table: Table, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, compaction_part_bytes=1)
    append(table, orders(*range(20)))
    rows = contents(table)
    store = FaultyStore(open_store(uri))
    failing = other_process(uri, FakeClock(), store)
    *_, last = table.snapshot().slices
    store.faults.append(Fault("open_output", f"base/{last.group}", error=CorruptData("broken")))
    with pytest.raises(CorruptData):
        failing.compact()
    kinds = table_lane(uri)
    assert kinds.count("BASE") == 3
    assert kinds[-1] == "ABORT"
    assert contents(table) == rows
    result = table.compact()
    assert list(result.done) == [last.group]
    assert contents(table) == rows


def test_a_slice_whose_publication_is_unknown_keeps_its_files(table: Table, uri: str) -> None:
    append(table, orders(1, 2, 3))
    store = FaultyStore(open_store(uri))
    compactor = other_process(uri, FakeClock(), store)

    def lose_the_store() -> None:
        store.faults.append(Fault("get", "timeline/table", times=FOREVER))

    def before_the_entry() -> None:
        lost = OSError("the answer is lost")
        store.faults.append(
            Fault("put_if_absent", "timeline/table", "after", times=FOREVER, error=lost, action=lose_the_store)
        )

    store.faults.append(Fault("open_output", "base/", action=before_the_entry))
    with pytest.raises(CommitUnknown):
        compactor.compact()
    assert table_lane(uri)[-1] == "BASE"
    assert sorted(statuses(table)) == [1, 2, 3]


def test_an_abort_that_fails_does_not_hide_why_the_work_failed(table: Table, uri: str) -> None:
    append(table, orders(*range(8)))
    rows = contents(table)
    store = FaultyStore(open_store(uri))
    compactor = other_process(uri, FakeClock(), store)

    def refuse_entries() -> None:
        store.faults.append(Fault("put_if_absent", "timeline/table", times=FOREVER))

    # The store refuses puts after the PLAN; the files that were written before are garbage.
    lost = StoreUnavailable("internal error")
    store.faults.append(Fault("open_output", "base/", action=refuse_entries, error=lost))
    with pytest.raises(StoreUnavailable, match="internal error") as failed:
        compactor.compact()
    (note,) = failed.value.__notes__
    assert "plan 3 is still open, until a clean aborts it: it is not known whether ABORT 4" in note
    assert len(compactor.state().plans) == 1

    store.faults.clear()
    assert compactor.compact().skipped == {}
    assert contents(table) == rows
    cleaned = table.clean(retain=dt.timedelta(0), abandon_after=dt.timedelta(0))
    assert cleaned.aborted != ()
    assert table.state().plans == {}
    live = {f.path for s in table.snapshot().slices if s.slice for f in (s.slice.base, s.slice.shadow) if f}
    assert len(slice_files(uri)) == len(live)


def test_cancelled_work_ends_although_its_abort_fails(table: Table, uri: str) -> None:
    append(table, orders(*range(8)))
    store = FaultyStore(open_store(uri))
    work = plan_compaction(tuned(other_process(uri, FakeClock(), store), small_group_bytes=1), None)
    next(work.steps)
    store.faults.append(Fault("put_if_absent", "timeline/table", times=FOREVER))
    cancel(work.steps)
    assert len(table.state().plans) == 1


def test_a_compaction_that_dies_before_its_base_entry_does_not_affect_reads(table: Table, uri: str) -> None:
    append(table, orders(1, 2, 3))
    store = FaultyStore(open_store(uri))
    store.faults.append(Fault("open_output", "base/", error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        other_process(uri, FakeClock(), store).compact()
    assert sorted(statuses(table)) == [1, 2, 3]
    assert table.compact().skipped == {}
    assert sorted(statuses(table)) == [1, 2, 3]


def test_a_long_list_of_slices_goes_to_a_sidecar(table: Table, uri: str) -> None:
    table = tuned(table, inline_list_bytes=10)
    append(table, orders(*range(20)))
    rows = contents(table)
    table.compact()
    sidecars = open_store(uri).list(Path("_weft/index/_table"))
    assert len(sidecars) == 1
    stored = open_store(uri).get(Path(f"_weft/timeline/table/{table.snapshot().cut.table:020d}.json"))
    assert stored is not None
    assert sidecars[0][0].encode() in stored
    assert contents(Table.open(uri)) == rows
    open_store(uri).delete(Path(f"_weft/index/_table/{sidecars[0][0]}"))
    with pytest.raises(CorruptData, match="is missing, but the log refers to it"):
        Table.open(uri)


def test_a_list_in_a_sidecar_is_loaded_however_its_entry_was_first_read(table: Table, uri: str) -> None:
    table = tuned(table, inline_list_bytes=10)
    append(table, orders(*range(20)))
    table.compact()
    log = CommitLog(Environment(open_store(uri), FakeClock()))
    [last] = [entry.seq for entry in read_table_lane(log, 0) if isinstance(entry, Base)]
    log = CommitLog(Environment(open_store(uri), FakeClock()))
    known = log.entry(TABLE_LANE, last)
    # One window reads the entry again, because the entry before it is not known.
    again = read_table_lane(log, last - 2, last)[-1]
    assert isinstance(known, Base)
    assert isinstance(again, Base)
    assert not isinstance(again.slices, Sidecar)
    assert again == known


def test_a_late_older_event_does_not_resurrect_what_was_deleted_before_a_compaction(table: Table) -> None:
    append(table, orders(1, status="live", ts=5))
    append(table, orders(1, op="D", ts=9))
    table.compact()
    append(table, orders(1, status="late", ts=8))
    assert statuses(table) == {}
    table.compact()
    append(table, orders(1, status="tie loses to nobody", ts=9))
    assert statuses(table) == {1: "tie loses to nobody"}


def test_a_hidden_row_is_updated_through_compactions_and_reappears_complete(table: Table) -> None:
    append(table, orders(1, status="first", ts=1))
    append(table, payments(1, paid=10.0, ts=1), "payments")
    append(table, orders(1, op="D", ts=5))
    for ts in (2, 3):
        table.compact()
        append(table, payments(1, paid=10.0 * ts, ts=ts), "payments")
        assert contents(table) == []
    table.compact()
    append(table, orders(1, status="revived", ts=6))
    assert contents(table) == [(1, "revived", 6, 30.0, 3)]
    table.compact()
    assert contents(table) == [(1, "revived", 6, 30.0, 3)]


def test_snapshots_taken_before_a_compaction_give_the_same_rows_after_it(table: Table, uri: str) -> None:
    append(table, orders(1, 2, 3))
    old = table.snapshot()
    before = old.to_arrow().sort_by("id")
    append(table, orders(2, op="D", ts=2))
    table.compact()
    assert old.to_arrow().sort_by("id") == before
    assert Table.open(uri).snapshot(str(old.cut)).to_arrow().sort_by("id") == before


def test_a_slice_that_is_not_made_from_the_newest_one_is_corrupt(table: Table, uri: str) -> None:
    """S10 CutChain is checked by every reader, not only by compactors."""
    append(table, orders(1))
    table.compact()
    log = CommitLog(Environment(open_store(uri), FakeClock()))
    *_, base = read_table_lane(log, 0)
    assert isinstance(base, Base)
    assert not isinstance(base.slices, Sidecar)
    log.publish(base.model_copy(update={"seq": base.seq + 1, "commit_id": "x", "prev_id": base.commit_id}))
    with pytest.raises(CorruptData, match="CutChain"):
        Table.open(uri)


@pytest.mark.usefixtures("own_files")
def test_plans_are_closed_by_their_last_base(table: Table, uri: str) -> None:
    append(table, orders(*range(20)))
    tuned(table, compaction_part_bytes=1).compact()
    entries = read_table_lane(CommitLog(Environment(open_store(uri), FakeClock())), 0)
    (plan,) = [entry for entry in entries if isinstance(entry, Plan)]
    bases = [entry for entry in entries if isinstance(entry, Base)]
    assert plan.file_groups == len(bases) == 4
    assert [base.last for base in bases] == [False, False, False, True]
    assert [bool(base.covered) for base in bases] == [False, False, False, True]
    assert not [entry for entry in entries if isinstance(entry, Abort)]
    assert table.state().plans == {}


def test_a_partial_compaction_does_not_cover_the_file_groups_it_left_out(table: Table) -> None:
    append(table, orders(*range(20)))
    rows = contents(table)
    first = table.snapshot().slices[0].group
    table.compact(only=lambda file_slice: file_slice.group == first)
    assert contents(table) == rows
    assert sum(len(file_slice.rows) > 0 for file_slice in table.snapshot().slices) == 3


def test_a_group_that_appears_after_a_complete_compaction_is_read(table: Table) -> None:
    append(table, orders(1))
    table.compact()
    append(table, orders(*range(20)))
    assert sorted(statuses(table)) == list(range(20))
    table.compact()
    assert sorted(statuses(table)) == list(range(20))


def test_a_lane_that_appears_after_a_compaction_is_read_from_its_start(table: Table) -> None:
    append(table, orders(1))
    table.compact()
    with table.writer("orders", lane="backfill") as lane:
        lane.append(orders(1, status="late", ts=0))
        lane.append(orders(2, status="late", ts=0))
    assert statuses(table) == {1: "new", 2: "late"}


def test_as_of_a_time_ignores_slices_with_later_commits() -> None:
    """A BASE may have an earlier time than the commits in it, because clocks differ; the snapshot does not change."""
    uri = new_uri()
    clock = FakeClock(1_000_000)
    writer = Table.create(uri, SHOP, clock=clock)
    append(writer, orders(1, status="first"))
    clock.time_ms = 2_000_000
    append(writer, orders(1, status="second", ts=2))
    other_process(uri, FakeClock(1_200_000)).compact()
    moment = dt.datetime.fromtimestamp(1_500, dt.UTC)
    assert statuses(writer, as_of=moment) == {1: "first"}
    assert statuses(writer) == {1: "second"}


def test_file_groups_without_new_rows_keep_no_logs(table: Table) -> None:
    append(table, orders(*range(1, 9)))
    table.compact()
    for ts in range(2, 6):
        append(table, orders(1, ts=ts))
        assert len(table.snapshot().files) == 1
        table.compact()
        assert table.snapshot().files == []
    assert contents(table) == contents(Table.open(table.uri))
    assert len(contents(table)) == 8
