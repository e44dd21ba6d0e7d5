"""Cleaning: which snapshots expire, by time and by count, and what keeps older ones (C1, C2, S16)."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
from pathlib import Path as LocalPath
from typing import Any

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.cleaning import (
    ALL,
    HOUR_MS,
    NOW,
    compacted,
    entries,
    killed,
    moment,
    stored,
    twice_and_clean,
    used,
)
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.entries import Abort
from weft.storage.core.names import Path, pin_path
from weft.storage.environment import Environment, RandomIds
from weft.storage.errors import CorruptData, InvalidInput, MissingFile, SnapshotExpired, StoreUnavailable
from weft.storage.log.table_log import TableLog
from weft.storage.services.clean.clean import run_clean
from weft.storage.services.history.savepoints import release_savepoint
from weft.storage.store.open_store import open_store


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str, clock: FakeClock) -> Table:
    return Table.create(uri, SHOP, clock=clock)


class TestRetention:
    def test_older_snapshots_expire_and_their_files_are_deleted(self, table: Table, clock: FakeClock) -> None:
        first = compacted(table, "first", 1)
        clock.time_ms += HOUR_MS
        between = moment(clock)
        clock.time_ms += HOUR_MS
        second = compacted(table, "second", 2)
        answers = {str(s.cut): contents(table, as_of=str(s.cut)) for s in (first, second)}
        result = table.clean(dt.timedelta(minutes=90))
        assert (result.oldest_retained, result.oldest_retained_before) == (first.cut.table, 1)
        assert result.deleted["log"].files == 1  # the slices of the first compaction are still needed
        assert set(result.deleted) == {"log"}
        for cut, answer in answers.items():
            assert contents(table, as_of=cut) == answer
        assert contents(table, as_of=between) == answers[str(first.cut)]
        clock.time_ms += HOUR_MS
        result = table.clean(dt.timedelta(minutes=30))
        assert result.oldest_retained == second.cut.table
        assert result.deleted["base"].files == 1
        assert stored(table) == used(table.snapshot())
        for old in (str(first.cut), between):
            with pytest.raises(SnapshotExpired, match="no longer kept"):
                table.snapshot(old)
        assert contents(table) == answers[str(second.cut)]

    def test_versions_count_compactions(self, table: Table) -> None:
        cuts = [compacted(table, f"v{number}", number) for number in range(5)]
        answers = [contents(table, as_of=str(s.cut)) for s in cuts]
        result = table.clean(NOW, versions=3)
        assert result.oldest_retained == cuts[2].cut.table
        assert result.reason == "the last 3 compactions are kept"
        for snapshot, answer in zip(cuts[2:], answers[2:], strict=True):
            assert contents(table, as_of=str(snapshot.cut)) == answer
        with pytest.raises(SnapshotExpired):
            table.snapshot(str(cuts[1].cut))
        assert table.clean(NOW, versions=9).oldest_retained == result.oldest_retained  # never decreases
        assert table.clean(dt.timedelta(days=1), versions=1).oldest_retained == result.oldest_retained

    def test_the_longer_of_retain_and_versions_applies(self, table: Table, clock: FakeClock) -> None:
        for number in range(3):
            compacted(table, f"v{number}", number)
        clock.time_ms += HOUR_MS
        assert table.clean(dt.timedelta(hours=2), versions=1, dry_run=True).oldest_retained == 1
        assert table.clean(dt.timedelta(minutes=30), versions=99, dry_run=True).oldest_retained == 1
        assert table.clean(dt.timedelta(minutes=30), dry_run=True).oldest_retained > 1

    def test_snapshots_expire_only_if_files_become_garbage(self, table: Table) -> None:
        """Entries that change no files make no files garbage, so snapshots before them remain readable."""
        first = compacted(table, "first", 1)
        append(table, payments(1), "payments")
        table.savepoint("here")
        table.release_savepoint("here")
        last = table.snapshot()
        assert table.clean(NOW).oldest_retained == first.cut.table
        head = table.state().head
        for snapshot in (first, last):
            assert snapshot.to_arrow().num_rows == len(ALL)
        again = table.clean(NOW)
        assert (again.files, again.oldest_retained, table.state().head) == (0, first.cut.table, head)
        assert "nothing expires" in again.reason
        assert table.clean(dt.timedelta(days=30)).reason.endswith("snapshots of the last 30 days are kept")

    def test_a_clock_that_was_ahead_is_reported_if_it_keeps_everything(self, table: Table, clock: FakeClock) -> None:
        clock.time_ms += 365 * 24 * HOUR_MS
        table.mark()
        clock.time_ms -= 365 * 24 * HOUR_MS
        for number in range(3):
            compacted(table, f"v{number}", number)
            clock.time_ms += 24 * HOUR_MS
        kept = table.clean(dt.timedelta(hours=1))
        assert kept.files == 0
        assert "a clock that is 362 days, 0:00:00 ahead of this one" in kept.reason
        assert "clean with retain 0" in kept.reason
        assert table.clean(NOW, versions=1).files > 0

    def test_commits_of_one_writer_on_both_sides_of_a_compaction(self, table: Table) -> None:
        with table.writer("orders") as writer:
            writer.append(orders(*ALL, status="first"))
            table.compact()
            writer.append(orders(*ALL, status="second", ts=2))
            expected = contents(table)
            assert table.clean(NOW).deleted["log"].files == 1
            assert contents(table) == expected

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            ({"retain": dt.timedelta(seconds=-1)}, "retain="),
            ({"versions": 0}, "versions=0"),
            ({"abandon_after": dt.timedelta(days=-1)}, "abandon_after="),
        ],
    )
    def test_invalid_arguments_are_refused(self, table: Table, arguments: dict[str, Any], what: str) -> None:
        compacted(table, "first", 1)
        before = stored(table)
        with pytest.raises(InvalidInput, match=what):
            table.clean(**arguments)
        assert stored(table) == before

    def test_retaining_more_than_the_history_keeps_everything(self, table: Table) -> None:
        compacted(table, "first", 1)
        result = table.clean(dt.timedelta(days=365_000))
        assert (result.oldest_retained, result.files) == (1, 0)

    def test_a_clock_that_is_wrong_by_a_year_deletes_nothing_that_the_newest_snapshot_needs(
        self, table: Table, clock: FakeClock
    ) -> None:
        compacted(table, "first", 1)
        append(table, orders(1, status="last", ts=9))
        for jump in (-366 * 24 * HOUR_MS, 2 * 366 * 24 * HOUR_MS):
            clock.time_ms += jump
            expected = contents(table)
            table.clean(dt.timedelta(minutes=1))
            assert contents(Table.open(table.uri)) == expected


class TestKeepers:
    def test_a_savepoint_keeps_its_files_until_it_is_released(self, table: Table) -> None:
        append(table, orders(*ALL, status="first"))
        table.savepoint("logs")  # a snapshot with log files only
        first = compacted(table, "second", 2)
        table.savepoint("slices")
        append(table, orders(1, status="late", ts=3))
        table.savepoint("both")
        answers = {name: contents(table, as_of=name) for name in ("logs", "slices", "both")}
        compacted(table, "third", 4)
        result = table.clean(NOW)
        assert result.oldest_retained > first.cut.table
        assert [(holder.what, holder.name) for holder in result.held] == [
            ("savepoint", n) for n in ("logs", "slices", "both")
        ]
        for name, answer in answers.items():
            assert contents(table, as_of=name) == answer
        for name in answers:
            table.release_savepoint(name)
        table.clean(NOW)
        assert stored(table) == used(table.snapshot())

    def test_a_lane_added_after_the_oldest_retained_state_keeps_its_logs(self, table: Table) -> None:
        compacted(table, "first", 1)
        append(table, payments(1, paid=7.0), "payments")
        assert table.clean(NOW).deleted["log"].files == 1
        assert contents(table)[1] == (1, "first", 1, 7.0, 1)

    def test_a_restore_to_a_savepoint_finds_all_its_files(self, table: Table) -> None:
        append(table, orders(*ALL, status="first"))
        table.compact()
        append(table, payments(*ALL), "payments")
        table.savepoint("good")
        answer = contents(table)
        compacted(table, "bad", 2)
        table.clean(NOW)
        table.restore("good")
        assert contents(table) == answer
        table.release_savepoint("good")
        table.clean(NOW)
        assert contents(Table.open(table.uri)) == answer
        assert stored(table) == used(table.snapshot())

    def test_an_open_compaction_keeps_what_it_reads(self, table: Table, uri: str) -> None:
        append(table, orders(*ALL, status="first"))
        slow = other_process(uri, FakeClock(), store := FaultyStore(open_store(uri)))
        store.faults.append(Fault("open_output", "base/", action=lambda: twice_and_clean(table)))
        result = slow.compact()
        assert not result.done  # others published first, and no file was missing
        assert contents(table)[0][1] == "third"

    def test_a_dead_compaction_keeps_its_files_until_it_is_abandoned(self, table: Table, clock: FakeClock) -> None:
        append(table, orders(*ALL, status="first"))
        with pytest.raises(KeyboardInterrupt):
            table.compact(execute=killed)
        (plan,) = table.state().plans
        twice_and_clean(table)
        assert table.clean(NOW).held[0].name == plan
        clock.time_ms += 25 * HOUR_MS
        would = table.clean(NOW, dry_run=True)
        assert would.aborted == (plan,)
        assert table.state().plans
        result = table.clean(NOW)
        assert (result.aborted, result.files) == ((plan,), would.files)
        assert not table.state().plans
        assert [entry.reason for entry in entries(table) if isinstance(entry, Abort)] == [
            "abandoned: begun more than 1 day, 0:00:00 ago"
        ]
        assert stored(table) == used(table.snapshot())

    def test_a_live_compaction_that_was_abandoned_publishes_nothing(self, table: Table, uri: str) -> None:
        append(table, orders(*ALL, status="first"))
        store = FaultyStore(open_store(uri))
        slow = other_process(uri, FakeClock(), store)

        def give_up() -> None:
            assert table.clean(NOW, abandon_after=NOW).aborted

        # Once before its first file, once when it wants to publish.
        store.faults.append(Fault("open_output", "base/", action=give_up))
        result = slow.compact()
        assert "plan was closed meanwhile" in next(iter(result.skipped.values()))
        table.clean(NOW)
        assert stored(table) == used(table.snapshot())

    def test_a_compaction_that_was_abandoned_while_it_writes_says_so(self, tmp_path: LocalPath) -> None:
        table = Table.create(tmp_path / "table", SHOP)
        append(table, orders(*ALL, status="first"))
        store = FaultyStore(open_store(table.uri))
        slow = other_process(table.uri, FakeClock(), store)

        def give_up() -> None:
            assert table.clean(NOW, abandon_after=NOW).aborted

        # Cleaning deletes the temporary file of the open output, which has no name to be renamed from any more.
        store.faults.append(Fault("open_output", "base/", when="after", action=give_up))
        with pytest.raises(SnapshotExpired, match="its plan was closed meanwhile") as caught:
            slow.compact()
        assert caught.value.hint == "start it again"
        table.clean(NOW)
        assert stored(table) == used(table.snapshot())

    def test_a_compaction_whose_files_were_deleted_gets_a_specific_error(self, table: Table, uri: str) -> None:
        append(table, orders(*ALL, status="first"))
        store = FaultyStore(open_store(uri))
        slow = other_process(uri, FakeClock(), store)
        store.faults.append(Fault("open_input", "log/", action=lambda: twice_and_clean(table, abandon_after=NOW)))
        with pytest.raises(SnapshotExpired, match="expired while it was being read"):
            slow.compact()

    def test_with_abandon_after_none_no_plan_is_aborted(self, table: Table, clock: FakeClock) -> None:
        append(table, orders(1))
        with pytest.raises(KeyboardInterrupt):
            table.compact(execute=killed)
        clock.time_ms += 1_000 * HOUR_MS
        assert table.clean(NOW, abandon_after=None).aborted == ()
        assert len(table.state().plans) == 1

    def test_a_pin_keeps_its_files_until_it_expires(self, table: Table, uri: str, clock: FakeClock) -> None:
        first = compacted(table, "first", 1)
        answer = contents(table)
        with first.pinned(dt.timedelta(hours=1)):
            twice_and_clean(table)
            assert first.to_arrow().num_rows == len(ALL)
            assert contents(table, as_of=str(first.cut)) == answer  # by its cut too, while the pin is valid
            assert table.clean(NOW).held[0].what == "pin"
            clock.time_ms += 2 * HOUR_MS
            result = table.clean(NOW)
            assert result.deleted["pin"].files == 1
            with pytest.raises(SnapshotExpired):
                table.snapshot(str(first.cut))
            with pytest.raises(SnapshotExpired, match="while it was being read"):
                first.to_arrow()
        assert stored(table) == used(table.snapshot())

    def test_a_pin_of_an_expired_snapshot_is_refused(self, table: Table, uri: str) -> None:
        first = compacted(table, "first", 1)
        twice_and_clean(table)
        with pytest.raises(SnapshotExpired), first.pinned():
            pass
        assert not open_store(uri).list(Path("_weft/pins"))
        with pytest.raises(InvalidInput, match="expected a duration of more than 0"), table.snapshot().pinned(NOW):
            pass

    def test_a_pinned_but_expired_snapshot_cannot_become_a_savepoint(self, table: Table) -> None:
        """Pins expire by the clock, so a savepoint or restore must not depend on one."""
        first = compacted(table, "first", 1)
        with first.pinned():
            twice_and_clean(table)
            for change in (lambda: table.savepoint("late", str(first.cut)), lambda: table.restore(str(first.cut))):
                with pytest.raises(SnapshotExpired):
                    change()

    def test_objects_that_are_not_pins_are_not_deleted(self, table: Table, uri: str) -> None:
        for content in (b"{", b'{"version": 2}', b'{"version":1,"table":0,"lanes":{},"expires_at_ms":1,"owner":""}'):
            open_store(uri).put(pin_path(RandomIds().new()), content)
        result = table.clean(NOW)
        assert (result.files, result.foreign_files) == (0, 3)

    @pytest.mark.parametrize("rolled_back", [False, True])
    def test_the_target_of_an_open_restore_is_kept(self, table: Table, uri: str, *, rolled_back: bool) -> None:
        append(table, orders(1, status="zeroth"))
        table.savepoint("zeroth")
        append(table, orders(*ALL, status="first"))
        table.savepoint("good")
        answer = contents(table)
        if rolled_back:  # the rows of the target are rolled back now
            table.restore("zeroth")
        compacted(table, "bad", 2)
        store = FaultyStore(open_store(uri))
        store.faults.append(Fault("put_if_absent", "lanes/", times=FOREVER, error=PermissionError("killed")))
        with pytest.raises(StoreUnavailable):
            other_process(uri, FakeClock(), store).restore("good")
        table_log = TableLog(Environment(open_store(uri), FakeClock()), table._table_log.stamps)
        # Called below `Table`, which would complete the restore first.
        release_savepoint(table_log, "good")
        run_clean(table_log, NOW, None, None, dry_run=False)
        assert table_log.refresh().intent is not None
        table.compact()  # completes it
        assert contents(table) == answer

    def test_files_are_judged_by_the_state_read_before_the_pins(self, table: Table, uri: str) -> None:
        """Otherwise a savepoint that is released just after the pins were read would not be seen."""
        first = compacted(table, "first", 1)
        table.savepoint("s")
        answer = contents(table)
        compacted(table, "second", 2)
        stack = contextlib.ExitStack()

        def pin_and_release() -> None:
            stack.enter_context(first.pinned())
            table.release_savepoint("s")

        store = FaultyStore(open_store(uri))
        store.faults.append(Fault("list", "_weft/pins", when="after", action=pin_and_release))
        other_process(uri, FakeClock(), store).clean(NOW)
        with stack:
            assert table.savepoints() == []
            assert contents(table, as_of=str(first.cut)) == answer


class TestReaders:
    """Rule R4: a read of an expired snapshot raises SnapshotExpired; a lost file of a kept one is CorruptData."""

    def test_a_snapshot_that_expires_while_it_is_held(self, table: Table) -> None:
        first = compacted(table, "first", 1)
        append(table, orders(1, status="late", ts=5))
        with_logs = table.snapshot()
        planned = with_logs.scan()
        twice_and_clean(table)
        for read in (first.to_arrow, with_logs.to_arrow, lambda: [list(planned.read(task)) for task in planned.tasks]):
            with pytest.raises(SnapshotExpired, match="expired while it was being read: file") as error:
                read()
            assert "pin a snapshot" in error.value.hint
            assert isinstance(error.value.__cause__, MissingFile)

    def test_a_task_in_another_process_raises_snapshot_expired_too(self, tmp_path: LocalPath) -> None:
        table = Table.create(tmp_path / "table", SHOP)
        planned = compacted(table, "first", 1).scan()
        twice_and_clean(table)
        sent = pickle.loads(pickle.dumps((planned, planned.tasks[0])))
        with pytest.raises(SnapshotExpired, match="expired while it was being read"):
            list(sent[0].read(sent[1]))

    def test_a_deleted_index_of_an_expired_snapshot(self, table: Table) -> None:
        table = tuned(table, inline_index_bytes=0)
        append(table, orders(*ALL))
        at = str(table.snapshot().cut)
        reader = Table.open(table.uri)
        old = reader.snapshot(at)
        twice_and_clean(table)
        with pytest.raises(SnapshotExpired, match="expired while it was being read"):
            old.to_arrow()

    @pytest.mark.parametrize("kept_by", ["head", "savepoint", "plan"])
    def test_a_missing_file_of_a_retained_snapshot_is_corrupt_data(self, table: Table, uri: str, kept_by: str) -> None:
        first = compacted(table, "first", 1)
        if kept_by == "savepoint":
            table.savepoint("first")
        if kept_by == "plan":
            append(table, orders(1, status="late", ts=5))
            first = table.snapshot()
            with pytest.raises(KeyboardInterrupt):
                table.compact(execute=killed)
        if kept_by != "head":
            twice_and_clean(table)
        (path, *_) = sorted(used(first) & stored(table, "base"))
        open_store(uri).delete(Path(path))
        with pytest.raises(CorruptData, match="is missing, but the log refers to it") as error:
            first.to_arrow()
        assert type(error.value) is MissingFile
        assert error.value.code == "CORRUPT_DATA"

    def test_expired_snapshots_are_refused_in_every_form_of_as_of(self, table: Table, clock: FakeClock) -> None:
        before = moment(clock)
        append(table, orders(1, status="zeroth"))
        log_only = table.snapshot()
        first = compacted(table, "first", 1)
        clock.time_ms += HOUR_MS
        twice_and_clean(table)
        for old in (str(first.cut), str(log_only.cut), before, before + dt.timedelta(minutes=59)):
            for opened in (table, Table.open(table.uri)):
                with pytest.raises(SnapshotExpired, match="no longer kept"):
                    opened.snapshot(old)
        assert len(contents(table, as_of=moment(clock))) == len(ALL)

    def test_a_compaction_of_an_expired_snapshot_does_not_begin(self, table: Table, uri: str) -> None:
        append(table, orders(*ALL))
        store = FaultyStore(open_store(uri))
        slow = other_process(uri, FakeClock(), store)
        plan = f"timeline/table/{table.state().head + 1:020d}"
        store.faults.append(Fault("put_if_absent", plan, action=lambda: twice_and_clean(table)))
        with pytest.raises(SnapshotExpired, match="start it again"):
            slow.compact()
