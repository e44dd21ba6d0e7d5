"""Plans: what a compaction or fold says before it starts, and how it ends.

An open PLAN is a pin of its snapshot: the table lane orders it against every CLEAN_INTENT, so no clock and no pin file
is needed (rule K1, S16). Whoever finds that its plan is not open any more publishes nothing: it was given up, or a
restore has rolled back what it read (K3).
"""

from __future__ import annotations

from storage.core.log.cut import Cut
from storage.core.log.entries import Abort, Plan
from storage.core.log.table_state import TableState
from storage.errors import Conflict, SnapshotExpired
from storage.log.commit_log import new_id
from storage.log.table_log import TableLog

GIVEN_UP = "it was given up meanwhile: by a restore, or by cleaning as abandoned"


def publish_plan(table_log: TableLog, at: Cut, file_groups: int) -> tuple[str, int]:
    """Begin: (plan id, slot of its PLAN, by which its files are named).

    Raises:
        SnapshotExpired: Cleaning has given up the snapshot since it was taken.
        Conflict: The table was restored since then: the snapshot shows what is rolled back now.
    """
    plan_id = new_id()

    def build(state: TableState) -> Plan:
        if at.table < state.oldest_retained:
            raise SnapshotExpired(f"cleaning has given up snapshot {at}", hint="start the compaction again")
        if at.table < state.restored:
            # The old slices are the newest ones again, so that parents alone would not show it.
            raise Conflict(f"the table was restored since snapshot {at}", hint="start the compaction again")
        return Plan(
            **table_log.header(state), plan_id=plan_id, table=at.table, cut=dict(at.lanes), file_groups=file_groups
        )

    published = table_log.publish(build)
    assert published is not None, "a PLAN is always published"
    return plan_id, published.seq


def abort_plan(table_log: TableLog, plan_id: str, reason: str) -> bool:
    """End a plan without a result; False if it has ended already."""

    def build(state: TableState) -> Abort | None:
        if plan_id not in state.plans:
            return None
        return Abort(**table_log.header(state), plan_id=plan_id, reason=reason)

    return table_log.publish(build) is not None
