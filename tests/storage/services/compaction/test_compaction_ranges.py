"""Compactions of file groups with many logs, which are merged in key ranges: the same slices, in bounded memory."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support import overlay_table
from tests.storage.support.divisions import any_bounds
from tests.storage.support.shop import SHOP, append, contents, fill_with_every_state, new_uri, orders
from tests.storage.support.world import World
from tests.strategies import Story, stories
from tests.tuning import tune, tuned
from weft import Table
from weft.storage.core.plan.key_ranges import KeyRange
from weft.storage.core.plan.memory_cost import UNPACKED, group_bytes, log_memory_bytes
from weft.storage.environment import Environment
from weft.storage.files.fetch_blocks import LogBlocks
from weft.storage.read.plan import divide_file_group
from weft.storage.services.compaction import merged_rows
from weft.storage.services.compaction.compaction_task import CompactionTask
from weft.storage.services.steps.tasks import COPIES


@pytest.fixture
def hot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """One file group in every state: base, shadow, a fold, events, deletes, rows that are hidden and that come back."""
    tune(monkeypatch, row_group_rows=64, block_min_bytes=300, block_max_bytes=1_000)
    table = Table.create(tmp_path / "hot", {**SHOP, "buckets": 1})
    fill_with_every_state(table)
    append(table, orders(140, 160, 180, *range(900, 1200), status="back", ts=9))
    return table


def compacted(table: Table, **sizes: int) -> tuple[dict[str, Any], list[Any]]:
    """The rows of the files of the (one) file group after a compaction of a copy, and the rows that are read."""
    copy = f"{table.uri}-{len(sizes)}-{sizes.get('merge_bytes', 0)}-{sizes.get('row_group_rows', 0)}"
    shutil.copytree(urlsplit(table.uri).path, urlsplit(copy).path)
    table = Table.open(copy)
    tuned(table, **sizes).compact()
    (made,) = table.state().slices.values()
    files = {"base": made.base, "shadow": made.shadow}
    found = {
        name: pq.read_table(table.env.store.open_input(file.path, file.size)) for name, file in files.items() if file
    }
    return {**found, "ordering_max": made.ordering_max, "overflows": made.overflows}, contents(table)


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=10), st.integers(0, 1000))
def test_compactions_at_any_bounds_equal_the_oracle(story: Story, seed: int) -> None:
    """Under all merge modes, deletes, folds and key types; at bounds between row groups, between blocks, at any key."""
    story = replace(story, config={**story.config, "buckets": 1})
    with World(story.config) as world, mock.patch.object(divide_file_group, "choose_bounds", any_bounds(seed)):
        world.run(story.steps)
        tuned(world.table, merge_bytes=1).compact()
        assert world.answer(world.table.snapshot().to_arrow()) == world.expected()
        assert world.table.verify().ok


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of key ranges of each large file group that is compacted."""
    found: list[int] = []
    divide = merged_rows.divide_states

    def counting(*arguments: Any) -> list[Any]:
        made = list(divide(*arguments))
        found.extend(map(len, made))
        return made

    monkeypatch.setattr(merged_rows, "divide_states", counting)
    return found


@pytest.mark.parametrize("sizes", [{}, {"row_group_rows": 1_000}, {"merge_bytes": 3_000}], ids=str)
def test_the_files_are_those_of_a_compaction_at_once(hot: Table, ranges: list[int], sizes: dict[str, int]) -> None:
    expected = compacted(hot)
    assert ranges == []
    assert compacted(hot, **{"merge_bytes": 1, **sizes}) == expected
    assert ranges[0] > 4


