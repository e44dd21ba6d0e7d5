"""Rows of referenced tables that a process keeps between the tasks that it reads.

Spark's Python workers get many tasks, and many queries, one after the other. Without this each task would read the
referenced tables again. The rows of a snapshot never change (PROTOCOL.md, S9), so they are cached by its identity. The
number of bytes is limited, and the least recently used rows are dropped.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from weft.storage.bounded_cache import BoundedCache

MAX_BYTES: Final = 256 * 1024 * 1024


class Sized(Protocol):
    """A value with a size in memory."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...


T = TypeVar("T", bound=Sized)


class KeptRows(BoundedCache[str, T]):
    """Values by identity, limited by their bytes. Safe for use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, lambda value: value.nbytes)
