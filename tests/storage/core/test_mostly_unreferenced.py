"""Shared files of which most rows are unused, because most of their file groups have newer slices elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.cleaning import NOW
from tests.storage.support.damage import wrong
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders
from tests.storage.support.world import World
from tests.strategies import EVERY_GROUP, Compact, Story, stories
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.file_refs import FileGroup, FilePart
from weft.storage.core.merge.locate_keys import locate_keys
from weft.storage.core.names import Path
from weft.storage.core.plan.due_policy import DuePolicy, plan_due
from weft.storage.core.plan.mostly_unreferenced import UNREFERENCED_FACTOR, mostly_unreferenced
from weft.storage.read.plan.pruning import key_table
from weft.storage.store.open_store import open_store

KEYS = range(200)
LAST = FileGroup("", 4, 15)


@pytest.fixture
def table() -> Table:
    """16 file groups in one base file."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 16})
    append(table, orders(*KEYS))
    table.compact()
    assert len({made.base.path for made in table.state().slices.values() if made.base}) == 1
    return table


def base_files(table: Table) -> set[str]:
    return {name for name, _ in open_store(table.uri).list(Path("base"))}


def rows_for(table: Table, groups: list[FileGroup], status: str, ts: int) -> None:
    key_positions = locate_keys(table.schema, key_table(table.schema, list(KEYS)), table.state().levels)
    append(
        table, orders(*(int(key) for group in groups for key in key_positions[group].tolist()), status=status, ts=ts)
    )


def test_file_groups_of_a_mostly_unreferenced_file_are_compacted_without_logs(table: Table) -> None:
    """Otherwise a file group without new rows would keep the files of all file groups that it shared them with."""
    old = base_files(table)
    awake = sorted(table.state().slices)[:-1]
    rows_for(table, awake, "paid", 2)
    rows = contents(table)
    result = table.compact()
    assert set(result.done) == set(table.state().slices)
    assert contents(table) == contents(Table.open(table.uri)) == rows
    table.clean(NOW)
    assert base_files(table).isdisjoint(old)
    assert wrong(table) == []
    # It has a separate file now, and keeps it, however often the others get newer slices.
    last = table.state().slices[LAST]
    assert last.base_part is None
    rows_for(table, awake, "sent", 3)
    assert LAST not in table.compact().done
    assert table.state().slices[LAST] == last


def test_a_file_with_enough_referenced_rows_is_kept(table: Table) -> None:
    awake = sorted(table.state().slices)[:8]
    rows_for(table, awake, "paid", 2)
    assert set(table.compact().done) == set(awake)


def test_the_filter_of_compact_applies_to_mostly_unreferenced_files_too(table: Table) -> None:
    awake = sorted(table.state().slices)[:-1]
    rows_for(table, awake, "paid", 2)
    assert LAST not in table.compact(lambda file_slice: file_slice.group != LAST).done
    assert table.compact(lambda file_slice: file_slice.group == LAST).done == (LAST,)
    assert table.compact().done == ()


def test_compaction_services_find_such_file_groups_due(table: Table) -> None:
    rows_for(table, sorted(table.state().slices)[:-1], "paid", 2)
    table.compact(lambda file_slice: file_slice.group != LAST)
    append(table, orders(10**6, status="far"))
    snapshot = table.snapshot()
    policy = DuePolicy(min_commits=5, max_log_ratio=100.0)
    due = plan_due(policy, snapshot.slices, snapshot.files, snapshot.cut.lanes)
    assert {group: why.reason for group, why in due.items()} == {LAST: "mostly unreferenced"}


def test_a_slice_with_the_cut_of_the_snapshot_is_not_compacted(table: Table) -> None:
    """It would have the same cut, so the second of two compactions would not detect the first."""
    rows_for(table, sorted(table.state().slices)[:-1], "paid", 2)
    table.compact()
    snapshot = table.snapshot()
    # As if it shared a file in which it has only a few rows.
    (last,) = [file_slice for file_slice in snapshot.slices if file_slice.group == LAST]
    assert last.slice is not None
    assert last.slice.base is not None
    shared = last.slice.base.model_copy(update={"rows": 10**6})
    part = FilePart(first=0, rows=last.slice.base.rows)
    slices = [replace(last, slice=last.slice.model_copy(update={"base": shared, "base_part": part}))]
    assert mostly_unreferenced(slices, (), snapshot.cut.lanes) == frozenset()
    further = {lane: seq + 1 for lane, seq in snapshot.cut.lanes.items()}
    assert mostly_unreferenced(slices, (), further) == {LAST}


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=10), st.lists(st.frozensets(st.integers(0, 7)), min_size=1, max_size=3))
def test_no_file_is_kept_for_a_few_rows(story: Story, partial: list[frozenset[int]]) -> None:
    """After a compaction of all file groups, following any other compactions; and no result changes."""
    with World(story.config) as world:
        world.table = tuned(world.table, shared_file_bytes=2**20)
        world.run(story.steps)
        for chosen in partial:
            world.compact(Compact(chosen))
            for one in story.appends[:1]:
                world.append(one)
        world.compact(Compact(EVERY_GROUP))
        world.check()
        snapshot = world.table.snapshot()
        taken: dict[Path, int] = {}
        for made in world.table.state().slices.values():
            for file, rows in ((made.base, made.base_rows), (made.shadow, made.shadow_rows)):
                if file is not None:
                    taken[file.path] = taken.get(file.path, 0) + rows
        for made in world.table.state().slices.values():
            newest = dict(made.cut) == {lane: seq for lane, seq in snapshot.cut.lanes.items() if seq}
            for file in (made.base, made.shadow):
                assert newest or file is None or taken[file.path] * UNREFERENCED_FACTOR >= file.rows
        assert wrong(world.table) == []
