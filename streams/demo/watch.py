"""Says when the demo has to end early: after a signal, or when nothing has been done for some time.

A signal does not interrupt what runs: it is remembered, and `Watch.check` raises at the next step. So nothing is raised
inside of another library, which might swallow it or print a stack.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The demo has to end early; the message says why."""


class Watch:
    """Knows whether a signal has come, and since when nothing has changed."""

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._signal: int | None = None
        self._state: object = None
        self._since = time.monotonic()

    def check(self, state: object) -> None:
        """Raise if the demo has to end. To be called often.

        Args:
            state: All that the demo has done so far: if it differs from that of the last call, there was progress. A
                slow machine may take as long as it needs.

        Raises:
            Interrupted: A signal has come, or the state has not changed for too long.
        """
        if self._signal is not None:
            raise Interrupted(f"stopped by {signal.Signals(self._signal).name}")
        now = time.monotonic()
        if state != self._state:
            self._state, self._since = state, now
        elif now - self._since >= self._stall_seconds:
            raise Interrupted(f"no progress for {self._stall_seconds:.0f} s")

    def notice(self, number: int, _: FrameType | None) -> None:
        """Handle a signal. The second one changes nothing: the clean-up has time limits of its own."""
        if self._signal is None:
            self._signal = number


@contextmanager
def watch_signals(stall_seconds: float) -> Iterator[Watch]:
    """A watch that notices the signals that come during the block.

    Args:
        stall_seconds: Longest time without progress.
    """
    watch = Watch(stall_seconds)
    before = {number: signal.signal(number, watch.notice) for number in _SIGNALS}
    try:
        yield watch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
