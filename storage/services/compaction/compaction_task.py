"""The task of a compaction: writes the new slices of one file group, or of several that share files.

It merges base, shadow, folds and log files of each file group up to the cut of a snapshot. The slices are not visible
until a BASE entry names them (`weft.storage.services.compaction.compaction`).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from weft.storage import mergers
from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays, join_rows, take_rows
from weft.storage.core.log.file_refs import FileGroup, FilePart, FileRef, Replaced, SliceFile
from weft.storage.core.merge.locate_keys import buckets
from weft.storage.core.merge.merge_sorted import merge_sorted
from weft.storage.core.merge.stitch import Stitched
from weft.storage.core.modes import Mergers
from weft.storage.core.plan.memory_cost import block_bytes, group_bytes, merging_bytes
from weft.storage.core.plan.slices import FileSlice
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment, Tuning
from weft.storage.files.slice_file_writer import SliceFileWriter
from weft.storage.files.slice_statistics import SliceStatistics
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.services.compaction.merge_steps import MergeStep, plan_steps
from weft.storage.services.compaction.merged_rows import MergedRows
from weft.storage.services.compaction.overlay_task import overlaid_slice, plan_overlay, write_overlay
from weft.storage.services.steps.row_change import RowChange
from weft.storage.services.steps.service_plan import delete_files
from weft.storage.services.steps.snapshot_task import SnapshotTask
from weft.storage.services.steps.tasks import WORKING_BYTES

OPEN_ROW_GROUPS: Final = 4
"""Limit of rows in memory while the parts of a large file group are written, in row groups."""


@dataclass(frozen=True, slots=True)
class NewSlice:
    """A new slice, and how many rows the change of its task removed.

    Attributes:
        file: The slice, as the BASE records it.
        visible_left_out: Visible rows that the change removed.
        hidden_left_out: Other rows that it removed, such as deletes.
    """

    file: SliceFile
    visible_left_out: int
    hidden_left_out: int


@dataclass(frozen=True, slots=True)
class CompactionTask(SnapshotTask):
    """Work on one file group, or on several small ones that share files, in order of their targets.

    A file group with fewer than ``bits`` bits is split: it is read once, and all its parts are written. All file groups
    that are merged into one are in one task.

    Attributes:
        rev: Revision of ``schema``.
        change: A change of the rows; None for a compaction, which changes no row.
        bits: Bits of the new slices. File groups with more bits are merged, file groups with fewer are split. None: as
            many bits as each file group has.
        apart: Split the only file group of the task, and write separate files for each of its parts.
    """

    rev: int
    change: RowChange | None = None
    bits: int | None = None
    apart: bool = False

    def target(self, file_slice: FileSlice) -> FileGroup:
        """The file group into which a file group is merged; itself if it is not merged."""
        group = file_slice.group
        return group if self.bits is None or group.bits <= self.bits else group.within(self.bits)

    @property
    def bytes(self) -> int:
        """Stored bytes that the task reads."""
        passes = (
            math.ceil((1 << self._split_bits(self.slices[0])) / parts_at_once(self.env.tuning)) if self.apart else 1
        )
        return passes * sum(file_slice.base_bytes + file_slice.log_bytes for file_slice in self.slices)

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the task needs: its largest step, and rows that are not written yet."""
        env, schema = self.env, self.schema
        row_group, rows = env.tuning.row_group_bytes, sum(group_bytes(schema, file_slice) for file_slice in self.slices)
        if self.apart:
            step = MergeStep(((self.slices[0],),), ((self.slices[0].group, self.slices),))
            steps, pending_bytes = [step], OPEN_ROW_GROUPS * row_group
        else:
            steps, pending_bytes = plan_steps(env, schema, self.targets()), row_group
        step_bytes = max(step.memory_bytes(env, schema, self.files) for step in steps)
        columns = merging_bytes(schema) + block_bytes(self.slices, self.files)
        return WORKING_BYTES + step_bytes + min(pending_bytes, rows) + columns

    def _split_bits(self, file_slice: FileSlice) -> int:
        """How many more bits the parts of a file group have; 0 if it is not split."""
        return 0 if self.bits is None else max(self.bits - file_slice.group.bits, 0)

    def targets(self) -> list[tuple[FileGroup, tuple[FileSlice, ...]]]:
        """The file groups of the new slices, in order, each with the file groups that it is made from."""
        sources: dict[FileGroup, tuple[FileSlice, ...]] = {}
        for file_slice in self.slices:
            parts = file_slice.group.parts(file_slice.group.bits + self._split_bits(file_slice))
            for target in parts if self._split_bits(file_slice) else (self.target(file_slice),):
                sources[target] = (*sources.get(target, ()), file_slice)
        return sorted(sources.items(), key=operator.itemgetter(0))

    def run(self) -> list[NewSlice]:
        """Write the new slice of every target; returns the slices in order.

        Raises:
            CorruptData: A file is missing or damaged; the files of the new slices were deleted.
            SnapshotExpired: A file is missing because cleaning has aborted the compaction as abandoned.
            InvalidInput: See `weft.storage.services.steps.row_change.NewValues.apply`.
        """
        custom_mergers = mergers.load(self.schema, self.env.mergers)
        with explain_missing_file(self.env, self.at):
            return _write_apart(self, custom_mergers) if self.apart else _write_together(self, custom_mergers)


