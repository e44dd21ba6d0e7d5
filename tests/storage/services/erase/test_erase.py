"""Erase: keys are removed from every stored object, beside live writers; nothing that is kept breaks silently."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.erased import has_keys
from tests.storage.support.erased_table import (
    ALL,
    CONFIG,
    GONE,
    append,
    errors_of,
    folder_of,
    ids,
    objects,
    rows,
    small,
    with_keys,
)
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.log import features
from weft.storage.core.log.sealed import seal
from weft.storage.core.names import TABLE_LANE, checkpoint_path
from weft.storage.environment import Environment
from weft.storage.errors import (
    CorruptData,
    InvalidInput,
    OffsetExpired,
    SnapshotExpired,
    StillRetained,
    StoreUnavailable,
    UnsupportedFormat,
    error_from_dict,
)
from weft.storage.log.pins import pin
from weft.storage.services.service_reports import put_service_report, service_reports
from weft.storage.services.steps import service_plan
from weft.storage.store.open_store import open_store


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Commits, a compaction, a fold, and commits after both."""
    table = Table.create(tmp_path / "table", CONFIG)
    append(table, "s", ALL)
    append(table, "u", ALL)
    table.compact()
    append(table, "s", [GONE], 2)
    append(table, "u", ALL[:9])
    table.fold()
    append(table, "s", [GONE, "person-1"], 3)
    return table


class TestWhatIsRemoved:
    def test_from_bases_folds_logs_and_the_entries_that_index_them(self, table: Table) -> None:
        before = with_keys(table, [GONE])
        assert {path.split("/")[0] for path in before} == {"_weft", "base", "log"}
        result = table.erase([GONE], expire_snapshots=True, note="ticket 5")
        assert result.complete
        assert (result.keys, result.remains, result.newer, result.unread) == (1, (), (), ())
        assert result.redacted > 0
        assert with_keys(table, [GONE]) == []
        assert ids(table) == sorted(set(ALL) - {GONE})
        assert errors_of(table) == []

    def test_other_rows_and_their_versions_stay(self, table: Table) -> None:
        before = table.snapshot().to_arrow().sort_by("id").to_pylist()
        table.erase([GONE], expire_snapshots=True)
        assert table.snapshot().to_arrow().sort_by("id").to_pylist() == [row for row in before if row["id"] != GONE]
        append(table, "s", ["person-1"], 2)  # older than what it has: it loses, as before the erase
        assert table.get(["person-1"]).column("a").to_pylist() == ["a3"]

    def test_from_shadows_with_the_delete(self, table: Table) -> None:
        append(table, "s", [GONE, "person-2"], 9, "D")
        table.compact()
        assert any(path.startswith("shadow/") for path in with_keys(table, [GONE]))
        assert table.erase([GONE], expire_snapshots=True).complete
        assert with_keys(table, [GONE]) == []
        append(table, "s", [GONE, "person-2"], 5)  # older than the deletes
        assert GONE in ids(table), "no delete is known of an erased key"
        assert "person-2" not in ids(table)

    def test_from_large_indexes_archives_and_checkpoints(self, tmp_path: Path) -> None:
        clock = FakeClock()
        limits = {"inline_index_bytes": 1, "archive_chunk": 3, "lane_checkpoint_every": 2, "table_checkpoint_every": 2}
        for number, limit in enumerate((limits, limits | {"inline_index_bytes": 100_000})):
            table = small(tmp_path / str(number), clock, **limit)
            for version in range(8):
                append(table, "s", [GONE, f"person-{version}"], version)
                table.fold() if version % 2 else table.compact()
            table.clean(dt.timedelta(0))
            append(table, "s", [GONE], 20)
            kinds = {path.rsplit(".", 1)[1] for path in objects(table)}
            assert "entries" in kinds
            assert table.erase([GONE], expire_snapshots=True).complete
            assert with_keys(table, [GONE]) == []
            assert GONE not in ids(table)
            assert errors_of(table) == []
            assert [found for found in table.verify().findings if "differs from what replaying" in str(found)] == []

    def test_from_rows_of_shared_files_that_nothing_refers_to(self, table: Table) -> None:
        table.compact()
        home = next(part.group for part in table.snapshot().slices if _has(table, part, GONE))
        append(table, "s", [GONE], 4)
        table.compact(only=lambda part: part.group == home)  # the old rows remain in the file of the other file groups
        table.clean(dt.timedelta(0))
        assert table.erase([GONE], expire_snapshots=True).complete
        assert with_keys(table, [GONE]) == []

    def test_keys_of_several_columns_in_partitions(self, tmp_path: Path) -> None:
        config = CONFIG | {
            "key": ["region", "n"],
            "partition_by": ["region"],
            "columns": {"region": "string", "n": "decimal(9,2)", "v": "string"},
            "groups": {"g": {"columns": ["v"]}},
            "streams": {"s": {"groups": ["g"]}},
        }
        table = Table.create(tmp_path / "table", config)
        numbers = pa.array(["1.50", "2.50"] * 2).cast(pa.decimal128(9, 2))
        with table.writer("s") as writer:
            writer.append(pa.table({"region": ["eu", "eu", "us", "us"], "n": numbers, "v": ["x"] * 4}))
        key = ("eu", numbers[0].as_py())
        assert any(has_keys(path, data, config, [key]) for path, data in objects(table).items())
        assert table.erase([key], expire_snapshots=True).complete
        assert not any(has_keys(path, data, config, [key]) for path, data in objects(table).items())
        assert table.snapshot().to_arrow().num_rows == 3

    def test_a_key_that_the_table_does_not_have(self, table: Table) -> None:
        before = table.snapshot().to_arrow()
        result = table.erase(["nobody"])
        assert (result.complete, result.entry, result.file_groups) == (True, 0, 0)
        assert table.snapshot().to_arrow().equals(before)

    def test_running_it_again_changes_nothing(self, table: Table) -> None:
        table.erase([GONE], expire_snapshots=True)
        slices = list(table.state().slices.values())
        again = table.erase([GONE])
        assert (again.complete, again.entry, again.redacted) == (True, 0, 0)
        assert list(table.state().slices.values()) == slices

    def test_twice_on_an_idle_table(self, table: Table) -> None:
        """The second BASE has the cuts of the first one."""
        for gone in (GONE, "person-3"):
            assert table.erase([gone], expire_snapshots=True).complete
        assert ids(table) == sorted(set(ALL) - {GONE, "person-3"})
        assert errors_of(table) == []

    def test_bad_keys_change_nothing(self, table: Table) -> None:
        before = table.state().head
        for keys in ([], [None], [7], [("a", "b")]):
            with pytest.raises(InvalidInput):
                table.erase(keys, expire_snapshots=True)
        assert table.state().head == before


