"""The table that the page shows. One look at it is shared by all requests of about a second.

An open table keeps what it has read, so a table that was deleted would still be shown. So it is opened again now and
then.
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

LOOK_SECONDS: Final = 1.0  # a look that is younger than this is used again, ...
PAUSE: Final = 4.0  # ... as is one that is younger than this many times the duration of reading it

OPEN_SECONDS: Final = 5.0  # a table is opened again after this time: it may be gone or replaced

T = TypeVar("T")


def _part(read: Callable[[Look], T]) -> cached_property[T]:
    """Make a method of `Look` a property that is read once, by one thread; `Look.seconds` includes its duration."""

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
    """A table at one moment; each part is read when it is first needed.

    Attributes:
        seconds: Time spent on reading so far.
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
        """By how much the time of the table's newest entry is ahead of this machine's clock."""
        return clock_lead_ms(self.table)


class WatchedTable:
    """The table that is at a location now; usable from any thread."""

    def __init__(self, location: TableLocation, policy: DuePolicy | None, open_seconds: float = OPEN_SECONDS) -> None:
        """Open the table.

        Args:
            location: Where it is.
            policy: Decides what is due for compaction; None without a compaction service.
            open_seconds: A look opens the table again if it was opened longer ago than this.

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
    def last_cut(self) -> str:
        """The cut of the last look; "" before the first one."""
        look = self._look
        return "" if look is None else look.cut

    def look(self, max_age: float = LOOK_SECONDS) -> Look:
        """Return the last look, or a new one if it is older than ``max_age`` seconds and `PAUSE` times its duration.

        Raises:
            NotFound: The table is not there any more.
            StoreUnavailable: The store does not answer.
        """
        with self._lock:
            look = self._look
            if look is None or time.monotonic() - self._looked >= max(max_age, PAUSE * look.seconds):
                try:
                    look = self._look = self._new_look()
                except TableError:
                    self.failed = True
                    raise
                self._looked, self.failed = time.monotonic(), False
            return look

    def _new_look(self) -> Look:
        self._open_again()
        try:
            return Look(self.table, self._policy)
        except CorruptData:  # a table whose files were deleted looks damaged, too
            self._opened = float("-inf")
            self._open_again()
            return Look(self.table, self._policy)

    def _open_again(self) -> None:
        """Open the table again if it was opened long ago, to notice that it is gone or was replaced."""
        began = time.monotonic()
        if began - self._opened < max(self._open_seconds, PAUSE * self._opening):
            return
        self._looked = float("-inf")  # if this fails, the next look tries again
        location = self.location
        try:
            table = Table.open(location.uri, storage_options=location.storage_options)
        except NotFound:
            raise NotFound(
                f"there is no table at {self.table.uri} any more",
                hint="check whether it was deleted or moved; the page continues when it is back",
            ) from None
        table_id = table.state().table_id
        if table_id != self._table_id:
            self.table, self._table_id = table, table_id
        self._opened = time.monotonic()
        self._opening = self._opened - began
