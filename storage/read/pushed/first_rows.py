"""The first rows of one task: as many as a LIMIT needs, or those that come first in an order.

A query needs no other rows of a task; an engine selects from the first rows of all tasks. The order is that of Spark
SQL for every value: NaN is greater than every number, the zeros are equal, texts and binaries are ordered by their
bytes, and each column says where its nulls are. The order of rows with equal values is undefined.
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
"""One task reads the rows of a LIMIT, up to this number; larger limits are read by parallel tasks."""


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
    """The rows of a task that a query needs.

    Attributes:
        count: Largest number of rows.
        order: The order in which they come first; empty for any rows.
        in_all: Whether ``count`` is the number of rows of all tasks together, not of each task.
    """

    count: int
    order: tuple[SortKey, ...] = ()
    in_all: bool = False

    def __str__(self) -> str:
        """The text that Spark's own sources show in EXPLAIN."""
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
    """A scan whose tasks return only their first rows. It can be pickled if the environment of the table can.

    Attributes:
        scan: Reads the rows, with at least the columns of the order.
        first: The rows that the query needs.
    """

    scan: Scan | JoinedScan
    first: FirstRows

    @property
    def tasks(self) -> tuple[ReadTask, ...]:
        """The tasks."""
        return self.scan.tasks

    def without_tasks(self) -> FirstRowsScan:
        """A copy without the tasks, for processes to which tasks are sent one by one."""
        return replace(self, scan=self.scan.without_tasks())

    def read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """The first rows of one task. Raises the errors of `weft.storage.read.scan.scan.Scan.read`."""
        return first_rows(self.scan.read(task), self.first)


def in_one_task(scan: Scan, count: int, files: Sequence[LiveFile]) -> Scan | None:
    """A scan with one task that has at least ``count`` rows, and reads few file groups; None if there is no such task.

    File groups with the fewest bytes of logs come first. The number of rows of a file group is known only if all rows
    of its base are visible: without deletes, and without merge functions, which may hide rows.

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
    selected: list[FileSlice] = []
    for file_slice in sorted(filter(_shows_its_base, scan.slices), key=lambda part: part.log_bytes):
        assert file_slice.slice is not None
        selected.append(file_slice)
        count -= file_slice.slice.base_rows
        if count <= 0:
            return replace(scan, slices=tuple(selected), tasks=(read_task(selected, files),), threads=1)
    return None


def _shows_its_base(file_slice: FileSlice) -> bool:
    slice_file = file_slice.slice
    whole = file_slice.within is None and not file_slice.shared
    return whole and slice_file is not None and slice_file.base_rows > 0 and not file_slice.deletes


def first_rows(batches: Iterable[pa.RecordBatch], first: FirstRows) -> Iterator[pa.RecordBatch]:
    """The first rows of ``batches``, in no particular order. Without an order, stops reading after ``count`` rows."""
    return _first_in_order(batches, first) if first.order else _first_read(batches, first.count)


def _first_read(batches: Iterable[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    if count <= 0:
        return
    for batch in batches:
        yield batch.slice(0, count)
        count -= batch.num_rows
        if count <= 0:
            return


def _first_in_order(batches: Iterable[pa.RecordBatch], first: FirstRows) -> Iterator[pa.RecordBatch]:
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
    positions = pc.sort_indices(pa.table(keys), sort_keys=orders)
    return rows.take(positions.slice(0, first.count))


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
