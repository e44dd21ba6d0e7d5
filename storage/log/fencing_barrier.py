"""Barriers: an action on the table that must not overlap with any writer of some lanes.

INTENT in the table lane, then a claim of this barrier in every lane it names, then DONE. Whoever wrote before the claim
wrote before the action; whoever claims after it loads the table afterwards, sees the INTENT and completes it first.
Any process may complete a barrier, and several may at once: the *first* claim of a barrier in a lane is its boundary,
and whoever finds it there adds none (L4). A barrier never waits for a writer: it fences it.
"""

from __future__ import annotations

from typing import Final

from storage.core.log.entries import Claim, Done
from storage.core.log.table_state import TableState
from storage.core.names import LaneName
from storage.errors import Conflict
from storage.log.commit_log import lane_entries
from storage.log.entry_header import NO_ENTRY, Head, next_header
from storage.log.table_log import TableLog

MAX_FENCE_TRIES: Final = 100  # each lost try is a commit of a live writer, which takes it much longer than ours


def complete_fencing_barrier(table_log: TableLog) -> TableState:
    """Complete the open barrier, if there is one; the newest state, in which none is open that was open before.

    Raises:
        Conflict: A writer was always faster; which does not happen to a writer that waits for its source.
    """
    state = table_log.refresh()
    intent = state.intent
    if intent is None:
        return state
    owner = f"the {'restore' if intent.restore else 'closing'} of entry {intent.seq} of the table lane"
    heads = {
        lane: fence_lane(table_log, lane, owner, after=seq, intent=intent.seq) for lane, seq in intent.lanes.items()
    }

    def build(state: TableState) -> Done | None:
        if state.intent is None or state.intent.seq != intent.seq:
            return None
        return Done(**table_log.header(state), intent=intent.seq, heads=heads)

    table_log.publish(build)
    return table_log.refresh()


def fence_lane(table_log: TableLog, lane: LaneName, owner: str, *, after: int = 0, intent: int = 0) -> int:
    """Claim a lane for nobody: whoever writes there is fenced. The slot of the claim.

    Args:
        table_log: The table's.
        lane: Which.
        owner: In words, for whoever is fenced.
        after: An entry that the lane has; with ``intent``, the first one that may be a claim of it follows.
        intent: The INTENT that the claim is for: a claim of it that is there already does.

    Raises:
        Conflict: Others were always faster.
    """
    log = table_log.commit_log
    for _ in range(MAX_FENCE_TRIES):
        if intent:
            fresh = lane_entries(log.read_after(lane, after))
            for entry in fresh:
                if isinstance(entry, Claim) and entry.intent == intent:
                    return entry.seq
            # Not the lane's head as it is by now: a claim of this barrier may have come meanwhile, and it is the first.
            after += len(fresh)
        else:
            after = log.head(lane, after)
        last = log.entry(lane, after) if after else None
        # Stamps ascend within a lane: whoever reads its last entry has seen the largest (W2).
        table_log.stamps.observe(last.stamp if last else 0)
        header = next_header(
            lane,
            Head(after, last.commit_id, last.committed_at_ms) if last else NO_ENTRY,
            epoch=(last.epoch if last else 0) + 1,
            table_rev=last.table_rev if last else 0,
            stamps=table_log.stamps,
            env=table_log.env,
        )
        claim = Claim(**header, owner=owner, intent=intent)
        if log.publish(claim).commit_id == claim.commit_id:
            return claim.seq
    raise Conflict(
        f"lane {lane!r}: lost {MAX_FENCE_TRIES} slots to its writer", hint="stop the writer of the lane, and try again"
    )
