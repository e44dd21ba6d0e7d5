"""The task of a compaction: writes the new slices of one file group, or of several that share files.

Merges base, shadow, folds and log files of each file group up to the cut of a snapshot. The slices are not visible
until a BASE entry names them (`storage.services.compaction`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from storage import mergers
from storage.core import names
from storage.core.arrays import Arrays, take_rows
from storage.core.log.cut import Cut
from storage.core.log.file_refs import FileGroup, FilePart, FileRef, Replaced, SliceFile
from storage.core.merge.contested import stored_bounds
from storage.core.merge.locate_keys import in_bucket
from storage.core.merge.merge_sorted import merge_sorted
from storage.core.merge.stitch import LogState, Stitch, Stitched
from storage.core.modes import Mergers
from storage.core.plan.slices import FileSlice, LiveFile
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.files.base_file import read_base, read_shadow
from storage.files.log_reader import LogReader
from storage.files.row_groups import LastRowGroups
from storage.files.slice_file_writer import SliceFileWriter
from storage.files.slice_statistics import SliceStatistics
from storage.read.missing_file import explain_missing_file
from storage.read.read_task import only_needed
from storage.services.overlay_task import overlaid_slice, plan_overlay, write_overlay
from storage.services.row_change import RowChange
from storage.services.service_plan import delete_files
from storage.services.tasks import UNPACKED, WORKING_BYTES


@dataclass(frozen=True, slots=True)
class MadeSlice:
    """A new slice, and how many rows the change of its task has left out.

    Attributes:
        file: The slice, for an entry.
        visible_left_out: Rows that were visible.
        hidden_left_out: Rows that were not, such as deletes.
    """

    file: SliceFile
    visible_left_out: int
    hidden_left_out: int


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Work on one file group, or on several small ones that share files. Can be pickled and run in any process.

    Of a file group that is split all parts are in the task, and all file groups that are merged into one.

    Attributes:
        env: The table's environment.
        schema: Schema of the snapshot.
        slices: The file groups to compact, as planned at the snapshot; in order of `target`, then of file group.
        files: The log files that ``slices`` refer to by number.
        at: Cut of the snapshot: the new slices contain all its commits.
        plan: Slot of the compaction's PLAN, which is part of the names of its files.
        rev: Revision of ``schema``.
        change: A change of the rows; None for a compaction, which changes no row.
        bits: Bits of the new slices: file groups with more become one with all others that are parts of it. None: the
            bits that they have.
        apart: Write separate files for each of the file groups.
    """

    env: Environment
    schema: TableSchema
    slices: tuple[FileSlice, ...]
    files: tuple[LiveFile, ...]
    at: Cut
    plan: int
    rev: int
    change: RowChange | None = None
    bits: int | None = None
    apart: bool = False

    def target(self, file_slice: FileSlice) -> FileGroup:
        """The file group of the new slice that one of the file groups becomes a part of."""
        group = file_slice.group
        return group if self.bits is None or group.bits <= self.bits else group.within(self.bits)

    @property
    def bytes(self) -> int:
        """Stored bytes that the task reads."""
        return sum(file_slice.base_bytes + file_slice.log_bytes for file_slice in self.slices)

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the task needs: the logs of one file group are in memory at once."""
        return WORKING_BYTES + UNPACKED * max(file_slice.log_bytes for file_slice in self.slices)

    def __reduce__(self) -> tuple[Any, ...]:
        slices, files = only_needed(self.slices, self.files)
        same = (self.at, self.plan, self.rev, self.change, self.bits, self.apart)
        return CompactionTask, (self.env, self.schema, slices, files, *same)

    def run(self) -> list[MadeSlice]:
        """Write the next slice of every file group, or of those that they become; returns them in order.

        Raises:
            CorruptData: A file is missing or damaged; the files of the new slices were deleted.
            SnapshotExpired: A file is missing because cleaning has aborted the compaction as abandoned.
            InvalidInput: See `storage.services.row_change.NewValues.apply`.
        """
        loaded = mergers.load(self.schema, self.env.mergers)
        with explain_missing_file(self.env, self.at):
            if not self.apart:
                return _write_slices(self, loaded)
            made: list[MadeSlice] = []
            try:
                for each in self.slices:
                    made += _write_slices(replace(self, slices=(each,)), loaded)
            except Exception:
                delete_files(self.env.store, (file.path for each in made for file in each.file.objects))
                raise
            return made


@dataclass(frozen=True, slots=True)
class _WrittenSlice:
    """A new slice whose files are not closed yet."""

    group: FileGroup
    before: tuple[FileSlice, ...]
    base: FilePart | None
    shadow: FilePart | None
    statistics: SliceStatistics
    left_out: tuple[int, int]


def _write_slices(task: CompactionTask, loaded: Mergers) -> list[MadeSlice]:
    env, schema = task.env, task.schema
    targets = [(group, tuple(parts)) for group, parts in itertools.groupby(task.slices, task.target)]
    shared = len(targets) > 1
    columns = tuple(schema.slice.names)
    wanted = frozenset((*columns, names.OP, names.SUPPLIED))
    logs = LogReader(env, schema, task.files, task.slices, [wanted] * len(task.slices), loaded)
    collapsed: dict[FileGroup, LogState | None] = {}
    alone = task.slices[0]
    continued = task.target(alone) == alone.group and not alone.shared
    if not shared and task.change is None and schema.overlays and continued:
        collapsed[alone.group] = logs.collapse(alone, schema.groups, columns)
        overlaid = _overlaid(task, alone, collapsed[alone.group], loaded)
        if overlaid is not None:
            return [overlaid]
    folder, unique = names.SHARED if shared else str(targets[0][0]), env.ids.new()
    base = SliceFileWriter(env, names.base_path(folder, task.plan, unique), schema, shared=shared, index=schema.index)
    shadow = SliceFileWriter(env, names.shadow_path(folder, task.plan, unique), schema, shared=shared)
    stitch = Stitch(schema, columns, schema.groups, exact=True, ordered=True, result=frozenset(columns), mergers=loaded)
    last_base, last_shadow = LastRowGroups(), LastRowGroups()

    def stitched_rows(before: FileSlice) -> Iterator[Stitched]:
        old_base = read_base(env, schema, [before.slice], columns, last=last_base)
        old_shadow = read_shadow(env, schema, [before.slice], columns, last_shadow)
        if before.group not in collapsed:
            collapsed[before.group] = logs.collapse(before, schema.groups, columns)
        merge = replace(stitch, bounds=stored_bounds(schema, schema.groups, [before.slice]))
        for stitched in merge.run(old_base, old_shadow, collapsed.pop(before.group)):
            yield _in_bucket(schema, stitched, before.group) if before.shared else stitched

    written = []
    try:
        for group, before in targets:
            statistics, left_out = SliceStatistics(schema), [0, 0]
            for stitched in merge_sorted(schema, list(map(stitched_rows, before))):
                for i, (writer, found) in enumerate(((base, stitched.visible), (shadow, stitched.hidden))):
                    rows: Arrays = found
                    if task.change is not None and found:
                        changed = task.change.apply(schema, rows)
                        left_out[i] += len(rows[schema.sort_column]) - len(changed[schema.sort_column])
                        rows = changed
                    statistics.add(rows)
                    writer.write(rows)
            made = _WrittenSlice(
                group, before, base.end_part(), shadow.end_part(), statistics, (left_out[0], left_out[1])
            )
            written.append(made)
        base_file, shadow_file = base.close(), shadow.close()
    except BaseException as error:
        base.discard(error)
        shadow.discard(error)
        raise
    return [MadeSlice(_slice_file(task, made, base_file, shadow_file), *made.left_out) for made in written]


def _overlaid(task: CompactionTask, before: FileSlice, logs: LogState | None, loaded: Mergers) -> MadeSlice | None:
    """The next slice of a file group as an overlay of its base; None if a base has to be written."""
    env, schema, made = task.env, task.schema, before.slice
    plan = plan_overlay(env, schema, before, logs)
    if plan is None or made is None or logs is None:
        return None
    path = names.overlay_path(str(before.group), task.plan, env.ids.new())
    overlay = write_overlay(env, schema, before, plan, path, logs, loaded)
    if overlay is None:
        return None
    changes = overlaid_slice(schema, made, overlay)
    cuts = {"parent": dict(made.cut), "cut": dict(task.at.lanes), "replaces": []}
    return MadeSlice(made.model_copy(update=cuts | changes), 0, 0)


def _slice_file(
    task: CompactionTask, made: _WrittenSlice, base_file: FileRef | None, shadow_file: FileRef | None
) -> SliceFile:
    group, known = made.group, [part.slice for part in made.before if part.slice is not None]
    replaced = [each for each in known if each.group != group]
    parent = next((each.cut for each in known if each.group == group), {})
    base, base_part = _file_and_part(base_file, made.base)
    shadow, shadow_part = _file_and_part(shadow_file, made.shadow)
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
        ordering_max=made.statistics.ordering_max,
        overflows=made.statistics.overflows,
        base_part=base_part,
        shadow_part=shadow_part,
        replaces=[Replaced(bits=each.bits, bucket=each.bucket, cut=dict(each.cut)) for each in replaced],
    )


def _in_bucket(schema: TableSchema, stitched: Stitched, group: FileGroup) -> Stitched:
    """Those of the rows that are in the bucket of a file group."""
    kinds = (stitched.visible, stitched.hidden)
    return Stitched(*(take_rows(rows, in_bucket(schema, rows, group)) if rows else rows for rows in kinds))


def _file_and_part(file: FileRef | None, part: FilePart | None) -> tuple[FileRef | None, FilePart | None]:
    """The file with the rows of a file group, None if it has none; and its part, None if that is the whole file."""
    if file is None or part is None:
        return None, None
    return file, None if part.rows == file.rows else part
