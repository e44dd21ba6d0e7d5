"""The PLAN of a compaction or fold: announces it, keeps its snapshot, and ends with BASE, FOLD or ABORT.

Cleaning keeps the files of a snapshot that an open PLAN names: PLAN and CLEAN_INTENT are ordered by the table lane, so
neither a clock nor a pin file is needed (PROTOCOL.md, K1). A service whose plan is no longer open publishes nothing:
a clean has aborted the plan, or a restore has rolled back what the service has read (K3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import Abort, Plan
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import Path
from weft.storage.core.plan.reservation import is_reserved, next_reservation_ms
from weft.storage.errors import CommitUnknown, Conflict, MissingFile, SnapshotExpired, StoreRefused, TableError
from weft.storage.log import snapshot_cut
from weft.storage.log.table_log import TableLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.store.object_store import ObjectStore

T = TypeVar("T")

MAX_ATTEMPTS: Final = 10  # later attempts reserve the table, so that few services are faster (rule K6)
PLAN_CLOSED: Final = "its plan was closed meanwhile: by a restore or an erase, or by cleaning as abandoned"


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """The open plan of a compaction or fold in this process.

    Attributes:
        plan_id: Id of the plan.
        slot: Slot of the PLAN in the table lane, which is part of the names of its files.
        unpublished: Files that were written for the plan and that no entry can name yet.
        previous_state: State of the table just before the PLAN; None if it is not known.
        reserves: Whether the plan has reserved the table.
    """

    plan_id: str
    slot: int
    unpublished: set[Path] = field(default_factory=set)
    previous_state: TableState | None = None
    reserves: bool = False


@contextlib.contextmanager
def open_plan(table_log: TableLog, cut: Cut, file_groups: int, reserve_ms: int = 0) -> Iterator[ServicePlan]:
    """Publish a PLAN; if the work inside fails, publish an ABORT and delete its unpublished files (rule K4).

    The error of the work is raised even if the ABORT fails. Then the error has a note that says so: the plan stays
    open and keeps its files, other compactions and folds go on beside it, and a clean aborts it as abandoned.

    Args:
        table_log: The table's log.
        cut: Cut of the snapshot that is read.
        file_groups: Number of file groups that are rewritten.
        reserve_ms: Reserve the table for this long (`weft.storage.core.plan.reservation`); 0: no reservation.

    Raises:
        SnapshotExpired: The snapshot has expired, or another process ended the plan during the work and deleted its
            files.
        Conflict: The table was restored or keys were erased since the snapshot, which has rows that are gone.
    """
    plan = _publish_plan(table_log, cut, file_groups, reserve_ms)
    try:
        yield plan
    except CommitUnknown:
        raise  # the entry may exist: do not delete files that it may name
    except TableError as error:
        try:
            aborted = abort_plan(table_log, plan.plan_id, f"{error.code}: {error.message}")
        except TableError as failure:  # often the store, which made the work fail too
            error.add_note(f"plan {plan.slot} is still open, until a clean aborts it: {failure.message}")
        else:
            if aborted:
                delete_files(table_log.store, plan.unpublished)  # only now: no other entry of this plan can follow
            elif isinstance(error, StoreRefused | MissingFile):
                # Whoever ended the plan has also deleted files that it was reading or writing.
                raise SnapshotExpired(f"plan {plan.slot} has ended: {PLAN_CLOSED}", hint="start it again") from error
        raise


def _publish_plan(table_log: TableLog, cut: Cut, file_groups: int, reserve_ms: int) -> ServicePlan:
    plan_id = table_log.env.ids.new()
    previous_state: TableState | None = None

    def build(state: TableState) -> Plan:
        nonlocal previous_state
        previous_state = state
        if cut.table < state.oldest_retained:
            raise SnapshotExpired(f"snapshot {cut} of the compaction or fold has expired", hint="start it again")
        if cut.table < state.oldest_continued:
            # Comparing parents would not detect this: after a restore the old slices are the newest ones again, and a
            # rewritten slice may have the cut of its parent.
            change = "restored" if cut.table < state.restored else "rewritten"
            raise Conflict(
                f"the table was {change} since snapshot {cut} of the compaction or fold", hint="start it again"
            )
        return Plan(
            **table_log.header(state),
            plan_id=plan_id,
            table=cut.table,
            cut=dict(cut.lanes),
            file_groups=file_groups,
            reserves_ms=reserve_ms,
        )

    entry = table_log.publish(build)
    assert entry is not None, "a PLAN is always published"
    return ServicePlan(plan_id, entry.seq, previous_state=previous_state, reserves=reserve_ms > 0)


def abort_plan(table_log: TableLog, plan_id: str, reason: str) -> bool:
    """End a plan without a result. Returns False if it had already ended."""

    def build(state: TableState) -> Abort | None:
        if plan_id not in state.plans:
            return None
        return Abort(**table_log.header(state), plan_id=plan_id, reason=reason)

    return table_log.publish(build) is not None


def delete_files(store: ObjectStore, paths: Iterable[Path]) -> None:
    """Delete files that no entry names. If the store fails to delete a file, a later clean deletes it."""
    for path in paths:
        with contextlib.suppress(OSError):
            store.delete(path)


def must_yield(table_log: TableLog, state: TableState, *, reserves: bool = False) -> bool:
    """Whether a plan must not publish a BASE now, because another plan has reserved the table (rule K6).

    Args:
        table_log: The table's log.
        state: The newest state.
        reserves: Whether the plan itself has reserved the table, too.
    """
    return not reserves and is_reserved(state.plans, table_log.clock.now_ms())


def retry_on_newest(table_log: TableLog, attempt: Callable[[Snapshot, int], T | None]) -> tuple[Snapshot, T]:
    """Repeat work on the newest snapshot until no other service publishes first (rule K6).

    Args:
        table_log: The table's log.
        attempt: Does the work on a snapshot, with a plan that reserves the table for a number of milliseconds. Returns
            None, or raises `Conflict` or `SnapshotExpired`, if another service was faster.

    Returns:
        The snapshot of the last attempt, and its result.

    Raises:
        Conflict: Other services published first in every attempt.
    """
    longest_ms = 0
    for attempts in range(MAX_ATTEMPTS):
        began_ms = table_log.clock.now_ms()
        snapshot = Snapshot(table_log, *snapshot_cut.newest_cut(table_log))
        with contextlib.suppress(Conflict, SnapshotExpired):  # a restore, an erase or a clean came between
            if (result := attempt(snapshot, next_reservation_ms(attempts, longest_ms))) is not None:
                return snapshot, result
        longest_ms = max(longest_ms, table_log.clock.now_ms() - began_ms)
    raise Conflict(
        f"other compactions, folds or restores published first in each of {MAX_ATTEMPTS} attempts",
        hint="run it again; stop other compactions if this happens again",
    )