def _has(table: Table, part: Any, key: str) -> bool:
    folder = folder_of(table)
    data = (folder / part.slice.base.path).read_bytes() if part.slice is not None and part.slice.base else b""
    found = has_keys("x.parquet", data, CONFIG, [(key,)]) if data else False
    return found and part.group in {group for group, _ in _home(table, key)}


def _home(table: Table, key: str) -> list[tuple[Any, Any]]:
    from weft.storage.core.merge.locate_keys import locate_keys

    return list(locate_keys(table.schema, {"id": pa.array([key])}, table.state().levels).items())


class TestWhatIsRewritten:
    def test_only_file_groups_with_the_keys_if_the_logs_are_compacted(self, tmp_path: Path) -> None:
        table = small(tmp_path, small_group_bytes=0)
        append(table, "s", ALL)
        table.compact()
        before = {group: made.base for group, made in table.state().slices.items()}
        result = table.erase([GONE], expire_snapshots=True)
        after = {group: made.base for group, made in table.state().slices.items()}
        changed = {group for group in before if before[group] != after[group]}
        assert changed == {group for group, _ in _home(table, GONE)}
        assert result.file_groups == 1
        assert with_keys(table, [GONE]) == []

    def test_all_file_groups_with_logs_if_a_log_file_has_a_key(self, table: Table) -> None:
        table.erase([GONE], expire_snapshots=True)
        assert [part for part in table.snapshot().slices if len(part.rows)] == []
        assert not any(path.startswith("log/") for path in objects(table))

    def test_file_groups_of_all_rounds_are_counted(self, tmp_path: Path) -> None:
        """A compaction publishes one of the file groups first, so that the erase takes two rounds."""
        table = small(tmp_path, small_group_bytes=0)
        append(table, "s", ALL)
        store = FaultyStore(open_store(table.uri))
        first, *others = [part.group for part in table.snapshot().slices]

        def compact_one() -> None:
            env = Environment(open_store(table.uri), FakeClock(), tuning=table.env.tuning)
            done = Table(env, Stamps()).compact(only=lambda part: part.group == first).done
            assert done == (first,)

        store.faults.append(Fault("put_if_absent", "timeline/table/00000000000000000005", action=compact_one))
        env = Environment(store, FakeClock(), tuning=table.env.tuning)
        result = Table(env, Stamps()).erase([GONE], expire_snapshots=True)
        assert result.complete
        assert result.file_groups == len([first, *others])
        assert with_keys(table, [GONE]) == []