def parts_at_once(tuning: Tuning) -> int:
    """Parts of a large file group that are written in one pass over it, so that memory is bounded."""
    return OPEN_ROW_GROUPS * tuning.row_group_rows // min(tuning.shared_row_group_rows, tuning.row_group_rows)


@dataclass(frozen=True, slots=True)
class _WrittenSlice:
    """A new slice whose files are not closed yet."""

    group: FileGroup
    sources: tuple[FileSlice, ...]
    base: FilePart | None
    shadow: FilePart | None
    statistics: SliceStatistics
    left_out: tuple[int, int]


def _steps(task: CompactionTask) -> list[MergeStep]:
    return plan_steps(task.env, task.schema, task.targets())


def _merged_rows(task: CompactionTask, steps: Sequence[MergeStep], custom_mergers: Mergers) -> MergedRows:
    return MergedRows(task.env, task.schema, [run for step in steps for run in step.runs], task.files, custom_mergers)


def _write_overlaid_slice(
    task: CompactionTask, rows: MergedRows, file_slice: FileSlice, custom_mergers: Mergers
) -> NewSlice | None:
    """Write the new slice of a file group as an overlay of its base; None if a base has to be written."""
    env, schema, slice_file = task.env, task.schema, file_slice.slice
    plan = plan_overlay(env, schema, file_slice, _changed_groups(task, rows, file_slice))
    if plan is None or slice_file is None:
        return None
    path = names.overlay_path(str(file_slice.group), task.plan, env.ids.new())
    overlay = write_overlay(env, schema, file_slice, plan, path, rows.logs(file_slice), custom_mergers)
    if overlay is None:
        return None
    changes = overlaid_slice(schema, slice_file, overlay)
    cuts = {"parent": dict(slice_file.cut), "cut": dict(task.at.lanes), "replaces": []}
    return NewSlice(slice_file.model_copy(update=cuts | changes), 0, 0)


def _changed_groups(task: CompactionTask, rows: MergedRows, file_slice: FileSlice) -> set[int]:
    """Ids of the column groups that the logs of a file group change; with large logs, that they may change."""
    if len(rows.ranges(file_slice)) > 1:
        return {group for number in set(file_slice.file.tolist()) for group in task.files[number].file.groups}
    ((_, logs),) = rows.logs(file_slice)
    return {group for group, registers in logs.registers.items() if len(registers)} if logs is not None else set()


def _rows_of(task: CompactionTask, rows: MergedRows, step: MergeStep) -> Iterator[Stitched]:
    """Merged rows of a step; rows of one new slice are in key order."""
    if len(step.runs) == 1:
        return rows.of(step.runs[0])
    return merge_sorted(task.schema, list(map(rows.of, step.runs)))


def _order_by_target(task: CompactionTask, step: MergeStep, parts: Sequence[Arrays]) -> Arrays:
    """Sort the rows of a step by new slice, then key. ``names.SLICE_ORDINAL`` is the position of the new slice."""
    rows, ((sources,), targets) = join_rows([part for part in parts if part]), (step.runs, step.targets)
    if not rows or [target for target, _ in targets] == [source.group for source in sources]:
        return rows
    has_ordinals = names.SLICE_ORDINAL in rows
    ordinal = (
        np.asarray(rows[names.SLICE_ORDINAL])
        if has_ordinals
        else np.zeros(len(rows[task.schema.sort_column]), np.int64)
    )
    bits, partitions = targets[0][0].bits, sorted({target.partition for target, _ in targets})
    partition = np.array([partitions.index(source.group.partition) for source in sources], np.int64)
    codes = [partitions.index(target.partition) << bits | target.bucket for target, _ in targets]
    number = np.searchsorted(codes, partition[ordinal] << bits | buckets(task.schema, rows, bits))
    order = keys.stable_order(keys.key_vector(rows[task.schema.sort_column]))
    order = order[np.argsort(number[order], kind="stable")]
    return {**take_rows(rows, order), names.SLICE_ORDINAL: pa.array(number[order])}


