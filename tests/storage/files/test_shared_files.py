"""Base and shadow files that small file groups share: slices are parts of files, and are replaced separately."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.cleaning import NOW, killed_late
from tests.storage.support.damage import Damage, wrong
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders
from tests.storage.support.world import World, bag
from tests.strategies import EVERY_GROUP, Compact, Story, stories
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.file_refs import FileGroup, SliceFile
from weft.storage.core.merge.locate_keys import locate_keys
from weft.storage.core.names import TABLE_LANE, Path
from weft.storage.core.plan.slices import whole_files
from weft.storage.environment import Tuning
from weft.storage.read.plan.pruning import key_table
from weft.storage.services.compaction import compaction
from weft.storage.store.open_store import open_store

KEYS = range(40)


@pytest.fixture
def table() -> Table:
    """4 file groups in one base file and one shadow file."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*KEYS))
    append(table, orders(*KEYS[::3], op="D", ts=2))
    table.compact()
    return table


def slices(table: Table) -> list[SliceFile]:
    return list(table.state().slices.values())


def files(table: Table) -> list[str]:
    store = open_store(table.uri)
    return [f"{folder}/{name}" for folder in ("base", "shadow") for name, _ in store.list(Path(folder))]


def one_more(table: Table, group: FileGroup, status: str, ts: int) -> None:
    """Write a newer slice of one file group; the others do not change."""
    group_keys = locate_keys(table.schema, key_table(table.schema, list(KEYS)), table.state().levels)[group]
    append(table, orders(*group_keys.tolist(), status=status, ts=ts))
    assert table.compact(lambda one: one.group == group).done == (group,)


def test_small_neighbouring_file_groups_share_a_file(table: Table) -> None:
    assert len(files(table)) == 2
    made = slices(table)
    assert (
        len({each.base.path for each in made if each.base})
        == len({each.shadow.path for each in made if each.shadow})
        == 1
    )
    taken: list[int] = []
    for each in made:
        assert each.base_part is not None
        assert each.shadow_part is not None
        taken += range(each.base_part.first, each.base_part.first + each.base_part.rows)
    assert taken == list(range(26))
    (base, *_) = [each.base for each in made if each.base]
    assert base.rows == 26
    assert 0 <= base.size - sum(each.base_bytes for each in made) < len(made)
    assert pq.read_metadata(open_store(table.uri).open_input(base.path, base.size)).row_group(0).sorting_columns == ()


def test_shared_files_are_bounded(table: Table) -> None:
    sizes = [each.base_bytes + each.log_bytes for each in table.snapshot().slices]
    assert list(map(len, compaction.cut_tasks(table.snapshot().slices, Tuning()))) == [4]
    tuning = Tuning(shared_file_bytes=sum(sizes[:2]))
    assert len(compaction.cut_tasks(table.snapshot().slices, tuning)[0]) == 2
    tuning = replace(tuning, small_group_bytes=min(sizes))
    assert list(map(len, compaction.cut_tasks(table.snapshot().slices, tuning))) == [1] * 4


def test_a_slice_without_shared_files_has_no_parts(table: Table) -> None:
    damage = Damage(table)
    shared = json.loads(damage.content(damage.slot(TABLE_LANE, "BASE")))
    assert all("base_part" in each and "shadow_part" in each for each in shared["slices"])
    append(table, orders(*KEYS, status="alone", ts=3))
    tuned(table, small_group_bytes=0).compact()
    single = json.loads(damage.content(damage.slot(TABLE_LANE, "BASE")))
    assert all(set(shared["slices"][0]) - set(each) == {"base_part", "shadow_part"} for each in single["slices"])
    append(table, orders(*KEYS[:20], status="shared", ts=4))
    rows = contents(table)
    table.compact()
    assert all(each.base_part is not None for each in slices(table))
    assert contents(table) == contents(Table.open(table.uri)) == rows


def test_a_shared_file_is_kept_until_all_its_file_groups_are_compacted_again(table: Table) -> None:
    shared = set(files(table))
    for number, group in enumerate(sorted(table.state().slices)):
        assert {path for path in shared if path.startswith("base/")} <= set(files(table)), (
            "a shared file is kept while a file group uses it"
        )
        one_more(table, group, f"s{number}", 3 + number)
        rows = contents(table)
        table.clean(NOW)
        assert contents(table) == contents(Table.open(table.uri)) == rows
        assert wrong(table) == []
    assert shared.isdisjoint(files(table))