class TestWriters:
    def test_a_live_writer_goes_on(self, table: Table) -> None:
        with table.writer("s") as writer:
            writer.append(rows("s", ["person-20"]))
            assert other_process(table.uri, FakeClock()).erase([GONE], expire_snapshots=True).complete
            writer.append(rows("s", ["person-21"]))
        assert {"person-20", "person-21"} <= set(ids(table))
        assert GONE not in ids(table)
        assert errors_of(table) == []

    def test_later_events_are_new_data_whatever_their_versions(self, table: Table) -> None:
        table.erase([GONE], expire_snapshots=True)
        append(table, "s", [GONE], 0)
        assert table.get([GONE]).to_pylist() == [{"id": GONE, "a": "a0", "ts": 0, "b": None}]
        table.compact()
        assert table.get([GONE]).column("a").to_pylist() == ["a0"]

    def test_commits_during_the_erase_are_new_and_named(self, table: Table) -> None:
        store = FaultyStore(open_store(table.uri))
        eraser = other_process(table.uri, FakeClock(), store)
        store.faults.append(Fault("list", "_weft/timeline/lanes", action=lambda: append(table, "s", [GONE], 5)))
        result = eraser.erase([GONE], expire_snapshots=True)
        assert result.complete
        assert sorted(path.split("/")[0] for path in result.newer) == ["_weft", "log"]
        assert sorted(result.newer) == with_keys(table, [GONE])
        assert GONE in ids(table)

    def test_files_that_are_not_committed_are_named(self, table: Table) -> None:
        """What a dead writer has left may still be committed by its successor, so it cannot be deleted."""
        append(table, "s", ["person-1"])
        log = next(path for path in objects(table) if path.startswith("log/s/"))
        head = len([path for path in objects(table) if path.startswith("_weft/timeline/lanes/s/")])
        epoch, _, rest = log.removeprefix("log/s/").split("-", 2)
        left = folder_of(table) / f"log/s/{epoch[:-1]}9-{head + 1:020d}-{rest}"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, pa.schema({"id": pa.string()})) as writer:
            writer.write_table(pa.table({"id": [GONE]}))
        left.write_bytes(sink.getvalue().to_pybytes())
        result = table.erase([GONE], expire_snapshots=True)
        assert result.newer == (str(left.relative_to(folder_of(table))),)

    def test_objects_that_are_not_the_tables_are_named(self, table: Table) -> None:
        (folder_of(table) / "base" / "export.csv").write_text(GONE)
        assert table.erase([GONE], expire_snapshots=True).unread == ("base/export.csv",)