def test_a_bound_that_is_off_by_one_key_is_noticed(hot: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken implementation: the end of a range is in it."""
    expected = compacted(hot)
    right = KeyRange.positions

    def after_the_end(self: KeyRange, sorted_keys: Any) -> tuple[int, int]:
        first, end = right(self, sorted_keys)
        return first, min(end + 1, len(sorted_keys))

    monkeypatch.setattr(divide_file_group, "choose_bounds", any_bounds(7))
    monkeypatch.setattr(KeyRange, "positions", after_the_end)
    assert compacted(hot, merge_bytes=1) != expected


def test_each_block_is_read_once(hot: Table, monkeypatch: pytest.MonkeyPatch, ranges: list[int]) -> None:
    read = Counter[tuple[str, int]]()
    take = LogBlocks.take

    def counting(self: LogBlocks, block: tuple[int, int]) -> pa.RecordBatch:
        read[str(self._files[block[0]].file.file.path), block[1]] += 1
        return take(self, block)

    monkeypatch.setattr(LogBlocks, "take", counting)
    tuned(hot, merge_bytes=1).compact()
    assert ranges[0] > 5
    assert set(read.values()) == {1}
    assert len(read) > 10


def random_load(commits: int) -> Table:
    """The first load of one file group: commits of random keys, in blocks of 1,000 rows or so."""
    table, chance = Table.create(new_uri(), {**SHOP, "buckets": 1}), np.random.default_rng(1)
    for at in range(commits):
        ids = chance.choice(1_000_000, 20_000, replace=False)
        append(table, pa.table({"id": ids, "status": [f"status {i}" for i in ids], "ots": np.full(len(ids), at)}))
    return table


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes of Arrow at any time while some work is done."""
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    try:
        work()
    finally:
        pa.set_memory_pool(before)
    return counting.max_memory()


def test_memory_is_that_of_a_range_and_the_blocks_that_reach_beyond_it(
    monkeypatch: pytest.MonkeyPatch, ranges: list[int]
) -> None:
    tune(monkeypatch, row_group_rows=8_192, block_min_bytes=16_384, block_max_bytes=65_536)
    at_once, in_ranges = random_load(20), random_load(20)
    expected = peak_bytes(at_once.compact)
    (file_slice,) = in_ranges.snapshot().slices
    memory = log_memory_bytes(in_ranges.schema, file_slice.log_bytes, int(file_slice.rows.sum()))
    found = peak_bytes(tuned(in_ranges, merge_bytes=memory // UNPACKED // 50).compact)
    assert 40 < ranges[0] <= 60
    assert found < expected / 4
    assert in_ranges.snapshot().to_arrow().sort_by("id") == at_once.snapshot().to_arrow().sort_by("id")


def test_the_estimated_memory_is_that_of_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services run as many tasks at once as their memory allows."""
    tune(monkeypatch, block_min_bytes=16_384, block_max_bytes=65_536)
    table = random_load(10)
    (file_slice,) = table.snapshot().slices
    blocks = table.snapshot().files

    def estimate(merge_bytes: int) -> int:

        env: Environment = table.env.tuned(merge_bytes=merge_bytes)
        snapshot = table.snapshot()
        return CompactionTask(env, snapshot.table_schema, (file_slice,), tuple(blocks), snapshot.cut, 1, 1).memory_bytes

    whole, least = estimate(1 << 40), estimate(1)
    logs = log_memory_bytes(table.schema, file_slice.log_bytes, int(file_slice.rows.sum()))
    assert logs >= UNPACKED * file_slice.log_bytes
    assert whole - estimate(logs // UNPACKED + 1) == 0
    assert 0 < least - (whole - logs) < (whole - least) / 4


@pytest.mark.parametrize(
    "new_rows", [range(500, 1001), range(3_000, 4_000), range(-1_000, 0)], ids=["the last one", "after all", "before"]
)
@pytest.mark.parametrize("merge_bytes", [1, 4_000, 1 << 30])
def test_overlays_are_written_in_ranges_too(
    monkeypatch: pytest.MonkeyPatch, ranges: list[int], merge_bytes: int, new_rows: range
) -> None:
    tune(monkeypatch, block_min_bytes=300, block_max_bytes=1_000)
    table = tuned(overlay_table.small_table(monkeypatch), merge_bytes=merge_bytes)
    overlay_table.write(table, "c", range(0, 1000, 2), 2)
    overlay_table.compact(table)
    assert overlay_table.groups_of(table) == [[3]]
    overlay_table.write(table, "b", range(0, 1000, 3), 3)
    overlay_table.compact(table)
    assert overlay_table.groups_of(table) == [[3], [2]]
    base = overlay_table.newest(table).base
    overlay_table.write(table, "c", new_rows, 4)
    overlay_table.compact(table)
    assert overlay_table.newest(table).base != base
    assert overlay_table.groups_of(table) == []
    assert (max(ranges, default=0) > 3) == (merge_bytes < 1 << 30)


def test_the_estimated_memory_of_a_merge_is_that_of_all_file_groups_that_become_one() -> None:
    """Their rows come in key order, so the logs of all of them are read at the same time."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 4})
    append(table, orders(*range(1_000), status="new", ts=1))
    snapshot = table.snapshot()
    several, env = tuple(snapshot.slices), table.env.tuned(merge_together_bytes=1)
    task = CompactionTask(env, snapshot.table_schema, several, tuple(snapshot.files), snapshot.cut, 1, 1)
    rows = [group_bytes(table.schema, each) for each in several]
    logs = [log_memory_bytes(table.schema, each.log_bytes, int(each.rows.sum())) for each in several]
    needed = [COPIES * of_rows + of_logs for of_rows, of_logs in zip(rows, logs, strict=True)]
    assert replace(task, bits=0).memory_bytes - task.memory_bytes == sum(needed) - max(needed)
