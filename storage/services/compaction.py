"""Compaction: fold base, shadow and logs of file groups into new slices, and publish them.

No lock and no abort of anybody: writers' next commits are later slots by construction, and of two compactors of one
file group the one whose BASE comes second drops its slice (PROTOCOL.md, K1 to K4; invariants S10, S11, S12).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from storage import mergers
from storage.core import names
from storage.core.log import cut
from storage.core.log.cut import Cut
from storage.core.log.entries import Abort, Base
from storage.core.log.file_refs import FileGroup, FilePart, FileRef, SliceFile
from storage.core.log.table_state import TableState
from storage.core.merge.stitch import Stitch
from storage.core.modes import Mergers, mode_of
from storage.core.names import Path
from storage.core.plan.mostly_unreferenced import mostly_unreferenced
from storage.core.plan.slices import FileSlice, LiveFile
from storage.core.schema.table_schema import TableSchema
from storage.core.types import encode_scalar
from storage.errors import CommitUnknown, TableError
from storage.files.base_file import SliceFileWriter, read_base, read_shadow
from storage.files.log_reader import LogReader
from storage.files.row_groups import LastRowGroups
from storage.log.commit_log import new_id
from storage.log.table_log import TableLog
from storage.read.missing_file import explain_missing_file
from storage.read.scan import read_task
from storage.read.snapshot import Snapshot
from storage.services.service_plan import GIVEN_UP, abort_plan, publish_plan
from storage.store.object_store import ObjectStore

PART_BYTES: Final = 512 * 1024 * 1024  # a crash loses at most about this much work
# Stored bytes. A file of its own costs a reader about as much as 2 MiB of it: smaller file groups are put together, up
# to a size at which that is not felt any more, and which limits what stays behind when one of them gets a newer slice.
SMALL_BYTES: Final = 2 * 1024 * 1024
SHARED_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What one compaction did.

    Attributes:
        done: File groups with a new slice.
        skipped: File groups left as they are, and why.
        rows: Visible rows in the new slices.
        bytes_read: Stored bytes of base, shadow and logs that were merged.
        bytes_written: Of the new base and shadow files.
        overflows: Per column in how many rows an aggregate does not fit it and shows NULL.
        seconds: Wall-clock time.
    """

    done: tuple[FileGroup, ...]
    skipped: Mapping[FileGroup, str]
    rows: int
    bytes_read: int
    bytes_written: int
    overflows: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """The work on one file group, or on several small ones that get files together; can be pickled and run anywhere.

    Attributes:
        store: The table's store.
        schema: The snapshot's schema.
        slices: What to fold, as planned at a snapshot; in order of file group.
        files: What they point into.
        at: The cut of that snapshot: all its commits up to there are in the new slices.
        plan: Slot of the compaction's PLAN, by which its files are named.
        rev: Revision of ``schema``.
        mergers: Modules whose custom mergers may run.
    """

    store: ObjectStore
    schema: TableSchema
    slices: tuple[FileSlice, ...]
    files: tuple[LiveFile, ...]
    at: Cut
    plan: int
    rev: int
    mergers: frozenset[str]

    def run(self) -> list[SliceFile]:
        """Write the next slice of every file group, in the same order; they become visible only with a BASE entry.

        Raises:
            CorruptData: A file is missing or damaged; nothing is left behind.
            SnapshotExpired: It is missing because the compaction was taken for dead, and cleaning followed.
        """
        loaded = mergers.load(self.schema, self.mergers)
        with explain_missing_file(self.store, self.at):
            return _fold(self, loaded)


Execute = Callable[[Sequence[CompactionTask]], Iterable[list[SliceFile]]]
"""Runs tasks and gives their slices in the same order."""


def one_by_one(tasks: Sequence[CompactionTask]) -> Iterator[list[SliceFile]]:
    """Run tasks here, one after the other: memory is that of one file group."""
    for task in tasks:
        yield task.run()


def cut_tasks(slices: Sequence[FileSlice]) -> list[list[FileSlice]]:
    """Which file groups, in order, get files together: neighbours, as long as they are small."""
    runs: list[list[FileSlice]] = []
    filled = SHARED_BYTES
    for own in slices:
        size = own.base_bytes + own.log_bytes
        if size >= SMALL_BYTES:
            runs.append([own])
            filled = SHARED_BYTES
        elif filled + size > SHARED_BYTES:
            runs.append([own])
            filled = size
        else:
            runs[-1].append(own)
            filled += size
    return runs


@dataclass(frozen=True, slots=True)
class _Folded:
    """What is known of a new slice before its files are finished."""

    before: FileSlice
    base: FilePart | None
    shadow: FilePart | None
    statistics: _Statistics


