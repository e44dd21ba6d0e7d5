"""Fold: many small log files to a few that hold registers, so that reading does not cost more for more commits.

Cheaper than a compaction, for no base is read or written, and of the logs only what is new; writers may commit as often
as they like between two compactions. The log files that were folded stay until slices have passed them: a fold is
something to read instead of them, nothing more.

- **F1** Take a head snapshot (T, V); publish PLAN (K1).
- **F2** Merge, per file group, the events that no slice and no fold holds, or everything after its slice, into
  registers (`storage.core.plan.fold_plan`); write them to files of new names, a file group wholly into one file.
- **F3** Publish FOLD(to = V) with the file groups whose slice is still the one that was folded upon, and whose folds
  end where their part begins; checked anew after each lost race, and only while the plan is open. If none is left,
  ABORT. A failure ends as that of a compaction does (K4).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from storage import mergers
from storage.core import names
from storage.core.log.entries import Abort, Fold
from storage.core.log.file_refs import FileGroup, LogFile
from storage.core.log.table_state import TableState
from storage.core.plan.fold_plan import GroupFold, cut_runs, may_publish, plan_folds, still_covered
from storage.errors import CommitUnknown, TableError
from storage.files.log_file import remove_log_file
from storage.files.log_reader import LogReader
from storage.files.register_file import write_register_file
from storage.log.commit_log import new_id
from storage.log.table_log import TableLog
from storage.read.missing_file import explain_missing_file
from storage.read.scan import read_task
from storage.read.snapshot import Snapshot
from storage.services.service_plan import GIVEN_UP, abort_plan, publish_plan

_OVERTAKEN: Final = "a compaction or another fold of it was published first"


@dataclass(frozen=True, slots=True)
class FoldResult:
    """What one fold did.

    Attributes:
        done: File groups whose waiting events are read from the fold now.
        skipped: File groups left as they are, and why.
        rows: Keys with registers in the new files.
        files_read: Log files that were read, earlier folds among them.
        bytes_read: Stored bytes of their ranges that were merged.
        bytes_written: Of the new files.
        seconds: Wall-clock time.
    """

    done: tuple[FileGroup, ...]
    skipped: Mapping[FileGroup, str]
    rows: int
    files_read: int
    bytes_read: int
    bytes_written: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Part:
    """File groups that are in one file, and the file; None where nothing of them is worth a row."""

    folds: tuple[GroupFold, ...]
    file: LogFile | None


def run_fold(table_log: TableLog, snapshot: Snapshot) -> FoldResult:
    """Fold what waits in the logs of a head snapshot; nothing happens where nothing waits.

    Raises:
        CorruptData: A file is missing or damaged; the table answers as before.
        SnapshotExpired: Cleaning was faster.
    """
    started = time.monotonic()
    folds = plan_folds(snapshot.state, snapshot.files)
    if not folds:
        return FoldResult((), {}, 0, 0, 0, 0, time.monotonic() - started)
    plan_id, plan = publish_plan(table_log, snapshot.cut, len(folds))
    parts: list[_Part] = []
    try:
        for run in cut_runs(folds):
            with explain_missing_file(table_log.store, snapshot.cut):
                file = _write(table_log, snapshot, run, plan)
            parts.append(_Part(tuple(run), file))
        published, reason = _publish(table_log, snapshot, plan_id, parts)
    except CommitUnknown:
        raise  # the entry may be there: nothing that it may refer to is removed
    except TableError as error:
        if abort_plan(table_log, plan_id, f"{error.code}: {error.message}"):
            _remove(table_log, parts)  # only now: no FOLD of this plan can come any more
        raise
    done = [part for part in parts if any(fold.group in published for fold in part.folds)]
    _remove(table_log, [part for part in parts if part not in done])
    files = [part.file.file for part in done if part.file is not None]
    return FoldResult(
        done=tuple(fold.group for fold in folds if fold.group in published),
        skipped={fold.group: reason for fold in folds if fold.group not in published},
        rows=sum(file.rows for file in files),
        files_read=len({number for fold in folds for number in fold.ranges.file.tolist()}),
        bytes_read=sum(fold.ranges.log_bytes for fold in folds),
        bytes_written=sum(file.size for file in files),
        seconds=time.monotonic() - started,
    )


def _write(table_log: TableLog, snapshot: Snapshot, run: list[GroupFold], plan: int) -> LogFile | None:
    schema = snapshot.table_schema
    loaded = mergers.load(schema, mergers.allowed())
    columns = tuple(schema.slice.names)
    task = read_task([fold.ranges for fold in run], snapshot.files)
    wanted = frozenset((*columns, names.OP, names.SUPPLIED))
    logs = LogReader(table_log.store, schema, task.files, task.slices, [wanted] * len(task.slices), loaded)
    collapsed = ((ranges.group, logs.collapse(ranges, schema.groups, columns)) for ranges in task.slices)
    states = [(group, state) for group, state in collapsed if state is not None]
    return write_register_file(table_log.store, schema, names.fold_path(plan, new_id()), states)


def _publish(
    table_log: TableLog, snapshot: Snapshot, plan_id: str, parts: list[_Part]
) -> tuple[frozenset[FileGroup], str]:
    """Publish what may be: the file groups that were, and why others were not (rule F3)."""
    to = dict(snapshot.cut.lanes)
    folds = [fold for part in parts for fold in part.folds]
    kept: list[GroupFold] = []
    reason = _OVERTAKEN

    def build(state: TableState) -> Fold | Abort | None:
        nonlocal reason
        kept.clear()
        if plan_id not in state.plans:
            reason = GIVEN_UP
            return None
        kept.extend(fold for fold in folds if may_publish(state, fold.folded, to))
        header = table_log.header(state)
        if not kept:
            return Abort(**header, plan_id=plan_id, reason="compactions or other folds did all of it first")
        groups = {fold.group for fold in kept}
        used = [part for part in parts if any(fold.group in groups for fold in part.folds)]
        whole = len(kept) == len(folds) and still_covered(snapshot.state, state, to)
        return Fold(
            **header,
            plan_id=plan_id,
            to=to,
            covered=to if whole else {},
            files=[part.file for part in used if part.file is not None],
            file_groups=[fold.folded for fold in kept],
        )

    table_log.publish(build)
    return frozenset(fold.group for fold in kept), reason


def _remove(table_log: TableLog, parts: list[_Part]) -> None:
    for part in parts:
        if part.file is not None:
            remove_log_file(table_log.store, part.file)
