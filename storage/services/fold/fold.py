"""Fold: merges many small log files into a few files of registers, so that many commits do not make reads expensive.

A fold is cheaper than a compaction: it reads only new log files, and no base files. So writers can make many commits
between two compactions. Readers read a fold instead of the log files that it contains; these are kept
until their rows are in slices. The steps are those of PROTOCOL.md, "Fold":

- **F1** Take a head snapshot (T, V); publish PLAN (K1).
- **F2** Per file group, merge into registers the events that are in neither a slice nor a fold, or everything after its
  slice (`weft.storage.core.plan.fold_plan`). Write them to new files; all registers of a file group are in one file.
- **F3** Publish FOLD(to = V) with the file groups whose slice is still the one below the fold, and whose other folds
  end where this one begins. This is checked again after every lost race, and the plan must be open. If no file group
  remains, publish ABORT. Failures are handled as in a compaction (K4).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.storage import mergers
from weft.storage.core.log.entries import Abort, Fold
from weft.storage.core.log.file_refs import FileGroup, LogFile
from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan.fold_plan import GroupFold, cut_runs, may_publish, plan_folds, still_covered
from weft.storage.log.table_log import TableLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.fold.fold_task import FoldTask
from weft.storage.services.steps.service_plan import PLAN_CLOSED, ServicePlan, delete_files, open_plan
from weft.storage.services.steps.steps import Steps
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.shown import Shown

_OVERTAKEN: Final = "a compaction or another fold of it was published first"


@dataclass(frozen=True, slots=True)
class FoldResult(Shown):
    """The result of a fold.

    Attributes:
        done: File groups for which readers use the fold now.
        skipped: File groups that were not changed, with the reason.
        commits: Commits that were merged and were in no fold before.
        rows: Keys with registers in the new files.
        files_read: Log files that were read, earlier folds among them.
        bytes_read: Stored bytes of the ranges that were merged.
        bytes_written: Stored bytes of the new files.
        seconds: Wall-clock time.
    """

    done: tuple[FileGroup, ...]
    skipped: Mapping[FileGroup, str]
    commits: int
    rows: int
    files_read: int
    bytes_read: int
    bytes_written: int
    seconds: float


NOT_FOLDED: Final = FoldResult((), {}, commits=0, rows=0, files_read=0, bytes_read=0, bytes_written=0, seconds=0.0)
"""The result if nothing is due."""


@dataclass(frozen=True, slots=True)
class _FoldFile:
    """One file of a fold, and the file groups in it.

    Attributes:
        folds: The file groups, each with its folded log ranges.
        file: The file; None if the events left no registers, so that no file was written.
    """

    folds: tuple[GroupFold, ...]
    file: LogFile | None

    def has_any(self, groups: frozenset[FileGroup]) -> bool:
        return any(fold.group in groups for fold in self.folds)


def fold_steps(table_log: TableLog, snapshot: Snapshot, execute: Execute = one_by_one) -> Steps[FoldResult]:
    """Fold the events of a head snapshot that are in neither a slice nor a fold, in steps: one for each new file.

    Args:
        table_log: The table's log.
        snapshot: A head snapshot.
        execute: Runs the tasks.

    Raises:
        CorruptData: A file is missing or damaged; the table is unchanged.
        SnapshotExpired: The snapshot has expired, or cleaning has aborted the fold as abandoned.
    """
    start_time = time.monotonic()
    folds = plan_folds(snapshot.state, snapshot.files)
    published_groups: frozenset[FileGroup] = frozenset()
    reason = ""
    files: list[_FoldFile] = []
    if folds:
        mergers.load(snapshot.table_schema, table_log.env.mergers)  # fails before a plan is published
        with open_plan(table_log, snapshot.cut, len(folds)) as plan:
            runs = list(cut_runs(folds, snapshot.table_schema, table_log.env.tuning.fold_file_bytes))
            tasks = [FoldTask.of(snapshot, plan, [fold.ranges for fold in run]) for run in runs]
            for run, task, result in zip(runs, tasks, execute(tasks), strict=True):
                # A file group may have no row in shared ranges. Its fold would stay until it gets one: leave it out.
                with_rows = tuple(fold for fold in run if not fold.ranges.shared or fold.group in result.groups)
                files.append(_FoldFile(with_rows, result.file))
                plan.unpublished.update(file.path for file in (result.file.objects if result.file else ()))
                yield task.bytes
            folds = [fold for file in files for fold in file.folds]
            published_groups, reason = _publish(table_log, snapshot, plan, files)
        unused_files = [part.file for part in files if part.file is not None and not part.has_any(published_groups)]
        delete_files(table_log.store, (stored_file.path for file in unused_files for stored_file in file.objects))
    files_read = [snapshot.files[i] for i in {i for fold in folds for i in fold.ranges.file.tolist()}]
    published_files = [part.file.file for part in files if part.file is not None and part.has_any(published_groups)]
    return FoldResult(
        done=tuple(fold.group for fold in folds if fold.group in published_groups),
        skipped={fold.group: reason for fold in folds if fold.group not in published_groups},
        commits=len({(file.lane, file.seq) for file in files_read if not file.is_fold}),
        rows=sum(file.rows for file in published_files),
        files_read=len(files_read),
        bytes_read=sum(fold.ranges.log_bytes for fold in folds),
        bytes_written=sum(file.size for file in published_files),
        seconds=time.monotonic() - start_time,
    )


def _publish(
    table_log: TableLog, snapshot: Snapshot, plan: ServicePlan, files: list[_FoldFile]
) -> tuple[frozenset[FileGroup], str]:
    """Publish the FOLD (rule F3); returns its file groups, and why the others were left out."""
    fold_end = dict(snapshot.cut.lanes)
    folds = [fold for file in files for fold in file.folds]
    accepted_folds: list[GroupFold] = []
    reason = _OVERTAKEN

    def build(state: TableState) -> Fold | Abort | None:
        nonlocal reason
        accepted_folds.clear()
        if plan.plan_id not in state.plans:
            reason = PLAN_CLOSED
            return None
        overlapped_groups = state.overlapped([fold.group for fold in folds])
        accepted_folds.extend(
            fold for fold in folds if fold.group not in overlapped_groups and may_publish(state, fold.folded, fold_end)
        )
        header = table_log.header(state)
        if not accepted_folds:
            return Abort(**header, plan_id=plan.plan_id, reason="compactions or other folds published all of it first")
        groups = frozenset(fold.group for fold in accepted_folds)
        is_complete = len(accepted_folds) == len(folds) and still_covered(snapshot.state, state, fold_end)
        return Fold(
            **header,
            plan_id=plan.plan_id,
            to=fold_end,
            covered=fold_end if is_complete else {},
            files=[part.file for part in files if part.file is not None and part.has_any(groups)],
            file_groups=[fold.folded for fold in accepted_folds],
        )

    table_log.publish(build)
    return frozenset(fold.group for fold in accepted_folds), reason
