"""Retires closed lanes, so that a table does not list every lane that it ever had (PROTOCOL.md, C6).

A lane can be retired once it is closed in every snapshot that is kept, and the slices of all these snapshots have all
its rows. Then nothing depends on where it ended: a cut contains all of the lane, whether it names the lane or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft.storage.core.log.cut import Seqs
from weft.storage.core.log.entries import Retire
from weft.storage.core.log.features import RETIRE
from weft.storage.core.log.needed_files import Needed
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName
from weft.storage.core.plan.watermarks import leading_lanes
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.schema_entry import add_feature
from weft.storage.log.table_log import TableLog
from weft.storage.read.lane_watermarks import last_commits

MAX_LANES: Final = 100_000  # of one RETIRE, an object of at most 32 MiB; the next clean retires more


def retire_lanes(table_log: TableLog, state: TableState, needed: Needed, *, dry_run: bool) -> Sequence[LaneName]:
    """Retire all lanes that can be retired; returns them, in the order in which they were added.

    Args:
        table_log: The table's log.
        state: The state by which cleaning judges.
        needed: What retained and held snapshots need.
        dry_run: Only find out which lanes can be retired.

    Raises:
        Conflict, CommitUnknown: See `TableLog.publish`.
    """
    ends = _find_ends(table_log, state, needed)
    if dry_run or not ends:
        return list(ends)
    add_feature(table_log, RETIRE, "closed lanes may be retired")

    def build(newest: TableState) -> Retire | None:
        if newest.intent is not None or newest.restored != state.restored:
            return None  # a restore may have brought back slices without these rows
        closed_at = {name: lane.closed for name, lane in newest.lanes.items()}
        retirable = {lane: end for lane, end in ends.items() if closed_at.get(lane) == end}
        return Retire(**table_log.header(newest), lanes=retirable) if retirable else None

    entry = table_log.publish(build)
    return [] if entry is None else list(entry.lanes)


def _find_ends(table_log: TableLog, state: TableState, needed: Needed) -> dict[LaneName, int]:
    """Last entry of each lane that can be retired."""
    in_slices = needed.in_slices or {}
    ends = {
        lane.name: lane.closed
        for lane in state.lanes.values()
        if lane.closed is not None
        and in_slices.get(lane.name, 0) >= lane.closed
        # Else the source of the lane still asks which of its batches were rolled back.
        and not state.rolled_back.get(lane.name)
    }
    if not ends or state.intent is not None:
        return {}
    oldest = table_log.at(state.oldest_retained).lanes
    ends = {lane: end for lane, end in ends.items() if lane in oldest and oldest[lane].closed is not None}
    leading = _leading(table_log, state, ends)
    retired_lanes = [lane for lane in ends if lane not in leading][:MAX_LANES]
    return {lane: ends[lane] for lane in retired_lanes}


def _leading(table_log: TableLog, state: TableState, ends: Seqs) -> set[LaneName]:
    """Lanes that determine the watermark of their stream once all its lanes are closed (R6)."""
    commits = last_commits(CommitLog(table_log.env), {}, ends, ends.keys())
    streams = {lane: state.lanes[lane].stream for lane in commits}
    return leading_lanes(state.schema, streams, {lane: commit.watermarks for lane, commit in commits.items()})
