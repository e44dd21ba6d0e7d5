"""Steps of a compaction task: which of its file groups are merged together, and the memory that each step needs.

    small file groups, whole or split or merged    one step: all rows in memory, then written slice by slice
    a larger file group                            one step: its rows are written as they are merged
    larger file groups that become one             one step: likewise, as streams that are merged by key
    a file group split into a shared file          one step: all rows in memory, because a file has its parts in order

Small file groups are merged together because each column of each merge has a fixed cost, which is a thousand times that
of a few rows (`tests/benchmarks/memory.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.modes import mode_of
from weft.storage.core.plan.memory_cost import UNPACKED, cut_by_size, group_bytes, log_memory_bytes
from weft.storage.core.plan.slices import FileSlice, LiveFile
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.services.compaction.merged_rows import logs_at_once
from weft.storage.services.steps.tasks import COPIES

Target = tuple[FileGroup, tuple[FileSlice, ...]]
"""A file group of a new slice, and the file groups that it is made from."""


@dataclass(frozen=True, slots=True)
class MergeStep:
    """File groups that are merged at the same time.

    Attributes:
        runs: The file groups, in order. A single run of several file groups is merged together
            (`weft.storage.services.compaction.merged_rows`). Several runs of one file group each become one slice.
        targets: The new slices, in order.
    """

    runs: tuple[tuple[FileSlice, ...], ...]
    targets: tuple[Target, ...]

    @property
    def in_memory(self) -> bool:
        """Whether all rows are merged before the first is written. Not needed for a single new slice."""
        return len(self.targets) > 1 or len(self.runs[0]) > 1

    def memory_bytes(self, env: Environment, schema: TableSchema, files: Sequence[LiveFile]) -> int:
        """Estimate of the memory for the rows of the step.

        Args:
            env: The environment of the table.
            schema: The schema of the snapshot.
            files: The log files that the file groups refer to by position.
        """
        slices = [file_slice for run in self.runs for file_slice in run]
        if self.in_memory:
            return COPIES * sum(group_bytes(schema, file_slice) for file_slice in slices)
        row_group = sum(min(env.tuning.row_group_bytes, group_bytes(schema, file_slice)) for file_slice in slices)
        return COPIES * row_group + sum(_log_bytes(env, schema, file_slice, files) for file_slice in slices)


def _log_bytes(env: Environment, schema: TableSchema, file_slice: FileSlice, files: Sequence[LiveFile]) -> int:
    """Memory of the logs of a file group: all of them, or those of one key range and a block of each file."""
    all_bytes = log_memory_bytes(schema, file_slice.log_bytes, int(file_slice.rows.sum()))
    at_once = logs_at_once(env, schema, file_slice)
    if not at_once:
        return all_bytes
    largest: dict[int, int] = {}
    for file, block in zip(file_slice.file.tolist(), file_slice.block.tolist(), strict=True):
        largest[file] = max(largest.get(file, 0), files[file].index.blocks.length[block])
    return min(UNPACKED * (env.tuning.merge_bytes + sum(largest.values())), all_bytes)


def _may_join(env: Environment, schema: TableSchema, file_slice: FileSlice) -> bool:
    """Whether a small file group may be merged with others. Rows of shared log ranges are filtered for one only."""
    return not file_slice.shared and not logs_at_once(env, schema, file_slice)


def plan_steps(env: Environment, schema: TableSchema, targets: Sequence[Target]) -> list[MergeStep]:
    """The steps in which the slices of a task are written, in order.

    Args:
        env: The environment of the table.
        schema: The schema of the snapshot.
        targets: The new slices, in order.
    """
    units: dict[tuple[FileGroup, ...], list[Target]] = {}
    for target, sources in targets:
        units.setdefault(tuple(file_slice.group for file_slice in sources), []).append((target, sources))
    limit = env.tuning.merge_together_bytes
    # A merge function that fails names the keys of a file group.
    together = not any(mode_of(group).runs_merger for group in schema.groups)
    units_in_order = list(units.values())
    sizes = []
    for (_, sources), *_ in units_in_order:
        is_small = together and all(_may_join(env, schema, file_slice) for file_slice in sources)
        sizes.append(sum(group_bytes(schema, file_slice) for file_slice in sources) if is_small else limit + 1)
    steps = []
    for run in cut_by_size(list(zip(units_in_order, sizes, strict=True)), sizes, limit):
        step_targets = tuple(sorted((target for unit, _ in run for target in unit), key=operator.itemgetter(0)))
        run_sources = tuple(file_slice for unit, _ in run for file_slice in unit[0][1])
        is_merged = run[0][1] <= limit
        runs = (run_sources,) if is_merged else tuple((file_slice,) for file_slice in run_sources)
        steps.append(MergeStep(runs, step_targets))
    return steps
