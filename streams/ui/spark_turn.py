"""One session of Spark at a time: a process has one SparkContext, and a page may show several tables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

_LOOK_SECONDS: Final = 0.25


class SparkTurn:
    """Decides who may have the session. Usable from any thread."""

    def __init__(self) -> None:
        """Begin without an owner."""
        self._held = threading.Lock()
        self._lock = threading.Lock()
        self._waiting = 0

    @property
    def is_taken(self) -> bool:
        """Whether the session has an owner."""
        return self._held.locked()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the session: an owner without work should end it."""
        return self._waiting > 0

    @contextlib.contextmanager
    def take(self, go_on: Callable[[], bool]) -> Iterator[bool]:
        """Wait until the session is free, and own it within the block.

        Args:
            go_on: Whether to go on waiting.

        Yields:
            Whether the caller owns the session; False if ``go_on`` ended the waiting.
        """
        with self._lock:
            self._waiting += 1
        try:
            is_owner = self._held.acquire(blocking=False)
            while not is_owner and go_on():
                is_owner = self._held.acquire(timeout=_LOOK_SECONDS)
        finally:
            with self._lock:
                self._waiting -= 1
        try:
            yield is_owner
        finally:
            if is_owner:
                self._held.release()