def _fold(task: CompactionTask, loaded: Mergers) -> list[SliceFile]:
    store, schema = task.store, task.schema
    shared = len(task.slices) > 1
    folder, unique = names.SHARED if shared else str(task.slices[0].group), new_id()
    base = SliceFileWriter(store, names.base_path(folder, task.plan, unique), schema, shared=shared)
    shadow = SliceFileWriter(store, names.shadow_path(folder, task.plan, unique), schema, shared=shared)
    columns = tuple(schema.slice.names)
    logs = LogReader(
        store,
        schema,
        task.files,
        task.slices,
        [frozenset((*columns, names.OP, names.SUPPLIED))] * len(task.slices),
        loaded,
    )
    stitch = Stitch(schema, columns, schema.groups, exact=True, ordered=True, result=frozenset(columns), mergers=loaded)
    try:
        last = LastRowGroups(), LastRowGroups()
        folded = [_fold_one(task, own, stitch, logs, base, shadow, last) for own in task.slices]
        base_file, shadow_file = base.close(), shadow.close()
    except BaseException as error:
        base.discard(error)
        shadow.discard(error)
        raise
    return [_slice_file(task, own, base_file, shadow_file) for own in folded]


def _fold_one(
    task: CompactionTask,
    own: FileSlice,
    stitch: Stitch,
    logs: LogReader,
    base: SliceFileWriter,
    shadow: SliceFileWriter,
    last: tuple[LastRowGroups, LastRowGroups],
) -> _Folded:
    schema = task.schema
    columns = tuple(schema.slice.names)
    statistics = _Statistics(schema)
    old_base = read_base(task.store, schema, [own.slice], columns, last=last[0])
    old_shadow = read_shadow(task.store, schema, [own.slice], columns, last[1])
    for stitched in stitch.run(old_base, old_shadow, logs.collapse(own, schema.groups, columns)):
        for writer, rows in ((base, stitched.visible), (shadow, stitched.hidden)):
            statistics.add(rows)
            writer.write(rows)
    return _Folded(own, base.end_part(), shadow.end_part(), statistics)


def _slice_file(
    task: CompactionTask, folded: _Folded, base_file: FileRef | None, shadow_file: FileRef | None
) -> SliceFile:
    group, before = folded.before.group, folded.before.slice
    base, base_part = _own_part(base_file, folded.base)
    shadow, shadow_part = _own_part(shadow_file, folded.shadow)
    return SliceFile(
        partition=group.partition,
        bits=group.bits,
        bucket=group.bucket,
        rev=task.rev,
        parent=dict(before.cut) if before is not None else {},
        cut=dict(task.at.lanes),
        groups=[g.id for g in task.schema.groups],
        base=base,
        shadow=shadow,
        ordering_max=folded.statistics.ordering_max,
        overflows=folded.statistics.overflows,
        base_part=base_part,
        shadow_part=shadow_part,
    )


def _own_part(file: FileRef | None, part: FilePart | None) -> tuple[FileRef | None, FilePart | None]:
    """The file of a file group's rows, and which they are if there are others in it."""
    if file is None or part is None:
        return None, None
    return file, None if part.rows == file.rows else part


