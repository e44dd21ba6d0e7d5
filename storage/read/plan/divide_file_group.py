"""Divides a large file group into parts by key range, for several tasks, or for one task with bounded memory.

A comparison of two snapshots reads a file group in several states, which are divided at the same keys.
`weft.storage.core.plan.key_ranges` chooses the ranges. This module reads only the footers of base files. The key range
of a log range is that of its block, which is in the index of the log file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from weft.storage.core import keys
from weft.storage.core.keys import KeyVector
from weft.storage.core.log.file_refs import FilePart, SliceFile
from weft.storage.core.names import Path
from weft.storage.core.plan.key_ranges import Extents, KeyRange, choose_bounds, ranges_of, total_bytes
from weft.storage.core.plan.slices import RANGE_COLUMNS, FileSlice, Ints, LiveFile
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.footers import Footer, read_footers
from weft.storage.files.row_group_statistics import key_span
from weft.storage.read.plan.pruning import block_keys, key_values

FOOTERS_AT_ONCE: Final = 64  # decoded footers are large


@dataclass(frozen=True, slots=True)
class _RowGroups:
    """The row groups of the base file that have rows of one file group.

    Attributes:
        first, end: First row of the file group in each row group, and the row after its last one.
        keys: Key ranges and bytes of the row groups.
    """

    first: Ints
    end: Ints
    keys: Extents


@dataclass(frozen=True, slots=True)
class State:
    """A file group in one snapshot, or its commits between two snapshots.

    Attributes:
        file_slice: The file group.
        files: The log files that it refers to by position.
    """

    file_slice: FileSlice
    files: Sequence[LiveFile]


@dataclass(frozen=True, slots=True)
class Division:
    """How to divide one file group.

    Attributes:
        states: The states that are divided at the same keys, at least one. The bounds are preferably first keys of row
            groups of the first state that has a base file.
        parts: Target number of parts.
        part_bytes: Limit of the stored bytes of a part, which may require more parts; None for no limit.
        by_last: If it is not 0, the other states are read only for the keys of this number of last states, so the
            bounds are chosen among the stored parts that may have such keys.
        log_bytes: If it is not None, the parts are read one after the other, and each should have this many stored
            bytes of logs; ``parts`` and the bytes of base files are ignored.
    """

    states: tuple[State, ...]
    parts: int = 1
    part_bytes: int | None = None
    by_last: int = 0
    log_bytes: int | None = None


def divide_states(
    env: Environment, schema: TableSchema, divisions: Sequence[Division]
) -> Iterator[list[tuple[FileSlice, ...]]]:
    """Divide file groups, each in several states.

    Args:
        env: The environment of the table.
        schema: The schema that all states are read with.
        divisions: How to divide each file group.

    Yields:
        For each file group its parts in key order, and for each part its states in the order of the division. Every key
        is in one part. Without statistics, the only part is the file group itself.

    Raises:
        CorruptData: A base file is missing, or its footer is damaged.
    """
    for start in range(0, len(divisions), FOOTERS_AT_ONCE):
        batch = divisions[start : start + FOOTERS_AT_ONCE]
        slice_files = [state.file_slice.slice for division in batch for state in division.states]
        bases = {item.base.path: item.base for item in slice_files if item is not None and item.base is not None}
        footers = dict(zip(bases, read_footers(env, list(bases.values())), strict=True))
        for division in batch:
            yield _divide(schema, division, footers)


def _divide(schema: TableSchema, division: Division, footers: Mapping[Path, Footer]) -> list[tuple[FileSlice, ...]]:
    slices = tuple(state.file_slice for state in division.states)
    bases = [_row_groups(schema, file_slice.slice, footers) for file_slice in slices]
    if any(base is None and _has_base(file_slice) for base, file_slice in zip(bases, slices, strict=True)):
        return [slices]
    logs = [
        _log_extents(schema, state.file_slice, state.files) if len(state.file_slice.rows) else None
        for state in division.states
    ]
    bounds = _bounds(division, [base.keys if base is not None else None for base in bases], logs)
    if bounds is None:
        return [slices]
    parts = (_parts(*state, bounds) for state in zip(slices, bases, logs, strict=True))
    return list(zip(*parts, strict=True))


def _has_base(file_slice: FileSlice) -> bool:
    return file_slice.slice is not None and file_slice.slice.base is not None


def _bounds(division: Division, bases: Sequence[Extents | None], logs: Sequence[Extents | None]) -> KeyVector | None:
    """Keys at which all states are divided."""
    read_bases, read_logs = ([part for part in parts if part is not None] for parts in (bases, logs))
    last = [part for part in logs[-division.by_last :] if part is not None] if division.by_last else []
    if last:
        last_extents = Extents.joined(last)
        read_bases, read_logs = ([part.near(last_extents) for part in parts] for parts in (read_bases, read_logs))
    row_groups = next((part for part in read_bases if len(part)), None)
    if division.log_bytes is not None:
        return _bounds_by_logs(row_groups, read_logs, division.log_bytes)
    other_extents = [*read_logs, *(part for part in read_bases if part is not row_groups)]
    parts = division.parts
    if division.part_bytes is not None:
        parts = max(parts, math.ceil(total_bytes([*read_bases, *read_logs]) / division.part_bytes))
    first, rest = other_extents[0] if other_extents else None, other_extents[1:]
    return choose_bounds(row_groups, first, parts, rest) if parts > 1 else None


def _bounds_by_logs(row_groups: Extents | None, logs: Sequence[Extents], log_bytes: int) -> KeyVector | None:
    parts = math.ceil(total_bytes(logs) / log_bytes)
    if parts <= 1:
        return None
    weightless = replace(row_groups, bytes=np.zeros_like(row_groups.bytes)) if row_groups is not None else None
    return choose_bounds(weightless, logs[0], parts, logs[1:], max_repeated=math.inf)


def _parts(file_slice: FileSlice, base: _RowGroups | None, logs: Extents | None, bounds: KeyVector) -> list[FileSlice]:
    """Divide a file group at bounds, which may be any distinct keys in ascending order."""
    # Copied, not sliced: a sliced Arrow array is pickled with all bounds.
    edges = [None, *(keys.take(bounds, np.array([i], np.int64)) for i in range(len(bounds))), None]
    ranges = list(itertools.pairwise(edges))
    of_base = _base_parts(base, bounds) if base is not None else [(None, False)] * len(ranges)
    of_logs = ranges_of(bounds, logs) if logs is not None else None
    result = []
    for number, ((least, end), (rows, within)) in enumerate(zip(ranges, of_base, strict=True)):
        part = replace(file_slice, within=KeyRange(least, end, within), slice=_with_part(file_slice.slice, rows))
        if logs is not None and of_logs is not None:
            keep = (of_logs[0] <= number) & (number <= of_logs[1])
            columns = {name: getattr(file_slice, name)[keep] for name in RANGE_COLUMNS}
            deletes = file_slice.deletes if keep.any() else 0  # unknown by range; an overestimate does no harm
            part = replace(part, **columns, deletes=deletes, log_bytes=int(logs.bytes[keep].sum()))
        result.append(part)
    return result


def _row_groups(schema: TableSchema, slice_file: SliceFile | None, footers: Mapping[Path, Footer]) -> _RowGroups | None:
    """The row groups of a base file; None if it has no row groups, or if the key range of one is unknown."""
    if slice_file is None or slice_file.base is None:
        return None
    footer = footers[slice_file.base.path]
    starts = np.array(footer.starts, np.int64)
    part = slice_file.base_part or FilePart(first=0, rows=slice_file.base.rows)
    first, end = np.maximum(starts[:-1], part.first), np.minimum(starts[1:], part.first + part.rows)
    numbers = np.flatnonzero(first < end)
    spans = [key_span(footer, schema, number) for number in numbers.tolist()]
    least, largest = [span[0] for span in spans if span], [span[1] for span in spans if span]
    if len(least) < len(spans):
        return None
    first, end = first[numbers], end[numbers]
    sizes = (end - first) * slice_file.base.size // slice_file.base.rows
    return _RowGroups(first, end, Extents(key_values(schema, least), key_values(schema, largest), sizes))


def _log_extents(schema: TableSchema, file_slice: FileSlice, files: Sequence[LiveFile]) -> Extents:
    """The log ranges of a file group. Key ranges are those of the whole blocks."""
    blocks = zip(file_slice.file.tolist(), file_slice.block.tolist(), file_slice.rows.tolist(), strict=True)
    sizes = [
        files[file].index.blocks.length[block] * rows // files[file].index.blocks.rows[block]
        for file, block, rows in blocks
    ]
    return Extents(*block_keys(schema, file_slice, files), np.array(sizes, np.int64))


def _base_parts(base: _RowGroups, bounds: KeyVector) -> list[tuple[tuple[int, int] | None, bool]]:
    """For each range, the (first, end) rows of its row groups or None, and whether these also have keys outside it."""
    first, last = ranges_of(bounds, base.keys)
    result: list[tuple[tuple[int, int] | None, bool]] = []
    for number in range(len(bounds) + 1):
        row_groups = np.flatnonzero((first <= number) & (number <= last))
        if not len(row_groups):
            result.append((None, False))
            continue
        span = slice(row_groups[0], row_groups[-1] + 1)
        has_other_keys = (first[span] != number) | (last[span] != number)
        result.append(((int(base.first[row_groups[0]]), int(base.end[row_groups[-1]])), bool(has_other_keys.any())))
    return result


def _with_part(slice_file: SliceFile | None, rows: tuple[int, int] | None) -> SliceFile | None:
    """The slice, reduced to the rows from first to end of its base."""
    if slice_file is None or slice_file.base is None:
        return slice_file
    if rows is None:
        return slice_file.model_copy(update={"base": None, "base_part": None, "overlays": []})
    first, end = rows
    return slice_file.model_copy(update={"base_part": FilePart(first=first, rows=end - first)})
