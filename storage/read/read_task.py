"""Tasks of a read: runs of neighbouring file groups with the log files that they need. A task can be pickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from storage.core.plan.slices import FileSlice, LiveFile

TASK_MIN_BYTES: Final = 4 * 1024 * 1024  # a smaller task costs more to start than to read


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Neighbouring file groups, and the log files that they need.

    Attributes:
        slices: The file groups, in order of file group.
        files: The log files that ``slices`` refer to by position, in version order.
    """

    slices: tuple[FileSlice, ...]
    files: tuple[LiveFile, ...]

    @property
    def bytes(self) -> int:
        """Stored bytes of logs and base files, all columns."""
        return sum(file_slice.log_bytes + file_slice.base_bytes for file_slice in self.slices)


def make_tasks(slices: Sequence[FileSlice], files: Sequence[LiveFile], parallelism: int) -> list[ReadTask]:
    """At most ``parallelism`` tasks of about equal bytes, none much smaller than `TASK_MIN_BYTES`.

    Args:
        slices: The file groups to read, in order of file group.
        files: The log files that ``slices`` refer to by position.
        parallelism: Upper limit of the number of tasks.
    """
    weights = [file_slice.log_bytes + file_slice.base_bytes for file_slice in slices]
    target = max(sum(weights) / max(parallelism, 1), TASK_MIN_BYTES)
    tasks: list[list[FileSlice]] = []
    filled = 0.0
    for file_slice, weight in zip(slices, weights, strict=True):
        if not tasks or filled + weight / 2 > target * len(tasks):
            tasks.append([])
        tasks[-1].append(file_slice)
        filled += weight
    return [read_task(task, files) for task in tasks]


def read_task(slices: Sequence[FileSlice], files: Sequence[LiveFile]) -> ReadTask:
    """The task that reads these file groups (at least one); it carries only the log files that they need."""
    used = np.unique(np.concatenate([file_slice.file for file_slice in slices]))
    if len(used) == len(files):
        return ReadTask(tuple(slices), tuple(files))
    return ReadTask(
        tuple(replace(file_slice, file=np.searchsorted(used, file_slice.file)) for file_slice in slices),
        tuple(files[position] for position in used.tolist()),
    )
