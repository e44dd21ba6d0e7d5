"""Reads that are divided into tasks, also within one file group: the same rows as the read that is not divided."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import many_groups
from tests.storage.support.divisions import any_bounds
from tests.storage.support.predicates import predicates
from tests.storage.support.shop import SHOP, append, fill_with_every_state, new_uri, orders
from tests.storage.support.world import World, bag
from tests.strategies import Story, stories
from tests.tuning import tune, tuned
from weft import Table
from weft.storage.core import keys
from weft.storage.core.keys import KeyVector
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.merge.diff import CHANGE
from weft.storage.core.plan.key_ranges import Extents, KeyRange, choose_bounds
from weft.storage.core.plan.slices import FileSlice
from weft.storage.environment import Tuning
from weft.storage.errors import CorruptData
from weft.storage.files import footers, row_group_statistics
from weft.storage.files.fetch_blocks import LogBlocks
from weft.storage.read.changes import change_scan as changes
from weft.storage.read.changes.change_scan import ChangeScan, scan_changes
from weft.storage.read.plan import divide_file_group
from weft.storage.read.scan.divide_scan import divide
from weft.storage.read.scan.scan import Scan


def whole(table: Table, *arguments: Any, **named: Any) -> pa.Table:
    """A read in one task."""
    scan = tuned(table, task_bytes=1 << 60).snapshot().scan(*arguments, parallelism=1, **named)
    assert len(scan.tasks) <= 1
    return scan.to_arrow()


def divided(table: Table, *arguments: Any, parallelism: int = 16, **named: Any) -> Scan:
    """A read in tasks as small as possible."""
    return tuned(table, task_bytes=1, task_min_bytes=1).snapshot().scan(*arguments, parallelism=parallelism, **named)


def parts_of(scan: Scan) -> int:
    return sum(part.within is not None for task in scan.tasks for part in task.slices)


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=10), st.data())
def test_a_divided_read_gives_the_rows_of_an_undivided_read(story: Story, data: st.DataObject) -> None:
    """Under all merge modes, deletes, folds and key types; at bounds between row groups, blocks, and at any key."""
    story = replace(story, config={**story.config, "buckets": 1})
    seed = data.draw(st.none() | st.integers(0, 1000), label="any bounds")
    choose = choose_bounds if seed is None else any_bounds(seed)
    with World(story.config) as world, mock.patch.object(divide_file_group, "choose_bounds", choose):
        world.run(story.steps)
        expected = world.expected()
        scan = divided(world.table)
        assert world.answer(scan.to_arrow()) == expected
        assert world.answer(scan.to_reader().read_all()) == expected
        sent = pickle.loads(pickle.dumps(scan))
        assert world.answer(sent.to_arrow()) == expected
        columns = data.draw(st.lists(st.sampled_from(list(story.config["columns"])), unique=True), label="columns")
        require = data.draw(st.lists(st.sampled_from(list(story.config["groups"])), unique=True), label="require")
        predicate = data.draw(predicates(story.config), label="filter")
        for arguments in ({}, {"require": require}, {"filter": predicate}, {"read_optimized": True}):
            found = divided(world.table, columns, **arguments).to_arrow()
            assert found.num_rows == (same := whole(world.table, columns, **arguments)).num_rows
            assert bag(found) == bag(same), arguments


@pytest.fixture
def hot(monkeypatch: pytest.MonkeyPatch) -> Table:
    """One file group in every state: base, shadow, a fold, events, deletes, rows that are hidden and that come back."""
    tune(monkeypatch, row_group_rows=20, block_min_bytes=300, block_max_bytes=600)
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    fill_with_every_state(table)
    append(table, orders(140, 160, 180, status="back", ts=9))
    return table


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"columns": ["status"]},
    {"columns": []},
    {"columns": ["id", "paid"], "require": ["payment"]},
    {"columns": ["paid"], "filter": pc.field("status") == "late"},
    {"filter": (pc.field("id") >= 100) & (pc.field("id") < 600)},
    {"columns": ["_present_payment", "_arrival_order"]},
    {"columns": ["status"], "read_optimized": True},
    {"columns": [], "read_optimized": True},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_one_file_group_is_read_by_several_tasks(hot: Table, arguments: dict[str, Any]) -> None:
    scan = divided(hot, **arguments)
    assert (scan.divided, parts_of(scan)) == (1, len(scan.tasks))
    assert len(scan.tasks) > 5
    assert bag(scan.to_arrow()) == bag(whole(hot, **arguments))
    counts = [sum(map(len, scan.read(task))) for task in scan.tasks]
    assert sum(counts) == whole(hot, **arguments).num_rows


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_a_compacted_file_group_is_divided_at_its_row_groups(hot: Table, arguments: dict[str, Any]) -> None:
    hot.compact()
    scan = divided(hot, **arguments)
    assert len(scan.tasks) > 5
    assert not any(part.within.within_row_groups for task in scan.tasks for part in task.slices if part.within)
    assert bag(scan.to_arrow()) == bag(whole(hot, **arguments))


def after_the_end(self: KeyRange, sorted_keys: KeyVector) -> tuple[int, int]:
    """Broken: the end is in the range."""
    first, _ = right_positions(self, sorted_keys)
    return first, len(sorted_keys) if self.end is None else int(keys.upper_bounds(sorted_keys, self.end)[0])


def after_the_beginning(self: KeyRange, sorted_keys: KeyVector) -> tuple[int, int]:
    """Broken: the least key is not in the range."""
    _, end = right_positions(self, sorted_keys)
    return 0 if self.least is None else int(keys.upper_bounds(sorted_keys, self.least)[0]), end


def next_range(bounds: KeyVector, part: Extents) -> tuple[Any, Any]:
    """Broken: a part whose last key is a bound is not read with the range that begins there."""
    return keys.upper_bounds(bounds, part.least), keys.lower_bound(bounds, part.largest)


def previous_range(bounds: KeyVector, part: Extents) -> tuple[Any, Any]:
    """Broken: a part whose first key is a bound is not read with the range that begins there only."""
    return keys.lower_bound(bounds, part.least), keys.upper_bounds(bounds, part.largest) - 1


right_positions = KeyRange.positions


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        (KeyRange, "positions", after_the_end),
        (KeyRange, "positions", after_the_beginning),
        (divide_file_group, "ranges_of", next_range),
        (divide_file_group, "ranges_of", previous_range),
    ],
    ids=["after_the_end", "after_the_beginning", "next_range", "previous_range"],
)
def test_a_bound_that_is_off_by_one_key_is_noticed(
    hot: Table, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Any
) -> None:
    """Broken implementations: the comparison of these tests must find them."""
    expected = bag(whole(hot))
    monkeypatch.setattr(divide_file_group, "choose_bounds", any_bounds(7))
    assert bag(divided(hot).to_arrow()) == expected
    monkeypatch.setattr(place, name, broken)
    assert bag(divided(hot).to_arrow()) != expected


@pytest.fixture
def blocks_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[str, int]]]:
    """Number of reads of each block of a log file, by path and offset."""
    found: Counter[tuple[str, int]] = Counter()
    take = LogBlocks.take

    def counting(self: LogBlocks, block: tuple[int, int]) -> pa.RecordBatch:
        live = self._files[block[0]]
        found[str(live.file.file.path), live.index.blocks.offset[block[1]]] += 1
        return take(self, block)

    monkeypatch.setattr(LogBlocks, "take", counting)
    return found


def test_a_task_reads_only_the_log_blocks_of_its_range(
    monkeypatch: pytest.MonkeyPatch, blocks_read: Counter[tuple[str, int]]
) -> None:
    tune(monkeypatch, row_group_rows=100, block_min_bytes=100, block_max_bytes=1_000)
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(table, orders(*range(1000)))
    table.compact()
    append(table, orders(*range(900, 1000), ts=2))  # the newest keys only
    scan = tuned(table, task_min_bytes=1).snapshot().scan(["status"], parallelism=5)
    assert 4 <= len(scan.tasks) <= 6
    by_task = []
    for task in scan.tasks:
        blocks_read.clear()
        assert sum(map(len, scan.read(task)))
        by_task.append(sum(blocks_read.values()))
        assert set(blocks_read.values()) <= {1}
    with_logs = [count for count in by_task if count]
    assert len(with_logs) in {1, 2, 3}
    assert with_logs == by_task[-len(with_logs) :]
    blocks_read.clear()
    whole(table)
    # A block with a bound inside is read with both ranges.
    assert sum(with_logs) <= len(blocks_read) + len(with_logs) - 1


def test_many_small_commits_are_not_read_by_many_tasks() -> None:
    """Each of their blocks has keys from the whole file group, so more tasks would read all of them again."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    for number in range(10):
        append(table, orders(*range(number, 1000, 10)))
    assert len(divided(table).tasks) == 2
    assert bag(divided(table).to_arrow()) == bag(whole(table))


