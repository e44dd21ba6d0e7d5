"""Caches of decoded lists of slices, and of indexes of log files. They stay valid, because a sidecar never changes.

Without them a process that often opens a table of thousands of file groups, or cleans or restores it, would spend most
of its time on decoding. They need little additional memory, because the newest state of the table has mostly the same
slices and logs.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from weft.storage.bounded_cache import BoundedCache
from weft.storage.core.log.file_refs import LogIndex
from weft.storage.core.log.slice_list import SliceList, decode_list

MAX_BYTES: Final = 16 * 1024 * 1024  # about 33,000 slices with 8 lanes; five times as much memory when decoded
MAX_INDEX_BYTES: Final = 4 * 1024 * 1024  # about 200,000 ranges; eight times as much memory when decoded

T = TypeVar("T")


class Decoded(Generic[T]):
    """Decoded sidecars by digest, limited by their stored bytes. Thread-safe; two threads may decode the same one."""

    def __init__(self, max_bytes: int, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._values: BoundedCache[bytes, tuple[int, T]] = BoundedCache(max_bytes, operator.itemgetter(0))

    def decode(self, data: bytes) -> T:
        """The content of a sidecar; raises the errors of decoding."""
        return self._values.get(hashlib.sha256(data).digest(), lambda: (len(data), self._decode(data)))[1]

    def clear(self) -> None:
        """Remove all values."""
        self._values.clear()


DECODED_SLICES: Final[Decoded[SliceList]] = Decoded(MAX_BYTES, decode_list)
"""The lists of slices of this process, of all tables."""

DECODED_INDEXES: Final[Decoded[LogIndex]] = Decoded(MAX_INDEX_BYTES, LogIndex.model_validate_json)
"""The indexes of log files of this process, of all tables."""
