"""Reads parts of a remote object: from memory what was fetched ahead, everything else on demand."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any, Final

from weft.storage.core.names import Path
from weft.storage.errors import StoreUnavailable, TableError
from weft.storage.store.object_store import Ranges, missing, no_answer, normalise_errors, wrong_size
from weft.storage.store.sdk_errors import normalise_sdk_errors

_MERGE_GAP_BYTES: Final = 1 << 16  # reading over a small gap is cheaper than another request


class RemoteInput(io.RawIOBase):
    """A remote object of known size. Parts that were fetched ahead are in memory; others are fetched on demand."""

    def __init__(self, fs: Any, full_path: str, path: Path, size: int) -> None:
        super().__init__()
        self._fs, self.full_path, self._path, self._size = fs, full_path, path, size
        self._position = 0
        self._parts: list[tuple[int, bytes]] = []

    def keep(self, start: int, end: int, answer: Any) -> None:
        """Keep the answer of the store for a range; raises if the answer is an error."""
        self._parts.append((start, self._check(answer, start, end)))

    def part(self, start: int, end: int) -> bytes:
        for offset, part in self._parts:
            if offset <= start and end <= offset + len(part):
                return part[start - offset : end - offset]
        try:
            answer = self._fs.cat_file(self.full_path, start=start, end=end)
        except Exception as error:
            raise self._failure(error) from error
        return self._check(answer, start, end)

    def _check(self, answer: Any, start: int, end: int) -> bytes:
        if isinstance(answer, Exception):
            raise self._failure(answer) from answer
        if len(answer) != end - start:
            actual_size = start + len(answer) if answer else self._actual_size()
            raise wrong_size(self._path, actual_size, self._size)
        return answer

    def _failure(self, error: Exception) -> TableError:
        try:
            with normalise_sdk_errors():
                raise error
        except FileNotFoundError:
            return missing(self._path)
        except OSError as os_error:
            # For a range after the end of the object stores return an error (416) or no bytes.
            with contextlib.suppress(StoreUnavailable):
                actual_size = self._actual_size()
                if actual_size != self._size:
                    return wrong_size(self._path, actual_size, self._size)
            return no_answer(self._path, os_error)

    def _actual_size(self) -> int:
        with normalise_errors(self._path), normalise_sdk_errors():
            return self._fs.info(self.full_path)["size"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._position + size, self._size)
        start, self._position = self._position, max(end, self._position)
        if end <= start:
            return b""
        return self.part(start, end)


def merge_ranges(ranges: Ranges) -> list[tuple[int, int]]:
    """Merge ascending ranges with small gaps into the (start, end) spans to fetch."""
    spans: list[tuple[int, int]] = []
    for offset, length in ranges:
        end = offset + length
        if spans and offset - spans[-1][1] <= _MERGE_GAP_BYTES:
            start, before = spans.pop()
            spans.append((start, max(before, end)))
        else:
            spans.append((offset, end))
    return spans
