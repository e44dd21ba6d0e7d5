"""File slices: the base file, shadow file and log ranges of each file group of a snapshot (PROTOCOL.md, R5).

Log ranges are rows of NumPy arrays, not Python objects, and so are the file groups of a plan (`FileSlices`). Memory and
time are proportional to the live ranges, not to the history of the table.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from weft.storage.core.log import cut
from weft.storage.core.log.file_refs import FileGroup, LogFile, LogIndex, SliceFile
from weft.storage.core.log.slice_list import NO_SIZES, SliceSizes, StoredSlice, sizes_of
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName, Path
from weft.storage.core.plan.key_ranges import KeyRange
from weft.storage.core.plan.regroup_ranges import regroup_ranges

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A log file of a commit or a fold of a snapshot, with its index.

    Lists of live files are in order of (arrival, position in the entry), which decides between equal ordering values.

    Attributes:
        lane: Lane of the commit; the table lane for a fold.
        seq: Slot of the entry.
        arrival: Arrival of the commit; 0 for a fold, whose registers have their own versions.
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
        deletes: Number of delete events, and registers that are deletes, in the ranges.
        log_bytes: Stored bytes of the ranges, all columns, in proportion to their rows.
        slice_ordinal: If file groups were combined by `combine_slices`: for each row of the ranges, in order, the
            position of its file group in the combined list; None for a single file group.
        shared: Whether some of its log ranges also have rows of other file groups, because they have fewer bits than
            the file group; only rows with its keys count.
        within: Key range of a part of a file group (`weft.storage.read.plan.divide_file_group`): only these keys are
            read. The part has only the log ranges and row groups that can have such keys. None for the whole file
            group.
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

    @property
    def base_bytes(self) -> int:
        """Stored bytes of base and shadow."""
        return 0 if self.slice is None else self.slice.base_bytes + self.slice.shadow_bytes

    @property
    def stored_rows(self) -> int:
        """Rows of base, shadow and log ranges: an upper bound of the rows of the file group."""
        row_count = 0 if self.slice is None else self.slice.base_rows + self.slice.shadow_rows
        return int(self.rows.sum()) + row_count


@dataclass(frozen=True, slots=True, eq=False)
class FileSlices(Sequence[FileSlice]):
    """File groups of a plan in columns.

    A read may have thousands of small file groups, and an object for each would take longer than the rest of planning.
    `FileSlice` objects are created on access.

    Attributes:
        groups, slice_files: The file groups, and the slice of each; None if it was never compacted.
        sizes: The values of `SliceSizes`, one row per file group.
        first: Position of the first log range of each file group, then the number of ranges: the ranges of file group i
            end at ``first[i + 1]``.
        file, block, start, rows: The log ranges of all file groups, see `FileSlice`.
        deletes, log_bytes, shared, within: One element per file group, see `FileSlice`; ``within`` is empty if no file
            group was divided.
    """

    groups: Sequence[FileGroup]
    slice_files: Sequence[SliceFile | None]
    sizes: Ints
    first: Ints
    file: Ints
    block: Ints
    start: Ints
    rows: Ints
    deletes: Ints
    log_bytes: Ints
    shared: npt.NDArray[np.bool_]
    within: Sequence[KeyRange | None] = ()

    @property
    def is_filtered(self) -> npt.NDArray[np.bool_]:
        """Whether the log ranges of a file group have rows of other keys: of other file groups, or of other parts."""
        if not self.within:
            return self.shared
        return self.shared | np.array([part is not None for part in self.within])

    @classmethod
    def of(cls, slices: Sequence[FileSlice]) -> FileSlices:
        """Convert file groups to columns; they must not be combined."""
        if isinstance(slices, FileSlices):
            return slices
        slice_files = [file_slice.slice for file_slice in slices]
        within = [file_slice.within for file_slice in slices]
        empty = [np.empty(0, np.int64)]
        return cls(
            groups=[file_slice.group for file_slice in slices],
            slice_files=slice_files,
            sizes=_sizes([sizes_of(file) for file in slice_files]),
            first=np.cumsum([0, *(len(file_slice.rows) for file_slice in slices)]),
            file=np.concatenate(empty + [file_slice.file for file_slice in slices]),
            block=np.concatenate(empty + [file_slice.block for file_slice in slices]),
            start=np.concatenate(empty + [file_slice.start for file_slice in slices]),
            rows=np.concatenate(empty + [file_slice.rows for file_slice in slices]),
            deletes=np.array([file_slice.deletes for file_slice in slices], np.int64),
            log_bytes=np.array([file_slice.log_bytes for file_slice in slices], np.int64),
            shared=np.array([file_slice.shared for file_slice in slices], np.bool_),
            within=within if any(key_range is not None for key_range in within) else (),
        )

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, index: int) -> FileSlice: ...

    @overload
    def __getitem__(self, index: slice) -> FileSlices: ...

    def __getitem__(self, index: int | slice) -> FileSlice | FileSlices:
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        number = range(len(self))[index]
        span = slice(*self.first[number : number + 2].tolist())
        return FileSlice(
            group=self.groups[number],
            slice=self.slice_files[number],
            file=self.file[span],
            block=self.block[span],
            start=self.start[span],
            rows=self.rows[span],
            deletes=int(self.deletes[number]),
            log_bytes=int(self.log_bytes[number]),
            within=self.within[number] if self.within else None,
            shared=bool(self.shared[number]),
        )

    def __iter__(self) -> Iterator[FileSlice]:
        return map(self.__getitem__, range(len(self)))

    def select(self, numbers: Sequence[int]) -> FileSlices:
        """Select file groups by their ascending numbers; a run of neighbours is not copied."""
        if len(numbers) == len(self):
            return self
        if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers):
            span = slice(numbers[0], numbers[-1] + 1)
            first = self.first[span.start : span.stop + 1]
            ranges = slice(*first[[0, -1]].tolist())
            return replace(
                self,
                groups=self.groups[span],
                slice_files=self.slice_files[span],
                within=self.within[span],
                first=first - first[0],
                **{name: getattr(self, name)[span] for name in _GROUP_COLUMNS},
                **{name: getattr(self, name)[ranges] for name in RANGE_COLUMNS},
            )
        selected = np.array(numbers, np.int64)
        counts = np.diff(self.first)[selected]
        first = np.cumsum([0, *counts.tolist()])
        positions = np.repeat(self.first[selected] - first[:-1], counts) + np.arange(first[-1])
        return replace(
            self,
            groups=[self.groups[number] for number in numbers],
            slice_files=[self.slice_files[number] for number in numbers],
            within=[self.within[number] for number in numbers] if self.within else (),
            first=first,
            **{name: getattr(self, name)[selected] for name in _GROUP_COLUMNS},
            **{name: getattr(self, name)[positions] for name in RANGE_COLUMNS},
        )

    @property
    def stored_bytes(self) -> Ints:
        """Stored bytes of the logs, base and shadow of each file group."""
        return self.log_bytes + self.sizes[:, 2] + self.sizes[:, 3]

    @property
    def has_logs(self) -> npt.NDArray[np.bool_]:
        """Mask of the file groups with log ranges."""
        return self.first[1:] > self.first[:-1]

    @property
    def log_rows(self) -> Ints:
        """Number of log rows of each file group."""
        return np.array(run_sums(self.rows, self.first), np.int64)


_GROUP_COLUMNS: Final = ("sizes", "deletes", "log_bytes", "shared")
"""Names of the arrays of `FileSlices` with one element per file group."""


def _sizes(sizes: Sequence[SliceSizes]) -> Ints:
    return np.array(sizes, np.int64).reshape(len(sizes), len(NO_SIZES))


def base_slices(state: TableState) -> FileSlices:
    """The slices of a state with a base, without log ranges, in order of file group."""
    based_slices = [(group, file) for group, file in sorted(state.slices.items(), key=_group) if file.base is not None]
    empty, zeros = np.empty(0, np.int64), np.zeros(len(based_slices), np.int64)
    return FileSlices(
        groups=[group for group, _ in based_slices],
        slice_files=[file for _, file in based_slices],
        sizes=_sizes([state.slices.stored[group].sizes for group, _ in based_slices]),
        first=np.zeros(len(based_slices) + 1, np.int64),
        file=empty,
        block=empty,
        start=empty,
        rows=empty,
        deletes=zeros,
        log_bytes=zeros,
        shared=zeros.astype(np.bool_),
    )


_group: Final = operator.itemgetter(0)


def whole_files(slices: Sequence[FileSlice]) -> frozenset[Path]:
    """Base files whose rows all belong to these slices, which have no log ranges.

    A shared file may have rows of file groups that have a newer slice in another file; these rows are unused.
    """
    rest: dict[Path, int] = {}
    columns = FileSlices.of(slices)
    for slice_file, logs in zip(columns.slice_files, columns.has_logs.tolist(), strict=True):
        if slice_file is not None and slice_file.base is not None and not logs:
            rest[slice_file.base.path] = rest.get(slice_file.base.path, slice_file.base.rows) - slice_file.base_rows
    return frozenset(path for path, rows in rest.items() if rows == 0)


def plan_slices(
    state: TableState, files: Sequence[LiveFile], *, folds: bool = True, only: Collection[FileGroup] | None = None
) -> FileSlices:
    """Plan the file groups with rows, in order of file group.

    Args:
        state: Table state of the snapshot.
        files: Files of all folds, then of all live commits after `TableState.log_start` and within the cut, in version
            order.
        folds: Include the ranges of folds; otherwise only events that are not folded.
        only: Plan only these file groups, for a lookup of few keys; None for all. File groups that the state does not
            have are left out, because a lookup locates its keys at all `TableState.levels`.
    """
    slices: Mapping[FileGroup, StoredSlice] = state.slices.stored if only is None else state.slices.find_all(only)
    levels = state.levels
    regrouped = len(levels) > 1 or any(live.file.bits not in levels for live in files)
    groups, ranges = _collect_ranges(slices, files, None if regrouped else only)
    if regrouped:
        groups, ranges = regroup_ranges(state, groups, ranges, only)
    live = _find_live_ranges(groups, state, files, ranges, folds=folds)
    ranges = {name: values[live] for name, values in ranges.items()}
    order = np.lexsort((ranges["start"], ranges["block"], ranges["file"], ranges["group"]))
    ranges = {name: values[order] for name, values in ranges.items()}
    first = np.searchsorted(ranges["group"], np.arange(len(groups) + 1))
    newest = [slices.get(group) for group in groups]
    shared = run_sums(ranges["shared"], first) if regrouped else [0] * len(groups)
    file_slices = FileSlices(
        groups=groups,
        slice_files=[None if item is None else item.file for item in newest],
        sizes=_sizes([NO_SIZES if item is None else item.sizes for item in newest]),
        first=first,
        file=ranges["file"],
        block=ranges["block"],
        start=ranges["start"],
        rows=ranges["rows"],
        deletes=np.array(run_sums(ranges["deletes"], first), np.int64),
        log_bytes=np.array(run_sums(ranges["bytes"], first), np.int64),
        shared=np.array(shared, np.bool_),
    )
    has_rows = file_slices.has_logs | np.array([item is not None for item in newest], np.bool_)
    return file_slices.select(np.flatnonzero(has_rows).tolist())


def run_sums(values: Ints, bounds: Ints) -> list[int]:
    """Sum of each run of values; run i is from ``bounds[i]`` to ``bounds[i + 1]``, and may be empty."""
    total = np.concatenate([[0], np.cumsum(values)])
    sums: list[int] = (total[bounds[1:]] - total[bounds[:-1]]).tolist()
    return sums


def log_rows(slices: Iterable[FileSlice]) -> int:
    """The number of rows in the log ranges of file groups; rows that several file groups read count once."""
    file_slices = list(slices)
    rows = sum(int(file_slice.rows.sum()) for file_slice in file_slices if not file_slice.shared)
    columns = [[getattr(file_slice, name) for name in RANGE_COLUMNS] for file_slice in file_slices if file_slice.shared]
    if not columns:
        return rows
    ranges = np.unique(np.concatenate([np.stack(parts) for parts in columns], axis=1), axis=1)
    return rows + int(ranges[-1].sum())


def combine_slices(slices: Sequence[FileSlice]) -> FileSlice:
    """Combine the log ranges of several file groups to one `FileSlice`: adjacent rows of a block become one range.

    ``slices`` are in order of file group, as `plan_slices` returns them, and none `is_filtered`. The result has no
    slice, its rows are not in key order, and ``slice_ordinal`` has the file group of each row.
    """
    if len(slices) == 1:
        return slices[0]
    file_slices = FileSlices.of(slices)
    assert not file_slices.is_filtered.any(), "rows of shared ranges and of parts are filtered for one file group"
    slice_ordinal = np.repeat(np.arange(len(file_slices)), np.diff(file_slices.first))
    order = np.lexsort((file_slices.start, file_slices.block, file_slices.file))
    file, block, start, rows = (getattr(file_slices, name)[order] for name in RANGE_COLUMNS)
    same = (file[1:] == file[:-1]) & (block[1:] == block[:-1]) & (start[1:] == start[:-1] + rows[:-1])
    first = np.flatnonzero(np.concatenate([np.ones(min(len(file), 1), np.bool_), ~same]))
    return FileSlice(
        group=file_slices.groups[0],
        slice=None,
        file=file[first],
        block=block[first],
        start=start[first],
        rows=np.add.reduceat(rows, first) if len(first) else rows,
        deletes=int(file_slices.deletes.sum()),
        log_bytes=int(file_slices.log_bytes.sum()),
        slice_ordinal=np.repeat(slice_ordinal[order], rows),
    )


_BITS_AT: Final = 32  # bit position of the bits of a file group in its number: below is the bucket, above the partition
_PARTITION_AT: Final = 40


def _collect_ranges(
    slices: Iterable[FileGroup], files: Sequence[LiveFile], only: Collection[FileGroup] | None
) -> tuple[list[FileGroup], dict[str, Ints]]:
    """File groups in order (all, or those in ``only``), and the ranges of all files as columns.

    ``group`` of a range is a position in the list of file groups. During the computation a file group is a
    number that sorts like file groups, because a file may have ranges of many file groups.
    """
    compacted_groups = list(slices)
    partitions = {group.partition for group in compacted_groups}.union(*(live.index.partitions for live in files))
    names = sorted(partitions)
    numbers_of = {name: number << _PARTITION_AT for number, name in enumerate(names)}

    def number_of(group: FileGroup) -> int:
        return numbers_of[group.partition] | group.bits << _BITS_AT | group.bucket

    slice_numbers = [number_of(group) for group in compacted_groups]
    requested = None if only is None else [number_of(group) for group in only if group.partition in numbers_of]
    columns: dict[str, list[Ints]] = {
        name: [] for name in ("group", "file", "block", "start", "rows", "deletes", "bytes")
    }
    for position, live in enumerate(files):
        ranges = live.index.ranges.arrays
        partition_numbers = np.array([numbers_of[name] for name in live.index.partitions], np.int64)
        group = partition_numbers[ranges["partition"]] | live.file.bits << _BITS_AT | ranges["bucket"]
        selection = slice(None) if requested is None else np.flatnonzero(np.isin(group, requested))
        block, start, rows, deletes = (ranges[name][selection] for name in ("block", "start", "rows", "deletes"))
        block_rows = np.array(live.index.blocks.rows, np.int64)[block]
        columns["group"].append(group[selection])
        columns["file"].append(np.full(len(block), position, np.int64))
        columns["block"].append(block)
        columns["start"].append(start)
        columns["rows"].append(rows)
        columns["deletes"].append(deletes)
        columns["bytes"].append(np.array(live.index.blocks.length, np.int64)[block] * rows // block_rows)
    columns_of = {name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in columns.items()}
    numbers, group = np.unique(
        np.concatenate([np.array(slice_numbers, np.int64), columns_of["group"]]), return_inverse=True
    )
    columns_of["group"] = group[len(slice_numbers) :]
    bits, bucket = (1 << _PARTITION_AT - _BITS_AT) - 1, (1 << _BITS_AT) - 1
    groups = [
        FileGroup(names[number >> _PARTITION_AT], number >> _BITS_AT & bits, number & bucket)
        for number in numbers.tolist()
    ]
    return groups, columns_of


def _find_live_ranges(
    groups: Sequence[FileGroup],
    state: TableState,
    files: Sequence[LiveFile],
    ranges: Mapping[str, Ints],
    *,
    folds: bool,
) -> npt.NDArray[np.bool_]:
    """Mask of the ranges to read, so that each event is read once (PROTOCOL.md, S11 ExactlyOnceFold).

    A range of a fold is read if its file group reads the fold; a range of a commit if the commit is after the slice and
    the folds of its file group.
    """
    position, group = ranges["file"], ranges["group"]
    if len(position) == 0:
        return np.empty(0, np.bool_)
    lanes = {lane: i for i, lane in enumerate({live.lane for live in files})}
    # Thousands of file groups share a few cuts, which have a number for every lane. Each cut is converted once.
    number_of_cut: dict[int, int] = {}
    cuts: list[cut.Seqs] = []
    cut_number: list[int] = []
    for file_group in groups:
        fold_cut = state.folded_to(file_group)
        cut_number.append(number_of_cut.setdefault(id(fold_cut), len(cuts)))
        if cut_number[-1] == len(cuts):
            cuts.append(fold_cut)
    folded_seq = np.array([[fold_cut.get(lane, 0) for lane in lanes] for fold_cut in cuts], np.int64)[cut_number]
    number = {fold.slot: i for i, fold in enumerate(state.folds)}
    reads = np.array([[folds and reader in fold.groups for reader in groups] for fold in state.folds], np.bool_)
    file_fold = np.array([number[live.seq] if live.is_fold else -1 for live in files], np.int64)
    file_lane = np.array([lanes[live.lane] for live in files], np.int64)
    file_seq = np.array([live.seq for live in files], np.int64)
    after = file_seq[position] > folded_seq[group, file_lane[position]]
    fold_number = file_fold[position]
    if (fold_number < 0).all():
        return after
    return np.where(fold_number >= 0, reads[fold_number, group], after)
