"""Runs: file groups of a task that are read together, because a read has a fixed cost and file groups may be small.

File groups with logs and those without are in different runs, because the latter need fewer columns.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from weft.storage.core.log.file_refs import SliceFile
from weft.storage.core.names import Path
from weft.storage.core.plan.slices import FileSlice, FileSlices

# Logs and shadows of a run are held in memory. Besides their bytes (`Tuning.scan_run_bytes`) their rows are limited:
# values that repeat are small only when stored.
RUN_ROWS: Final = 64 * 1024
# Base files are read batch by batch. But a delete in one file group makes the whole run read the state of all groups.
RUN_BASE_ROWS: Final = 4 * RUN_ROWS
FULL_ENOUGH: Final = 0.5  # a run that is at least this full ends where a base file ends


def cut_runs(slices: Sequence[FileSlice], run_bytes: int) -> list[FileSlices]:
    """Divide file groups into runs of about ``run_bytes`` stored bytes of logs and shadows; runs keep the order.

    A run ends where a base file ends, if possible: a file in two runs is opened, and partly decoded, twice.
    """
    file_slices = FileSlices.of(slices)
    paths = [_base_path(part) for part in file_slices.slice_files]
    runs: list[list[int]] = []
    for kind in (file_slices.has_logs, ~file_slices.has_logs):
        runs += _fill(file_slices, np.flatnonzero(kind).tolist(), paths, run_bytes)
    return [file_slices.select(part) for run in runs for part in _by_file(run, paths)]


def _fill(
    file_slices: FileSlices, numbers: Sequence[int], paths: Sequence[Path | None], run_bytes: int
) -> list[list[int]]:
    """Divide the file groups with these numbers into runs."""
    shares = _shares_of_run(file_slices, run_bytes).tolist()
    # A run reads all keys in the ranges of its file groups. So one whose rows are filtered must be a run by itself.
    alone = file_slices.is_filtered.tolist()
    runs: list[list[int]] = []
    filled = 0.0
    file: Path | None = None
    for number in numbers:
        path = paths[number]
        same_file = path is None or path == file
        file = path or file
        filled += shares[number]
        if not runs or alone[number] or alone[runs[-1][-1]] or filled > (1 if same_file else FULL_ENOUGH):
            runs.append([])
            filled = shares[number]
        runs[-1].append(number)
    return runs


def _by_file(run: list[int], paths: Sequence[Path | None]) -> list[list[int]]:
    """Split a run if its base files alternate, so that each file is opened and decoded once.

    Files alternate after some file groups of a shared file got newer slices in another file. Each part keeps its order.
    """
    visits = Counter(path for path, _ in itertools.groupby(filter(None, (paths[number] for number in run))))
    if all(count == 1 for count in visits.values()):
        return [run]
    parts: dict[Path | None, list[int]] = {}
    for number in run:
        path = paths[number]
        parts.setdefault(path if path is not None and visits[path] > 1 else None, []).append(number)
    return list(parts.values())


def _base_path(slice_file: SliceFile | None) -> Path | None:
    return slice_file.base.path if slice_file is not None and slice_file.base is not None else None


def _shares_of_run(file_slices: FileSlices, run_bytes: int) -> npt.NDArray[np.float64]:
    """The size of each file group as a fraction of the largest run."""
    base_rows, shadow_rows, _, shadow_bytes = file_slices.sizes.T
    memory_share = (file_slices.log_bytes + shadow_bytes) / run_bytes
    shares: npt.NDArray[np.float64] = np.maximum.reduce(
        [memory_share, (shadow_rows + file_slices.log_rows) / RUN_ROWS, base_rows / RUN_BASE_ROWS]
    )
    return shares
