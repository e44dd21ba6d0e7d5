"""A cache that is bounded by the sizes of its values, and drops the least recently used ones first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values by key. Safe for use from several threads.

    Args:
        max_size: The sum of the sizes of all values, at most. A value that is larger is not kept.
        size_of: The size of a value, which does not change: bytes, or 1 to count values.
        keeps_newest: Keep the value that was put last, even if it is larger than ``max_size``.
    """

    def __init__(self, max_size: int, size_of: Callable[[V], int], *, keeps_newest: bool = False) -> None:
        self._max_size, self._size_of, self._keeps_newest = max_size, size_of, keeps_newest
        self._size = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()

    def find(self, key: K) -> V | None:
        """The value of a key; None if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key; calls ``make`` if it is not kept, without holding a lock."""
        value = self.find(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of the former one of the key."""
        size = self._size_of(value)
        with self._lock:
            if key in self._values:
                self._size -= self._size_of(self._values.pop(key))
            if size > self._max_size and not self._keeps_newest:
                return
            self._values[key] = value
            self._size += size
            while self._size > self._max_size and len(self._values) > self._keeps_newest:
                _, dropped = self._values.popitem(last=False)
                self._size -= self._size_of(dropped)

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._values.clear()
            self._size = 0
