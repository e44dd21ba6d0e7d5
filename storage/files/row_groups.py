"""A cache of decoded row groups, for reading file groups one after the other from shared files."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from weft.storage.bounded_cache import BoundedCache
from weft.storage.core.log.file_refs import FilePart, FileRef
from weft.storage.core.names import Path

MAX_BYTES: Final = 32 * 1024 * 1024  # decoded bytes: several row groups of such files, with 60 columns


class LastRowGroups:
    """The most recently decoded rows of each file. All reads that share an instance must read the same columns.

    Reads of several files may alternate. Limited by `MAX_BYTES`; the least recently used file is evicted.
    """

    def __init__(self) -> None:
        self._rows: BoundedCache[Path, _Decoded] = BoundedCache(MAX_BYTES, lambda rows: rows.size, keeps_newest=True)

    def keep(self, file: FileRef, first: int, end: int, rows: dict[str, pa.Array]) -> None:
        """Keep rows ``first`` to ``end`` of a file, instead of its earlier ones."""
        self._rows.put(file.path, _Decoded(first, end, rows, sum(column.nbytes for column in rows.values())))

    def rows(self, file: FileRef, part: FilePart) -> dict[str, pa.Array] | None:
        """The rows of a part; None unless all of them are kept."""
        row_group = self._rows.find(file.path)
        if row_group is None or part.first < row_group.first or part.first + part.rows > row_group.end:
            return None
        return {name: column.slice(part.first - row_group.first, part.rows) for name, column in row_group.rows.items()}


class _Decoded(NamedTuple):
    """Rows ``first`` to ``end`` of a file, and their size in bytes."""

    first: int
    end: int
    rows: dict[str, pa.Array]
    size: int
