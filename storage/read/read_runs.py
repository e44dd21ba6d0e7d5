"""Runs: file groups of a task that are read together, because each has a fixed cost and there may be many small ones.

File groups with logs and those without are in different runs, because the latter need fewer columns.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from storage.core.names import Path
from storage.core.plan.slices import FileSlice, run_sums

# Logs and shadows of a run are held in memory. Besides their bytes (`Tuning.scan_run_bytes`) their rows are limited:
# values that repeat are small only when stored.
RUN_ROWS: Final = 64 * 1024
# Base files are read batch by batch. But a delete in one file group makes the whole run read the state of all groups.
RUN_BASE_ROWS: Final = 4 * RUN_ROWS
FULL_ENOUGH: Final = 0.5  # a run that is at least this full ends where a base file ends


def cut_runs(slices: Sequence[FileSlice], run_bytes: int) -> list[list[FileSlice]]:
    """All file groups as runs of at most about ``run_bytes`` stored bytes of logs and shadows; each in the given order.

    A run ends where a base file ends, if possible: a file in two runs is opened, and partly decoded, twice.
    """
    log_rows = _log_rows(slices)
    runs: list[list[FileSlice]] = []
    for with_logs in (True, False):
        kind = [
            (file_slice, rows)
            for file_slice, rows in zip(slices, log_rows, strict=True)
            if (len(file_slice.rows) > 0) is with_logs
        ]
        runs += _fill(kind, run_bytes)
    return [part for run in runs for part in _by_file(run)]


def _fill(slices: Iterable[tuple[FileSlice, int]], run_bytes: int) -> list[list[FileSlice]]:
    """Divide file groups, given with the number of their log rows, into runs."""
    runs: list[list[FileSlice]] = []
    filled = 0.0
    file: Path | None = None
    for file_slice, log_rows in slices:
        path = _base_path(file_slice)
        same_file = path is None or path == file
        file = path or file
        share = _share_of_run(file_slice, log_rows, run_bytes)
        filled += share
        # Rows of shared log ranges are filtered for one file group: it is a run by itself.
        if not runs or file_slice.shared or runs[-1][-1].shared or filled > (1 if same_file else FULL_ENOUGH):
            runs.append([])
            filled = share
        runs[-1].append(file_slice)
    return runs


def _by_file(run: Sequence[FileSlice]) -> list[list[FileSlice]]:
    """Split a run if its base files alternate, so that each file is opened and decoded once.

    Files alternate after some file groups of a shared file got newer slices in another file. Each part keeps its order.
    """
    paths = [_base_path(file_slice) for file_slice in run]
    visits = Counter(path for path, _ in itertools.groupby(filter(None, paths)))
    parts: dict[Path | None, list[FileSlice]] = {}
    for file_slice, path in zip(run, paths, strict=True):
        parts.setdefault(path if path is not None and visits[path] > 1 else None, []).append(file_slice)
    return list(parts.values())


def _base_path(file_slice: FileSlice) -> Path | None:
    made = file_slice.slice
    return made.base.path if made is not None and made.base is not None else None


def _log_rows(slices: Sequence[FileSlice]) -> list[int]:
    """Number of log rows of each file group."""
    bounds = np.cumsum([0, *(len(file_slice.rows) for file_slice in slices)])
    return run_sums(np.concatenate([np.empty(0, np.int64), *(file_slice.rows for file_slice in slices)]), bounds)


def _share_of_run(file_slice: FileSlice, log_rows: int, run_bytes: int) -> float:
    """The size of a file group as a fraction of the largest run."""
    base_rows, shadow_rows, held_bytes = 0, 0, file_slice.log_bytes
    if file_slice.slice is not None:
        base_rows, shadow_rows = file_slice.slice.base_rows, file_slice.slice.shadow_rows
        held_bytes += file_slice.slice.shadow_bytes
    return max(held_bytes / run_bytes, (shadow_rows + log_rows) / RUN_ROWS, base_rows / RUN_BASE_ROWS)
