"""The first rows of one task: as many as a LIMIT needs, or those that come first in an order.

A query needs no other rows of a task, and an engine chooses among those of all tasks. The order is that of Spark SQL
for every value: NaN is greater than every number, the zeros are equal, texts and binaries are ordered by their bytes,
and each column says where its nulls are. Which of several rows with equal values are first is not defined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.modes import mode_of
from weft.storage.core.plan.slices import FileSlice, LiveFile
from weft.storage.read.plan.read_task import ReadTask, read_task
from weft.storage.read.pushed.partial_aggregates import ordered_floats
from weft.storage.read.references.joined_scan import JoinedScan
from weft.storage.read.scan.scan import Scan

MOST_ORDERED: Final = 16_384
"""A task keeps the first rows of an order in memory, up to this number."""
MOST_IN_ONE_TASK: Final = 65_536
"""One task reads the rows of a LIMIT, up to this number; the tasks of a scan read more of them at the same time."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column of an order."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    def __str__(self) -> str:
        return f"{self.column} {'DESC' if self.descending else 'ASC'} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Which rows of a task are wanted.

    Attributes:
        count: How many at most.
        order: Which of them are first; any, if it is empty.
        in_all: Whether ``count`` is the number of rows of all tasks together, not of each.
    """

    count: int
    order: tuple[SortKey, ...] = ()
    in_all: bool = False

    def __str__(self) -> str:
        """As Spark's own sources say it in EXPLAIN."""
        if not self.order:
            return f"PushedLimit: LIMIT {self.count}"
        return f"PushedTopN: ORDER BY [{', '.join(map(str, self.order))}] LIMIT {self.count}"

    def fits(self, schema: pa.Schema) -> bool:
        """Whether tasks can find these rows; ``schema`` has the columns of the order."""
        if not self.order:
            return True
        return self.count <= MOST_ORDERED and not any(
            pa.types.is_nested(schema.field(key.column).type) for key in self.order
        )


@dataclass(frozen=True)
class FirstRowsScan:
    """A scan and which of the rows of each task are wanted. It can be pickled if the environment of the table can.

    Attributes:
        scan: Reads the rows, with the columns of the order at least.
        first: Which of them are wanted.
    """

    scan: Scan | JoinedScan
    first: FirstRows

    @property
    def tasks(self) -> tuple[ReadTask, ...]:
        """How the table is read."""
        return self.scan.tasks

    def without_tasks(self) -> FirstRowsScan:
        """A copy without the tasks, for processes to which tasks are sent one by one."""
        return replace(self, scan=self.scan.without_tasks())

    def read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """The first rows of one task. Raises the errors of `weft.storage.read.scan.scan.Scan.read`."""
        return first_rows(self.scan.read(task), self.first)


def in_one_task(scan: Scan, count: int, files: Sequence[LiveFile]) -> Scan | None:
    """A scan with one task that surely has so many rows, and reads few file groups; None if there is none.

    File groups with the fewest bytes of logs come first. The rows of one are known only if all rows of its base are
    visible: without deletes, and without merge functions, which may hide rows.

    Args:
        scan: A scan whose file groups are not divided yet.
        count: Number of rows.
        files: The log files that its file groups refer to by position.
    """
    projection = scan.projection
    if projection.filter is not None or projection.require or scan.keys is not None:
        return None
    if not 0 < count <= MOST_IN_ONE_TASK or any(mode_of(group).may_hide_upsert for group in scan.schema.groups):
        return None
    chosen: list[FileSlice] = []
    for file_slice in sorted(filter(_shows_its_base, scan.slices), key=lambda part: part.log_bytes):
        assert file_slice.slice is not None
        chosen.append(file_slice)
        count -= file_slice.slice.base_rows
        if count <= 0:
            return replace(scan, slices=tuple(chosen), tasks=(read_task(chosen, files),), threads=1)
    return None


def _shows_its_base(file_slice: FileSlice) -> bool:
    made = file_slice.slice
    whole = file_slice.within is None and not file_slice.shared
    return whole and made is not None and made.base_rows > 0 and not file_slice.deletes


def first_rows(batches: Iterable[pa.RecordBatch], first: FirstRows) -> Iterator[pa.RecordBatch]:
    """The first rows of ``batches``, in no particular order. Without an order no more batches are read than needed."""
    return _ordered(batches, first) if first.order else _any(batches, first.count)


def _any(batches: Iterable[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    if count <= 0:
        return
    for batch in batches:
        yield batch.slice(0, count)
        count -= batch.num_rows
        if count <= 0:
            return


def _ordered(batches: Iterable[pa.RecordBatch], first: FirstRows) -> Iterator[pa.RecordBatch]:
    best: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch
        if best is not None and 0 < first.count <= best.num_rows:
            rows = _not_after(rows, best, first.order[0])
        rows = _top(rows, first)
        best = rows if best is None else _top(pa.concat_batches([best, rows]), first)
    if best is not None:
        yield best


def _top(rows: pa.RecordBatch, first: FirstRows) -> pa.RecordBatch:
    """The first rows, in order."""
    keys: dict[str, pa.Array] = {}
    orders = []
    for number, key in enumerate(first.order):
        values = _comparable(rows.column(key.column))
        if values.null_count:  # all keys of one sort have their nulls on the same side
            keys[f"null_{number}"] = values.is_null()
            orders.append((f"null_{number}", "descending" if key.nulls_first else "ascending"))
        keys[f"value_{number}"] = values
        orders.append((f"value_{number}", "descending" if key.descending else "ascending"))
    found = pc.sort_indices(pa.table(keys), sort_keys=orders)
    return rows.take(found.slice(0, first.count))


def _not_after(rows: pa.RecordBatch, best: pa.RecordBatch, key: SortKey) -> pa.RecordBatch:
    """The rows that are not after all of ``best``, which is in order, by the first column of the order alone."""
    values, last = _comparable(rows.column(key.column)), _comparable(best.column(key.column))[-1]
    if not last.is_valid:
        return rows.filter(values.is_null()) if key.nulls_first else rows
    keep = pc.greater_equal(values, last) if key.descending else pc.less_equal(values, last)
    return rows.filter(keep.fill_null(key.nulls_first))


def _comparable(column: pa.Array) -> pa.Array:
    """Values that Arrow orders as Spark does."""
    if pa.types.is_floating(column.type):
        return ordered_floats(pc.add(column, pa.scalar(0.0, column.type)))  # -0.0 + 0.0 is 0.0
    return column
