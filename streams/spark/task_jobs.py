"""Divides tasks of a service into Spark jobs; the functions are pure.

    tasks, in order  ->  jobs, one after the other  ->  bundles, one for each Spark task

A job is large enough to keep all cores busy for some time. Its results are published before the next job begins, so the
driver keeps the results of one job in memory, and a killed driver loses the work of one job. Small tasks are bundled,
because a Spark task costs some milliseconds. Large bundles begin first, so that the cores finish at about the same
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MIB: Final = 1024 * 1024
JOB_BYTES_PER_CORE: Final = 512 * MIB
BUNDLE_BYTES: Final = 16 * MIB  # a smaller Spark task takes longer to start than to run
BUNDLES_PER_CORE: Final = 4  # at least so many, while bundles are small, so that no core waits long for another
TASK_BYTES: Final = 64 * 1024  # fixed cost of a task, in bytes
MAX_TASKS: Final = 10_000  # per job, to bound what the driver sends and receives at the same time


def plan_jobs(sizes: Sequence[int], cores: int) -> list[list[list[int]]]:
    """Divide tasks into jobs, and each job into bundles; a bundle is a list of positions in ``sizes``.

    Every task is in exactly one bundle. Jobs keep the order of the tasks. The largest bundle of a job comes first.

    Args:
        sizes: Stored bytes that each task reads.
        cores: Number of tasks that can run at the same time; at least 1.
    """
    costs = [size + TASK_BYTES for size in sizes]
    return [_bundles(job, costs, cores) for job in _cut(range(len(costs)), costs, JOB_BYTES_PER_CORE * cores)]


def _cut(positions: Sequence[int], costs: Sequence[int], limit: int) -> list[list[int]]:
    """Cut positions into runs that end as soon as their cost reaches ``limit`` or they have `MAX_TASKS`."""
    runs: list[list[int]] = []
    filled = limit
    for position in positions:
        if filled >= limit or len(runs[-1]) >= MAX_TASKS:
            runs.append([])
            filled = 0
        runs[-1].append(position)
        filled += costs[position]
    return runs


def _bundles(job: Sequence[int], costs: Sequence[int], cores: int) -> list[list[int]]:
    total = sum(costs[position] for position in job)
    limit = min(BUNDLE_BYTES, total // (BUNDLES_PER_CORE * cores))
    large = [[position] for position in job if costs[position] >= limit]
    bundles = large + _cut([position for position in job if costs[position] < limit], costs, limit)
    return sorted(bundles, key=lambda bundle: sum(costs[position] for position in bundle), reverse=True)
