"""Fencing barriers: actions on the table that must not overlap with the writers of some lanes.

A fencing barrier is an INTENT in the table lane, then a claim in each of its lanes, then DONE. Commits before the claim
are before the action. A writer that claims the lane later loads the table after its claim, finds the INTENT and
completes it before it commits. Any process can complete a barrier, and several can at once: the *first* claim of a
barrier in a lane is the boundary, and a process that finds one adds no other (PROTOCOL.md, L4). A barrier does not
wait for writers: it fences them.
"""

from __future__ import annotations

from typing import Final

from weft.storage.core.log.entries import Claim, Data, Done, Header, lane_entries
from weft.storage.core.log.features import FINISH
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName
from weft.storage.errors import Conflict
from weft.storage.log.entry_header import NO_ENTRY, Head, next_header
from weft.storage.log.table_log import TableLog

MAX_FENCE_TRIES: Final = 100  # each lost race is a commit of a live writer, which takes much longer than a claim


def complete_fencing_barrier(table_log: TableLog) -> TableState:
    """Complete the open fencing barrier, if there is one, and return the newest state.

    Raises:
        Conflict: A writer won every race for a slot of its lane.
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


def fence_after(table_log: TableLog, lane: LaneName, last: Header | None, owner: str, *, intent: int = 0) -> bool:
    """Claim a lane in the slot after one of its entries; returns whether this claim has the slot.

    ``last``: the entry; None for an empty lane. The other arguments are those of `fence_lane`.
    """
    # Stamps ascend within a lane: the last entry has the largest (W2).
    table_log.stamps.observe(last.stamp if last is not None else 0)
    header = next_header(
        lane,
        Head(last.seq, last.commit_id, last.committed_at_ms) if last is not None else NO_ENTRY,
        epoch=(last.epoch if last is not None else 0) + 1,
        table_rev=last.table_rev if last is not None else 0,
        stamps=table_log.stamps,
        env=table_log.env,
    )
    # A lane without entries has no writer either, but versions that do not know the feature may use the table.
    finishes = stays_finished(last) if last is not None else FINISH in table_log.refresh().writer_features
    claim = Claim(**header, owner=owner, intent=intent, finishes=finishes)
    return table_log.commit_log.publish(claim).commit_id == claim.commit_id


def stays_finished(last: Header) -> bool:
    """Whether a fence after this entry finishes the lane: the entry finishes it, or is the claim of a batch."""
    if isinstance(last, Claim):
        return last.finishes or last.for_batch
    return isinstance(last, Data) and last.finishes


def fence_lane(table_log: TableLog, lane: LaneName, owner: str, *, after: int = 0, intent: int = 0) -> int:
    """Claim a lane without writing to it, which fences its writer; returns the slot of the claim.

    A lane that is finished stays so. That of a batch becomes finished, because a batch that is fenced never comes back.

    Args:
        table_log: Log of the table.
        lane: Name of the lane.
        owner: The claimant in words, for the message to the writer that is fenced.
        after: An entry that exists; with ``intent`` no claim for it is at or before this entry.
        intent: Slot of the INTENT that the claim is for; an existing claim for it is returned. 0: for none.

    Raises:
        Conflict: A writer won every race for the next slot.
    """
    log = table_log.commit_log
    for _ in range(MAX_FENCE_TRIES):
        if intent:
            new_entries = lane_entries(log.read_after(lane, after))
            for entry in new_entries:
                if isinstance(entry, Claim) and entry.intent == intent:
                    table_log.stamps.observe(entry.stamp)  # that of DONE must be larger (W2)
                    return entry.seq
            # Not the newest head of the lane: a claim for this barrier may have been published meanwhile.
            after += len(new_entries)
        else:
            after = log.head(lane, after)
        last = log.entry(lane, after) if after else None
        if fence_after(table_log, lane, last, owner, intent=intent):
            return after + 1
    raise Conflict(
        f"lane {lane!r}: its writer won {MAX_FENCE_TRIES} races for the next slot",
        hint="stop the writer of the lane, and try again",
    )