def test_cleaning_deletes_shared_files_of_a_dead_compaction(table: Table) -> None:
    before = set(files(table))
    append(table, orders(*KEYS, status="paid", ts=3))
    rows = contents(table)
    with pytest.raises(KeyboardInterrupt):
        table.compact(execute=killed_late)
    assert len(set(files(table)) - before) == 1
    assert contents(table) == rows
    table.compact()
    table.clean(NOW, abandon_after=NOW)
    kept = {file.path for each in slices(table) for file in (each.base, each.shadow) if file is not None}
    assert set(files(table)) == kept
    assert contents(table) == rows


@pytest.mark.parametrize("lost", [1, 3, 4])
def test_a_shared_file_is_deleted_only_if_all_its_slices_lost_their_race(table: Table, lost: int) -> None:
    """If only some slices of a file are published, the rows of the others are unused."""
    append(table, orders(*KEYS, status="slow", ts=3))
    rows = contents(table)
    overtaken = sorted(table.state().slices)[:lost]
    store = FaultyStore(open_store(table.uri))
    slow = other_process(table.uri, FakeClock(), store)
    first = set(files(table))

    def overtake() -> None:
        table.compact(only=lambda file_slice: file_slice.group in overtaken)

    store.faults.append(Fault("open_output", "base/", action=overtake))
    result = slow.compact()
    assert sorted(result.skipped) == overtaken
    kept = {file.path for each in slices(table) for file in (each.base, each.shadow) if file is not None}
    assert set(files(table)) - first == kept
    assert len({each.base.path for each in slices(table) if each.base}) == (1 if lost == 4 else 2)
    for one in (table, slow, Table.open(table.uri)):
        assert contents(one) == rows
    assert wrong(table) == []


def test_files_with_unused_rows_are_not_read_natively(table: Table) -> None:
    def scan_of(table: Table, **arguments: Any) -> Any:
        return table.snapshot().scan(["id", "status"], **arguments)

    assert len(scan_of(table).clean_files) == 1
    # A reader of the whole file for one of its file groups applies the filter.
    assert len(scan_of(table, filter=pc.field("id") == 1).clean_files) == 1
    first, *_ = sorted(table.state().slices)
    one_more(table, first, "newer", 3)
    for arguments in ({}, {"read_optimized": True}):
        assert scan_of(table, **arguments).clean_files is None
    append(table, orders(*KEYS, ts=4))
    table.compact(lambda file_slice: file_slice.group != first)
    assert scan_of(table).clean_files is None
    assert len(scan_of(table, read_optimized=True).clean_files) == 2


def test_a_dataset_has_the_current_rows_of_a_file(table: Table) -> None:
    """Also in another process, with filters, and for counts."""
    first, _, third, _ = sorted(table.state().slices)
    for group in (first, third):
        one_more(table, group, "newer", 3)
        read = table.snapshot().read_optimized()
        dataset = read.dataset()
        for one in (dataset, pickle.loads(pickle.dumps(dataset))):
            assert bag(one.to_table()) == bag(read.to_arrow()) == bag(table.snapshot().to_arrow())
            assert one.count_rows() == len(read.to_arrow())
            old = pc.field("status") == "new"
            assert bag(one.to_table(["id"], filter=old)) == bag(read.to_arrow(["id"], filter=old))
        assert len(read.dataset([]).to_table()) == len(read.to_arrow())
    assert len(list(dataset.get_fragments())) == 3


def test_files_of_file_groups_with_logs_are_not_read_natively(table: Table) -> None:
    """Not even for file groups without logs, because a native reader reads the whole file."""
    append(table, orders(1, ts=9))
    snapshot = table.snapshot()
    assert whole_files(snapshot.slices) == frozenset()
    for one in KEYS:
        assert snapshot.scan(["id"], filter=pc.field("id") == one).clean_files is None
    assert whole_files(snapshot.slices[:1]) == frozenset()


def test_a_file_without_unused_rows_is_listed_once(table: Table) -> None:
    (file,) = table.snapshot().scan(["id"]).clean_files or []
    assert file.rows == 26


def swap(entry: dict[str, Any]) -> None:
    one, other = entry["slices"][:2]
    one["base_part"], other["base_part"] = other["base_part"], one["base_part"]


def shift(entry: dict[str, Any]) -> None:
    entry["slices"][0]["base_part"]["first"] += 1


def shrink(entry: dict[str, Any]) -> None:
    """All rows belong to the file group, but one is missing."""
    entry["slices"][0]["base_part"]["rows"] -= 1


