"""Which rows and row groups of base and shadow files belong to which slices. Nothing is read here.

A file may have the rows of several slices, one after the other. A slice names its part of the file, and a row group may
have rows of several parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weft.storage.core.keys import Indices
from weft.storage.core.log.file_refs import FilePart, FileRef, Overlay
from weft.storage.environment import Tuning
from weft.storage.errors import CorruptData
from weft.storage.files.footers import Footer


class StoredRows(NamedTuple):
    """Where the visible or the hidden rows of a slice are stored.

    Attributes:
        rev: Revision of the schema that the file was written with.
        file: The file; None if there are no rows.
        part: The rows in the file; None for all of them.
        overlays: Overlays of the file.
    """

    rev: int
    file: FileRef | None
    part: FilePart | None
    overlays: Sequence[Overlay] = ()


class FileRows(NamedTuple):
    """Rows of one file that are read together.

    Attributes:
        rev, file, overlays: See `StoredRows`.
        parts: The rows, ascending; None for all of them.
        slice_ordinals: Positions of the slices whose rows they are.
    """

    rev: int
    file: FileRef
    overlays: Sequence[Overlay]
    parts: list[FilePart] | None
    slice_ordinals: list[int]


def group_by_file(stored: Iterable[StoredRows | None]) -> Iterator[FileRows]:
    """Group adjacent slices of one file. None stands for a file group without slice."""
    last: tuple[int, FileRef, Sequence[Overlay]] | None = None
    parts: list[FilePart] = []
    slice_ordinals: list[int] = []
    for slice_ordinal, rows in enumerate(stored):
        if rows is None or rows.file is None:
            continue
        part = rows.part
        follows = part is not None and bool(parts) and parts[-1].first + parts[-1].rows <= part.first
        if last is not None and not (follows and last[1].path == rows.file.path):
            yield FileRows(*last, parts or None, slice_ordinals)
            parts, slice_ordinals = [], []
        last = rows.rev, rows.file, rows.overlays
        slice_ordinals.append(slice_ordinal)
        if part is not None:
            parts.append(part)
    if last is not None:
        yield FileRows(*last, parts or None, slice_ordinals)


def row_spans(footer: Footer, file: FileRef, parts: Sequence[FilePart] | None) -> Indices:
    """First row and end of each part, shape (2, parts); the whole file is one part."""
    if parts is None:
        return np.array([[0], [footer.starts[-1]]])
    spans = np.array([(part.first, part.first + part.rows) for part in parts]).T
    if spans[1, -1] > footer.starts[-1]:
        raise CorruptData(
            f"file {file.path} has {footer.starts[-1]} rows, but its entry refers to rows {spans[0, -1]} to "
            f"{spans[1, -1]}",
            hint="report this as a bug: the entry was written incorrectly",
        )
    return spans


def row_groups_of(footer: Footer, spans: Indices) -> list[int]:
    """The row groups that have rows of parts, ascending."""
    count = len(footer.starts)
    first = np.searchsorted(footer.starts, spans[0], "right") - 1
    end = np.searchsorted(footer.starts, spans[1])
    parts = np.cumsum(np.bincount(first, minlength=count) - np.bincount(end, minlength=count))
    return np.flatnonzero(parts).tolist()


def rows_within(rows: dict[str, pa.Array], spans: Indices) -> dict[str, pa.Array]:
    """The rows of parts, which are not empty."""
    first, end = spans
    gaps = np.flatnonzero(first[1:] != end[:-1])
    runs = list(zip(first[np.append(0, gaps + 1)].tolist(), end[np.append(gaps, -1)].tolist(), strict=True))
    slices = {name: [column.slice(begin, stop - begin) for begin, stop in runs] for name, column in rows.items()}
    return {name: pa.concat_arrays(arrays) if len(runs) > 1 else arrays[0] for name, arrays in slices.items()}


def coalesce(footer: Footer, numbers: Sequence[int], tuning: Tuning) -> Iterator[list[int]]:
    """Row groups to decode at once: neighbours with the rows and bytes of one, because each call has a fixed cost."""
    run: list[int] = []
    run_bytes = 0
    for number in numbers:
        size = footer.metadata.row_group(number).total_byte_size
        rows = footer.starts[number + 1] - footer.starts[run[0]] if run else 0
        is_full = rows > tuning.row_group_rows or run_bytes + size > tuning.row_group_bytes
        if run and (number != run[-1] + 1 or is_full):
            yield run
            run, run_bytes = [], 0
        run.append(number)
        run_bytes += size
    if run:
        yield run
