"""Rows of referenced tables that a process keeps between the tasks that it reads.

Spark's Python workers get many tasks, and many queries, one after the other. Without this each task would read the
referenced tables again. The rows of a snapshot never change (S9), so they are found by its identity. The number of
bytes is limited, and the least recently used rows are dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

MAX_BYTES: Final = 256 * 1024 * 1024


class Sized(Protocol):
    """Something with a size in memory."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...


T = TypeVar("T", bound=Sized)


class KeptRows(Generic[T]):
    """Values by identity. Safe for use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, T] = OrderedDict()

    def find(self, identity: str) -> T | None:
        """The value of an identity, if it is kept."""
        with self._lock:
            found = self._kept.get(identity)
            if found is not None:
                self._kept.move_to_end(identity)
            return found

    def get(self, identity: str, read: Callable[[], T]) -> T:
        """The value of an identity; calls ``read`` if it is not kept, without holding a lock.

        A value that is larger than the limit is returned, and not kept.
        """
        found = self.find(identity)
        if found is not None:
            return found
        value = read()
        if value.nbytes > self._max_bytes:
            return value
        with self._lock:
            if identity not in self._kept:
                self._kept[identity] = value
                self._bytes += value.nbytes
            while self._bytes > self._max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.nbytes
        return value