class _Files:
    """The base file and the shadow file of new slices, while they are written."""

    def __init__(self, task: CompactionTask, env: Environment, folder: str, *, shared: bool) -> None:
        schema, unique = task.schema, env.ids.new()
        self._task = task
        self._base = SliceFileWriter(
            env, names.base_path(folder, task.plan, unique), schema, shared=shared, index=schema.index
        )
        self._shadow = SliceFileWriter(env, names.shadow_path(folder, task.plan, unique), schema, shared=shared)
        self._slices: list[_WrittenSlice] = []
        self._begin()

    def _begin(self) -> None:
        self._statistics, self._left_out = SliceStatistics(self._task.schema), [0, 0]

    def write(self, stitched: Stitched) -> None:
        """Append rows to the current slice."""
        for i, (writer, original_rows) in enumerate(((self._base, stitched.visible), (self._shadow, stitched.hidden))):
            rows = self._change(original_rows)
            self._left_out[i] += _count(self._task.schema, original_rows) - _count(self._task.schema, rows)
            self._statistics.add(rows)
            writer.write(rows)

    def end_slice(self, group: FileGroup, sources: Sequence[FileSlice]) -> None:
        """End a slice, and begin the next one."""
        base, shadow, (visible, hidden) = self._base.end_part(), self._shadow.end_part(), self._left_out
        self._slices.append(_WrittenSlice(group, tuple(sources), base, shadow, self._statistics, (visible, hidden)))
        self._begin()

    def write_slices(self, step: MergeStep, visible: Arrays, hidden: Arrays) -> None:
        """Append all slices of a step; the rows are sorted by `_order_by_target`."""
        count = len(step.targets)
        statistics = [SliceStatistics(self._task.schema) for _ in step.targets]
        parts, left_out = list[list[FilePart | None]](), list[list[int]]()
        for writer, original_rows in ((self._base, visible), (self._shadow, hidden)):
            rows = self._change(original_rows)
            sizes = _sizes(rows, count)
            bounds = np.cumsum([0, *sizes]).tolist()
            columns = {name: rows[name] for name in statistics[0].reads if name in rows}
            for i, (first, end) in enumerate(itertools.pairwise(bounds)):
                if end > first:
                    statistics[i].add({name: column.slice(first, end - first) for name, column in columns.items()})
            parts.append(writer.write_parts(rows, sizes))
            old_sizes = _sizes(original_rows, count)
            left_out.append([old - new for old, new in zip(old_sizes, sizes, strict=True)])
        for (group, sources), slice_statistics, base, shadow, counts in zip(
            step.targets, statistics, *parts, zip(*left_out, strict=True), strict=True
        ):
            self._slices.append(_WrittenSlice(group, sources, base, shadow, slice_statistics, counts))

    def _change(self, rows: Arrays) -> Arrays:
        change = self._task.change
        return change.apply(self._task.schema, rows) if change is not None and rows else rows

    def close(self) -> list[NewSlice]:
        """Finish the files durably; returns their slices."""
        base, shadow = self._base.close(), self._shadow.close()
        return [NewSlice(_slice_file(self._task, part, base, shadow), *part.left_out) for part in self._slices]

    def discard(self, error: BaseException) -> None:
        """Discard the files, because of ``error``."""
        self._base.discard(error)
        self._shadow.discard(error)


def _write_together(task: CompactionTask, custom_mergers: Mergers) -> list[NewSlice]:
    """Write all slices of a task into the same files."""
    targets, steps, first_slice = task.targets(), _steps(task), task.slices[0]
    rows, shared = _merged_rows(task, steps, custom_mergers), len(targets) > 1
    is_same_group = targets[0][0] == first_slice.group and not first_slice.shared
    if not shared and task.change is None and task.schema.overlays and is_same_group:
        new_slice = _write_overlaid_slice(task, rows, first_slice, custom_mergers)
        if new_slice is not None:
            return [new_slice]
        if len(rows.ranges(first_slice)) > 1:  # the logs were read, and can be read only once
            rows = _merged_rows(task, steps, custom_mergers)
    files = _Files(task, task.env, names.SHARED if shared else str(targets[0][0]), shared=shared)
    try:
        for step in steps:
            stitched = _rows_of(task, rows, step)
            if step.in_memory:
                stitched_parts = list(stitched)
                visible = _order_by_target(task, step, [rows.visible for rows in stitched_parts])
                hidden = _order_by_target(task, step, [rows.hidden for rows in stitched_parts])
                files.write_slices(step, visible, hidden)
            else:
                ((group, sources),) = step.targets
                for part in stitched:
                    files.write(part)
                files.end_slice(group, sources)
        return files.close()
    except BaseException as error:
        files.discard(error)
        raise


