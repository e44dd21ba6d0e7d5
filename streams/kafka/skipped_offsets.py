"""Counts the offsets that this process skipped because Kafka did not have them any more (``failOnDataLoss=false``).

The counter includes offsets after the end of the last batch that retention had deleted when the next batch was planned.
It does not include records of a topic that was truncated or created again, records before the first batch of a query,
and records that retention deletes between planning and reading.
"""

from __future__ import annotations

import threading
from typing import Final


class SkippedOffsets:
    """A counter. Safe for use from several threads."""

    def __init__(self) -> None:
        self._total = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Add a number of offsets."""
        with self._lock:
            self._total += count

    def total(self) -> int:
        """Return the number of offsets since the process started."""
        return self._total


SKIPPED: Final = SkippedOffsets()
"""The counter of this process. A writer plans its source in its own process (`weft.streams.spark.planning_threads`)."""
