"""Wall-clock time, waiting, and the stamps that order versions.

No result depends on a correct clock (PROTOCOL.md, S22 ClockFree): times only label commits for `as_of` and are a lower
bound of stamps, and stamps only increase.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from weft.storage.errors import InvalidInput

STAMP_BITS: Final = 43
LANE_BITS: Final = 20
_MAX_STAMP: Final = (1 << STAMP_BITS) - 1

MAX_AHEAD_MS: Final = 60_000
"""Largest lead of the table's time over a machine's clock without a warning; synchronised clocks differ by less."""


class Clock(Protocol):
    """Wall-clock time and waiting."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Stamps:
    """Generates the stamps of a table in one process: larger than all that were generated or observed before."""

    def __init__(self) -> None:
        self._largest = 0
        self._lock = threading.Lock()

    def observe(self, stamp: int) -> None:
        """Record a stamp that was read from a lane, so that later stamps are larger."""
        with self._lock:
            self._largest = max(self._largest, stamp)

    def next(self, clock: Clock) -> int:
        """Return a new stamp: the time in milliseconds, but at least the largest stamp so far plus one.

        Raises:
            InvalidInput: The stamp does not fit into an arrival, because the clock is past the year 2248.
        """
        with self._lock:
            stamp = max(clock.now_ms(), self._largest + 1)
            if not 0 <= stamp <= _MAX_STAMP:
                raise InvalidInput(
                    f"stamp {stamp} is out of range: the system clock shows a year after 2248", hint="correct it (NTP)"
                )
            self._largest = stamp
            return stamp


_stamps: Final[dict[str, Stamps]] = {}
_stamps_lock: Final = threading.Lock()


def stamps_of(uri: str) -> Stamps:
    """The stamps of a table in this process; all instances of the table share them."""
    with _stamps_lock:
        return _stamps.setdefault(uri, Stamps())


def arrival(stamp: int, lane_id: int) -> int:
    """The arrival of the events of a commit: an int64, unique per commit, ordered by stamp and then by lane."""
    return stamp << LANE_BITS | lane_id
