"""Native scans of some of the row groups of files; tasks merge the other row groups, whose rows a log has changed.

Spark divides a file by bytes, and a task reads the row groups whose middle is within its bytes. So the partitions that
Spark makes of whole files are cut to the bytes of the row groups to read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from weft.streams.read.relation.callbacks import Callback
from weft.streams.read.relation.jvm import Jvm
from weft.streams.read.relation.planner_interface import ParquetFile

__all__ = ["RangesOfFiles", "batch_of"]

_numbers = itertools.count(1)


def batch_of(jvm: Jvm, inner: Any, files: Sequence[ParquetFile]) -> Any:
    """Return the batch of a scan of Parquet files, restricted to the ranges of those files that have ranges."""
    ranges = {file.path.rpartition("/")[2]: file.ranges for file in files if file.ranges}  # names are unique
    return RangesOfFiles(jvm, inner.toBatch(), ranges) if ranges else inner.toBatch()


class RangesOfFiles(Callback, java=("org.apache.spark.sql.connector.read.Batch",)):
    """A batch of Spark's scan of Parquet files without the row groups outside of some ranges."""

    def __init__(self, jvm: Jvm, batch: Any, ranges: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        super().__init__(jvm, f"weft batch {next(_numbers)}")
        self._batch = batch
        self._ranges = ranges

    def planInputPartitions(self) -> Any:  # noqa: N802
        return self.jvm.cut_partitions(self._batch.planInputPartitions(), self._ranges)

    def createReaderFactory(self) -> Any:  # noqa: N802
        return self._batch.createReaderFactory()
