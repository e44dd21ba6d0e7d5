"""The clock seam: wall-clock time, waiting, and the stamps that order versions.

No result depends on the clock being right (S22 ClockFree): time only labels commits for `as_of`, and starts stamps,
which then only move forward.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from storage.errors import InvalidInput

STAMP_BITS: Final = 43
LANE_BITS: Final = 20
_MAX_STAMP: Final = (1 << STAMP_BITS) - 1

MAX_AHEAD_MS: Final = 60_000
"""By how much the table's time may be before a machine's before somebody is told; ordinary clocks differ less."""


class Clock(Protocol):
    """Time as the table's processes see it."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Stamps:
    """One process's stamps for one table: each larger than every stamp it has given or seen before."""

    def __init__(self) -> None:
        self._largest = 0
        self._lock = threading.Lock()

    def observe(self, stamp: int) -> None:
        """Note a stamp that was read from any lane."""
        with self._lock:
            self._largest = max(self._largest, stamp)

    def next(self, clock: Clock) -> int:
        """A new stamp.

        Raises:
            InvalidInput: Out of the range that an arrival holds (the clock is past the year 2248): never wrapped.
        """
        with self._lock:
            stamp = max(clock.now_ms(), self._largest + 1)
            if not 0 <= stamp <= _MAX_STAMP:
                raise InvalidInput(f"stamp {stamp} is out of range", hint="set this machine's clock")
            self._largest = stamp
            return stamp


_stamps: Final[dict[str, Stamps]] = {}
_stamps_lock: Final = threading.Lock()


def stamps_of(uri: str) -> Stamps:
    """The stamps of a table in this process, which all who use the table share."""
    with _stamps_lock:
        return _stamps.setdefault(uri, Stamps())


def arrival(stamp: int, lane_id: int) -> int:
    """The arrival of all events of one commit: int64, unique per commit, ordered by stamp and then by lane."""
    return stamp << LANE_BITS | lane_id
