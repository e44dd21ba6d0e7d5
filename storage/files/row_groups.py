"""Row groups of files that several file groups share, kept while one file group after the other is read from them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import pyarrow as pa

from storage.core.log.file_refs import FilePart, FileRef
from storage.core.names import Path

KEPT_BYTES: Final = 32 * 1024 * 1024  # decoded: several row groups of such files, of 60 columns


class LastRowGroups:
    """What was decoded last of each file, for whoever reads parts of files one by one, the same columns of each.

    Parts of several files may take turns. Bounded by `KEPT_BYTES`; the file that was read longest ago goes first.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, _Decoded] = OrderedDict()
        self._bytes = 0

    def keep(self, file: FileRef, first: int, end: int, rows: dict[str, pa.Array]) -> None:
        """Keep rows ``first`` to ``end`` of a file instead of what was kept of it."""
        before = self._kept.pop(file.path, None)
        self._bytes -= before.size if before is not None else 0
        decoded = _Decoded(first, end, rows, sum(column.nbytes for column in rows.values()))
        self._kept[file.path] = decoded
        self._bytes += decoded.size
        while self._bytes > KEPT_BYTES and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.size

    def rows(self, file: FileRef, part: FilePart) -> dict[str, pa.Array] | None:
        """The rows of a part, if they are all here."""
        own = self._kept.get(file.path)
        if own is None or part.first < own.first or part.first + part.rows > own.end:
            return None
        self._kept.move_to_end(file.path)
        return {name: column.slice(part.first - own.first, part.rows) for name, column in own.rows.items()}


class _Decoded(NamedTuple):
    """Rows ``first`` to ``end`` of a file, and how many bytes they take."""

    first: int
    end: int
    rows: dict[str, pa.Array]
    size: int
