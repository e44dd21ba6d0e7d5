"""Read-optimized reads: base files only, their staleness, and datasets for engines that read Parquet."""

from __future__ import annotations

import datetime as dt
import io
import pickle
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from tests.faulty_store import FakeClock
from tests.storage.support.damage import Damage
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from tests.storage.support.world import Answer, World
from tests.strategies import Story, stories
from weft import Table
from weft.storage.core.log.cut import Cut
from weft.storage.errors import CorruptData, InvalidInput, NotFound, SnapshotExpired
from weft.storage.read.base_files.read_optimized import Compacted, ReadOptimized, Staleness

NOTHING = Staleness(since=None, commits=0, rows=0, size_bytes=0, file_groups=0, never_compacted=0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000_000)


@pytest.fixture
def table(clock: FakeClock) -> Table:
    return Table.create(new_uri(), SHOP, clock=clock)


def rows_of(table: Table, **arguments: Any) -> list[tuple[Any, ...]]:
    rows = table.snapshot().read_optimized().to_arrow(**arguments).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def staleness(table: Table) -> Staleness:
    return table.snapshot().read_optimized().staleness


def moment(time_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)


def later(clock: FakeClock) -> int:
    clock.time_ms += 60_000
    return clock.time_ms


@pytest.mark.usefixtures("small_files")
def test_a_read_optimized_read_shows_the_last_compaction(table: Table) -> None:
    append(table, orders(*range(9), status="old"))
    append(table, payments(1, 2), "payments")
    append(table, orders(8, ts=2, op="D"))
    table.compact()
    compacted = contents(table)
    append(table, orders(0, 100, status="new", ts=2))
    append(table, orders(3, ts=2, op="D"))
    assert rows_of(table) == compacted != contents(table)
    assert table.snapshot().to_arrow(read_optimized=True).num_rows == 8
    assert table.snapshot().to_reader(["id"], read_optimized=True).read_all().num_rows == 8
    table.compact()
    assert rows_of(table) == contents(table) != compacted


def test_columns_filter_and_require_work_as_in_any_read(table: Table) -> None:
    append(table, orders(1, 2, 3))
    append(table, payments(2, 3, paid=5.0), "payments")
    table.compact()
    append(table, payments(1, 2, paid=7.0, ts=2), "payments")
    assert rows_of(table, columns=["paid", "id"], require=["payment"]) == [(5.0, 2), (5.0, 3)]
    assert rows_of(table, columns=["id"], filter=pc.field("paid") == 5.0) == [(2,), (3,)]
    assert rows_of(table, columns=["id"], filter=pc.field("paid") == 7.0) == []
    with pytest.raises(NotFound, match="nope"):
        rows_of(table, columns=["nope"])


def test_a_table_that_was_never_compacted_shows_no_rows_and_reports_it(table: Table, clock: FakeClock) -> None:
    assert staleness(table) == NOTHING
    assert rows_of(table) == []
    first = later(clock)
    append(table, orders(*range(20)))
    found = staleness(table)
    assert rows_of(table) == []
    assert (found.since, found.commits, found.rows) == (moment(first), 1, 20)
    assert (found.file_groups, found.never_compacted) == (4, 4)
    assert found.size_bytes > 0
    assert [group.cut for group in table.snapshot().read_optimized().file_groups] == [None] * 4


def test_staleness_reports_what_waits_and_since_when(table: Table, clock: FakeClock) -> None:
    append(table, orders(*range(20)))
    table.compact()
    assert staleness(table) == NOTHING
    times = []
    for ts in (2, 3, 4):
        times.append(later(clock))
        append(table, orders(1, ts=ts))
    later(clock)
    append(table, payments(1, 2), "payments")
    found = staleness(table)
    assert (found.since, found.commits, found.rows, found.never_compacted) == (moment(times[0]), 4, 5, 0)
    read = table.snapshot().read_optimized()
    assert sum(group.rows for group in read.file_groups) == 20
    assert sum(group.rows_waiting for group in read.file_groups) == found.rows
    assert sum(group.bytes_waiting for group in read.file_groups) == found.size_bytes
    assert sum(group.size_bytes for group in read.file_groups) > 0
    assert max(group.commits_waiting for group in read.file_groups) == 4
    home = max(read.file_groups, key=lambda group: group.commits_waiting).file_group
    assert home != min(read.file_groups, key=lambda group: group.commits_waiting).file_group
    table.compact(only=lambda file_slice: file_slice.group == home)
    # At most one commit is left out: the payment of the other order, which may be in the other file group.
    assert staleness(table).commits <= 1
    table.compact()
    assert staleness(table) == NOTHING


