"""Collects rows until there are enough of them, in few batches.

A batch has a fixed cost for each of its columns, kilobytes of memory: thousands of batches of a few rows and a thousand
columns would need gigabytes. So batches are joined as they come, sixteen of about the same size at a time. Each row is
copied once for each power of sixteen of the number of batches.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_JOINED: Final = 16  # batches that are joined at a time


class RowBuffer:
    """Batches with the same columns, in order."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, pa.RecordBatch]] = []
        """How often the rows of a batch were joined, and the batch."""
        self.rows = self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch."""
        self.rows += len(batch)
        self.bytes += batch.nbytes
        self._batches.append((0, batch))
        while len(self._batches) >= _JOINED and self._batches[-_JOINED][0] == self._batches[-1][0]:
            level, _ = self._batches[-1]
            joined = pa.concat_batches([part for _, part in self._batches[-_JOINED:]])
            self._batches[-_JOINED:] = [(level + 1, joined)]

    def take(self) -> list[pa.RecordBatch]:
        """Remove all rows; returns them in a few batches."""
        batches = [batch for _, batch in self._batches]
        self._batches, self.rows, self.bytes = [], 0, 0
        return batches