def _sizes(rows: Arrays, count: int) -> list[int]:
    """Number of rows of each of ``count`` slices."""
    if not rows:
        return [0] * count
    sizes: list[int] = np.bincount(np.asarray(rows[names.SLICE_ORDINAL]), minlength=count).tolist()
    return sizes


def _count(schema: TableSchema, rows: Arrays) -> int:
    return len(rows[schema.sort_column]) if rows else 0


def _write_apart(task: CompactionTask, custom_mergers: Mergers) -> list[NewSlice]:
    """Write the parts of one large file group, each to its own files, in as few passes over it as possible."""
    ((file_slice,), tuning) = task.slices, task.env.tuning
    targets, max_parts = [group for group, _ in task.targets()], parts_at_once(tuning)
    new_slices: list[NewSlice] = []
    for start in range(0, len(targets), max_parts):
        parts = targets[start : start + max_parts]
        # All files together have the pending rows of a few row groups.
        rows = max(OPEN_ROW_GROUPS * tuning.row_group_rows // len(parts), 1)
        env = task.env.tuned(
            row_group_rows=min(rows, tuning.row_group_rows),
            row_group_bytes=max(OPEN_ROW_GROUPS * tuning.row_group_bytes // len(parts), 1),
        )
        files = [_Files(task, env, str(part), shared=False) for part in parts]
        try:
            merged_rows = MergedRows(task.env, task.schema, [[file_slice]], task.files, custom_mergers)
            for stitched in merged_rows.of([file_slice]):
                for part_rows, part_files in zip(rows_of_parts(task.schema, stitched, parts), files, strict=True):
                    part_files.write(part_rows)
            for part, part_files in zip(parts, files, strict=True):
                part_files.end_slice(part, [file_slice])
                new_slices += part_files.close()
        except BaseException as error:
            for part_files in files:
                part_files.discard(error)
            delete_files(task.env.store, (file.path for new_slice in new_slices for file in new_slice.file.objects))
            raise
    return new_slices


def _slice_file(
    task: CompactionTask, written_slice: _WrittenSlice, base_file: FileRef | None, shadow_file: FileRef | None
) -> SliceFile:
    group, source_slices = written_slice.group, [part.slice for part in written_slice.sources if part.slice is not None]
    replaced_slices = [slice_file for slice_file in source_slices if slice_file.group != group]
    parent = next((slice_file.cut for slice_file in source_slices if slice_file.group == group), {})
    base, base_part = _file_and_part(base_file, written_slice.base)
    shadow, shadow_part = _file_and_part(shadow_file, written_slice.shadow)
    return SliceFile(
        partition=group.partition,
        bits=group.bits,
        bucket=group.bucket,
        rev=task.rev,
        parent=dict(parent),
        cut=dict(task.at.lanes),
        groups=[column_group.id for column_group in task.schema.groups],
        base=base,
        shadow=shadow,
        ordering_max=written_slice.statistics.ordering_max,
        overflows=written_slice.statistics.overflows,
        base_part=base_part,
        shadow_part=shadow_part,
        replaces=[Replaced(bits=old.bits, bucket=old.bucket, cut=dict(old.cut)) for old in replaced_slices],
    )


def rows_of_parts(schema: TableSchema, stitched: Stitched, parts: Sequence[FileGroup]) -> list[Stitched]:
    """Divide rows of a file group among some of its parts, which have equal bits."""
    divided_rows = [_divide(schema, rows, parts) for rows in (stitched.visible, stitched.hidden)]
    return [Stitched(visible, hidden) for visible, hidden in zip(*divided_rows, strict=True)]


def _divide(schema: TableSchema, rows: dict[str, pa.Array], parts: Sequence[FileGroup]) -> list[dict[str, pa.Array]]:
    if not rows:
        return [rows] * len(parts)
    bucket = buckets(schema, rows, parts[0].bits)
    return [take_rows(rows, np.flatnonzero(bucket == part.bucket)) for part in parts]


def _file_and_part(file: FileRef | None, part: FilePart | None) -> tuple[FileRef | None, FilePart | None]:
    """The file with rows of a file group, None if it has no rows; and their part of it, None for the whole file."""
    if file is None or part is None:
        return None, None
    return file, None if part.rows == file.rows else part
