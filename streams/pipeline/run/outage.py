"""Outages: waits for a broker or a store that does not answer, without a time limit, and reports it.

The type of an error decides whether it is an outage (`weft.streams.pipeline.run.error_kinds.is_outage`), never its
text. A server that answers and refuses (wrong password, missing permission) is not an outage.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from weft.streams.pipeline.run.error_kinds import describe, is_outage
from weft.streams.pipeline.run.report import WAITING_CHARS, shortened
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.stop_signal import StopSignal

FIRST_PAUSE_SECONDS: Final = 1.0
LAST_PAUSE_SECONDS: Final = 30.0  # longest pause: the end of an outage is noticed within this time
LOG_SECONDS: Final = 60.0  # time between two lines about one outage in the log of a job

_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))

T = TypeVar("T")


def pause_seconds(failures: int) -> float:
    """Seconds to wait after a number of consecutive failures (1, 2, ...): doubled each time, up to a bound."""
    # The exponent is bounded, because an outage may last for weeks.
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10), LAST_PAUSE_SECONDS)


def wait_out(
    call: Callable[[], T], on_failure: Callable[[Exception, float], None], pause: Callable[[float], bool]
) -> T | None:
    """Repeat a call until it does not fail with an outage.

    Args:
        call: The call.
        on_failure: Called after each failed call, with its error and the seconds until the next call.
        pause: Waits the given number of seconds; returns True to stop waiting.

    Returns:
        The result of the call; None if waiting was stopped.

    Raises:
        Exception: An error of `call` that is not an outage.
    """
    failures = 0
    while True:
        try:
            return call()
        except Exception as error:
            if not is_outage(error):
                raise
            failures += 1
            seconds = pause_seconds(failures)
            on_failure(error, seconds)
            if pause(seconds):
                return None


class JobOutages:
    """Reports what a job waits for, in its status and its log. A restarted process keeps the start of the outage."""

    def __init__(self, reporter: Reporter, stop: StopSignal) -> None:
        """Report nothing yet."""
        self._reporter, self._stop = reporter, stop
        self._logged: float | None = None
        self._reason = ""

    def wait_out(self, call: Callable[[], T], what: str) -> T | None:
        """Repeat a call until it does not fail with an outage.

        Args:
            call: The call.
            what: Name of what is called, such as "the broker 127.0.0.1:9092".

        Returns:
            The result of the call; None if the job has to stop.

        Raises:
            Exception: An error of `call` that is not an outage.
        """
        result = wait_out(call, lambda error, _: self.report_outage(what, describe(error)), self._stop.wait)
        if not self._stop:
            self.report_end(what)
        return result

    def report_outage(self, what: str, reason: str, *, seconds: float = 0.0) -> None:
        """Report that something does not answer.

        Args:
            what: Its name, such as "the broker 127.0.0.1:9092".
            reason: The error, or another reason, in words.
            seconds: How long it has not answered already when this is first reported.
        """
        what, last = shortened(what, WAITING_CHARS), self._reporter.report
        known_since_ms = last.waiting_since_ms if last.waiting_for == what else None
        since_ms = time.time_ns() // 1_000_000 - round(seconds * 1000) if known_since_ms is None else known_since_ms
        self._reason = reason
        self._reporter.update(doing="waiting", waiting_for=what, waiting_since_ms=since_ms, message=reason)
        now = time.monotonic()
        if self._logged is None or now - self._logged >= LOG_SECONDS:
            self._logged = now
            _log(f"waiting for {what}, {spell_since(since_ms)}: {reason}")

    def report_end(self, what: str, now: str = "answers again") -> None:
        """Report that something answers again, if it did not before.

        Args:
            what: Its name, as it was given to `report_outage`.
            now: What it does now, for the log.
        """
        what, last = shortened(what, WAITING_CHARS), self._reporter.report
        if last.waiting_for != what or last.waiting_since_ms is None:
            return
        _log(f"{what} {now} after {spell_since(last.waiting_since_ms)}")
        self._logged = None
        self._reporter.update(
            waiting_for="",
            waiting_since_ms=None,
            doing="starting" if last.doing == "waiting" else last.doing,
            message="" if last.message == self._reason else last.message,
        )


def store_name(uri: str) -> str:
    """Name of the store of a table, for reports."""
    return f"the store of {uri}"


def _log(text: str) -> None:
    sys.stderr.write(f"{dt.datetime.now(dt.UTC).isoformat(timespec='seconds')} {text}\n")
    sys.stderr.flush()


def spell_since(then_ms: int, now_ms: int | None = None) -> str:
    """The time since a moment in words: 45 seconds, 3 minutes, 1 day."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return spell_duration(max(0, now_ms - then_ms) / 1000)


def spell_duration(seconds: float) -> str:
    """A duration in words, rounded down to its largest unit: 45 seconds, 3 minutes, 1 day."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    count = int(seconds // size)
    return f"{count} {unit}{'s' * (count != 1)}"
