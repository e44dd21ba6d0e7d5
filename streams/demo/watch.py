"""Decides when the demo has to end early: after a signal, or without progress for some time.

A signal does not interrupt the running step: it is remembered, and `Watch.check` raises at the next step. So nothing is
raised inside another library, which might swallow the exception or print a stack.
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
    """Remembers a signal, and the time of the last progress."""

    def __init__(self, stall_seconds: float) -> None:
        self._stall_seconds = stall_seconds
        self._signal: int | None = None
        self._state: object = None
        self._since = time.monotonic()

    def check(self, state: object) -> None:
        """Raise if the demo has to end. Call it often.

        Args:
            state: State of the demo. If it differs from that of the last call, there was progress, so a slow machine
                may take as long as it needs.

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
        """Handle a signal. A second signal changes nothing: the clean-up has its own time limits."""
        if self._signal is None:
            self._signal = number


@contextmanager
def watch_signals(stall_seconds: float) -> Iterator[Watch]:
    """Return a watch that handles signals during the block.

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
