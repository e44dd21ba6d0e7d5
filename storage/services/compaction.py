"""Compaction: merges base, shadow, folds and log files of file groups into new slices, and publishes them.

It takes no lock: writers commit to later slots meanwhile, and if two compactions merge the same file group, the slice
whose BASE is published second is dropped (PROTOCOL.md, K1 to K4; invariants S10, S11, S12).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage.core.log import cut
from storage.core.log.entries import Abort, Base
from storage.core.log.file_refs import FileGroup, FileRef, SliceFile
from storage.core.log.table_state import TableState
from storage.core.names import Path
from storage.core.plan.mostly_unreferenced import mostly_unreferenced
from storage.core.plan.slices import FileSlice
from storage.environment import Tuning
from storage.log.table_log import TableLog
from storage.read.read_task import read_task
from storage.read.snapshot import Snapshot
from storage.services.compaction_task import CompactionTask
from storage.services.row_change import RowChange
from storage.services.service_plan import PLAN_CLOSED, ServicePlan, delete_files, open_plan
from storage.services.steps import Steps, finish
from storage.services.tasks import Execute, one_by_one


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a compaction.

    Attributes:
        done: File groups with a new slice.
        skipped: File groups whose new slice was dropped, with the reason.
        rows: Visible rows in the new slices.
        bytes_read: Stored bytes of base, shadow and log files that were merged.
        bytes_written: Stored bytes of the new base and shadow files.
        overflows: Number of rows that show NULL because the aggregate does not fit its column, by column.
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
class Rewriting:
    """A change of rows that new slices contain, and the log files below them do not.

    Attributes:
        why: The request in words, which the BASE records; it has no values of rows.
        change: The change.
        whole: Publish all slices or none, because a second attempt would change rows twice.
    """

    why: str
    change: RowChange
    whole: bool = False


def compaction_steps(
    table_log: TableLog, snapshot: Snapshot, only: Callable[[FileSlice], bool], execute: Execute = one_by_one
) -> Steps[CompactionResult]:
    """Compact file groups of a snapshot, in steps: one for each task. Publish their slices as they are
    completed.

    Candidates are file groups with log files, and the last file groups in shared files that are mostly unreferenced.

    Args:
        table_log: The table's log.
        snapshot: A head snapshot.
        only: Whether to compact one of the candidates.
        execute: Runs the tasks.

    Raises:
        CorruptData: A file is missing or damaged. Slices that were published remain, the others are as before.
        SnapshotExpired: The snapshot has expired, or cleaning has aborted the compaction as abandoned.
    """
    started = time.monotonic()
    with_logs = [file_slice for file_slice in snapshot.slices if len(file_slice.rows)]
    chosen = [file_slice for file_slice in with_logs if only(file_slice)]
    rest = mostly_unreferenced(snapshot.slices, {file_slice.group for file_slice in chosen}, snapshot.cut.lanes)
    remaining = [file_slice for file_slice in snapshot.slices if file_slice.group in rest and only(file_slice)]
    publisher = _Publisher(table_log, snapshot.cut.lanes, complete=len(chosen) == len(with_logs))
    if chosen or remaining:
        with open_plan(table_log, snapshot.cut, len(chosen) + len(remaining)) as plan:
            # Separate tasks: file groups of a mostly unreferenced file must not share a file with slices that are soon
            # replaced.
            tuning = table_log.env.tuning
            runs = [*cut_tasks(chosen, tuning), *cut_tasks(remaining, tuning)]
            tasks = [_task(table_log, snapshot, plan, run) for run in runs]
            yield from _run_tasks(plan, tasks, publisher, execute)
    return publisher.result(snapshot, started)


def rewrite(
    table_log: TableLog,
    snapshot: Snapshot,
    plan: ServicePlan,
    chosen: Sequence[FileSlice],
    rewriting: Rewriting,
    *,
    complete: bool,
    execute: Execute = one_by_one,
) -> tuple[CompactionResult, int]:
    """Write new slices with changed rows, and publish them in one BASE (PROTOCOL.md, "Erase" and "Rewrite").

    Args:
        table_log: The table's log.
        snapshot: A head snapshot.
        plan: An open plan of the snapshot.
        chosen: File groups of the snapshot, in order; at least one.
        rewriting: The change.
        complete: Whether ``chosen`` has every file group with log files.
        execute: Runs the tasks.

    Returns:
        The result, and the slot of the BASE; 0 if nothing was published.

    Raises:
        CorruptData: A file is missing or damaged; the table is unchanged.
        SnapshotExpired: Cleaning has aborted the plan as abandoned.
    """
    started = time.monotonic()
    publisher = _Publisher(table_log, snapshot.cut.lanes, complete=complete, rewriting=rewriting)
    runs = cut_tasks(chosen, table_log.env.tuning)
    tasks = [replace(_task(table_log, snapshot, plan, run), change=rewriting.change) for run in runs]
    finish(_run_tasks(plan, tasks, publisher, execute))
    return publisher.result(snapshot, started), publisher.entry


def _run_tasks(
    plan: ServicePlan, tasks: Sequence[CompactionTask], publisher: _Publisher, execute: Execute
) -> Steps[None]:
    for number, (task, made) in enumerate(zip(tasks, execute(tasks), strict=True), start=1):
        publisher.add(plan, task.slices, made, last=number == len(tasks))
        yield task.bytes


def run_compaction(
    table_log: TableLog, snapshot: Snapshot, only: Callable[[FileSlice], bool], execute: Execute = one_by_one
) -> CompactionResult:
    """`compaction_steps` to the end."""
    return finish(compaction_steps(table_log, snapshot, only, execute))


def cut_tasks(slices: Sequence[FileSlice], tuning: Tuning) -> list[list[FileSlice]]:
    """Divide file groups, in order, into those that share files: neighbours, as long as they are small."""
    runs: list[list[FileSlice]] = []
    filled = tuning.shared_file_bytes + 1  # a file group without rows has no bytes
    for file_slice in slices:
        size = file_slice.base_bytes + file_slice.log_bytes
        if size >= tuning.small_group_bytes:
            runs.append([file_slice])
            filled = tuning.shared_file_bytes + 1
        elif filled + size > tuning.shared_file_bytes:
            runs.append([file_slice])
            filled = size
        else:
            runs[-1].append(file_slice)
            filled += size
    return runs


def _task(table_log: TableLog, snapshot: Snapshot, plan: ServicePlan, run: Sequence[FileSlice]) -> CompactionTask:
    work = read_task(run, snapshot.files)
    return CompactionTask(
        env=table_log.env,
        schema=snapshot.table_schema,
        slices=work.slices,
        files=work.files,
        at=snapshot.cut,
        plan=plan.slot,
        rev=snapshot.schema_rev,
    )


@dataclass(slots=True)
class _Publisher:
    """Publishes the new slices of one plan in BASE entries.

    Attributes:
        table_log: The table's log.
        target: Cut of the new slices.
        complete: Whether every file group with log files is compacted.
        rewriting: The change of rows, if there is one: then all slices are published in one entry.
        entry: Slot of the newest BASE that was published; 0 if there is none.
    """

    table_log: TableLog
    target: cut.Seqs
    complete: bool = field(kw_only=True)
    rewriting: Rewriting | None = field(default=None, kw_only=True)
    done: list[FileGroup] = field(default_factory=list)
    skipped: dict[FileGroup, str] = field(default_factory=dict)
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    overflows: Counter[int] = field(default_factory=Counter)
    entry: int = 0
    _waiting: list[SliceFile] = field(default_factory=list)
    _waiting_bytes: int = 0

    def add(self, plan: ServicePlan, before: Sequence[FileSlice], made: Sequence[SliceFile], *, last: bool) -> None:
        """Take the slices of one task; slices that share files are published in the same entry."""
        self._waiting += made
        files = _files(made)
        plan.unpublished.update(files)
        size = sum(file.size for file in files.values())
        self._waiting_bytes += size
        self.bytes_read += sum(file_slice.base_bytes + file_slice.log_bytes for file_slice in before)
        self.bytes_written += size
        enough = self.rewriting is None and self._waiting_bytes >= self.table_log.env.tuning.compaction_part_bytes
        if last or enough:
            self._publish(plan, last=last)

    def result(self, snapshot: Snapshot, started: float) -> CompactionResult:
        """What was published; ``started``: the monotonic time at which the work began."""
        column_names = {column.id: column.name for column in snapshot.table_schema.columns}
        return CompactionResult(
            done=tuple(self.done),
            skipped=self.skipped,
            rows=self.rows,
            bytes_read=self.bytes_read,
            bytes_written=self.bytes_written,
            overflows={column_names[column]: count for column, count in self.overflows.items()},
            seconds=time.monotonic() - started,
        )

    def _publish(self, plan: ServicePlan, *, last: bool) -> None:
        offered = {made.group: made for made in self._waiting}
        self._waiting, self._waiting_bytes = [], 0
        plan.unpublished.clear()  # from here on the entry may exist: only cleaning may delete files
        kept: dict[FileGroup, SliceFile] = {}
        reason = "another compaction published a newer slice first"

        def build(state: TableState) -> Base | Abort | None:
            # Rule K3: publish only slices whose parent is still the newest slice. Called again after every lost race.
            nonlocal reason
            kept.clear()
            if plan.plan_id not in state.plans:
                reason = PLAN_CLOSED
                return None
            kept.update((group, made) for group, made in offered.items() if _is_current(state, group, made))
            if self.rewriting is not None and self.rewriting.whole and len(kept) < len(offered):
                kept.clear()
            header = self.table_log.header(state)
            if kept:
                slices = list(kept.values())
                # The slice of the compaction that published first may contain fewer commits.
                whole = last and self.complete and not self.skipped and len(kept) == len(offered)
                covered = dict(self.target) if whole else {}
                return Base(
                    **header,
                    plan_id=plan.plan_id,
                    covered=covered,
                    last=last,
                    slices=slices,
                    rewrites=self.rewriting.why if self.rewriting is not None else "",
                )
            if last:
                return Abort(**header, plan_id=plan.plan_id, reason="other compactions published all of it first")
            return None

        published = self.table_log.publish(build)
        if isinstance(published, Base):
            self.entry = published.seq
        for group, made in offered.items():
            if group in kept:
                self.done.append(group)
                self.rows += made.base_rows
                self.overflows.update(made.overflows)
            else:
                self.skipped[group] = reason
        used = _files(kept.values())
        delete_files(self.table_log.store, (path for path in _files(offered.values()) if path not in used))


def _is_current(state: TableState, group: FileGroup, made: SliceFile) -> bool:
    """Whether a slice was made from the newest one of its file group."""
    newest = state.slices.get(group)
    return made.parent == (newest.cut if newest is not None else {})


def _files(slices: Iterable[SliceFile]) -> dict[Path, FileRef]:
    """Base and shadow files, each once."""
    return {file.path: file for made in slices for file in made.objects}
