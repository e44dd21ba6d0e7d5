"""Plans compactions, folds, splits and expiry. They run in steps, between which a process may do other work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan.due_policy import DuePolicy, Work
from weft.storage.log.table_log import TableLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.services import expiry, split
from weft.storage.services.compaction import compaction
from weft.storage.services.compaction.compaction import CompactionResult
from weft.storage.services.due_work import Only, every_group, find_due, only_due
from weft.storage.services.expiry import ExpiryResult
from weft.storage.services.fold import fold
from weft.storage.services.fold.fold import NOT_FOLDED, FoldResult
from weft.storage.services.split import SplitResult
from weft.storage.services.steps.progress import OnStage, Stage, unobserved
from weft.storage.services.steps.steps import Steps, finish
from weft.storage.services.steps.tasks import Execute, one_by_one

T_co = TypeVar("T_co", covariant=True)


class Maintained(Protocol):
    """What this module needs of `weft.Table`."""

    def writable(self) -> TableLog:
        """The log of the table, which this version may write to."""
        ...

    def writable_snapshot(self, *, moment: bool = False) -> Snapshot:
        """A head snapshot for work that publishes entries."""
        ...

    def mark_if_due(self, state: TableState | None = None) -> None:
        """Record a mark after the work."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedWork(Generic[T_co]):
    """Work that has not begun.

    Attributes:
        snapshot: The snapshot that it was planned from.
        bytes: Stored bytes that it will read; 0 if nothing is due.
        steps: The work, see `weft.storage.services.steps.steps`. Nothing is published before the first step.
    """

    snapshot: Snapshot
    bytes: int
    steps: Steps[T_co]

    def finish(self, what: str, progress: OnStage = unobserved) -> T_co:
        """Do all of the work.

        Args:
            what: The work in words, such as "compacting".
            progress: Called after each step with the stored bytes that were read.
        """
        done = 0

        def add(read_bytes: int) -> None:
            nonlocal done
            done += read_bytes
            progress(Stage(what, done, self.bytes, "bytes"))

        return finish(self.steps, add)


def plan_compaction(
    table: Maintained, policy: DuePolicy | None, execute: Execute = one_by_one, *, only: Only = every_group
) -> PlannedWork[CompactionResult]:
    """`weft.Table.compact` in steps.

    Args:
        table: The table.
        policy: Decides what is due; None: all file groups that have logs.
        execute: Where the work is done.
        only: Selects some of these file groups.

    Raises:
        UnsupportedFormat: This version cannot write to the table.
    """
    snapshot = table.writable_snapshot(moment=True)
    is_due = only_due(snapshot, policy, only)
    # With a policy file groups without logs may be due, too.
    due_bytes = sum(
        file_slice.base_bytes + file_slice.log_bytes
        for file_slice in snapshot.slices
        if (policy is not None or len(file_slice.rows)) and is_due(file_slice)
    )

    def steps() -> Steps[CompactionResult]:
        result = yield from compaction.compaction_steps(snapshot.table_log, snapshot, is_due, execute)
        table.mark_if_due(None if due_bytes else snapshot.state)
        return result

    return PlannedWork(snapshot, due_bytes, steps())


def plan_fold(
    table: Maintained,
    policy: DuePolicy | None,
    after: PlannedWork[CompactionResult] | None = None,
    execute: Execute = one_by_one,
) -> PlannedWork[FoldResult]:
    """`weft.Table.fold` if it is due, in steps.

    Args:
        table: The table.
        policy: Decides what is due; None: everything that is not folded.
        after: The compaction that has just ended. If it had nothing to do, the fold uses its snapshot: a new one costs
            requests for every lane.
        execute: Where the work is done.

    Raises:
        UnsupportedFormat: This version cannot write to the table.
    """
    snapshot = table.writable_snapshot() if after is None or after.bytes else after.snapshot
    if policy is None:
        due_bytes = sum(file_slice.log_bytes for file_slice in snapshot.slices)
    else:
        due_bytes = sum(due.bytes for due in find_due(snapshot, policy, {Work.FOLD}).values())

    def steps() -> Steps[FoldResult]:
        if not due_bytes:
            return NOT_FOLDED
        result = yield from fold.fold_steps(snapshot.table_log, snapshot, execute)
        table.mark_if_due()
        return result

    return PlannedWork(snapshot, due_bytes, steps())


def plan_split(table: Maintained, buckets: int, execute: Execute = one_by_one) -> PlannedWork[SplitResult]:
    """`weft.Table.split` in steps.

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
    due_bytes = sum(item.base_bytes + item.log_bytes for item in snapshot.slices if item.group.bits != bits)

    def steps() -> Steps[SplitResult]:
        result = yield from split.split_steps(snapshot.table_log, buckets, execute=execute)
        table.mark_if_due()
        return result

    return PlannedWork(snapshot, due_bytes, steps())


def expire_in_steps(
    table: Maintained,
    execute: Execute = one_by_one,
    *,
    now_ms: int | None = None,
    progress: OnStage = unobserved,
) -> Steps[ExpiryResult]:
    """`weft.Table.apply_ttl` in steps; does nothing for a table without a time to live.

    Args:
        table: The table.
        execute: Where the work is done.
        now_ms: The time to compute ages from, in Unix milliseconds; None: now.
        progress: Called during the work.

    Raises:
        UnsupportedFormat: This version cannot write to the table.
    """
    result = yield from expiry.expiry_steps(table.writable(), now_ms, execute, progress)
    if result.entries:
        table.mark_if_due()
    return result
