"""Divides file groups with logs into row groups of the base that no log touches, and the rest.

If keys grow with time, logs touch only the newest keys, which are at the end of each base file:

    base    [a ... f][g ... m][n ... t]    row groups, sorted by key
    logs                         r  u x    keys of blocks in the index: r to x
    untouched ----------------             base rows as they are stored: any Parquet reader may read them
    rest                      ---------    the row groups between the first and the last touched one, shadow, and logs

This is sound because every key of the logs that has a row in the base has it in a row group of the rest: statistics
say which keys a row group can have. New keys, deletes and rows of the shadow always belong to the rest. If keys are not
ordered by time, such as hashes, every row group is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from weft.storage.core import keys
from weft.storage.core.log.file_refs import FileGroup, FilePart, FileRef, SliceFile
from weft.storage.core.plan.slices import RANGE_COLUMNS, FileSlice, LiveFile
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.footers import Footer, read_footers
from weft.storage.files.row_group_statistics import key_span
from weft.storage.read.plan.pruning import block_keys, key_values

MAX_RANGES: Final = 500  # log ranges of a file group: their keys are decoded one by one, for every query


@dataclass(frozen=True, slots=True)
class DividedFileGroup:
    """A file group with logs, in two or three parts that have all of its rows together.

    Attributes:
        untouched: Consecutive rows of the base, without logs and shadow; the rows before and after those of ``rest``.
        rest: The other rows of the base, if any, the shadow, and the logs.
    """

    untouched: tuple[FileSlice, ...]
    rest: FileSlice


def divide_by_touch(
    env: Environment, schema: TableSchema, slices: Sequence[FileSlice], files: Sequence[LiveFile], least_bytes: int
) -> Mapping[FileGroup, DividedFileGroup]:
    """Divide the file groups whose base has at least this many untouched stored bytes.

    Reads the footers of their base files. File groups that share a file, or have overlays, are not divided.

    Args:
        env: The environment of the table.
        schema: The schema of the snapshot.
        slices: File groups of a snapshot, not divided.
        files: The log files that they refer to by position.
        least_bytes: Stored bytes of the base, all columns, for which a second read of the file is worth it.

    Raises:
        CorruptData: A base file is missing, or its footer is damaged.
    """
    candidates: list[tuple[FileSlice, FileRef]] = []
    for file_slice in slices:
        slice_file = file_slice.slice
        if slice_file is None or slice_file.base is None or slice_file.base_part is not None or slice_file.overlays:
            continue
        if 0 < len(file_slice.rows) <= MAX_RANGES and slice_file.base.size >= least_bytes:
            candidates.append((file_slice, slice_file.base))
    divided = {}
    footers = read_footers(env, [base for _, base in candidates]) if candidates else []
    for (file_slice, base), footer in zip(candidates, footers, strict=True):
        rows = _touched_rows(schema, file_slice, files, footer)
        if rows is None or (base.rows - (rows[1] - rows[0])) * base.size < least_bytes * base.rows:
            continue
        divided[file_slice.group] = _divide(file_slice, *rows)
    return divided


def _touched_rows(
    schema: TableSchema, file_slice: FileSlice, files: Sequence[LiveFile], footer: Footer
) -> tuple[int, int] | None:
    """The (first, end) rows of the base in row groups that can have keys of the logs; None if that is unknown."""
    spans = [key_span(footer, schema, number) for number in range(footer.metadata.num_row_groups)]
    if not spans or None in spans:
        return None
    least = key_values(schema, [span[0] for span in spans if span])
    largest = key_values(schema, [span[1] for span in spans if span])
    if any(not _ascending(bounds) for bounds in (least, largest)):
        return None
    log_least, log_largest = block_keys(schema, file_slice, files)
    first = keys.lower_bound(largest, log_least)  # row groups before have smaller keys only
    end = keys.upper_bounds(least, log_largest)  # row groups from here on have larger keys only
    is_touching = first < end
    if not is_touching.any():
        return footer.starts[-1], footer.starts[-1]
    return footer.starts[int(first[is_touching].min())], footer.starts[int(end[is_touching].max())]


def _ascending(bounds: keys.KeyVector) -> bool:
    return bool((keys.in_order(bounds)[0] == np.arange(len(bounds))).all())


def _divide(file_slice: FileSlice, first: int, end: int) -> DividedFileGroup:
    slice_file = file_slice.slice
    assert slice_file is not None
    assert slice_file.base is not None
    base = slice_file.base
    no_ranges = {name: getattr(file_slice, name)[:0] for name in RANGE_COLUMNS}
    without_shadow = {"shadow": None, "shadow_part": None}
    untouched = tuple(
        replace(
            file_slice,
            slice=_select_rows(slice_file, start, stop).model_copy(update=without_shadow),
            deletes=0,
            log_bytes=0,
            **no_ranges,
        )
        for start, stop in ((0, first), (end, base.rows))
        if stop > start
    )
    return DividedFileGroup(untouched, replace(file_slice, slice=_select_rows(slice_file, first, end)))


def _select_rows(slice_file: SliceFile, first: int, end: int) -> SliceFile:
    if end == first:
        return slice_file.model_copy(update={"base": None, "base_part": None})
    return slice_file.model_copy(update={"base_part": FilePart(first=first, rows=end - first)})


def byte_ranges(env: Environment, base: FileRef, parts: Sequence[FilePart]) -> list[tuple[int, int]]:
    """Byte ranges (offset, length) of the row groups with exactly these rows, for readers that divide files by bytes.

    Such a reader reads a row group in the range that contains the middle of its bytes.

    Raises:
        CorruptData: The file is missing, or its footer is damaged.
    """
    (footer,) = read_footers(env, [base])
    ranges = []
    for part in parts:
        numbers = footer.starts.index(part.first), footer.starts.index(part.first + part.rows)
        begin, end = (_offset(footer, number, base) for number in numbers)
        ranges.append((begin, end - begin))
    return ranges


def _offset(footer: Footer, row_group: int, base: FileRef) -> int:
    """The first byte of a row group; after the last one, the end of the file."""
    if row_group == footer.metadata.num_row_groups:
        return base.size
    columns = footer.metadata.row_group(row_group)
    starts = [
        offset
        for number in range(columns.num_columns)
        for chunk in (columns.column(number),)
        for offset in (chunk.dictionary_page_offset, chunk.data_page_offset)
        if offset is not None
    ]
    return min(starts)
