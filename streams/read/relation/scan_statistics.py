"""The statistics of a scan by tasks, for Spark's planner."""

from __future__ import annotations

import itertools
from typing import Any

from weft.streams.read.relation.callbacks import Callback
from weft.streams.read.relation.jvm import Jvm

__all__ = ["ScanStatistics"]

_numbers = itertools.count(1)


class ScanStatistics(Callback, java=("org.apache.spark.sql.connector.read.Statistics",)):
    """Statistics by which Spark chooses joins. Spark takes an unknown size for very large, and does not broadcast."""

    def __init__(self, jvm: Jvm, size_bytes: int | None, row_count: int | None) -> None:
        super().__init__(jvm, f"weft statistics {next(_numbers)}")
        self._size_bytes = size_bytes
        self._row_count = row_count

    def sizeInBytes(self) -> Any:  # noqa: N802
        return self.jvm.optional_long(self._size_bytes)

    def numRows(self) -> Any:  # noqa: N802
        return self.jvm.optional_long(self._row_count)

    def columnStats(self) -> Any:  # noqa: N802
        return self.jvm.HashMap()