def text_keys(length: int) -> Table:
    """Text keys with a long common beginning."""
    config = {**SHOP, "buckets": 1, "columns": {**SHOP["columns"], "id": "string"}}
    table = Table.create(new_uri(), config)

    def rows(numbers: range, ts: int) -> pa.Table:
        ids = [f"{'x' * length}{number:04d}" for number in numbers]
        return pa.table({"id": ids, "status": [f"at {ts}"] * len(ids), "ots": [ts] * len(ids)})

    append(table, rows(range(200), 1))
    table.compact()
    append(table, rows(range(0, 250, 3), 2))
    return table


def test_truncated_statistics_give_wider_ranges_and_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, row_group_rows=10)
    table = text_keys(8)
    exact = divided(table)
    right = row_group_statistics.key_span

    def truncated(*arguments: Any) -> tuple[str, str] | None:
        """Bounds of eleven characters: row groups within the same ten keys have equal bounds."""
        span = right(*arguments)
        return None if span is None else (span[0][:11], span[1][:10] + chr(ord(span[1][10]) + 1))

    monkeypatch.setattr(divide_file_group, "key_span", truncated)
    scan = divided(table)
    assert 1 < len(scan.tasks) <= len(exact.tasks)
    for read in (exact, scan):
        assert bag(read.to_arrow()) == bag(whole(table))


