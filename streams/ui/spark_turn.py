"""One session of Spark at a time: a process has one SparkContext, and a page may show several tables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

_LOOK_SECONDS: Final = 0.25


class SparkTurn:
    """Whose turn it is to have the session. Usable from any thread."""

    def __init__(self) -> None:
        """Nobody has it."""
        self._held = threading.Lock()
        self._lock = threading.Lock()
        self._waiting = 0

    @property
    def held(self) -> bool:
        """Whether somebody has it."""
        return self._held.locked()

    @property
    def wanted(self) -> bool:
        """Whether another one waits: an owner without work should end its session."""
        return self._waiting > 0

    @contextlib.contextmanager
    def taken(self, still_wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait until the session is free, and have it within the block.

        Args:
            still_wanted: Whether to go on waiting.

        Yields:
            Whether it is the turn; False if it was not wanted any more.
        """
        with self._lock:
            self._waiting += 1
        try:
            mine = self._held.acquire(blocking=False)
            while not mine and still_wanted():
                mine = self._held.acquire(timeout=_LOOK_SECONDS)
        finally:
            with self._lock:
                self._waiting -= 1
        try:
            yield mine
        finally:
            if mine:
                self._held.release()
