"""Garbage: which files of dead and slow processes a clean deletes, and which it must keep (C3, C4, S17, L3)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path as LocalPath

import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.cleaning import ALL, HOUR_MS, NOW, compacted, entries, killed_late, moment, stored, used
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from tests.tuning import tune, tuned
from weft import Table
from weft.storage.core.log.entries import CleanDone, CleanIntent
from weft.storage.core.names import (
    TABLE_LANE,
    LaneName,
    Path,
    base_path,
    checkpoint_path,
    fold_path,
    heartbeat_path,
    log_index_path,
    log_path,
    parse_path,
    pin_path,
    shadow_path,
    slot_path,
    table_index_path,
)
from weft.storage.environment import RandomIds
from weft.storage.errors import CorruptData, Fenced, SnapshotExpired
from weft.storage.store.object_store import check_capability
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import write_rows


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str, clock: FakeClock) -> Table:
    return Table.create(uri, SHOP, clock=clock)


class TestOrphans:
    def test_files_of_a_running_writer_are_kept(self, table: Table) -> None:
        with table.writer("orders") as writer:
            ticket = writer.begin(("q", 0))
            written = write_rows(ticket, orders(*ALL))
            assert table.clean(NOW, abandon_after=NOW).files == 0
            writer.commit(ticket, [written])
        assert len(contents(table)) == len(ALL)

    def test_files_of_a_frozen_writer_are_garbage_once_its_lane_is_fenced(self, table: Table) -> None:
        writer = table.writer("orders").__enter__()
        ticket = writer.begin(("q", 0))
        written = write_rows(ticket, orders(*ALL))
        table.fence("orders")
        result = table.clean(NOW)
        assert (result.deleted["log"].files, result.deleted["heartbeat"].files) == (1, 1)
        assert stored(table) == set()
        with pytest.raises(Fenced):
            writer.commit(ticket, [written])
        with table.writer("orders") as other:
            assert not other.append(orders(*ALL), batch=("q", 0)).replayed
        assert len(contents(table)) == len(ALL)

    def test_files_of_the_previous_writer_for_the_same_slot_are_garbage(self, table: Table) -> None:
        append(table, orders(1))
        frozen = table.writer("orders").__enter__()
        write_rows(frozen.begin(("q", 0)), orders(2))
        with table.writer("orders") as writer:  # its claim took the slot that the other writer was about to use
            writer.append(orders(3))
        assert table.clean(NOW).deleted["log"].files == 1
        assert stored(table) == used(table.snapshot())

    def test_files_of_a_failed_try_are_garbage_once_its_slot_is_taken(self, table: Table) -> None:
        with table.writer("orders") as writer:
            lost = write_rows(writer.begin(("q", 0)), orders(1))
            assert table.clean(NOW).files == 0
            writer.append(orders(2), batch=("q", 0))
            result = table.clean(NOW)
        assert result.files == 1
        assert lost.files[0].file.path not in stored(table)
        assert stored(table) == used(table.snapshot())

    def test_orphans_of_unneeded_slots_are_deleted(self, table: Table) -> None:
        with table.writer("orders") as writer:
            write_rows(writer.begin(), orders(1))
            writer.append(orders(*ALL))
        table.compact()
        assert table.clean(NOW).deleted["log"].files == 2

    def test_files_of_a_dead_compaction_are_garbage_once_its_plan_is_closed(self, table: Table) -> None:
        append(table, orders(*ALL))
        with pytest.raises(KeyboardInterrupt):
            table.compact(execute=killed_late)
        made = stored(table, "base")
        assert made
        assert table.clean(NOW).files == 0  # its plan is open: it may still publish them
        assert table.clean(NOW, abandon_after=NOW).deleted["base"].files == len(made)

    def test_sidecars_are_kept_or_deleted_with_their_files(self, table: Table) -> None:
        table = tuned(table, inline_index_bytes=0, inline_list_bytes=0)
        with table.writer("orders") as writer:
            write_rows(writer.begin(), orders(1))
            writer.append(orders(*ALL))
        table.compact()
        append(table, payments(1), "payments")
        first = table.snapshot()
        result = table.clean(NOW)
        assert (result.deleted["log"].files, result.deleted["log index"].files) == (2, 2)
        assert len(stored(table, "_weft/index/payments")) == 1
        assert len(stored(table, "_weft/index/_table")) == 1
        assert first.to_arrow().num_rows == len(ALL)
        assert len(contents(Table.open(table.uri))) == len(ALL)

    def test_the_sidecar_of_an_entry_that_lost_its_race_is_garbage(
        self, table: Table, uri: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tune(monkeypatch, inline_list_bytes=0)
        append(table, orders(*ALL))
        store = FaultyStore(open_store(uri))
        store.faults.append(Fault("put", "_weft/index/_table", action=lambda: append(table, payments(1), "payments")))
        other_process(uri, FakeClock(), store).compact()
        assert len(stored(table, "_weft/index/_table")) == 2
        assert table.clean(NOW).deleted["table index"].files == 1
        assert len(contents(Table.open(table.uri))) == len(ALL)

    def test_a_damaged_entry_stops_deletion(self, table: Table, uri: str) -> None:
        append(table, orders(*ALL))
        append(table, orders(1, status="more", ts=2))
        before = stored(table)
        store = open_store(uri)
        path = Path("_weft/timeline/lanes/orders/00000000000000000002.json")
        data = store.get(path)
        assert data is not None
        store.put(path, data.replace(b"orders", b"0rders", 1))
        with pytest.raises(CorruptData, match="is damaged"):
            Table.open(uri).clean(NOW)
        assert stored(table) == before


class TestWhatIsVoid:
    def test_files_of_rolled_back_entries_are_deleted_when_no_retained_snapshot_sees_them(self, table: Table) -> None:
        append(table, orders(1))
        table.savepoint("one")
        append(table, orders(2))
        before = table.snapshot()
        rows = contents(table)
        table.restore("one")
        append(table, orders(3))
        assert table.clean(dt.timedelta(days=1)).files == 0
        assert contents(table, as_of=str(before.cut)) == rows
        result = table.clean(NOW)
        assert result.deleted["log"].files == 1
        assert stored(table) == used(table.snapshot())
        with pytest.raises(SnapshotExpired):
            table.snapshot(str(before.cut))
        assert [row[0] for row in contents(table)] == [1, 3]

    def test_reverting_a_restore_finds_the_rolled_back_files(self, table: Table) -> None:
        append(table, orders(1))
        table.savepoint("one")
        append(table, orders(2))
        table.savepoint("two")
        table.restore("one")
        table.clean(NOW)
        table.restore("two")
        assert [row[0] for row in contents(table)] == [1, 2]

    def test_files_of_a_restored_older_savepoint_are_kept(self, table: Table) -> None:
        append(table, orders(1, status="log"))
        table.savepoint("one")
        compacted(table, "second", 2)
        table.clean(NOW)
        table.restore("one")
        table.release_savepoint("one")
        assert table.clean(dt.timedelta(days=1)).files == 0
        assert [row[1] for row in contents(table)] == ["log"]

    def test_an_undo_finds_the_slices_before_the_undone_commits(self, table: Table, clock: FakeClock) -> None:
        compacted(table, "first", 1)
        clock.time_ms += HOUR_MS
        since = moment(clock)
        append(table, payments(*ALL), "payments")
        compacted(table, "bad", 2)
        table.clean(dt.timedelta(hours=1))
        table.undo("orders", since)
        assert {row[1] for row in contents(table)} == {"first"}
        assert {row[3] for row in contents(table)} == {1.0}

    def test_an_undo_of_compacted_commits_is_refused_after_cleaning(self, table: Table, clock: FakeClock) -> None:
        append(table, orders(1))
        clock.time_ms += HOUR_MS
        since = moment(clock)
        compacted(table, "bad", 2)
        table.clean(NOW)
        with pytest.raises(SnapshotExpired, match="slices before those have expired"):
            table.undo("orders", since)
        assert len(contents(table)) == len(ALL)

    def test_a_closed_lane_is_cleaned_like_an_open_one(self, table: Table) -> None:
        with table.writer("orders", lane="fix") as writer:
            writer.append(orders(*ALL))
            write_rows(writer.begin(), orders(1))
            table.close_lane("fix")
        assert table.clean(NOW).deleted["log"].files == 1
        assert len(contents(table)) == len(ALL)
        table.compact()
        table.clean(NOW)
        assert stored(table) == used(table.snapshot())


class TestFolds:
    def test_folded_event_files_are_kept_because_a_restore_may_end_the_fold(self, table: Table) -> None:
        append(table, orders(*ALL))
        table.savepoint("one")
        append(table, payments(*ALL), "payments")
        table.fold()
        answer = contents(table)
        table.savepoint("folded")
        assert table.clean(NOW).files == 0
        table.restore("one")
        table.clean(NOW)
        table.restore("folded")
        assert contents(table) == answer

    def test_fold_files_are_deleted_once_slices_contain_their_rows(self, table: Table) -> None:
        append(table, orders(*ALL))
        append(table, payments(*ALL), "payments")
        table.fold()
        assert len(stored(table, "log/_fold")) == 1
        table.compact()
        result = table.clean(NOW)
        assert (result.deleted["fold"].files, result.deleted["log"].files) == (1, 2)
        assert stored(table) == used(table.snapshot())

    def test_fold_files_of_an_aborted_plan_are_garbage(
        self, table: Table, uri: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tune(monkeypatch, inline_index_bytes=0)
        append(table, orders(*ALL))
        store = FaultyStore(open_store(uri))
        store.faults.append(Fault("put", "_weft/index/_fold", error=KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            other_process(uri, FakeClock(), store).fold()
        assert len(stored(table, "log/_fold")) == 1
        assert table.clean(NOW).files == 0
        table.clean(NOW, abandon_after=NOW)
        assert stored(table, "log/_fold") == set()


class TestLeftovers:
    """Local stores leave temporary files where a process is killed while it writes."""

    @pytest.fixture
    def local(self, tmp_path: LocalPath, clock: FakeClock) -> Table:
        return Table.create(tmp_path / "table", SHOP, clock=clock)

    @staticmethod
    def leave(table: Table, path: str) -> LocalPath:
        """The temporary file of an interrupted write of an object."""
        final = LocalPath(table.uri.removeprefix("file://")) / path
        final.parent.mkdir(parents=True, exist_ok=True)
        left = final.with_name(f".tmp-{RandomIds().new()}-{final.name}")
        left.write_bytes(b"half")
        return left

    def test_temporary_files_are_deleted_only_if_their_object_cannot_be_written(self, local: Table) -> None:
        append(local, orders(*ALL))
        local.compact()
        with local.writer("orders") as writer:
            head, slot = writer._claim.state.head, local.state().head
            dead = [
                slot_path(LaneName("orders"), head),
                slot_path(TABLE_LANE, slot),
                log_path(LaneName("orders"), writer.epoch, head, 0, RandomIds().new()),
                log_index_path(log_path(LaneName("orders"), writer.epoch - 1, head + 1, 0, RandomIds().new())),
                table_index_path(slot, RandomIds().new()),
                base_path("b02-00000", slot, RandomIds().new()),
                shadow_path("b02-00000", slot, RandomIds().new()),
                fold_path(slot, RandomIds().new()),
                checkpoint_path(TABLE_LANE, slot, RandomIds().new()),
                heartbeat_path(LaneName("orders"), writer.epoch, 7, RandomIds().new()),
                pin_path(RandomIds().new()),
                f"_weft/probe/{RandomIds().new()}",
            ]
            alive = [
                slot_path(LaneName("orders"), head + 1),
                slot_path(TABLE_LANE, slot + 5),
                log_path(LaneName("orders"), writer.epoch, head + 1, 0, RandomIds().new()),
                log_path(LaneName("unheard-of"), 1, 2, 0, RandomIds().new()),
                table_index_path(slot + 5, RandomIds().new()),
                base_path("b02-00000", slot + 5, RandomIds().new()),
                "log/orders/notes.txt",
            ]
            gone, stay = [self.leave(local, p) for p in dead], [self.leave(local, p) for p in alive]
            would = local.clean(NOW, dry_run=True).listed
            assert all(path.exists() for path in gone)
            result = local.clean(NOW)
        assert result.deleted["temporary"].files == len(dead)
        assert sum(".tmp-" in path for path in would) == len(dead)
        assert [str(path) for path in gone if path.exists()] == []
        assert [str(path) for path in stay if not path.exists()] == []
        assert result.foreign_files == 1

    def test_temporary_files_that_are_newer_than_the_clean_are_kept(self, local: Table) -> None:
        append(local, orders(1))
        store = FaultyStore(open_store(local.uri))
        left: list[LocalPath] = []
        store.faults.append(
            Fault("list", "base", action=lambda: left.append(self.leave(local, pin_path(RandomIds().new()))))
        )
        assert other_process(local.uri, FakeClock(), store).clean(NOW).files == 0
        assert left[0].exists()
        assert local.clean(NOW).files == 1

    def test_the_probe_object_of_a_dead_process_is_deleted(self, table: Table, uri: str) -> None:
        open_store(uri).put(Path(f"_weft/probe/{RandomIds().new()}"), b"first")
        assert table.clean(NOW, dry_run=True).deleted["probe"].files == 1
        assert table.clean(NOW).deleted["probe"].files == 1
        assert stored(table, "_weft/probe") == set()

    def test_a_probe_survives_a_clean_that_takes_its_temporary_file(self, table: Table, uri: str) -> None:
        store = FaultyStore(open_store(uri))
        store.faults.append(Fault("put_if_absent", "_weft/probe", error=FileNotFoundError("the temporary file")))
        check_capability(store, RandomIds().new)
        assert stored(table, "_weft/probe") == set()

    def test_a_probe_in_progress_survives_a_clean(self, table: Table, uri: str) -> None:
        store = FaultyStore(open_store(uri))
        store.faults.append(Fault("put_if_absent", "_weft/probe", when="after", action=lambda: _take_probes(uri)))
        check_capability(store, RandomIds().new)
        assert stored(table, "_weft/probe") == set()


class TestDryRun:
    def test_a_dry_run_reports_what_would_be_done_and_changes_nothing(self, table: Table, uri: str) -> None:
        compacted(table, "first", 1)
        compacted(table, "second", 2)
        with table.writer("orders") as writer:
            write_rows(writer.begin(), orders(1))
        store = FaultyStore(open_store(uri))
        would = other_process(uri, FakeClock(), store).clean(NOW, dry_run=True)
        assert {call for call, _ in store.calls} <= {"get", "list"}
        assert would.dry_run
        before = stored(table, "log", "base", "shadow", "_weft")
        done = table.clean(NOW)
        assert (would.oldest_retained, would.deleted, would.kept) == (done.oldest_retained, done.deleted, done.kept)
        assert set(would.listed) == before - stored(table, "log", "base", "shadow", "_weft")
        assert (would.files, would.bytes) == (done.files, done.bytes)
        assert done.listed == ()

    def test_clean_done_reports_deletions_and_is_not_published_without_any(self, table: Table) -> None:
        append(table, orders(*ALL))
        head = table.state().head
        assert table.clean(NOW).files == 0
        assert table.state().head == head
        table.compact()
        result = table.clean(NOW)
        *_, intent, done = entries(table)
        assert isinstance(intent, CleanIntent)
        assert isinstance(done, CleanDone)
        assert (done.intent, done.files, done.bytes) == (intent.seq, result.files, result.bytes)
        assert (result.files, result.bytes > 0) == (1, True)

    def test_objects_with_foreign_names_are_reported_and_kept(self, table: Table, uri: str) -> None:
        append(table, orders(1))
        foreign = ["log/orders/notes.txt", "base/x.parquet", "base/b02-00000/notes", "_weft/index/orders/a.json"]
        for path in foreign:
            open_store(uri).put(Path(path), b"mine")
        result = table.clean(NOW)
        assert (set(result.foreign), result.foreign_files, result.files) == (set(foreign), 4, 0)
        assert set(foreign) <= stored(table, "log", "base", "_weft/index")


def test_unneeded_checkpoints_are_deleted(table: Table, uri: str) -> None:
    table = tuned(table, table_checkpoint_every=2, lane_checkpoint_every=2)
    saved = None
    for number in range(6):
        compacted(table, f"v{number}", number)
        if number == 2:
            saved = table.savepoint("kept").cut.table
    rows = contents(table, as_of="kept")
    folders = ("_weft/checkpoints/table", "_weft/checkpoints/lanes/orders")
    before = stored(table, *folders)
    result = table.clean(NOW)
    after = stored(table, *folders)
    parsed_paths = [parse_path(Path(path)) for path in after]
    heads = [parsed.slot for parsed in parsed_paths if parsed is not None and not parsed.lane]
    assert saved is not None
    assert len([head for head in heads if head <= saved]) == 1  # the newest one for the savepoint
    assert len(after) == len(heads) + 2
    assert result.deleted["checkpoint"].files == len(before - after) > 5
    assert contents(Table.open(uri), as_of="kept") == rows


def _take_probes(uri: str) -> None:
    """A clean that sees a probe object both at its beginning and at its end."""
    store = open_store(uri)
    store.delete_many([Path(f"_weft/probe/{name}") for name, _ in store.list(Path("_weft/probe"))])