class TestWhatIsKept:
    def test_retained_snapshots_refuse(self, table: Table) -> None:
        before = objects(table)
        with pytest.raises(StillRetained, match="entry 1 of the table lane on") as raised:
            table.erase([GONE])
        assert (raised.value.snapshots, raised.value.savepoints, raised.value.pins) == (True, (), ())
        assert objects(table) == before

    def test_a_savepoint_with_a_key_refuses_until_it_is_released(self, table: Table) -> None:
        table.savepoint("audit")
        before = objects(table)
        with pytest.raises(StillRetained, match="savepoints audit") as raised:
            table.erase([GONE], expire_snapshots=True)
        assert raised.value.savepoints == ("audit",)
        again = error_from_dict(raised.value.to_dict())
        assert isinstance(again, StillRetained)
        assert again.savepoints == ("audit",)
        assert objects(table) == before
        assert GONE in table.snapshot("audit").to_arrow().column("id").to_pylist()
        result = table.erase([GONE], expire_snapshots=True, release_savepoints=True)
        assert (result.complete, result.released) == (True, ("audit",))
        assert table.savepoints() == []
        assert with_keys(table, [GONE]) == []

    def test_a_savepoint_without_the_keys_stays(self, tmp_path: Path) -> None:
        table = Table.create(tmp_path / "table", CONFIG)
        append(table, "s", ["person-1"])
        table.savepoint("before")
        append(table, "s", [GONE], 2)
        append(table, "s", ["person-2"], 3)
        result = table.erase([GONE], expire_snapshots=True)
        assert (result.complete, result.released) == (True, ())
        assert table.snapshot("before").to_arrow().column("id").to_pylist() == ["person-1"]
        assert errors_of(table) == []

    def test_a_pin_refuses_or_is_removed(self, table: Table) -> None:
        with table.snapshot().pinned() as snapshot:
            table.clean(dt.timedelta(0))
            with pytest.raises(StillRetained, match="pins of") as raised:
                table.erase([GONE])
            assert raised.value.pins
            result = table.erase([GONE], expire_snapshots=True)
            assert (result.complete, len(result.unpinned)) == (True, 1)
            with pytest.raises(SnapshotExpired):
                snapshot.to_arrow()

    def test_an_open_compaction_from_before_publishes_nothing(self, table: Table) -> None:
        """Also where the slice has the cut of its parent, so that comparing cuts detects nothing."""
        table.compact()
        append(table, "s", [GONE, "person-2"], 7)
        store = FaultyStore(open_store(table.uri))
        store.faults.append(
            Fault("open_output", "base/", action=lambda: table.erase([GONE], expire_snapshots=True) and None)
        )
        result = other_process(table.uri, FakeClock(), store).compact()
        assert result.done == ()
        assert set(result.skipped.values()) == {service_plan.PLAN_CLOSED}
        assert GONE not in ids(table)
        assert errors_of(table) == []
        assert table.erase([GONE], expire_snapshots=True).complete
        assert with_keys(table, [GONE]) == []

    def test_a_pin_that_came_too_late_does_not_keep_entries(self, table: Table) -> None:
        """A reader pins a snapshot that expires at that moment: the files are gone, but the pin is not."""
        late = table.snapshot().cut
        store = FaultyStore(open_store(table.uri))
        keep = dt.timedelta(days=900)  # the eraser's clock is ahead
        store.faults.append(Fault("delete", "log/", action=lambda: pin(table.env, late, keep) and None))
        result = other_process(table.uri, FakeClock(), store).erase([GONE], expire_snapshots=True)
        assert not result.complete
        again = table.erase([GONE])
        assert (again.complete, len(again.unpinned)) == (True, 1)
        assert with_keys(table, [GONE]) == []

    def test_a_checkpoint_that_a_stalled_process_writes_later_is_cleaned(self, tmp_path: Path) -> None:
        table = small(tmp_path, table_checkpoint_every=1)
        append(table, "s", [GONE])
        store = FaultyStore(open_store(table.uri))
        folded = table.state().head + 2  # PLAN, FOLD
        store.faults.append(
            Fault(
                "put",
                f"_weft/checkpoints/table/{folded:020d}-",
                action=lambda: table.erase([GONE], expire_snapshots=True) and None,
            )
        )
        env = Environment(store, FakeClock(), tuning=table.env.tuning)
        Table(env, Stamps()).fold()
        assert [path.split("/")[1] for path in with_keys(table, [GONE])] == ["checkpoints"]
        assert errors_of(table) == []
        assert any("key ranges that an erase has removed" in str(found) for found in table.verify().findings)
        table.clean(dt.timedelta(0))
        assert with_keys(table, [GONE]) == []
        assert errors_of(table) == []

    def test_a_checkpoint_that_another_version_writes_later_is_cleaned(self, table: Table) -> None:
        """This version cannot decode it, so it may have key ranges of folds."""
        path = checkpoint_path(TABLE_LANE, table.state().head, "a" * 32)
        table.erase([GONE], expire_snapshots=True)
        store = open_store(table.uri)
        store.put(path, seal(b'{"version":2}'))
        assert errors_of(table) == []
        table.clean(dt.timedelta(0))
        assert store.get(path) is None

    @pytest.mark.parametrize(("call", "number"), [("put_if_absent", 1), ("put_if_absent", 2), ("open_input", 1)])
    def test_a_key_column_that_becomes_wider_meanwhile(self, tmp_path: Path, call: str, number: int) -> None:
        config = {
            "key": ["n"],
            "columns": {"n": "int", "v": "string"},
            "groups": {"g": {"columns": ["v"]}},
            "streams": {"s": {"groups": ["g"]}},
        }

        def write(table: Table, *numbers: int) -> None:
            with table.writer("s", lane=f"s-{numbers[0]}") as writer:
                kind = pa.int64() if max(numbers) > 7 else pa.int32()
                writer.append(pa.table({"n": pa.array(numbers, kind), "v": ["v"] * len(numbers)}))

        def widen() -> None:
            table.widen_column("n", "bigint")
            write(table, 1 << 40)
            table.compact()
            write(table, 1 << 41)
            table.fold()

        table = Table.create(tmp_path / "table", config)
        write(table, 1, 7)
        table.compact()
        store = FaultyStore(open_store(table.uri))
        store.faults.append(Fault(call, "", times=number - 1, action=lambda: None))
        store.faults.append(Fault(call, "", "after", action=widen))
        result = other_process(table.uri, FakeClock(), store).erase([7], expire_snapshots=True)
        assert result.remains == ()
        assert sorted(table.snapshot().to_arrow(["n"]).column("n").to_pylist()) == [1, 1 << 40, 1 << 41]

    def test_changes_since_before_an_erase_are_refused(self, table: Table) -> None:
        cut = str(table.snapshot().cut)
        table.erase([GONE], expire_snapshots=True)
        with pytest.raises(OffsetExpired):
            table.changes(cut).read_all()

    def test_changes_from_a_savepoint_show_the_erased_rows_as_deleted(self, tmp_path: Path) -> None:
        table = Table.create(tmp_path / "table", CONFIG)
        append(table, "s", ["person-1"])
        table.savepoint("before")
        append(table, "s", [GONE, "person-2"], 2)
        since = str(table.snapshot().cut)
        table.erase([GONE], expire_snapshots=True)
        found = table.changes("before").read_all().select(["id", "_change"]).to_pylist()
        assert found == [{"id": "person-2", "_change": "insert"}]
        with pytest.raises(OffsetExpired):
            table.changes(since).read_all()

    def test_an_undo_does_not_go_back_before_an_erase(self, table: Table) -> None:
        cut = str(table.snapshot().cut)
        table.erase([GONE], expire_snapshots=True)
        with pytest.raises(SnapshotExpired):
            table.undo("s", cut)
        assert GONE not in ids(table)


