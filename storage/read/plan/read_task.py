"""Tasks of a read: runs of neighbouring file groups, or a part of one, with the log files that they need.

A pickled task is small: its size is proportional to the log blocks and base files that it reads, not to the other file
groups, lanes or rows of the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from weft.storage.core.log.file_refs import Blocks, LogIndex, LogRanges, SliceFile
from weft.storage.core.plan.slices import FileSlice, FileSlices, LiveFile


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Neighbouring file groups, or a part of one, and the log files that they need.

    A pickled copy has only what a read needs: no positions in lanes, and only those blocks of log files that ``slices``
    refer to.

    Attributes:
        slices: The file groups, in order of file group; or one part of a file group (`FileSlice.within`).
        files: The log files that ``slices`` refer to by position, in version order.
    """

    slices: Sequence[FileSlice]
    files: tuple[LiveFile, ...]

    @property
    def bytes(self) -> int:
        """Stored bytes of logs and base files, all columns."""
        return int(FileSlices.of(self.slices).stored_bytes.sum())

    def __reduce__(self) -> tuple[Any, ...]:
        slices, files = only_needed(self.slices, self.files)
        return ReadTask, (tuple(replace(part, slice=_without_lanes(part.slice)) for part in slices), files)


def bundle(slices: FileSlices, target_bytes: float) -> list[FileSlices]:
    """Divide file groups into bundles of neighbours with about ``target_bytes`` each; a larger one is alone.

    Args:
        slices: File groups in order.
        target_bytes: Stored bytes of a bundle, logs and base.
    """
    starts: list[int] = []
    filled = 0.0
    for number, size in enumerate(slices.stored_bytes.tolist()):
        if not starts or filled + size / 2 > target_bytes * len(starts):
            starts.append(number)
        filled += size
    return [slices[start:end] for start, end in itertools.pairwise([*starts, len(slices)])]


def read_task(slices: Sequence[FileSlice], files: Sequence[LiveFile]) -> ReadTask:
    """The task that reads these file groups (at least one); it carries only the log files that they need."""
    columns = FileSlices.of(slices)
    used = np.unique(columns.file)
    if len(used) == len(files):
        return ReadTask(columns, tuple(files))
    return ReadTask(
        replace(columns, file=np.searchsorted(used, columns.file)), tuple(files[position] for position in used.tolist())
    )


_NO_RANGES: Final = LogRanges(partition=[], bucket=[], block=[], start=[], rows=[], deletes=[])


def only_needed(
    slices: Sequence[FileSlice], files: Sequence[LiveFile]
) -> tuple[tuple[FileSlice, ...], tuple[LiveFile, ...]]:
    """Reduce log files to the blocks that file groups refer to, and renumber the blocks in the file groups.

    The index of a log file lists the ranges of every file group, and the blocks of the whole file. The positions of
    files do not change; a file without needed blocks gets an empty list of blocks.
    """
    # One number for a block: the position of its file in the high bits, its number in the low bits.
    blocks = np.unique(np.concatenate([np.empty(0, np.int64), *(part.file << 32 | part.block for part in slices)]))
    starts = np.searchsorted(blocks, np.arange(len(files) + 1) << 32)
    numbers = (blocks & 0xFFFFFFFF).tolist()
    reduced = tuple(
        _with_blocks(live, numbers[starts[position] : starts[position + 1]]) for position, live in enumerate(files)
    )
    renumbered = tuple(
        replace(part, block=np.searchsorted(blocks, part.file << 32 | part.block) - starts[part.file])
        for part in slices
    )
    return renumbered, reduced


def _with_blocks(live: LiveFile, numbers: Sequence[int]) -> LiveFile:
    """A log file with only these blocks, and without the statistics that only planning needs."""
    stored = live.index.blocks
    blocks = Blocks.model_construct(
        offset=[stored.offset[number] for number in numbers],
        length=[stored.length[number] for number in numbers],
        crc32=[stored.crc32[number] for number in numbers],
        rows=[stored.rows[number] for number in numbers],
        key_min=[stored.key_min[number] for number in numbers],
        key_max=[stored.key_max[number] for number in numbers],
        ordering_min={},
        ordering_max={},
    )
    index = LogIndex.model_construct(partitions=[], ranges=_NO_RANGES, blocks=blocks)
    file = live.file.model_copy(update={"index": index})
    return replace(live, file=file, index=index, to=None if live.to is None else {})


def _without_lanes(slice_file: SliceFile | None) -> SliceFile | None:
    """A slice without its cuts, which have a position per lane, and without other fields that reads do not need."""
    if slice_file is None:
        return None
    return slice_file.model_copy(update={"parent": {}, "cut": {}, "overflows": {}})