class _Statistics:
    """What a slice's entry says of its rows: see `SliceFile`."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._columns = {
            group.id: (group.ordering[0], names.floor_ordering(group.id, 0))
            for group in schema.groups
            if group.ordering
        }
        self._largest: dict[int, Any] = {}
        self.overflows: dict[int, int] = {}

    def add(self, rows: Mapping[str, pa.Array]) -> None:
        if not rows:
            return
        for group_id, (ordering, floor) in self._columns.items():
            # The default of an absent group may stand in an ordering column: it is nobody's version.
            present = pc.if_else(rows[names.arrival(group_id)].is_valid(), rows[ordering], None)
            for versions in (present, rows.get(floor)):
                largest = pc.max(versions).as_py() if versions is not None else None
                if largest is not None:
                    self._largest[group_id] = max(self._largest.get(group_id, largest), largest)

        for group in self._schema.groups:
            for column, count in mode_of(group).overflows(group, self._schema.column_by_name, rows).items():
                self.overflows[column] = self.overflows.get(column, 0) + count

    @property
    def ordering_max(self) -> dict[int, Any]:
        """Largest first ordering value of all registers, deletes included (JSON form)."""
        return {group: encode_scalar(self._largest.get(group)) for group in self._columns}


def run_compaction(
    table_log: TableLog, snapshot: Snapshot, only: Callable[[FileSlice], bool], execute: Execute = one_by_one
) -> CompactionResult:
    """Compact the file groups of a snapshot that have logs or are left behind, and publish them as they are done.

    Args:
        table_log: The table's.
        snapshot: A head snapshot.
        only: Which file groups to do, of those.
        execute: Where the work is done.

    Raises:
        CorruptData: A file is missing or damaged. Parts that were published stay, the rest is as before.
        SnapshotExpired: Cleaning was faster, or took it for dead.
    """
    started = time.monotonic()
    todo = [file_slice for file_slice in snapshot.slices if len(file_slice.rows)]
    dirty = [file_slice for file_slice in todo if only(file_slice)]
    left = mostly_unreferenced(snapshot.slices, {file_slice.group for file_slice in dirty}, snapshot.cut.lanes)
    behind = [file_slice for file_slice in snapshot.slices if file_slice.group in left and only(file_slice)]
    if not dirty and not behind:
        return CompactionResult((), {}, 0, 0, 0, {}, time.monotonic() - started)
    plan_id, plan = publish_plan(table_log, snapshot.cut, len(dirty) + len(behind))
    run = _Run(table_log, plan_id, snapshot.cut.lanes, complete=len(dirty) == len(todo))
    try:
        tasks = [
            CompactionTask(
                store=table_log.store,
                schema=snapshot.table_schema,
                slices=task.slices,
                files=task.files,
                at=snapshot.cut,
                plan=plan,
                rev=snapshot.schema_rev,
                mergers=mergers.allowed(),
            )
            # Not together: those that were left behind would be left again by those that get rows.
            for task in (read_task(own, snapshot.files) for own in [*cut_tasks(dirty), *cut_tasks(behind)])
        ]
        for number, (task, made) in enumerate(zip(tasks, execute(tasks), strict=True), start=1):
            run.add(task.slices, made, last=number == len(tasks))
    except CommitUnknown:
        raise  # the entry may be there: nothing that it may refer to is removed
    except TableError as error:
        run.abort(f"{error.code}: {error.message}")
        raise
    column_names = {column.id: column.name for column in snapshot.table_schema.columns}
    return CompactionResult(
        done=tuple(run.done),
        skipped=run.skipped,
        rows=run.rows,
        bytes_read=run.bytes_read,
        bytes_written=run.bytes_written,
        overflows={column_names[column]: count for column, count in run.overflows.items()},
        seconds=time.monotonic() - started,
    )


class _Run:
    """Slices of one plan on their way into BASE entries."""

    def __init__(self, table_log: TableLog, plan_id: str, target: cut.Seqs, *, complete: bool) -> None:
        self._table_log, self._plan_id, self._target, self._complete = table_log, plan_id, target, complete
        self._waiting: list[SliceFile] = []
        self._waiting_bytes = 0
        self.done: list[FileGroup] = []
        self.skipped: dict[FileGroup, str] = {}
        self.rows = self.bytes_read = self.bytes_written = 0
        self.overflows: dict[int, int] = {}

    def add(self, before: Sequence[FileSlice], made: Sequence[SliceFile], *, last: bool) -> None:
        """Take what one task has made; slices that share files are published together, or not at all."""
        self._waiting += made
        size = sum(file.size for file in _files(made).values())
        self._waiting_bytes += size
        self.bytes_read += sum(own.base_bytes + own.log_bytes for own in before)
        self.bytes_written += size
        if last or self._waiting_bytes >= PART_BYTES:
            self._publish(last=last)

    def abort(self, reason: str) -> None:
        """Say that the plan is dead, and remove what was written for it and never offered to the log.

        What was offered may be there, whatever failed afterwards: cleaning knows.
        """
        if abort_plan(self._table_log, self._plan_id, reason):
            self._remove(_files(self._waiting))

    def _publish(self, *, last: bool) -> None:
        offered = {made.group: made for made in self._waiting}
        self._waiting, self._waiting_bytes = [], 0
        kept: dict[FileGroup, SliceFile] = {}
        reason = "another compaction published a newer slice first"

        def build(state: TableState) -> Base | Abort | None:
            # Rule K3: only slices whose parent is still the newest. Checked anew after every lost race.
            nonlocal reason
            kept.clear()
            if self._plan_id not in state.plans:
                reason = GIVEN_UP
                return None
            kept.update((group, made) for group, made in offered.items() if self._is_current(state, group, made))
            header = self._table_log.header(state)
            if kept:
                slices = list(kept.values())
                # Where another compaction was first, its slice may hold less.
                whole = last and self._complete and not self.skipped and len(kept) == len(offered)
                stated = dict(self._target) if whole else {}
                return Base(**header, plan_id=self._plan_id, covered=stated, last=last, slices=slices)
            if last:
                return Abort(**header, plan_id=self._plan_id, reason="other compactions did all of it first")
            return None

        self._table_log.publish(build)
        for group, made in offered.items():
            if group in kept:
                self.done.append(group)
                self.rows += made.base_rows
                for column, count in made.overflows.items():
                    self.overflows[column] = self.overflows.get(column, 0) + count
            else:
                self.skipped[group] = reason
        published = _files(kept.values())
        self._remove(path for path in _files(offered.values()) if path not in published)

    def _is_current(self, state: TableState, group: FileGroup, made: SliceFile) -> bool:
        newest = state.slices.get(group)
        return made.parent == (newest.cut if newest is not None else {})

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                self._table_log.store.delete(path)


def _files(slices: Iterable[SliceFile]) -> dict[Path, FileRef]:
    """Base and shadow files, each once."""
    return {file.path: file for own in slices for file in (own.base, own.shadow) if file is not None}
