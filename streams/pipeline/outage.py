"""Outages: a broker or a store that does not answer is waited for as long as it takes, and everybody can see it.

What counts as an outage is decided by the kind of the error (`streams.pipeline.status.is_outage`), never by its text.
Whoever answers and refuses (a wrong password, a missing right) is not waited for: those errors are of other kinds.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from streams.pipeline.status import WAITING_CHARS, Reporter, StopSignal, describe, is_outage, shortened

FIRST_PAUSE_SECONDS: Final = 1.0
LAST_PAUSE_SECONDS: Final = 30.0  # how long the end of an outage may go unnoticed
LOG_SECONDS: Final = 60.0  # between two lines of a job's log about one outage

_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))

T = TypeVar("T")


def pause_seconds(failures: int) -> float:
    """Seconds before asking again after so many failures in a row, from 1: doubled each time up to a bound."""
    # The exponent is bounded, because an outage may last for weeks.
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10), LAST_PAUSE_SECONDS)


def wait_out(
    ask: Callable[[], T], tell: Callable[[Exception, float], None], pause: Callable[[float], bool]
) -> T | None:
    """Ask until there is an answer.

    Args:
        ask: What to do; after an outage's error it is done again.
        tell: Called with each such error, and the seconds until the next try.
        pause: Waits so many seconds; true if the waiting shall end.

    Returns:
        The answer; None if the waiting was ended.

    Raises:
        Exception: What `ask` raises, unless it is an outage.
    """
    failures = 0
    while True:
        try:
            return ask()
        except Exception as error:
            if not is_outage(error):
                raise
            failures += 1
            seconds = pause_seconds(failures)
            tell(error, seconds)
            if pause(seconds):
                return None


class JobOutages:
    """What one job waits for, in its status and its log. The status outlives the process: so does the outage's age."""

    def __init__(self, reporter: Reporter, stop: StopSignal) -> None:
        """Nothing is told yet."""
        self._reporter, self._stop = reporter, stop
        self._logged: float | None = None
        self._reason = ""

    def wait_out(self, ask: Callable[[], T], what: str) -> T | None:
        """Ask until there is an answer; None if the job was told to stop before that.

        Args:
            ask: What to do.
            what: Whom it asks, for example "the broker 127.0.0.1:9092".

        Raises:
            Exception: What `ask` raises, unless it is an outage.
        """
        answer = wait_out(ask, lambda error, _: self.began(what, describe(error)), self._stop.wait)
        if not self._stop:
            self.ended(what)
        return answer

    def began(self, what: str, reason: str) -> None:
        """Tell that something does not answer, or still does not."""
        what, last = shortened(what, WAITING_CHARS), self._reporter.report
        known = last.waiting_since_ms if last.waiting_for == what else None
        since_ms = time.time_ns() // 1_000_000 if known is None else known
        self._reason = reason
        self._reporter.update(doing="waiting", waiting_for=what, waiting_since_ms=since_ms, message=reason)
        now = time.monotonic()
        if self._logged is None or now - self._logged >= LOG_SECONDS:
            self._logged = now
            _log(f"waiting for {what}, {spell_since(since_ms)}: {reason}")

    def ended(self, what: str) -> None:
        """Tell that it has answered, if it did not before."""
        what, last = shortened(what, WAITING_CHARS), self._reporter.report
        if last.waiting_for != what or last.waiting_since_ms is None:
            return
        _log(f"{what} answers again after {spell_since(last.waiting_since_ms)}")
        self._logged = None
        self._reporter.update(
            waiting_for="",
            waiting_since_ms=None,
            doing="starting" if last.doing == "waiting" else last.doing,
            message="" if last.message == self._reason else last.message,
        )


def store_name(uri: str) -> str:
    """The store of a table, as something that is waited for."""
    return f"the store of {uri}"


def _log(text: str) -> None:
    sys.stderr.write(f"{dt.datetime.now(dt.UTC).isoformat(timespec='seconds')} {text}\n")
    sys.stderr.flush()


def spell_since(then_ms: int, now_ms: int | None = None) -> str:
    """How long ago that is: 45 seconds, 3 minutes, 1 day."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return spell_duration(max(0, now_ms - then_ms) / 1000)


def spell_duration(seconds: float) -> str:
    """Seconds in the largest unit of which there is at least one, rounded down."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    count = int(seconds // size)
    return f"{count} {unit}{'s' * (count != 1)}"