class TestFeature:
    def test_older_versions_refuse_the_table(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        table.erase([GONE], expire_snapshots=True)
        assert "erase" in table.state().writer_features
        monkeypatch.setattr(features, "readable_features", lambda: frozenset({"merge-latest"}))
        monkeypatch.setattr(
            "weft.storage.core.log.apply_entries.readable_features", lambda: frozenset({"merge-latest"})
        )
        with pytest.raises(UnsupportedFormat, match="erase"):
            Table(Environment(open_store(table.uri), FakeClock()), Stamps()).state()

    def test_the_feature_outlives_schema_changes(self, table: Table) -> None:
        table.erase([GONE], expire_snapshots=True)
        slot = table.add_column("g", "more", "string").rev
        entry = objects(table)[f"_weft/timeline/table/{slot:020d}.json"]
        assert b'"reader_features":["erase","merge-latest"]' in entry

    def test_a_table_without_erased_keys_has_no_flag(self, table: Table) -> None:
        for path, data in objects(table).items():
            assert b"erase" not in data or path.endswith((".arrow", ".parquet")), path


def test_a_store_that_does_not_answer_leaves_a_table_that_can_be_read(table: Table) -> None:
    store = FaultyStore(open_store(table.uri))
    store.faults.append(Fault("delete", "", times=1_000))
    with pytest.raises(StoreUnavailable):
        other_process(table.uri, FakeClock(), store).erase([GONE], expire_snapshots=True)
    assert ids(table) == sorted(set(ALL) - {GONE})
    assert table.erase([GONE], expire_snapshots=True).complete
    assert with_keys(table, [GONE]) == []


def test_a_damaged_base_file_is_named(table: Table) -> None:
    for path in (folder_of(table) / "base").rglob("*.parquet"):
        data, rows = path.read_bytes(), pq.read_metadata(path).row_group(0).column(0).total_compressed_size
        path.write_bytes(data[:4] + bytes(rows) + data[4 + rows :])
    with pytest.raises(CorruptData, match=r"base/.*\.parquet does not decode"):
        table.erase([GONE], expire_snapshots=True)


def test_reports_of_services_may_name_a_key_and_are_removed(table: Table) -> None:
    store = open_store(table.uri)
    put_service_report(store, "compaction", f"merging {GONE} failed".encode())
    assert table.erase([GONE], expire_snapshots=True).complete
    assert service_reports(store, ["compaction"]) == {}
