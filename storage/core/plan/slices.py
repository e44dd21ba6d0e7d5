"""File slices: which base, shadow and log ranges make up each file group of a snapshot (PROTOCOL.md, rule R5).

All planning over log ranges is columnar: one row per range in numpy, never one Python object. Memory and time are
proportional to the live ranges, not to the table's history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.core.log import cut
from storage.core.log.file_refs import FileGroup, LogFile, LogIndex, SliceFile
from storage.core.log.table_state import TableState
from storage.core.names import LaneName, Path

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A log file of a commit within the snapshot's cut, or of a fold, with its index at hand.

    Order of a list of these: (arrival, place in the entry); versions resolve ties by it. A fold's file is in the table
    lane and has arrival 0, so that it comes first: its registers know their versions. ``to`` is how far it reaches.
    """

    lane: LaneName
    seq: int
    arrival: int
    file: LogFile
    index: LogIndex
    to: cut.Seqs | None = None

    @property
    def is_fold(self) -> bool:
        return self.to is not None

    @property
    def reach(self) -> cut.Seqs:
        """Per lane the last entry that may have rows in it."""
        return {self.lane: self.seq} if self.to is None else self.to


RANGE_COLUMNS: Final = ("file", "block", "start", "rows")
"""Names of the parallel columns of a `FileSlice` that say where its log ranges are."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """One file group at a snapshot: the newest slice within the cut, and the log ranges after it, folds among them.

    Attributes:
        group: The file group.
        slice: None where it was never compacted.
        file: Per log range, the position of its file in the list that was planned from; ascending.
        block, start, rows: Per log range, its block, first row within it and number of rows.
        deletes: Delete events, and registers that are deletes, among the ranges.
        log_bytes: Stored bytes of the ranges, all columns, in proportion to their rows.
        slice_ordinal: Of file groups combined by `combine_slices`: per row of the ranges, in order, the position of its
            file group in the list that was combined; None for a single file group.
    """

    group: FileGroup
    slice: SliceFile | None
    file: Ints
    block: Ints
    start: Ints
    rows: Ints
    deletes: int
    log_bytes: int
    slice_ordinal: Ints | None = None

    @property
    def base_bytes(self) -> int:
        """Stored bytes of base and shadow."""
        return 0 if self.slice is None else self.slice.base_bytes + self.slice.shadow_bytes

    @property
    def stored_rows(self) -> int:
        """Rows of base, shadow and ranges: no more can come of them."""
        stored = 0 if self.slice is None else self.slice.base_rows + self.slice.shadow_rows
        return int(self.rows.sum()) + stored


def base_slices(state: TableState) -> list[FileSlice]:
    """The slices of a state that have a base, as if nothing had been committed after them; in order of file group."""
    none = np.empty(0, np.int64)
    return [
        FileSlice(group, file, file=none, block=none, start=none, rows=none, deletes=0, log_bytes=0)
        for group, file in sorted(state.slices.items())
        if file.base is not None
    ]


def whole_files(slices: Iterable[FileSlice]) -> frozenset[Path]:
    """Base files all rows of which belong to these slices, none of which has logs.

    Of a file that several file groups share some may have a newer slice elsewhere: its rows of those mean nothing.
    """
    rest: dict[Path, int] = {}
    for own in slices:
        if own.slice is not None and own.slice.base is not None and len(own.rows) == 0:
            file = own.slice.base
            rest[file.path] = rest.get(file.path, file.rows) - own.slice.base_rows
    return frozenset(path for path, rows in rest.items() if rows == 0)


def plan_slices(
    state: TableState, files: Sequence[LiveFile], *, folds: bool = True, only: Collection[FileGroup] | None = None
) -> list[FileSlice]:
    """Every file group that has rows, in order of file group.

    Args:
        state: The snapshot's.
        files: Those of all folds, then of all live commits after `TableState.log_start` and within the cut, in
            version order.
        folds: Give the ranges of folds; else only those that are not folded yet.
        only: Those of these file groups alone: whoever looks a key up need not wait for a plan of them all.
    """
    slices: Mapping[FileGroup, SliceFile] = state.slices
    if only is not None:
        slices = {group: slices[group] for group in only if group in slices}
    groups, ranges = _ranges(slices, files, only)
    live = _live(groups, state, files, ranges, folds=folds)
    ranges = {name: values[live] for name, values in ranges.items()}
    order = np.lexsort((ranges["start"], ranges["block"], ranges["file"], ranges["group"]))
    ranges = {name: values[order] for name, values in ranges.items()}
    bounds = np.searchsorted(ranges["group"], np.arange(len(groups) + 1))
    deletes, log_bytes = (run_sums(ranges[name], bounds) for name in ("deletes", "bytes"))
    ends = bounds.tolist()
    result = []
    for number, group in enumerate(groups):
        own = slice(ends[number], ends[number + 1])
        made = slices.get(group)
        if own.start == own.stop and made is None:
            continue
        result.append(
            FileSlice(
                group=group,
                slice=made,
                file=ranges["file"][own],
                block=ranges["block"][own],
                start=ranges["start"][own],
                rows=ranges["rows"][own],
                deletes=deletes[number],
                log_bytes=log_bytes[number],
            )
        )
    return result


def run_sums(values: Ints, bounds: Ints) -> list[int]:
    """The sum of every run of values, which begin and end at the bounds; a run may be empty."""
    total = np.concatenate([[0], np.cumsum(values)])
    sums: list[int] = (total[bounds[1:]] - total[bounds[:-1]]).tolist()
    return sums


def combine_slices(slices: Sequence[FileSlice]) -> FileSlice:
    """The log ranges of several file groups as those of one: rows that follow each other in a block are one range.

    Its rows are not in key order, and it has no slice. ``slices`` are in order, as in `plan_slices`; rows know which of
    them they are of.
    """
    if len(slices) == 1:
        return slices[0]
    file, block, start, rows = (np.concatenate([getattr(own, name) for own in slices]) for name in RANGE_COLUMNS)
    slice_ordinal = np.repeat(np.arange(len(slices)), [len(own.rows) for own in slices])
    order = np.lexsort((start, block, file))
    file, block, start, rows = file[order], block[order], start[order], rows[order]
    same = (file[1:] == file[:-1]) & (block[1:] == block[:-1]) & (start[1:] == start[:-1] + rows[:-1])
    first = np.flatnonzero(np.concatenate([np.ones(min(len(file), 1), np.bool_), ~same]))
    return FileSlice(
        group=slices[0].group,
        slice=None,
        file=file[first],
        block=block[first],
        start=start[first],
        rows=np.add.reduceat(rows, first) if len(first) else rows,
        deletes=sum(own.deletes for own in slices),
        log_bytes=sum(own.log_bytes for own in slices),
        slice_ordinal=np.repeat(slice_ordinal[order], rows),
    )


_BITS_AT: Final = 32  # of a file group's number: the bucket is below, the partition above
_PARTITION_AT: Final = 40


def _ranges(
    slices: Iterable[FileGroup], files: Sequence[LiveFile], only: Collection[FileGroup] | None
) -> tuple[list[FileGroup], dict[str, Ints]]:
    """All file groups in order, and all ranges of all files as columns; ``group`` is a position in the former.

    Or of ``only`` some file groups.

    A file group is one number while they are gathered, in the order of file groups: there may be many of them in every
    file.
    """
    compacted = list(slices)
    partitions = {own.partition for own in compacted}.union(*(live.index.partitions for live in files))
    names = sorted(partitions)
    numbers_of = {name: number << _PARTITION_AT for number, name in enumerate(names)}

    def number_of(own: FileGroup) -> int:
        return numbers_of[own.partition] | own.bits << _BITS_AT | own.bucket

    known = [number_of(own) for own in compacted]
    wanted = None if only is None else [number_of(own) for own in only if own.partition in numbers_of]
    columns: dict[str, list[Ints]] = {
        name: [] for name in ("group", "file", "block", "start", "rows", "deletes", "bytes")
    }
    for position, live in enumerate(files):
        ranges = live.index.ranges
        partition_numbers = np.array([numbers_of[name] for name in live.index.partitions], np.int64)
        group = partition_numbers[np.array(ranges.partition, np.int64)] | live.file.bits << _BITS_AT
        group |= np.array(ranges.bucket, np.int64)
        chosen = None if wanted is None else np.flatnonzero(np.isin(group, wanted)).tolist()
        block, start, rows, deletes = (
            np.array(values if chosen is None else [values[i] for i in chosen], np.int64)
            for values in (ranges.block, ranges.start, ranges.rows, ranges.deletes)
        )
        block_rows = np.array(live.index.blocks.rows, np.int64)[block]
        columns["group"].append(group if chosen is None else group[chosen])
        columns["file"].append(np.full(len(block), position, np.int64))
        columns["block"].append(block)
        columns["start"].append(start)
        columns["rows"].append(rows)
        columns["deletes"].append(deletes)
        columns["bytes"].append(np.array(live.index.blocks.length, np.int64)[block] * rows // block_rows)
    found = {name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in columns.items()}
    numbers, group = np.unique(np.concatenate([np.array(known, np.int64), found["group"]]), return_inverse=True)
    found["group"] = group[len(known) :]
    bits, bucket = (1 << _PARTITION_AT - _BITS_AT) - 1, (1 << _BITS_AT) - 1
    groups = [
        FileGroup(names[number >> _PARTITION_AT], number >> _BITS_AT & bits, number & bucket)
        for number in numbers.tolist()
    ]
    return groups, found


def _live(
    groups: Sequence[FileGroup],
    state: TableState,
    files: Sequence[LiveFile],
    ranges: Mapping[str, Ints],
    *,
    folds: bool,
) -> npt.NDArray[np.bool_]:
    """Which ranges the slice of their own file group does not hold, each event once (S11 ExactlyOnceFold).

    Those of a fold for the file groups that read it; those of a commit for the file groups that slice and folds hold
    less of.
    """
    position, group = ranges["file"], ranges["group"]
    if len(position) == 0:
        return np.empty(0, np.bool_)
    lanes = {lane: i for i, lane in enumerate({live.lane for live in files})}
    held = np.zeros((len(groups), len(lanes)), np.int64)
    for i, own in enumerate(groups):
        folded = state.folded_to(own)
        for lane, j in lanes.items():
            held[i, j] = folded.get(lane, 0)
    number = {fold.slot: i for i, fold in enumerate(state.folds)}
    reads = np.array([[folds and own in fold.groups for own in groups] for fold in state.folds], np.bool_)
    file_fold = np.array([number[live.seq] if live.is_fold else -1 for live in files], np.int64)
    file_lane = np.array([lanes[live.lane] for live in files], np.int64)
    file_seq = np.array([live.seq for live in files], np.int64)
    after = file_seq[position] > held[group, file_lane[position]]
    of_fold = file_fold[position]
    if (of_fold < 0).all():
        return after
    return np.where(of_fold >= 0, reads[of_fold, group], after)