def test_each_file_group_is_as_new_as_its_last_compaction(table: Table) -> None:
    append(table, orders(*range(20), status="old"))
    table.compact()
    append(table, orders(*range(20), status="new", ts=2))
    chosen = table.snapshot().slices[0].group
    table.compact(only=lambda file_slice: file_slice.group == chosen)
    read = table.snapshot().read_optimized()
    cuts = {group.file_group: group.cut for group in read.file_groups}
    assert [group for group in cuts if cuts[group] == read.cut.lanes] == [chosen]
    assert len({str(Cut(1, dict(at or {}))) for at in cuts.values()}) == 2
    counted = read.to_arrow(["status"])["status"].value_counts().to_pylist()
    assert {one["values"] for one in counted} == {"old", "new"}
    assert sum(one["counts"] for one in counted) == 20


def test_folded_commits_count_as_waiting(table: Table, clock: FakeClock) -> None:
    append(table, orders(*range(20)))
    table.compact()
    first = later(clock)
    for ts in (2, 3):
        append(table, orders(*range(20), ts=ts))
        later(clock)
    before = staleness(table)
    assert (before.since, before.commits, before.rows) == (moment(first), 2, 40)
    table.fold()
    folded = staleness(table)
    assert (folded.since, folded.commits, folded.rows, folded.file_groups) == (moment(first), 1, 20, 4)
    append(table, orders(1, ts=9))
    assert staleness(table).since == moment(first)
    table.compact()
    assert staleness(table) == NOTHING


def test_rolled_back_commits_do_not_count(table: Table, clock: FakeClock) -> None:
    append(table, orders(*range(20)))
    table.compact()
    table.savepoint("good")
    append(table, orders(1, ts=5))
    table.fold()
    table.restore("good")
    assert staleness(table) == NOTHING
    again = later(clock)
    append(table, orders(1, ts=5))
    table.fold()
    assert staleness(table).since == moment(again)


def test_the_dataset_has_only_user_columns(table: Table) -> None:
    append(table, orders(*range(20)))
    append(table, payments(1, 2), "payments")
    append(table, orders(3, ts=2, op="D"))
    table.compact()
    append(table, orders(1, ts=9, status="waits"))
    read = table.snapshot().read_optimized()
    dataset = read.dataset()
    assert dataset.schema == read.schema == table.snapshot().schema
    for one in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert one.to_table().sort_by("id") == read.to_arrow().sort_by("id")
        assert one.count_rows() == 19
        assert one.to_table(["paid"], filter=pc.field("id") == 2).to_pylist() == [{"paid": 1.0}]
    assert read.dataset(["paid", "id"]).schema.names == ["paid", "id"]
    assert len(list(dataset.get_fragments())) == 1
    with pytest.raises(NotFound, match="nope") as error:
        read.dataset(["nope"])
    assert "status" in error.value.hint
    with pytest.raises(pa.ArrowInvalid, match="__weft_g1_arrival"):
        dataset.to_table(["__weft_g1_arrival"])


def test_an_empty_table_is_an_empty_dataset(table: Table) -> None:
    dataset = table.snapshot().read_optimized().dataset()
    assert dataset.to_table().num_rows == dataset.count_rows() == 0
    assert dataset.to_table().schema.names == list(SHOP["columns"])


def test_a_dataset_is_readable_by_other_libraries_and_read_only(table: Table) -> None:
    append(table, orders(*range(20)))
    table.compact()
    dataset = table.snapshot().read_optimized().dataset()
    found = duckdb.sql("SELECT count(*), sum(id) FROM dataset WHERE id < 5").fetchall()
    assert found == [(5, 10)]
    files = dataset.filesystem
    (info,) = files.get_file_info([dataset.files[0]])
    assert info.size == files.open_input_file(dataset.files[0]).size()
    for change in (lambda: files.create_dir("new"), lambda: files.delete_file(dataset.files[0])):
        with pytest.raises(io.UnsupportedOperation):
            change()
    assert dataset.count_rows() == 20


