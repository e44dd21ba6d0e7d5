"""Reads where a writer's lane ends: for the next writer before it claims the lane, and for engines without a claim."""

from __future__ import annotations

from storage.core.log.cut import Span
from storage.core.log.entries import Data
from storage.core.log.lane_state import LaneState
from storage.core.names import LaneName
from storage.log.commit_log import lane_entries
from storage.log.table_log import TableLog

FIRST_ENTRIES = 100  # number of entries in which the first batch of a lane is searched: only claims come before it


def read_lane(table_log: TableLog, lane: LaneName, rolled_back: tuple[Span, ...]) -> LaneState:
    """The state of a lane at its end: from its newest usable checkpoint, or from its first entry.

    Args:
        table_log: The table's log.
        lane: The lane; it may have no entry yet.
        rolled_back: Spans of the lane that restores have rolled back.

    Raises:
        CorruptData: An entry is damaged, or does not follow the one before.
        StoreUnavailable: The store does not answer.
    """
    log = table_log.commit_log
    state = table_log.checkpoints.newest_lane(log, lane, rolled_back) or LaneState(rolled_back=rolled_back)
    read_on(table_log, lane, state)
    return state


def read_on(table_log: TableLog, lane: LaneName, state: LaneState) -> None:
    """Update a state with the entries that were added to the lane since. Raises the errors of `read_lane`."""
    log = table_log.commit_log
    for entries_read in log.read_on(lane, state.head, known=table_log.known_entry(lane)):
        for entry in lane_entries(entries_read):
            state.add(entry, table_log.env.tuning.recent_commits)
        log.forget_before(lane, state.head - 1)


def newest_rolled_back(table_log: TableLog, lane: LaneName, state: LaneState, after: int) -> tuple[str, int] | None:
    """The batch of the newest commit that restores have rolled back, if there is one after an entry.

    Args:
        table_log: The table's log.
        lane: The lane.
        state: Its state at its end.
        after: Its last live commit; 0 if it has none.
    """
    until = state.rolled_back[-1][1] if state.rolled_back else 0
    if until <= after:
        return None
    entries = table_log.commit_log.read_after(lane, after, until)
    commits = [entry for entry in entries if isinstance(entry, Data) and entry.query_id]
    return (commits[-1].query_id, commits[-1].batch) if commits else None


def first_batch(table_log: TableLog, lane: LaneName, head: int) -> Data | None:
    """The first commit of a lane that belongs to a query, rolled back or not; None if its first entries have none."""
    entries = table_log.commit_log.read_after(lane, 0, min(head, FIRST_ENTRIES))
    return next((entry for entry in entries if isinstance(entry, Data) and entry.query_id), None)
