"""A planned read whose tasks return partial aggregates instead of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from weft.storage.read.plan.read_task import ReadTask
from weft.storage.read.pushed.partial_aggregates import Aggregation, aggregate_batches
from weft.storage.read.references.joined_scan import JoinedScan
from weft.storage.read.scan.scan import Scan


@dataclass(frozen=True, slots=True)
class AggregateTask:
    """What one task aggregates.

    Attributes:
        rows: The rows that it reads; None if it reads none.
        known: A partial result that was found without reading rows, and is returned too; or None.
    """

    rows: ReadTask | None
    known: pa.RecordBatch | None = None


@dataclass(frozen=True)
class AggregatedScan:
    """A scan and what is computed of its rows. It can be pickled if the environment of the table can.

    Attributes:
        scan: Reads the rows, with the columns of the aggregation at least.
        aggregation: What is computed (`weft.storage.read.pushed.partial_aggregates`).
        known: The partial result of file groups that ``scan`` does not read
            (`weft.storage.read.pushed.known_aggregates`).
    """

    scan: Scan | JoinedScan
    aggregation: Aggregation
    known: pa.RecordBatch | None = None

    @property
    def tasks(self) -> tuple[AggregateTask, ...]:
        """How the table is read. Without GROUP BY there is at least one: without rows its result has one row, too."""
        first, *others = self.scan.tasks or (None,)
        if first is None and self.known is None and self.aggregation.groups:
            return ()
        return (AggregateTask(first, self.known), *map(AggregateTask, others))

    def without_tasks(self) -> AggregatedScan:
        """A copy without the tasks, for processes to which tasks are sent one by one."""
        return replace(self, scan=self.scan.without_tasks(), known=None)

    def read(self, task: AggregateTask) -> Iterator[pa.RecordBatch]:
        """Partial results of one task. Raises the errors of `weft.storage.read.scan.scan.Scan.read`."""
        if task.known is not None:
            yield task.known
            if task.rows is None:
                return
        rows = iter(()) if task.rows is None else self.scan.read(task.rows)
        yield from aggregate_batches(rows, self.aggregation, self.scan.arrow)