def test_without_statistics_a_file_group_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet files have no statistics of very long texts."""
    tune(monkeypatch, row_group_rows=10)
    table = text_keys(5_000)
    scan = divided(table)
    assert (scan.divided, len(scan.tasks)) == (0, 1)
    assert bag(scan.to_arrow()) == bag(whole(table))


def test_without_a_base_bounds_are_the_first_keys_of_log_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, block_min_bytes=100, block_max_bytes=1_000)
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(table, orders(*range(1000)))
    append(table, orders(*range(0, 1000, 3), ts=2, op="D"))
    assert len(divided(table).tasks) > 4
    assert bag(divided(table).to_arrow()) == bag(whole(table))


def test_a_small_base_under_large_logs_is_divided_within_its_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, block_min_bytes=100, block_max_bytes=1_000)
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(table, orders(*range(0, 1000, 50)))
    table.compact()
    append(table, orders(*range(0, 1000, 2), ts=2))
    scan = divided(table, ["status"])
    assert any(part.within.within_row_groups for task in scan.tasks for part in task.slices if part.within)
    assert bag(scan.to_arrow()) == bag(whole(table, ["status"]))


def by_partition(rows: dict[int, int], ts: int) -> pa.Table:
    """Rows of the table of `tests.many_groups`; ``rows``: their number by partition."""
    p = np.repeat(np.array(list(rows), np.int32), list(rows.values()))
    ids = np.concatenate([np.arange(count) for count in rows.values()])
    return pa.table({"p": p, "id": ids, "v": ids * ts, "ts": np.full(len(p), ts)})


def test_small_file_groups_share_tasks_beside_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 file groups one has most of the rows: only this one is divided, and the others share tasks."""
    tune(monkeypatch, row_group_rows=200)
    table = Table.create(new_uri(), {**many_groups.CONFIG, "buckets": 1})
    sizes = dict.fromkeys(range(300), 10) | {17: 9_000}
    append(table, by_partition(sizes, 1), "s")
    table.compact()
    append(table, by_partition(sizes | {17: 4_000}, 2), "s")
    for least, tasks in ((1, range(5, 9)), (Tuning().task_min_bytes, range(1, 2))):
        scan = tuned(table, task_min_bytes=least).snapshot().scan(["id", "v"], parallelism=4)
        assert (len(scan.tasks) in tasks, scan.divided) == (True, int(least == 1))
        entire = Counter(part.group for task in scan.tasks for part in task.slices if part.within is None)
        assert (len(entire), set(entire.values())) == (300 - scan.divided, {1})
        assert bag(scan.to_arrow()) == bag(whole(table, ["id", "v"]))


