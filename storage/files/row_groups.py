"""A cache of decoded row groups, for reading file groups one after the other from shared files."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import pyarrow as pa

from storage.core.log.file_refs import FilePart, FileRef
from storage.core.names import Path

KEPT_BYTES: Final = 32 * 1024 * 1024  # decoded bytes: several row groups of such files, with 60 columns


class LastRowGroups:
    """The most recently decoded rows of each file. All reads that share an instance must read the same columns.

    Reads of several files may alternate. Limited by `KEPT_BYTES`; the least recently used file is evicted.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, _Decoded] = OrderedDict()
        self._bytes = 0

    def keep(self, file: FileRef, first: int, end: int, rows: dict[str, pa.Array]) -> None:
        """Replace the kept rows of a file by rows ``first`` to ``end``."""
        before = self._kept.pop(file.path, None)
        self._bytes -= before.size if before is not None else 0
        decoded = _Decoded(first, end, rows, sum(column.nbytes for column in rows.values()))
        self._kept[file.path] = decoded
        self._bytes += decoded.size
        while self._bytes > KEPT_BYTES and len(self._kept) > 1:
            _, evicted = self._kept.popitem(last=False)
            self._bytes -= evicted.size

    def rows(self, file: FileRef, part: FilePart) -> dict[str, pa.Array] | None:
        """The rows of a part; None unless all of them are kept."""
        row_group = self._kept.get(file.path)
        if row_group is None or part.first < row_group.first or part.first + part.rows > row_group.end:
            return None
        self._kept.move_to_end(file.path)
        return {name: column.slice(part.first - row_group.first, part.rows) for name, column in row_group.rows.items()}


class _Decoded(NamedTuple):
    """Rows ``first`` to ``end`` of a file, and their size in bytes."""

    first: int
    end: int
    rows: dict[str, pa.Array]
    size: int
