"""A planned read whose tasks return partial aggregates instead of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from storage.read.joined_scan import JoinedScan
from storage.read.partial_aggregates import Aggregation, aggregate_batches
from storage.read.read_task import ReadTask
from storage.read.scan import Scan


@dataclass(frozen=True)
class AggregatedScan:
    """A scan and what is computed of its rows. It can be pickled if the environment of the table can.

    Attributes:
        scan: Reads the rows, with the columns of the aggregation at least.
        aggregation: What is computed (`storage.read.partial_aggregates`).
    """

    scan: Scan | JoinedScan
    aggregation: Aggregation

    @property
    def tasks(self) -> tuple[ReadTask | None, ...]:
        """How the table is read. None is a task without rows: without GROUP BY its result has one row, too."""
        return self.scan.tasks or (() if self.aggregation.groups else (None,))

    def without_tasks(self) -> AggregatedScan:
        """A copy without the tasks, for processes to which tasks are sent one by one."""
        return replace(self, scan=self.scan.without_tasks())

    def read(self, task: ReadTask | None) -> Iterator[pa.RecordBatch]:
        """Partial results of one task. Raises the errors of `storage.read.scan.Scan.read`."""
        rows = iter(()) if task is None else self.scan.read(task)
        return aggregate_batches(rows, self.aggregation, self.scan.arrow)
