"""Compaction, folds, splits and expiry in steps, between which other work may be done; planned before they begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from storage.core.plan.due_policy import DuePolicy, Work
from storage.read.snapshot import Snapshot
from storage.services import compaction, expiry, fold, split
from storage.services.compaction import CompactionResult
from storage.services.due_work import Only, every_group, find_due, only_due
from storage.services.expiry import ExpiryResult
from storage.services.fold import NOT_FOLDED, FoldResult
from storage.services.split import SplitResult
from storage.services.steps import Steps
from storage.services.tasks import Execute, one_by_one
from storage.table import Table

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class PlannedWork(Generic[T_co]):
    """Work that is due, and has not begun.

    Attributes:
        snapshot: The snapshot that it was planned from.
        bytes: Stored bytes that it will read; 0 if nothing is due.
        steps: The work, see `storage.services.steps`. Nothing is published before the first step.
    """

    snapshot: Snapshot
    bytes: int
    steps: Steps[T_co]


def plan_compaction(
    table: Table, policy: DuePolicy | None, execute: Execute = one_by_one, *, only: Only = every_group
) -> PlannedWork[CompactionResult]:
    """`storage.Table.compact` in steps.

    Args:
        table: The table.
        policy: Decides what is due; None: all file groups that have logs.
        execute: Where the work is done.
        only: Selects some of these file groups.

    Raises:
        UnsupportedFormat: This version cannot write to the table.
    """
    snapshot = table.writable_snapshot(moment=True)
    chosen = only_due(snapshot, policy, only)
    # With a policy file groups without logs may be due, too.
    due = sum(
        each.base_bytes + each.log_bytes
        for each in snapshot.slices
        if (policy is not None or len(each.rows)) and chosen(each)
    )

    def steps() -> Steps[CompactionResult]:
        result = yield from compaction.compaction_steps(snapshot.table_log, snapshot, chosen, execute)
        table.mark_if_due(None if due else snapshot.state)
        return result

    return PlannedWork(snapshot, due, steps())


def plan_fold(
    table: Table,
    policy: DuePolicy | None,
    after: PlannedWork[CompactionResult] | None = None,
    execute: Execute = one_by_one,
) -> PlannedWork[FoldResult]:
    """`storage.Table.fold` if it is due, in steps.

    Args:
        table: The table.
        policy: Decides what is due; None: everything that is not folded.
        after: The compaction that was done just before. If it had nothing to do, its snapshot is as good as a new one,
            which costs requests for each lane.
        execute: Where the work is done.

    Raises:
        UnsupportedFormat: This version cannot write to the table.
    """
    snapshot = table.writable_snapshot() if after is None or after.bytes else after.snapshot
    if policy is None:
        due = sum(each.log_bytes for each in snapshot.slices)
    else:
        due = sum(each.bytes for each in find_due(snapshot, policy, {Work.FOLD}).values())

    def steps() -> Steps[FoldResult]:
        if not due:
            return NOT_FOLDED
        result = yield from fold.fold_steps(snapshot.table_log, snapshot, execute)
        table.mark_if_due()
        return result

    return PlannedWork(snapshot, due, steps())


def plan_split(table: Table, buckets: int, execute: Execute = one_by_one) -> PlannedWork[SplitResult]:
    """`storage.Table.split` in steps.

    Args:
        table: The table.
        buckets: The number of buckets.
        execute: Where the work is done.

    Raises:
        UnsupportedFormat: This version cannot write to the table.
        InvalidInput: ``buckets`` is not a power of two in the range of a table.
    """
    bits = split.bits_of(buckets)
    snapshot = table.writable_snapshot()
    todo = sum(each.base_bytes + each.log_bytes for each in snapshot.slices if each.group.bits != bits)

    def steps() -> Steps[SplitResult]:
        result = yield from split.split_steps(snapshot.table_log, buckets, execute=execute)
        table.mark_if_due()
        return result

    return PlannedWork(snapshot, todo, steps())


def expire_in_steps(table: Table, execute: Execute = one_by_one) -> Steps[ExpiryResult]:
    """`storage.Table.apply_ttl` in steps; of a table without a time to live nothing is done.

    Raises:
        UnsupportedFormat: This version cannot write to the table.
    """
    result = yield from expiry.expiry_steps(table.writable(), execute=execute)
    if result.entries:
        table.mark_if_due()
    return result


def with_small_tasks(table: Table, task_bytes: int) -> Table:
    """The table opened again: tasks of its compactions and folds read at most these stored bytes, or one file group."""
    tuning = table.env.tuning
    sizes = {
        "shared_file_bytes": min(task_bytes, tuning.shared_file_bytes),
        "fold_file_bytes": min(task_bytes, tuning.fold_file_bytes),
    }
    return Table(table.env.tuned(**sizes))
