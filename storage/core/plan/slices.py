"""File slices: the base file, shadow file and log ranges of each file group of a snapshot (PROTOCOL.md, rule R5).

Log ranges are rows of NumPy arrays, not Python objects. Memory and time are proportional to the live ranges, not to the
history of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.core.log import cut
from storage.core.log.file_refs import FileGroup, LogFile, LogIndex, SliceFile
from storage.core.log.table_state import TableState
from storage.core.names import LaneName, Path
from storage.core.plan.key_ranges import KeyRange
from storage.core.plan.regroup_ranges import regroup_ranges

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A log file of a commit or a fold of a snapshot, with its index.

    A list of these is in order of (arrival, position in the entry), which decides between equal ordering values.

    Attributes:
        lane: Lane of the commit; the table lane for a fold.
        seq: Slot of the entry.
        arrival: Arrival of the commit; 0 for a fold, whose registers have versions of their own.
        file: The file.
        index: Its index.
        to: Last entry of each lane that the fold contains; None for a commit.
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
        """The last entry of each lane that may have rows in the file."""
        return {self.lane: self.seq} if self.to is None else self.to


RANGE_COLUMNS: Final = ("file", "block", "start", "rows")
"""Names of the parallel arrays of a `FileSlice` that locate its log ranges."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """One file group of a snapshot: its newest slice, and the ranges of folds and logs after it.

    Attributes:
        group: The file group.
        slice: Its newest slice; None if it was never compacted.
        file: Position of the file of each log range in the list of files of the plan; ascending.
        block, start, rows: Block of each log range, its first row in the block, and its number of rows.
        deletes: Delete events, and registers that are deletes, among the ranges.
        log_bytes: Stored bytes of the ranges, all columns, in proportion to their rows.
        slice_ordinal: If file groups were combined by `combine_slices`: for each row of the ranges, in order, the
            position of its file group in the combined list; None for a single file group.
        shared: Whether its slice or some of its log ranges have rows of other file groups, too, because their bits are
            fewer than those of the file group: only rows with its keys count.
        within: Key range of a part of a file group, made by `storage.read.divide_file_group`: only these keys are read.
            The part has only the log ranges and row groups that can have such keys. None for the whole file group.
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
    within: KeyRange | None = None
    shared: bool = False

    def split(self, bits: int) -> list[FileSlice]:
        """Its parts of more bits. Each reads all of it: only rows with the keys of the part count."""
        parts = list(self.group.parts(bits))
        return [replace(self, group=part, log_bytes=self.log_bytes // len(parts), shared=True) for part in parts]

    @property
    def base_bytes(self) -> int:
        """Stored bytes of base and shadow."""
        return 0 if self.slice is None else self.slice.base_bytes + self.slice.shadow_bytes

    @property
    def stored_rows(self) -> int:
        """Rows of base, shadow and log ranges: an upper bound of the rows of the file group."""
        stored = 0 if self.slice is None else self.slice.base_rows + self.slice.shadow_rows
        return int(self.rows.sum()) + stored


def base_slices(state: TableState) -> list[FileSlice]:
    """The slices of a state that have a base, without log ranges; in order of file group."""
    none = np.empty(0, np.int64)
    return [
        FileSlice(group, file, file=none, block=none, start=none, rows=none, deletes=0, log_bytes=0)
        for group, file in sorted(state.slices.items())
        if file.base is not None
    ]


def whole_files(slices: Iterable[FileSlice]) -> frozenset[Path]:
    """Base files of which every row belongs to one of these slices, without log ranges.

    A shared file may have rows of file groups that have a newer slice in another file; these rows are unused.
    """
    rest: dict[Path, int] = {}
    for file_slice in slices:
        made = file_slice.slice
        if made is not None and made.base is not None and len(file_slice.rows) == 0:
            rest[made.base.path] = rest.get(made.base.path, made.base.rows) - made.base_rows
    return frozenset(path for path, rows in rest.items() if rows == 0)


def plan_slices(
    state: TableState, files: Sequence[LiveFile], *, folds: bool = True, only: Collection[FileGroup] | None = None
) -> list[FileSlice]:
    """Every file group that has rows, in order of file group.

    Args:
        state: Table state of the snapshot.
        files: Files of all folds, then of all live commits after `TableState.log_start` and within the cut, in version
            order.
        folds: Include the ranges of folds; otherwise only events that are not folded.
        only: Plan only these file groups, for a look-up of few keys; None for all. Those that the state does not have
            are left out: a look-up locates its keys at all `TableState.levels`.
    """
    slices: Mapping[FileGroup, SliceFile] = state.slices
    levels = state.levels
    regrouped = len(levels) > 1 or any(live.file.bits not in levels for live in files)
    if only is not None:
        slices = {group: slices[group] for group in only if group in slices}
    groups, ranges = _ranges(slices, files, None if regrouped else only)
    if regrouped:
        groups, ranges = regroup_ranges(state, groups, ranges, only)
    live = _live(groups, state, files, ranges, folds=folds)
    ranges = {name: values[live] for name, values in ranges.items()}
    order = np.lexsort((ranges["start"], ranges["block"], ranges["file"], ranges["group"]))
    ranges = {name: values[order] for name, values in ranges.items()}
    bounds = np.searchsorted(ranges["group"], np.arange(len(groups) + 1))
    deletes, log_bytes = (run_sums(ranges[name], bounds) for name in ("deletes", "bytes"))
    ends = bounds.tolist()
    result = []
    for number, group in enumerate(groups):
        span = slice(ends[number], ends[number + 1])
        made = slices.get(group)
        if span.start == span.stop and made is None:
            continue
        result.append(
            FileSlice(
                group=group,
                slice=made,
                file=ranges["file"][span],
                block=ranges["block"][span],
                start=ranges["start"][span],
                rows=ranges["rows"][span],
                deletes=deletes[number],
                log_bytes=log_bytes[number],
                shared=regrouped and bool(ranges["shared"][span].any()),
            )
        )
    return result


def run_sums(values: Ints, bounds: Ints) -> list[int]:
    """Sum of each run of values; run i is from ``bounds[i]`` to ``bounds[i + 1]``, and may be empty."""
    total = np.concatenate([[0], np.cumsum(values)])
    sums: list[int] = (total[bounds[1:]] - total[bounds[:-1]]).tolist()
    return sums


def log_rows(slices: Iterable[FileSlice]) -> int:
    """The number of rows in the log ranges of file groups; rows that several of them read count once."""
    several = list(slices)
    rows = sum(int(each.rows.sum()) for each in several if not each.shared)
    columns = [[getattr(each, name) for name in RANGE_COLUMNS] for each in several if each.shared]
    if not columns:
        return rows
    ranges = np.unique(np.concatenate([np.stack(each) for each in columns], axis=1), axis=1)
    return rows + int(ranges[-1].sum())


def combine_slices(slices: Sequence[FileSlice]) -> FileSlice:
    """The log ranges of several file groups as one `FileSlice`: adjacent rows of a block become one range.

    ``slices`` are in order of file group, as `plan_slices` returns them. The result has no slice, its rows are not in
    key order, and ``slice_ordinal`` says which file group each of them belongs to.
    """
    if len(slices) == 1:
        return slices[0]
    assert not any(part.shared for part in slices), "rows of shared ranges are filtered for one file group"
    file, block, start, rows = (np.concatenate([getattr(part, name) for part in slices]) for name in RANGE_COLUMNS)
    slice_ordinal = np.repeat(np.arange(len(slices)), [len(part.rows) for part in slices])
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
        deletes=sum(part.deletes for part in slices),
        log_bytes=sum(part.log_bytes for part in slices),
        slice_ordinal=np.repeat(slice_ordinal[order], rows),
    )


_BITS_AT: Final = 32  # position of the bit between bucket (below) and partition (above) in the number of a file group
_PARTITION_AT: Final = 40


def _ranges(
    slices: Iterable[FileGroup], files: Sequence[LiveFile], only: Collection[FileGroup] | None
) -> tuple[list[FileGroup], dict[str, Ints]]:
    """File groups in order (all, or those in ``only``), and the ranges of all files as columns.

    ``group`` of a range is a position in the list of file groups. During the computation a file group is one number
    that sorts like file groups, because a file may have ranges of very many.
    """
    compacted = list(slices)
    partitions = {group.partition for group in compacted}.union(*(live.index.partitions for live in files))
    names = sorted(partitions)
    numbers_of = {name: number << _PARTITION_AT for number, name in enumerate(names)}

    def number_of(group: FileGroup) -> int:
        return numbers_of[group.partition] | group.bits << _BITS_AT | group.bucket

    known = [number_of(group) for group in compacted]
    wanted = None if only is None else [number_of(group) for group in only if group.partition in numbers_of]
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
    """Mask of the ranges that are read, so that each event is read once (S11 ExactlyOnceFold).

    A range of a fold is read if its file group reads the fold; a range of a commit if the commit is after the slice and
    the folds of its file group.
    """
    position, group = ranges["file"], ranges["group"]
    if len(position) == 0:
        return np.empty(0, np.bool_)
    lanes = {lane: i for i, lane in enumerate({live.lane for live in files})}
    # Thousands of file groups share a few cuts, which have a number for every lane: each cut is read once.
    places: dict[int, int] = {}
    cuts: list[cut.Seqs] = []
    place: list[int] = []
    for file_group in groups:
        folded = state.folded_to(file_group)
        place.append(places.setdefault(id(folded), len(cuts)))
        if place[-1] == len(cuts):
            cuts.append(folded)
    held = np.array([[folded.get(lane, 0) for lane in lanes] for folded in cuts], np.int64)[place]
    number = {fold.slot: i for i, fold in enumerate(state.folds)}
    reads = np.array([[folds and wanted in fold.groups for wanted in groups] for fold in state.folds], np.bool_)
    file_fold = np.array([number[live.seq] if live.is_fold else -1 for live in files], np.int64)
    file_lane = np.array([lanes[live.lane] for live in files], np.int64)
    file_seq = np.array([live.seq for live in files], np.int64)
    after = file_seq[position] > held[group, file_lane[position]]
    of_fold = file_fold[position]
    if (of_fold < 0).all():
        return after
    return np.where(of_fold >= 0, reads[of_fold, group], after)