@pytest.mark.parametrize("groups", [8, 8_000])
def test_the_number_of_tasks_is_the_parallelism_unless_tasks_would_be_too_large(groups: int) -> None:
    sizes = Tuning()
    total = 64 * sizes.task_bytes
    table = Table.create(new_uri(), SHOP)
    scan = table.snapshot().scan()
    for size, parallelism, expected in (
        (sizes.task_min_bytes, 16, 1),
        (8 * sizes.task_min_bytes, 4, 4),
        (total, 8, 64),
        (total, 6, 66),
        (total, 1000, 1000),
    ):
        slices = tuple(stored_group(number, size // groups) for number in range(groups))
        made = divide(replace(scan, slices=slices), [], parallelism, large=False)
        assert len(made.tasks) == min(expected, groups)
        assert [part.group for task in made.tasks for part in task.slices] == [part.group for part in slices]


def test_a_task_of_few_columns_may_have_more_bytes_of_files() -> None:
    """The table has 64 columns: a read of half of them has half as many tasks, of a few of them an eighth."""
    columns = {"id": "bigint", **{f"c{i}": "bigint" for i in range(62)}, "at": "bigint"}
    groups = {"g": {"columns": list(columns)[1:], "ordering": ["at"]}}
    config = {"key": ["id"], "buckets": 8, "columns": columns, "groups": groups, "streams": {"s": {"groups": ["g"]}}}
    snapshot = Table.create(new_uri(), config).snapshot()
    slices = tuple(stored_group(number, Tuning().task_bytes) for number in range(64))
    for names, tasks in ((list(columns), 64), (list(columns)[:31], 32), (["id", "c1", "at"], 8), (["c1"], 8)):
        made = divide(replace(snapshot.scan(names), slices=slices), [], 4, large=False)
        assert len(made.tasks) == tasks


def stored_group(number: int, size: int) -> FileSlice:
    none = np.empty(0, np.int64)
    return FileSlice(FileGroup("", 20, number), None, none, none, none, none, deletes=0, log_bytes=size)


def test_the_number_of_threads_is_limited(hot: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[int] = []
    create = ThreadPoolExecutor.__init__

    def noted(self: ThreadPoolExecutor, workers: int) -> None:
        pools.append(workers)
        create(self, workers)

    monkeypatch.setattr(ThreadPoolExecutor, "__init__", noted)
    scan = tuned(hot, task_bytes=100, task_min_bytes=1).snapshot().scan(parallelism=3)
    assert len(scan.tasks) > 6
    assert scan.to_arrow().num_rows
    assert pools == [3]


def test_few_keys_do_not_divide_a_file_group(hot: Table) -> None:
    assert divided(hot, filter=pc.field("id").isin([5, 505])).divided == 0


def test_planning_fails_with_the_same_errors_as_reading(hot: Table) -> None:
    """A large file group is planned with the footer of its base file."""
    made = hot.snapshot().slices[0].slice
    assert made is not None
    assert made.base is not None
    store = hot.env.store
    data = store.get(made.base.path)
    assert data is not None
    footers.FOOTERS.clear()
    for damaged, error, text in ((None, CorruptData, "missing"), (data[:-9] + b"?" + data[-8:], CorruptData, "footer")):
        store.delete(made.base.path)
        if damaged is not None:
            store.put(made.base.path, damaged)
        with pytest.raises(error, match=text):
            divided(hot)


def test_changes_since_the_beginning_divide_a_large_file_group(hot: Table) -> None:
    """Every row is an insert, and each is in one task."""
    table = tuned(hot, change_task_bytes=2_000)
    scan = scan_changes(None, table.snapshot(), None, None, before=False)
    assert len(scan.tasks) > 5
    assert all(len(task.after.slices) == 1 for task in scan.tasks)
    found = scan.to_reader().read_all()
    assert set(found[CHANGE].to_pylist()) == {"insert"}
    assert bag(found.select(hot.snapshot().schema.names)) == bag(whole(hot))


def changes_since(table: Table, since: str, **sizes: int) -> ChangeScan:
    opened = tuned(table, **sizes)
    return scan_changes(opened.snapshot(since), opened.snapshot(), None, None, before=True)


def read_bag(scan: ChangeScan) -> list[str]:
    return bag(pa.Table.from_batches([batch for task in scan.tasks for batch in scan.read(task)], scan.arrow))


def touched_keys(scan: ChangeScan) -> list[int]:
    """Number of changes of each task."""
    return [sum(map(len, scan.read(task))) for task in scan.tasks]


@pytest.mark.parametrize("by_keys", [True, False])
@pytest.mark.parametrize("compacted", [False, True])
def test_changes_between_two_cuts_divide_a_large_file_group(
    hot: Table, monkeypatch: pytest.MonkeyPatch, *, compacted: bool, by_keys: bool
) -> None:
    """All states of the file group are divided at the same keys, whether keys or all rows are compared."""
    since = str(hot.snapshot().cut)
    append(hot, orders(*range(0, 1300, 3), status="new", ts=20))
    append(hot, orders(*range(0, 1300, 30), ts=21, op="D"))
    if compacted:
        hot.compact()
    expected = read_bag(changes_since(hot, since))
    assert len(changes_since(hot, since).tasks) == 1
    if not by_keys:
        monkeypatch.setattr(changes, "_touched_groups", lambda since, until, _: changes._whole_groups(since, until))
    scan = changes_since(hot, since, change_task_bytes=3_000)
    assert len(scan.tasks) > 5
    assert {task.touched is not None for task in scan.tasks} == {by_keys}
    assert read_bag(pickle.loads(pickle.dumps(scan))) == expected
    by_rows = changes_since(hot, since, change_task_rows=200)
    assert len(by_rows.tasks) > 2
    assert read_bag(by_rows) == expected


def test_changes_of_new_keys_are_divided_among_these_keys(hot: Table) -> None:
    """Other keys are in no task. A task keeps the earlier rows of its keys in memory, so their number is bounded."""
    hot.compact()
    since = str(hot.snapshot().cut)
    append(hot, orders(*range(5_000, 5_400)))
    scan = changes_since(hot, since, change_task_rows=100)
    assert all(task.touched is not None for task in scan.tasks)
    counts = touched_keys(scan)
    assert (sum(counts), max(counts) <= 150) == (400, True), counts
    few = str(hot.snapshot().cut)
    append(hot, orders(7, status="one", ts=30))
    assert touched_keys(changes_since(hot, few, change_task_bytes=3_000)) == [1]


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [(KeyRange, "positions", after_the_end), (divide_file_group, "ranges_of", next_range)],
    ids=["after_the_end", "next_range"],
)
def test_a_bound_of_changes_that_is_off_by_one_key_is_noticed(
    hot: Table, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Any
) -> None:
    since = str(hot.snapshot().cut)
    append(hot, orders(*range(0, 1300, 3), status="new", ts=20))
    hot.compact()
    expected = read_bag(changes_since(hot, since))
    monkeypatch.setattr(divide_file_group, "choose_bounds", any_bounds(7))
    assert read_bag(changes_since(hot, since, change_task_bytes=1_000)) == expected
    monkeypatch.setattr(place, name, broken)
    assert read_bag(changes_since(hot, since, change_task_bytes=1_000)) != expected