def beyond(entry: dict[str, Any]) -> None:
    entry["slices"][-1]["base_part"]["rows"] += 1


@pytest.mark.parametrize(
    ("change", "invariants"),
    [(swap, {"S15", "S12"}), (shift, {"S15"}), (beyond, {"S7"}), (shrink, {"S7"})],
    ids=["swapped", "shifted", "beyond", "shrunk"],
)
def test_verify_finds_wrong_parts(table: Table, change: Any, invariants: set[str]) -> None:
    damage = Damage(table)
    damage.edit(damage.slot(TABLE_LANE, "BASE"), change)
    assert {finding.invariant for finding in wrong(table)} & invariants


def two_files_in_turns() -> Table:
    """4 file groups, of which the first and third share one base file, the second and fourth another."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*KEYS))
    table.compact()
    append(table, orders(*KEYS, ts=2))
    for odd in (0, 1):
        table.compact(lambda file_slice, odd=odd: file_slice.group.bucket % 2 == odd)
    paths = [each.base.path for _, each in sorted(table.state().slices.items()) if each.base]
    assert paths[0] == paths[2] != paths[1] == paths[3]
    return table


def bases_opened(table: Table, work: Callable[[Table], object]) -> list[str]:
    store = FaultyStore(open_store(table.uri))
    work(other_process(table.uri, FakeClock(), store))
    return [path for call, path in store.calls if call == "open_input" and path.startswith("base/")]


@pytest.mark.parametrize(
    ("work", "logs"), [(contents, True), (contents, False), (Table.compact, True)], ids=["merge", "read", "compact"]
)
def test_alternating_files_are_opened_once(work: Callable[[Table], object], *, logs: bool) -> None:
    """Otherwise each file group would open a file, and decode a row group with rows of thousands of file groups."""
    table = two_files_in_turns()
    if logs:
        append(table, orders(*KEYS, ts=3))
    rows = contents(table)
    opened = bases_opened(table, work)
    assert len(opened) == len(set(opened)) == 2
    assert contents(table) == rows


def test_verify_decodes_a_row_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table, decoded = two_files_in_turns(), []
    read = pq.ParquetFile.read_row_group

    def spy(parquet: pq.ParquetFile, *arguments: Any, **named: Any) -> Any:
        decoded.append(arguments)
        return read(parquet, *arguments, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    # Not `wrong`, which verifies twice.
    assert other_process(table.uri, FakeClock()).verify().ok
    assert len(decoded) == len({each.base.path for each in slices(table) if each.base})


@pytest.mark.parametrize("unshared", [True, False])
def test_shared_files_are_counted_once(table: Table, *, unshared: bool) -> None:
    table = tuned(table, small_group_bytes=0 if unshared else 2**20)
    append(table, orders(*KEYS, ts=3))
    result = table.compact()
    stored = {file.path: file.size for one in slices(table) for file in (one.base, one.shadow) if file is not None}
    assert len(stored) == (4 if unshared else 1)
    assert result.bytes_written == sum(stored.values())
    assert result.rows == len(KEYS)
    compacted = table.snapshot().read_optimized().file_groups
    assert sum(one.rows for one in compacted) == len(KEYS)
    assert 0 <= sum(stored.values()) - sum(one.size_bytes for one in compacted) < 4


@pytest.mark.usefixtures("small_files")
@given(
    stories(max_steps=10),
    st.lists(st.frozensets(st.integers(0, 7)), max_size=3),
    st.integers(1, 5),
    st.integers(0, 20_000),
)
def test_every_read_equals_the_oracle_with_any_shared_files(
    story: Story, partial: list[frozenset[int]], row_group: int, shared: int
) -> None:
    """Compactions of any subset of the file groups, after which files have unused rows; all kinds of reads."""
    with World({**story.config, "overlays": False}) as world:  # a dataset has none
        world.table = tuned(world.table, shared_row_group_rows=row_group, shared_file_bytes=shared)
        world.run(story.steps)
        for chosen in (EVERY_GROUP, *partial):
            world.compact(Compact(chosen))
            for one in story.appends[:1]:
                world.append(one)
            world.check()
            snapshot = world.table.snapshot()
            whole = snapshot.to_arrow()
            key = story.config["key"]
            known = [tuple(row.values()) for row in whole.select(key).to_pylist()]
            assert bag(snapshot.get(known)) == bag(whole)
            read = snapshot.read_optimized()
            assert bag(read.dataset().to_table()) == bag(read.to_arrow())
        assert wrong(world.table) == []
