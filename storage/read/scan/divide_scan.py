"""Divides a scan into tasks of about equal stored bytes.

Small file groups share a task, because each task has a fixed cost. A large file group is divided into several tasks by
key range, so that one hot bucket does not make one long task.

The limit of a task applies to the bytes of the columns that it reads, because a few columns of a wide table are a small
part of its files. Entries have the bytes of files, not of columns, so the share is estimated from the number of
columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from weft.storage.core.plan.slices import FileSlices, LiveFile
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.read.plan.divide_file_group import Division, State, divide_states
from weft.storage.read.plan.read_task import bundle, read_task
from weft.storage.read.scan.scan import Scan

LEAST_SHARE: Final = 1 / 8
"""Minimum of the estimated share of the bytes, because a few columns can be larger than all others."""
DIVIDE_FROM: Final = 1.5
"""A file group is divided from this many times the bytes of a task on; dividing a smaller one gains nothing."""


def divide(
    scan: Scan,
    files: Sequence[LiveFile],
    parallelism: int,
    task_bytes: int | None = None,
    *,
    large: bool = True,
) -> Scan:
    """Divide a scan into tasks that read its file groups.

    The number of tasks is ``parallelism``, or a multiple of it if tasks would be larger than ``task_bytes``, or less if
    tasks would be smaller than `weft.storage.environment.Tuning.task_min_bytes`.

    Args:
        scan: The scan; its tasks are replaced.
        files: The log files that its file groups refer to by position.
        parallelism: Number of tasks that run at the same time, at least 1.
        task_bytes: Maximum stored bytes of the columns that a task reads, estimated; None for
            `weft.storage.environment.Tuning.task_bytes`. Tasks are larger if a file group cannot be divided further.
        large: Also divide large file groups, which reads the footers of their base files. Ignored for a scan of few
            keys, which reads a small part of each file group.

    Raises:
        CorruptData: A base file is missing, or its footer is damaged.
        SnapshotExpired: A base file is missing because the snapshot has expired.
    """
    tuning, slices = scan.env.tuning, FileSlices.of(scan.slices)
    limit = tuning.task_bytes if task_bytes is None else max(task_bytes, 1)
    most = limit / _share_of_columns(scan)
    sizes = slices.stored_bytes
    target = _target_bytes(int(sizes.sum()), parallelism, most, min(tuning.task_min_bytes, most))
    too_large = np.empty(0, np.int64)
    if large and scan.keys is None:
        too_large = np.flatnonzero((sizes > target * DIVIDE_FROM) | (sizes > most))
    divisions = [
        Division((State(slices[number], files),), _parts(int(sizes[number]), target, most))
        for number in too_large.tolist()
    ]
    whole = slices.select(np.delete(np.arange(len(slices)), too_large).tolist())
    tasks = [read_task(bundled, files) for bundled in bundle(whole, target)]
    with explain_missing_file(scan.env, scan.at):
        for parts in divide_states(scan.env, scan.schema, divisions):
            tasks.extend(read_task(part, files) for part in parts)
    return replace(scan, tasks=tuple(tasks), threads=parallelism)


def _share_of_columns(scan: Scan) -> float:
    """Estimated share of the stored bytes that a task decodes for result, filter, keys and ordering columns."""
    schema, projection = scan.schema, scan.projection
    orderings = [name for group in projection.groups(schema) for name in group.ordering]
    columns = {*schema.key, *projection.values(schema), *orderings}
    return max(len(columns) / len(schema.columns), LEAST_SHARE)


def _target_bytes(total: int, parallelism: int, most: float, least: float) -> float:
    """Bytes of a task such that all tasks run in as few rounds as possible, and each round is full."""
    rounds = max(math.ceil(total / (parallelism * most)), 1)
    return max(total / (parallelism * rounds), least)


def _parts(size: int, target: float, most: float) -> int:
    """Number of tasks for one large file group."""
    return max(round(size / target), math.ceil(size / most))
