"""Runs: file groups of a task that are read together, because each has a fixed cost and there may be many small ones.

File groups with logs and those without are in different runs, because the latter need fewer columns.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from storage.core.log.file_refs import SliceFile
from storage.core.names import Path
from storage.core.plan.slices import FileSlice, FileSlices

# Logs and shadows of a run are held in memory. Besides their bytes (`Tuning.scan_run_bytes`) their rows are limited:
# values that repeat are small only when stored.
RUN_ROWS: Final = 64 * 1024
# Base files are read batch by batch. But a delete in one file group makes the whole run read the state of all groups.
RUN_BASE_ROWS: Final = 4 * RUN_ROWS
FULL_ENOUGH: Final = 0.5  # a run that is at least this full ends where a base file ends


def cut_runs(slices: Sequence[FileSlice], run_bytes: int) -> list[FileSlices]:
    """All file groups as runs of at most about ``run_bytes`` stored bytes of logs and shadows; each in the given order.

    A run ends where a base file ends, if possible: a file in two runs is opened, and partly decoded, twice.
    """
    several = FileSlices.of(slices)
    paths = [_base_path(made) for made in several.made]
    runs: list[list[int]] = []
    for kind in (several.has_logs, ~several.has_logs):
        runs += _fill(several, np.flatnonzero(kind).tolist(), paths, run_bytes)
    return [several.chosen(part) for run in runs for part in _by_file(run, paths)]


def _fill(several: FileSlices, numbers: Sequence[int], paths: Sequence[Path | None], run_bytes: int) -> list[list[int]]:
    """Divide file groups, given by their numbers, into runs."""
    shares = _shares_of_run(several, run_bytes).tolist()
    # A run reads all keys in the ranges of its file groups. So one whose rows are filtered must be a run by itself.
    alone = several.is_filtered.tolist()
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


def _base_path(made: SliceFile | None) -> Path | None:
    return made.base.path if made is not None and made.base is not None else None


def _shares_of_run(several: FileSlices, run_bytes: int) -> npt.NDArray[np.float64]:
    """The size of each file group as a fraction of the largest run."""
    base_rows, shadow_rows, _, shadow_bytes = several.sizes.T
    held = (several.log_bytes + shadow_bytes) / run_bytes
    found: npt.NDArray[np.float64] = np.maximum.reduce(
        [held, (shadow_rows + several.log_rows) / RUN_ROWS, base_rows / RUN_BASE_ROWS]
    )
    return found
