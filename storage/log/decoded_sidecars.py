"""Caches of decoded lists of slices, and of indexes of log files. They stay valid, because a sidecar never changes.

Without them a process that often opens a table of thousands of file groups, or cleans or restores it, would spend most
of its time on decoding. They need little additional memory, because the newest state of the table has mostly the same
slices and logs.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from storage.core.log.file_refs import LogIndex
from storage.core.log.slice_list import SliceList, decode_list

MAX_BYTES: Final = 16 * 1024 * 1024  # about 33,000 slices with 8 lanes; five times as much memory when decoded
MAX_INDEX_BYTES: Final = 4 * 1024 * 1024  # about 200,000 ranges; eight times as much memory when decoded

T = TypeVar("T")


class Decoded(Generic[T]):
    """Decoded sidecars by digest, limited by their stored bytes; the least recently used is evicted. Thread-safe."""

    def __init__(self, max_bytes: int, decode: Callable[[bytes], T]) -> None:
        self._max_bytes, self._decode = max_bytes, decode
        self._bytes = 0
        self._known: OrderedDict[bytes, tuple[int, T]] = OrderedDict()
        self._lock = threading.Lock()

    def decode(self, data: bytes) -> T:
        """The content of a sidecar. Raises the errors of decoding."""
        if len(data) > self._max_bytes:
            return self._decode(data)
        digest = hashlib.sha256(data).digest()
        with self._lock:
            cached = self._known.get(digest)
            if cached is not None:
                self._known.move_to_end(digest)
                return cached[1]
        decoded = self._decode(data)  # without the lock: at worst, two threads decode the same sidecar
        with self._lock:
            if digest not in self._known:
                self._known[digest] = len(data), decoded
                self._bytes += len(data)
            while self._bytes > self._max_bytes:
                _, (size, _) = self._known.popitem(last=False)
                self._bytes -= size
        return decoded

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._known.clear()
            self._bytes = 0


DECODED_SLICES: Final[Decoded[SliceList]] = Decoded(MAX_BYTES, decode_list)
"""The lists of slices of this process, of all tables."""

DECODED_INDEXES: Final[Decoded[LogIndex]] = Decoded(MAX_INDEX_BYTES, LogIndex.model_validate_json)
"""The indexes of log files of this process, of all tables."""
