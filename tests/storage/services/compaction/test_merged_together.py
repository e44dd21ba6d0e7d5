"""Small file groups that a compaction or a fold merges together: the same files, for the cost of one merge."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from tests.storage.services.compaction.test_compaction_ranges import peak_bytes
from tests.storage.support.shop import SHOP, fill_with_every_state, new_uri
from tests.storage.support.world import World
from tests.strategies import Story, stories
from tests.tuning import tune
from weft import Table
from weft.storage.core.keys import key_vector
from weft.storage.core.merge.stitch import LogState
from weft.storage.core.plan.regroup_slices import in_order
from weft.storage.files import base_file, row_groups
from weft.storage.read.plan.read_task import read_task
from weft.storage.services.compaction.compaction_task import CompactionTask, NewSlice
from weft.storage.services.compaction.merge_steps import plan_steps
from weft.storage.services.steps.row_change import NewValues, WithoutKeys

GROUPS = 64
WIDE = 200


@pytest.fixture
def table() -> Table:
    """64 file groups with bases, shadows, folds and events, some of them without logs."""
    table = Table.create(new_uri(), {**SHOP, "buckets": GROUPS})
    fill_with_every_state(table)
    return table


def task_of(table: Table, limit: int, **arguments: Any) -> CompactionTask:
    """A task of all file groups, which share a file."""
    snapshot = table.snapshot()
    work = read_task(snapshot.slices, snapshot.files)
    slices = in_order(work.slices, arguments.get("bits", work.slices[0].group.bits))
    env, schema = table.env.tuned(merge_together_bytes=limit), snapshot.table_schema
    fixed = {"at": snapshot.cut, "plan": 1_000_000, "rev": snapshot.schema_rev}
    return CompactionTask(env=env, schema=schema, slices=tuple(slices), files=work.files, **fixed, **arguments)


def written(table: Table, made: list[NewSlice]) -> list[Any]:
    """New slices without the names of files: their statistics, and the rows of their files in order."""
    found = []
    for each in made:
        one, rows = each.file, []
        for file, part in ((one.base, one.base_part), (one.shadow, one.shadow_part)):
            stored = pq.read_table(table.env.store.open_input(file.path, file.size)) if file is not None else None
            if stored is not None and part is not None:
                stored = stored.slice(part.first, part.rows)
            # As text: NaN is equal to NaN, and -0.0 is not equal to 0.0.
            rows.append(f"{stored.schema} {stored.to_pylist()}" if stored is not None else None)
        sizes = (one.base_rows, one.shadow_rows, each.visible_left_out, each.hidden_left_out)
        replaced = [(str(file_group.bits), file_group.bucket) for file_group in one.replaces]
        found.append((str(one.group), one.parent, one.ordering_max, one.overflows, sizes, replaced, rows))
    return sorted(found, key=lambda each: str(each[0]))


def upper(column: pa.Array) -> pa.Array:
    return pc.utf8_upper(column)


CHANGES: dict[str, dict[str, Any]] = {
    "compaction": {},
    "split": {"bits": 8},
    "merge": {"bits": 4},
    "merge into one": {"bits": 0},
    "erase": {"change": WithoutKeys(np.arange(0, 1_000, 7))},
    "rewrite": {"change": NewValues("status", upper)},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("limit", [1 << 14, 1 << 40], ids=["some", "all"])
def test_the_slices_are_those_of_a_merge_one_by_one(
    change: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    tune(monkeypatch, shared_row_group_rows=50)
    alone, together = task_of(table, 1, **change), task_of(table, limit, **change)
    few, many = (len(plan_steps(each.env, table.schema, each.targets())) for each in (together, alone))
    assert few <= many <= GROUPS
    assert few == 1 or limit < 1 << 40
    expected = written(table, alone.run())
    assert written(table, together.run()) == expected
    assert any(sizes[1] for *_, sizes, _, _ in expected)


def test_each_row_group_of_shared_files_is_decoded_once(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    """File groups that are merged one by one read base and shadow in turns; a row group may be as large as a cache."""
    decode, decoded = base_file._decode_all, list[tuple[str, tuple[int, ...]]]()

    def count(sources: Any, numbers: Any, columns: Any) -> Any:
        decoded.append((sources[0].read_file.file.path, tuple(numbers)))
        return decode(sources, numbers, columns)

    monkeypatch.setattr(base_file, "_decode_all", count)
    monkeypatch.setattr(row_groups, "MAX_BYTES", 1)
    task_of(table, 1).run()
    assert {path.split("/")[0] for path, _ in decoded} == {"base", "shadow"}
    assert sorted(decoded) == sorted(set(decoded))


@given(stories(max_steps=6))
def test_any_story_gives_the_same_slices(story: Story) -> None:
    with World(story.config) as world:
        world.run(story.steps)
        if len(world.table.snapshot().slices):
            one_by_one = written(world.table, task_of(world.table, 1).run())
            assert written(world.table, task_of(world.table, 1 << 40).run()) == one_by_one


def test_the_comparison_detects_rows_in_another_order(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    """A merge that sorts the rows of several file groups by their keys alone."""
    expected = written(table, task_of(table, 1).run())
    monkeypatch.setattr(LogState, "keys_of", lambda _, schema, rows: key_vector(rows[schema.sort_column]))
    with pytest.raises((AssertionError, IndexError, ValueError)):
        assert written(table, task_of(table, 1 << 40).run()) == expected


def wide_table(groups: int, columns: int = WIDE) -> Table:
    """One row for each file group."""
    names = [f"v{i}" for i in range(columns)]
    config = {
        "key": ["k"],
        "buckets": groups,
        "columns": {"k": "bigint", **dict.fromkeys(names, "string"), "ts": "bigint"},
        "groups": {"g": {"columns": [*names, "ts"], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    keys = range(groups)
    with table.writer("s") as writer:
        writer.append(pa.table({"k": keys, **{name: [str(k) for k in keys] for name in names}, "ts": [1] * groups}))
    return table


def fold(table: Table) -> None:
    assert table.fold().rows


def compact(table: Table) -> None:
    assert table.compact().rows


@pytest.mark.parametrize("work", [compact, fold])
def test_a_column_of_a_file_group_costs_a_part_of_a_call(work: Callable[[Table], None]) -> None:
    """Of many small file groups of a wide table; before, each column of each file group took 18 calls."""
    calls, groups, narrow = {}, 512, 50
    for columns in (narrow, WIDE):
        table, profile = wide_table(groups, columns), cProfile.Profile()
        profile.runcall(work, table)
        calls[columns] = pstats.Stats(profile).total_calls
    assert calls[WIDE] - calls[narrow] < groups * (WIDE - narrow)


@pytest.mark.parametrize("work", [compact, fold])
def test_small_file_groups_of_a_wide_table_need_the_memory_of_their_rows(work: Callable[[Table], None]) -> None:
    """Before, each column of each file group took 130 bytes of buffers besides a kilobyte of objects."""
    peaks = {}
    for groups in (64, 1024):
        table = wide_table(groups)
        peaks[groups] = peak_bytes(lambda table=table: work(table))
    assert peaks[1024] - peaks[64] < 8 * 1024 * WIDE * 8
