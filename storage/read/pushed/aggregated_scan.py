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
    """The work of one task of an aggregated scan.

    Attributes:
        rows: The rows to read and aggregate; None to read no rows.
        precomputed: A partial result that was computed without reading rows, to return as well; or None.
    """

    rows: ReadTask | None
    precomputed: pa.RecordBatch | None = None


@dataclass(frozen=True)
class AggregatedScan:
    """A scan and an aggregation of its rows. It can be pickled if the environment of the table can.

    Attributes:
        scan: Reads the rows, with at least the columns of the aggregation.
        aggregation: The aggregation (`weft.storage.read.pushed.partial_aggregates`).
        precomputed: The partial result of file groups that ``scan`` does not read
            (`weft.storage.read.pushed.known_aggregates`).
    """

    scan: Scan | JoinedScan
    aggregation: Aggregation
    precomputed: pa.RecordBatch | None = None

    @property
    def tasks(self) -> tuple[AggregateTask, ...]:
        """The tasks. Without GROUP BY there is at least one, because the result has one row even without input."""
        first, *rest = self.scan.tasks or (None,)
        if first is None and self.precomputed is None and self.aggregation.groups:
            return ()
        return (AggregateTask(first, self.precomputed), *map(AggregateTask, rest))

    def without_tasks(self) -> AggregatedScan:
        """A copy without the tasks, for processes to which tasks are sent one by one."""
        return replace(self, scan=self.scan.without_tasks(), precomputed=None)

    def read(self, task: AggregateTask) -> Iterator[pa.RecordBatch]:
        """Partial results of one task. Raises the errors of `weft.storage.read.scan.scan.Scan.read`."""
        if task.precomputed is not None:
            yield task.precomputed
            if task.rows is None:
                return
        rows = iter(()) if task.rows is None else self.scan.read(task.rows)
        yield from aggregate_batches(rows, self.aggregation, self.scan.arrow)
