"""Reads where a writer's lane ends: for the next writer before it claims the lane, and for engines without a claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.storage.clock import Stamps
from weft.storage.core.log.cut import Span
from weft.storage.core.log.entries import Data, lane_entries
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.names import LaneName, lane_name
from weft.storage.environment import open_environment
from weft.storage.log.fencing_barrier import complete_fencing_barrier
from weft.storage.log.table_log import TableLog
from weft.storage.write.write_task import Batch

FIRST_ENTRIES = 100  # entries among which the first batch of a lane is searched: only claims come before it


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
    for entries_read in log.read_on(lane, state.head, lower_bound=table_log.lower_bound(lane)):
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


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """The end of a lane, from which a query can continue.

    Attributes:
        lane: Its name.
        query_id: The query of the last live commit; "" if the lane has none.
        source: The source position that this commit recorded; empty if it recorded none.
        batches: Number of the last live batch of each query, by query id.
        rolled_back_from: For queries without a live batch, the first batch that a restore rolled back, by query id.
        restored: Whether a restore has rolled back entries of the lane.
        fenced: The claim that fenced the lane for the newest restore; 0 if there was none.
        last_commit: The entry of the last live commit of ``query_id``; 0 if there is none.
        newest: The batch of the newest commit that has one, rolled back or not; None if there is none.
        first_source: If the lane has no live commit: the source position of its first batch, if this had no rows.
    """

    lane: LaneName
    query_id: str
    source: Mapping[str, Any]
    batches: Mapping[str, int]
    rolled_back_from: Mapping[str, int]
    restored: bool
    fenced: int
    last_commit: int
    newest: Batch | None
    first_source: Mapping[str, Any] | None


def lane_progress(uri: str | Path, lane: str, storage_options: Mapping[str, Any] | None = None) -> LaneProgress:
    """Find where a lane ends, without claiming it; a restore in progress is completed first.

    Args:
        uri: The table.
        lane: The lane; it need not exist yet.
        storage_options: Options of the table's store.

    Raises:
        NotFound: There is no such table.
        InvalidInput: ``lane`` cannot be the name of a lane.
    """
    table_log, name = TableLog(open_environment(uri, storage_options), Stamps()), lane_name(lane)
    state = read_lane(table_log, name, complete_fencing_barrier(table_log).rolled_back.get(name, ()))
    first = first_batch(table_log, name, state.head) if state.rolled_back_from and not state.query_id else None
    live = (state.query_id, state.batches.get(state.query_id, 0))
    last = state.recent.get(live)
    last_commit = last.seq if last is not None else 0
    return LaneProgress(
        lane=name,
        query_id=state.query_id,
        source=state.source,
        batches=state.batches,
        rolled_back_from=state.rolled_back_from,
        restored=bool(state.rolled_back),
        fenced=state.rolled_back[-1][1] if state.rolled_back else 0,
        last_commit=last_commit,
        newest=newest_rolled_back(table_log, name, state, last_commit) or (live if state.query_id else None),
        first_source=first.source if first is not None and not first.rows + first.rows_ignored else None,
    )
