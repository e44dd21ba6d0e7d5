"""Divides the comparison of two snapshots into tasks of bounded size.

Small file groups share a task. A large one is divided by key range: its states in both snapshots, and the commits in
between, are divided at the same keys. So every key is compared by one task, and one hot bucket does not make one long
task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.storage.core.log.cut import Cut
from weft.storage.core.plan.memory_cost import cut_by_size
from weft.storage.core.plan.slices import FileSlice, LiveFile
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment, Tuning
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.read.plan.divide_file_group import Division, State, divide_states
from weft.storage.read.plan.read_task import ReadTask, read_task


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """The changes of some file groups. A task can be pickled.

    Attributes:
        before: The file groups in the earlier snapshot; None if none of them existed.
        after: The file groups in the later snapshot.
        touched: The commits in between, whose keys are compared; None to compare all rows.
    """

    before: ReadTask | None
    after: ReadTask
    touched: ReadTask | None

    @property
    def levels(self) -> frozenset[int]:
        """The bits of its file groups in both snapshots."""
        tasks = [task for task in (self.before, self.after) if task is not None]
        return frozenset(part.group.bits for task in tasks for part in task.slices)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One file group to compare, or a part of it.

    A file group that was split or merged in between corresponds to several file groups in one of the snapshots.

    Attributes:
        before: The file group in the earlier snapshot; empty if it had no rows.
        after: The file group in the later snapshot; not empty.
        touched: The commits in between, whose keys are compared; None to compare all rows.
    """

    before: tuple[FileSlice, ...]
    after: tuple[FileSlice, ...]
    touched: tuple[FileSlice, ...] | None

    @property
    def bytes(self) -> int:
        """Stored bytes of all states."""
        return sum(state.log_bytes + state.base_bytes for state in self._states)

    @property
    def rows(self) -> int:
        """Stored rows of all states."""
        return sum(state.stored_rows for state in self._states)

    @property
    def _states(self) -> list[FileSlice]:
        return [*self.after, *self.before, *(self.touched or ())]


@dataclass(frozen=True, slots=True)
class ComparedFiles:
    """The log files that the file groups of a comparison refer to by position; fields as in `Comparison`."""

    before: Sequence[LiveFile]
    after: Sequence[LiveFile]
    touched: Sequence[LiveFile]


def change_tasks(
    env: Environment,
    schema: TableSchema,
    work: Sequence[Comparison],
    files: ComparedFiles,
    since: Cut | None,
    until: Cut,
    *,
    every_key: bool = False,
) -> list[ChangeTask]:
    """Divide a comparison into tasks; each key is in one task.

    Args:
        env: The environment of the table.
        schema: The schema that both snapshots are read with.
        work: The file groups to compare.
        files: Their log files.
        since: The cut of the earlier snapshot; None without an earlier snapshot.
        until: The cut of the later snapshot.
        every_key: Also keep the parts of a large file group without commits in between.

    Raises:
        CorruptData: A base file of a large file group is missing, or its footer is damaged.
        SnapshotExpired: Such a file is missing because its snapshot has expired.
    """
    with explain_missing_file(env, until), explain_missing_file(env, since or until):
        divided = list(_divide(env, schema, work, files, every_key=every_key))
    return [_task(run, files) for run in _runs(divided, env.tuning)]


def _divide(
    env: Environment, schema: TableSchema, work: Sequence[Comparison], files: ComparedFiles, *, every_key: bool
) -> Iterator[Comparison]:
    """Divide large file groups into parts; small ones stay whole."""
    tuning = env.tuning
    large = [item.bytes > tuning.change_task_bytes or item.rows > tuning.change_task_rows for item in work]
    divisions = [
        _plan_division(item, files, tuning, every_key=every_key)
        for item, is_large in zip(work, large, strict=True)
        if is_large
    ]
    parts = divide_states(env, schema, divisions)
    for item, is_large in zip(work, large, strict=True):
        yield from _parts(item, next(parts), every_key=every_key) if is_large else [item]


def _plan_division(item: Comparison, files: ComparedFiles, tuning: Tuning, *, every_key: bool) -> Division:
    states = [State(part, files.after) for part in item.after]
    states += [State(part, files.before) for part in item.before]
    states += [State(part, files.touched) for part in item.touched or ()]
    by_keys = item.touched is not None and not every_key
    # Only rows of touched keys are kept in memory.
    rows = sum(part.stored_rows for part in item.touched) if item.touched is not None and by_keys else item.rows
    return Division(
        tuple(states),
        parts=math.ceil(rows / max(tuning.change_task_rows, 1)),
        part_bytes=max(tuning.change_task_bytes, 1),
        by_last=len(item.touched or ()) if by_keys else 0,
    )


def _parts(item: Comparison, divided: Sequence[tuple[FileSlice, ...]], *, every_key: bool) -> Iterator[Comparison]:
    end_of_after = len(item.after)
    end_of_before = end_of_after + len(item.before)
    for states in divided:
        touched = None if item.touched is None else states[end_of_before:]
        # Without rows in ``touched`` nothing was committed in this range of keys.
        if touched is None or every_key or any(len(part.rows) for part in touched):
            yield Comparison(states[end_of_after:end_of_before], states[:end_of_after], touched)


def _runs(work: Sequence[Comparison], tuning: Tuning) -> Iterator[list[Comparison]]:
    """Runs of adjacent file groups with at most the bytes and rows of a task; a larger file group is a run by itself.

    File groups that are compared by keys and those that are compared as a whole are in different runs. Each part of a
    divided file group is a separate run.
    """
    for by_keys in (True, False):
        items = [item for item in work if (item.touched is not None) is by_keys]
        yield from cut_by_size(items, [_share_of_task(item, tuning) for item in items], 1)


def _share_of_task(item: Comparison, tuning: Tuning) -> float:
    """Share of a task that a file group fills; more than 1 if it must be alone."""
    if item.after[0].within is not None:
        return 2
    return max(item.bytes / max(tuning.change_task_bytes, 1), item.rows / max(tuning.change_task_rows, 1))


def _task(run: Sequence[Comparison], files: ComparedFiles) -> ChangeTask:
    earlier = [part for item in run for part in item.before]
    commits = [part for item in run for part in item.touched or ()]
    return ChangeTask(
        before=read_task(earlier, files.before) if earlier else None,
        after=read_task([part for item in run for part in item.after], files.after),
        touched=read_task(commits, files.touched) if commits else None,
    )
