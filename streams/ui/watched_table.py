"""The table that the page shows: one look at it serves all requests of the next moment.

What is known of a table is kept, so a table that was deleted would be shown as it was: it is opened again now and then.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import Final, TypeVar

from weft.storage import DuePolicy, Snapshot, Table
from weft.storage.errors import CorruptData, NotFound, TableError
from weft.storage.services.inspect.file_groups import waiting_since
from weft.storage.services.inspect.inspect import FileReport, Inspection, LaneReport, Overview
from weft.storage.services.inspect.measure import TableMeasures, measure
from weft.storage.table_facts import clock_lead_ms
from weft.streams.pipeline.file.model import TableLocation

LOOK_SECONDS: Final = 1.0  # a look that is younger is shown again
PAUSE: Final = 4.0  # and one that is younger than this many times what it took to read it

OPEN_SECONDS: Final = 5.0  # a table that was opened earlier is opened again: it may be gone, or another one

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
        return waiting_since(self.snapshot)

    @_part
    def clock_lead_ms(self) -> int:
        """By how much the table's newest entry is ahead of this clock."""
        return clock_lead_ms(self.table)


class WatchedTable:
    """The table that is at a location now; usable from any thread."""

    def __init__(self, location: TableLocation, policy: DuePolicy | None, open_seconds: float = OPEN_SECONDS) -> None:
        """Open the table.

        Args:
            location: Where it is.
            policy: Says what is due for compaction; None if nobody compacts.
            open_seconds: A look opens it again if it was opened earlier than this.

        Raises:
            NotFound: There is no table.
            StoreUnavailable: The store does not answer.
        """
        self.location, self._policy, self._open_seconds = location, policy, open_seconds
        self.table = location.open()
        self._table_id = self.table.state().table_id
        self._opened, self._opening = time.monotonic(), 0.0
        self.failed = False
        """Whether the last look has failed: the table is gone, damaged, or its store does not answer."""
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
            NotFound: The table is not there any more.
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            known = self._look
            if known is None or time.monotonic() - self._looked >= max(max_age, PAUSE * known.seconds):
                try:
                    known = self._look = self._new_look()
                except TableError:
                    self.failed = True
                    raise
                self._looked, self.failed = time.monotonic(), False
            return known

    def _new_look(self) -> Look:
        self._open_again()
        try:
            return Look(self.table, self._policy)
        except CorruptData:  # a table of which nothing is left looks like a damaged one, too
            self._opened = float("-inf")
            self._open_again()
            return Look(self.table, self._policy)

    def _open_again(self) -> None:
        """Notice that the table is gone, or that another one is in its place; rarely if that takes long."""
        began = time.monotonic()
        if began - self._opened < max(self._open_seconds, PAUSE * self._opening):
            return
        self._looked = float("-inf")  # if this fails, the next look tries again
        location = self.location
        try:
            found = Table.open(location.uri, storage_options=location.storage_options)
        except NotFound:
            raise NotFound(
                f"there is no table at {self.table.uri} any more",
                hint="it was deleted or moved, or its storage is not there; the page goes on when it is back",
            ) from None
        table_id = found.state().table_id
        if table_id != self._table_id:
            self.table, self._table_id = found, table_id
        self._opened = time.monotonic()
        self._opening = self._opened - began