def test_files_of_an_older_schema_are_adapted_or_refused(table: Table) -> None:
    append(table, orders(*range(4)))
    table.compact()
    table.add_column("order", "note", "string")
    table.add_column("payment", "currency", "string", default="EUR")
    read = table.snapshot().read_optimized()
    assert read.to_arrow().select(["note", "currency"]).to_pylist() == [{"note": None, "currency": "EUR"}] * 4
    with pytest.raises(
        InvalidInput, match=r"older schema have other values than the table in column currency\n"
    ) as error:
        read.dataset()
    assert "to_arrow" in error.value.hint
    others = [name for name in read.schema.names if name != "currency"]
    assert read.dataset(others).to_table().sort_by("id") == read.to_arrow(others).sort_by("id")


def test_keys_of_a_narrower_type_are_widened() -> None:
    table = Table.create(new_uri(), {**SHOP, "columns": {**SHOP["columns"], "id": "int", "ots": "int"}})
    narrow = pa.schema([("id", pa.int32()), ("status", pa.string()), ("ots", pa.int32())])
    append(table, orders(1, 2, 3).cast(narrow))
    table.compact()
    table.widen_column("id", "bigint")
    append(table, orders(1 << 40).cast(narrow.set(0, pa.field("id", pa.int64()))))
    table.compact()
    dataset = table.snapshot().read_optimized().dataset()
    assert dataset.schema.field("id").type == pa.int64()
    assert sorted(dataset.to_table()["id"].to_pylist()) == [1, 2, 3, 1 << 40]
    assert dataset.to_table(["id"], filter=pc.field("id") < (1 << 40)).num_rows == 3
    table.widen_column("ots", "bigint")
    with pytest.raises(InvalidInput, match="column ots"):
        table.snapshot().read_optimized().dataset()


@pytest.mark.parametrize("part", [0.999, 0.05])
def test_a_damaged_file_is_an_error(table: Table, part: float) -> None:
    append(table, orders(*range(20_000)))
    table.compact()
    dataset = table.snapshot().read_optimized().dataset()
    damage = Damage(table)
    for path in damage.paths("base"):
        damage.flip(path, part)
    with pytest.raises((CorruptData, OSError), match=r"checksum|CRC"):
        dataset.to_table()
    with pytest.raises(CorruptData):
        rows_of(table)


def test_a_missing_file_is_corrupt_data_or_an_expired_snapshot(table: Table, clock: FakeClock) -> None:
    append(table, orders(*range(20)))
    table.compact()
    older = table.snapshot().read_optimized().dataset()
    append(table, orders(*range(20), ts=2))
    table.compact()
    clock.time_ms += 1_000_000
    table.clean(dt.timedelta(0))
    with pytest.raises(SnapshotExpired):
        older.to_table()
    dataset = table.snapshot().read_optimized().dataset()
    assert dataset.count_rows() == 20
    damage = Damage(table)
    damage.remove(damage.paths("base")[0])
    with pytest.raises(CorruptData, match="missing"):
        table.snapshot().read_optimized().dataset().to_table()


@pytest.mark.usefixtures("small_files", "own_files")  # so that a fragment is a file group
@given(stories(max_steps=8))
def test_each_file_group_shows_its_state_at_its_cut(story: Story) -> None:
    with World({**story.config, "overlays": False}) as world:  # a dataset has none
        answers: dict[str, Answer] = {}
        for step in story.steps:
            answers[str(Cut(1, world.table.snapshot().cut.lanes))] = world.expected()
            world.run([step])
            read = world.table.snapshot().read_optimized()
            found = world.answer(read.to_arrow())
            dataset = read.dataset()
            assert world.answer(dataset.to_table()) == found
            held = {group.file_group: answers[str(Cut(1, group.cut))] for group in read.file_groups if group.cut}
            for group, fragment in zip(_with_base(read), dataset.get_fragments(), strict=True):
                rows = world.answer(fragment.to_table(schema=dataset.schema))
                assert len(rows) == group.rows
                assert rows.items() <= held[group.file_group].items()
            cuts = {str(Cut(1, group.cut or {})) for group in read.file_groups}
            if len(cuts) == 1 and held:
                assert found == answers[cuts.pop()]
            assert (read.staleness == NOTHING) == (not any(group.rows_waiting for group in read.file_groups))


def _with_base(read: ReadOptimized) -> list[Compacted]:
    return [group for group in read.file_groups if group.rows]
