"""The table that the page shows: one look at it serves all requests of the next moment."""

from __future__ import annotations

import threading
import time
from functools import cached_property
from typing import Final

from storage import DuePolicy, Snapshot, Table
from storage.engine import (
    FileReport,
    Inspection,
    LaneReport,
    Overview,
    TableMeasures,
    check_reachable,
    clock_lead_ms,
    measure,
)
from streams.pipeline.model import TableLocation

LOOK_SECONDS: Final = 1.0  # a look that is younger is shown again


class Look:
    """What is known of a table at one moment; each part is read when it is first needed."""

    def __init__(self, table: Table, policy: DuePolicy | None) -> None:
        """Take a snapshot of the table."""
        self.table, self._policy = table, policy
        self.snapshot: Snapshot = table.snapshot(references=False)
        self.inspection = Inspection.of(self.snapshot)
        self.at_ms = time.time_ns() // 1_000_000
        self._lock = threading.RLock()

    @property
    def cut(self) -> str:
        """The snapshot, as text."""
        return str(self.snapshot.cut)

    @cached_property
    def overview(self) -> Overview:
        """Sizes, waiting work, watermarks and references."""
        with self._lock:
            return self.inspection.overview()

    @cached_property
    def lanes(self) -> list[LaneReport]:
        """Every lane."""
        with self._lock:
            return self.inspection.lanes()

    @cached_property
    def measures(self) -> TableMeasures:
        """Sizes and what is due."""
        with self._lock:
            return measure(self.snapshot, self._policy)

    @cached_property
    def files(self) -> list[FileReport]:
        """Every file group."""
        with self._lock:
            return self.inspection.files()

    @cached_property
    def waiting_since(self) -> dict[str, int]:
        """The oldest commit that waits, by file group."""
        with self._lock:
            return self.inspection.waiting_since()

    @cached_property
    def clock_lead_ms(self) -> int:
        """By how much the table's newest entry is ahead of this clock."""
        return clock_lead_ms(self.table)


class WatchedTable:
    """The table, opened once; usable from any thread."""

    def __init__(self, location: TableLocation, policy: DuePolicy | None) -> None:
        """Open the table.

        Raises:
            NotFound: There is no table.
            StoreUnavailable: The store does not answer.
        """
        check_reachable(location.uri, location.storage_options)
        self.location, self._policy = location, policy
        self.table = Table.open(location.uri, storage_options=location.storage_options)
        self._lock = threading.Lock()
        self._look: Look | None = None
        self._looked = float("-inf")

    @property
    def name(self) -> str:
        """Name of the table's folder."""
        return self.location.name

    def look(self, max_age: float = LOOK_SECONDS) -> Look:
        """The last look, or a new one if it is older than ``max_age`` seconds.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            if self._look is None or time.monotonic() - self._looked >= max_age:
                self._look = Look(self.table, self._policy)
                self._looked = time.monotonic()
            return self._look
