"""Estimates how much more a reader reads because file groups have logs.

A reader fetches the base of a file group and the log blocks with rows of the file group. Blocks are fetched whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from weft.storage.core.plan.slices import FileSlice, LiveFile

SMALL_TABLE_BYTES: Final = 64 * 1024 * 1024
"""Minimum of the table size in the estimate: a smaller table is read in less than a second with any logs."""


@dataclass(frozen=True, slots=True)
class ReadCost:
    """The cost of a read of a whole snapshot.

    Attributes:
        amplification: Bytes that the read fetches, divided by the bytes of the compacted table. File groups that were
            never compacted count as half of their logs, and a table counts as at least `SMALL_TABLE_BYTES`.
        commits: Number of commits and folds whose files the read opens.
    """

    amplification: float
    commits: int


def read_amplification(file_slice: FileSlice, files: Sequence[LiveFile]) -> float:
    """Bytes that a read of a file group fetches, divided by the bytes of its base and shadow; infinite without these.

    Blocks of log files with rows of the file group are fetched whole.
    """
    if len(file_slice.rows) == 0:
        return 1.0
    if file_slice.base_bytes == 0:
        return float("inf")
    return 1.0 + _fetched_bytes([file_slice], files) / file_slice.base_bytes


def read_cost(slices: Sequence[FileSlice], files: Sequence[LiveFile]) -> ReadCost:
    """The cost of a read of a whole snapshot.

    Args:
        slices: All slices of the snapshot.
        files: Its log files.
    """
    with_logs = [file_slice for file_slice in slices if len(file_slice.rows)]
    base_bytes = sum(file_slice.base_bytes for file_slice in slices)
    compacted = base_bytes + sum(with_log.log_bytes // 2 for with_log in with_logs if with_log.base_bytes == 0)
    fetched = base_bytes + _fetched_bytes(with_logs, files)
    log_files: set[int] = set().union(*(file_slice.file.tolist() for file_slice in with_logs))
    return ReadCost(
        amplification=max(1.0, fetched / max(compacted, SMALL_TABLE_BYTES)),
        commits=len({(files[i].lane, files[i].seq) for i in log_files}),
    )


def _fetched_bytes(slices: Sequence[FileSlice], files: Sequence[LiveFile]) -> int:
    """Bytes of the distinct blocks that have rows of these file groups."""
    if not slices:
        return 0
    file, block = (np.concatenate([getattr(file_slice, name) for file_slice in slices]) for name in ("file", "block"))
    blocks = np.unique(np.stack([file, block]), axis=1)
    return sum(files[number].index.blocks.length[place] for number, place in blocks.T.tolist())
