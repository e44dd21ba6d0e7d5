"""A cache of decoded lists of slices. It stays valid, because a sidecar never changes.

Without it a process that often opens a table of thousands of file groups, or cleans or restores it, would spend most of
its time on decoding. It needs little additional memory, because the newest state of the table has mostly the same
slices.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Final

from storage.core.log.slice_list import SliceList, decode_list

MAX_BYTES: Final = 16 * 1024 * 1024  # about 33,000 slices with 8 lanes; five times as much memory when decoded


class DecodedSlices:
    """Decoded lists by digest, limited by their stored bytes; the least recently used is evicted. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[bytes, tuple[int, SliceList]] = OrderedDict()
        self._lock = threading.Lock()

    def decode(self, data: bytes) -> SliceList:
        """The slices of a sidecar. Raises the errors of `decode_list`."""
        if len(data) > self._max_bytes:
            return decode_list(data)
        digest = hashlib.sha256(data).digest()
        with self._lock:
            known = self._known.get(digest)
            if known is not None:
                self._known.move_to_end(digest)
                return known[1]
        found = decode_list(data)  # without the lock: at worst, two threads decode the same list
        with self._lock:
            if digest not in self._known:
                self._known[digest] = len(data), found
                self._bytes += len(data)
            while self._bytes > self._max_bytes:
                _, (size, _) = self._known.popitem(last=False)
                self._bytes -= size
        return found

    def clear(self) -> None:
        """Forget all lists."""
        with self._lock:
            self._known.clear()
            self._bytes = 0


DECODED_SLICES: Final = DecodedSlices(MAX_BYTES)
"""The lists of this process, of all tables."""
