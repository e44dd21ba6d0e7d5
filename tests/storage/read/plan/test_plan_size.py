"""The size of a plan: the driver's memory and the bytes of a task, for tables with more rows, file groups or lanes."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest

from tests import many_groups
from tests.storage.support.shop import SHOP, new_uri
from tests.tuning import tune
from weft import Table
from weft.storage.read.changes.change_scan import scan_changes
from weft.storage.read.plan.read_task import read_task
from weft.storage.read.scan.scan import Scan
from weft.storage.services.steps.tasks import Task, one_by_one

T = TypeVar("T")


def append(table: Table, rows: pa.Table, stream: str = "orders", lane: str | None = None) -> None:
    with table.writer(stream, lane=lane) as writer:
        writer.append(rows)


def shop_of(rows: int, buckets: int) -> Table:
    """File groups with bases and logs; the same files for any number of rows."""
    table = Table.create(new_uri(), {**SHOP, "buckets": buckets})
    ids = np.arange(rows)
    for ts in (1, 2):
        append(table, pa.table({"id": ids, "status": pa.array(["new"] * rows), "ots": np.full(rows, ts)}))
        if ts == 1:
            table.compact()
    return table


@pytest.mark.slow
@pytest.mark.parametrize(("buckets", "few", "many"), [(8, 10_000, 1_000_000), (1, 150_000, 1_500_000)])
def test_a_plan_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch, buckets: int, few: int, many: int) -> None:
    """The driver's memory while it plans, and what it sends to tasks. The second table has one file group, divided.

    Each block of a log takes some 50 bytes of a plan, so blocks are larger here than by default.
    """
    tune(monkeypatch, task_min_bytes=1, block_max_bytes=16 * 1024 * 1024)
    sizes, peaks = [], []
    for rows in (few, many):
        table = shop_of(rows, buckets)
        planned(table)  # imports and caches
        tracemalloc.start()
        scan = planned(Table.open(table.uri))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        sizes.append(len(pickle.dumps(scan)))
        assert scan.divided == (buckets == 1)
        assert sum(len(batch) for batch in scan.to_reader()) == rows
    assert sizes[1] < 1.1 * sizes[0]
    assert peaks[1] < 1.2 * peaks[0]


def planned(table: Table) -> Scan:
    return table.snapshot().scan(["id", "status"], parallelism=2)


def table_of(partitions: int, lanes: int) -> Table:
    """Partitions with a base and logs. Each lane but the first has one row, in the last partition."""
    table = Table.create(new_uri(), many_groups.CONFIG)
    append(table, many_groups.rows(partitions, many_groups.KEYS, 1), "s", lane="lane00")
    for number in range(1, lanes):
        row = pa.table({"p": pa.array([partitions - 1], pa.int32()), "id": [1], "v": [1], "ts": [number]})
        append(table, row, "s", lane=f"lane{number:02d}")
    table.compact()
    table.savepoint("before")
    append(table, many_groups.rows(partitions, many_groups.KEYS, 2), "s", lane="lane00")
    return table


def of_read(table: Table) -> int:
    snapshot = table.snapshot()
    return len(pickle.dumps(read_task(snapshot.slices[:1], snapshot.files)))


def of_changes(table: Table) -> int:
    snapshot = table.snapshot()
    scan = scan_changes(table.snapshot("before"), snapshot, None, None, before=False)
    return min(len(pickle.dumps(task)) for task in scan.tasks)


class Sent:
    """Runs tasks, and records their pickled sizes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, tasks: Iterable[Task[T]]) -> Iterator[T]:
        sent = [pickle.dumps(task) for task in tasks]
        self.sizes.extend(map(len, sent))
        return one_by_one([pickle.loads(task) for task in sent])


def of_compaction(table: Table) -> int:
    sent = Sent()
    table.compact(execute=sent)
    return min(sent.sizes)


def of_fold(table: Table) -> int:
    sent = Sent()
    table.fold(execute=sent)
    return min(sent.sizes)


@pytest.mark.parametrize("measure", [of_read, of_changes, of_compaction, of_fold])
def test_a_task_does_not_grow_with_the_other_file_groups(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[[Table], int]
) -> None:
    tune(monkeypatch, small_group_bytes=0, change_task_bytes=1, fold_file_bytes=1)
    assert measure(table_of(40, 1)) < 1.05 * measure(table_of(4, 1))


@pytest.mark.parametrize("measure", [of_read, of_changes])
def test_a_task_does_not_grow_with_the_lanes_that_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[[Table], int]
) -> None:
    tune(monkeypatch, small_group_bytes=0, change_task_bytes=1)
    assert measure(table_of(4, 40)) < 1.05 * measure(table_of(4, 2))
