"""The table that the page shows: one look at it serves all requests of the next moment."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import Final, TypeVar

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
PAUSE: Final = 4.0  # and one that is younger than this many times what it took to read it

T = TypeVar("T")


def _part(read: Callable[[Look], T]) -> cached_property[T]:
    """A part of a look: read once, by one thread, and the time for it counted."""

    @functools.wraps(read)
    def timed(look: Look) -> T:
        with look.lock:
            began = time.monotonic()
            try:
                return read(look)
            finally:
                look.seconds += time.monotonic() - began

    return cached_property(timed)


class Look:
    """What is known of a table at one moment; each part is read when it is first needed.

    Attributes:
        seconds: How long reading took so far.
    """

    def __init__(self, table: Table, policy: DuePolicy | None) -> None:
        """Take a snapshot of the table."""
        began = time.monotonic()
        self.lock = threading.RLock()
        self.table, self._policy = table, policy
        self.snapshot: Snapshot = table.snapshot(references=False)
        self.inspection = Inspection.of(self.snapshot)
        self.at_ms = time.time_ns() // 1_000_000
        self.seconds = time.monotonic() - began

    @property
    def cut(self) -> str:
        """The snapshot, as text."""
        return str(self.snapshot.cut)

    @_part
    def overview(self) -> Overview:
        """Sizes, waiting work, watermarks and references."""
        return self.inspection.overview()

    @_part
    def lanes(self) -> list[LaneReport]:
        """Every lane."""
        return self.inspection.lanes()

    @_part
    def measures(self) -> TableMeasures:
        """Sizes and what is due."""
        return measure(self.snapshot, self._policy)

    @_part
    def files(self) -> list[FileReport]:
        """Every file group."""
        return self.inspection.files()

    @_part
    def waiting_since(self) -> dict[str, int]:
        """The oldest commit that waits, by file group."""
        return self.inspection.waiting_since()

    @_part
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

    @property
    def seen(self) -> str:
        """The cut of the last look; "" before the first one."""
        known = self._look
        return "" if known is None else known.cut

    def look(self, max_age: float = LOOK_SECONDS) -> Look:
        """The last look, or a new one if it is older than ``max_age`` seconds, and than `PAUSE` times what it took.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            known = self._look
            if known is None or time.monotonic() - self._looked >= max(max_age, PAUSE * known.seconds):
                known = self._look = Look(self.table, self._policy)
                self._looked = time.monotonic()
            return known
