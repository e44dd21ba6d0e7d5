"""Retention policy: which snapshots expire, by age and by number, and which compactions are considered dead.

This is policy, so it may use clocks: a wrong clock only makes snapshots expire later or earlier. Whether a file is
garbage never depends on a clock (`weft.storage.services.clean.garbage`). Rules such as K3 are in PROTOCOL.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from weft.storage.clock import MAX_AHEAD_MS
from weft.storage.core.log.entries import Base, Claim, TableEntry
from weft.storage.core.log.needed_files import changes_files
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import is_query_lane
from weft.storage.errors import InvalidInput, SnapshotExpired
from weft.storage.log import lane_ends
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.log.fencing_barrier import fence_after
from weft.storage.log.heartbeat import newest_heartbeats
from weft.storage.log.table_log import TableLog
from weft.storage.read.time_travel import cut_at
from weft.storage.services.history.restore import close_lanes
from weft.storage.services.steps.service_plan import abort_plan
from weft.storage.times import MILLISECOND, moment_of
from weft.storage.write.batch_lanes import batch_lanes

DEFAULT_RETENTION: Final = dt.timedelta(hours=24)  # a mistake that is noticed a day later can be undone
DEFAULT_ABANDON: Final = dt.timedelta(hours=24)  # no compaction takes this long; a live one fails and can be repeated
WINDOW: Final = 16  # entries of the table lane in memory: each may hold the slices of all file groups


def check_arguments(
    retain: dt.timedelta,
    versions: int | None,
    abandon_after: dt.timedelta | None,
    close_after: dt.timedelta | None,
) -> None:
    """Check the arguments of a clean.

    Raises:
        InvalidInput: An argument is out of range.
    """
    zero = dt.timedelta(0)
    if retain < zero:
        raise InvalidInput(f"retain={retain} is negative", hint="give 0 or more; 0 keeps only the newest snapshot")
    if versions is not None and versions < 1:
        raise InvalidInput(f"versions={versions} keeps nothing", hint="give 1 or more, or None")
    if abandon_after is not None and abandon_after < zero:
        raise InvalidInput(
            f"abandon_after={abandon_after} is negative", hint="give 0 or more, or None to abort nothing"
        )
    if close_after is not None and close_after <= zero:
        raise InvalidInput(
            f"close_after={close_after} would close lanes in use",
            hint="give a positive duration, or None to close no lane",
        )


def abort_abandoned(
    table_log: TableLog, abandon_after: dt.timedelta | None, *, dry_run: bool
) -> tuple[TableState, tuple[str, ...]]:
    """Abort the plans of compactions and folds that count as dead. One that is alive publishes nothing more (K3).

    Returns:
        The state after the aborts (in a dry run, as it would be), and the ids of the aborted plans.
    """
    state = table_log.refresh()
    if abandon_after is None:
        return state, ()
    limit = table_log.clock.now_ms() - abandon_after // MILLISECOND
    # 0 means all plans, even those whose start time is in the future of this clock.
    dead_ids = [plan_id for plan_id, plan in state.plans.items() if not abandon_after or plan.committed_at_ms <= limit]
    if dry_run:
        remaining = {plan_id: plan for plan_id, plan in state.plans.items() if plan_id not in dead_ids}
        return replace(state, plans=remaining), tuple(dead_ids)
    reason = f"abandoned: begun more than {abandon_after} ago"
    aborted_ids = tuple(plan_id for plan_id in dead_ids if abort_plan(table_log, plan_id, reason))
    return table_log.refresh(), aborted_ids


def fence_dead_batches(table_log: TableLog, state: TableState, abandon_after: dt.timedelta | None) -> None:
    """Finish the lanes of batches that count as dead: claimed long ago, and without a heartbeat since.

    A batch that is alive raises Fenced and publishes nothing (W4). Otherwise the lane of a dead batch would hold back
    the watermark of its stream, and later batches could not use it.
    """
    if abandon_after is None:
        return
    lanes = batch_lanes(state)
    limit = table_log.clock.now_ms() - abandon_after // MILLISECOND
    heartbeats = newest_heartbeats(table_log.store) if lanes and abandon_after else {}
    for lane, last in lane_ends.last_entries(table_log, state, lanes).items():
        if last is None:  # its batch died before its claim; a batch that is alive takes another lane
            fence_after(table_log, lane, last, "a clean, which found a lane that no batch has claimed")
            continue
        if not isinstance(last, Claim) or not last.for_batch:
            continue
        heartbeat = heartbeats.get(lane)
        heard_ms = heartbeat.at_ms if heartbeat is not None and heartbeat.epoch == last.epoch else last.committed_at_ms
        if not abandon_after or max(heard_ms, last.committed_at_ms) <= limit:
            # Does nothing if the batch has continued.
            fence_after(table_log, lane, last, "a clean, which considered the batch dead")


def close_silent_queries(table_log: TableLog, state: TableState, close_after: dt.timedelta | None) -> None:
    """Close lanes of query ids without a commit or heartbeat for ``close_after``; their later batches are refused."""
    lanes = [lane.name for lane in state.lanes.values() if lane.closed is None and is_query_lane(lane.name)]
    if close_after is None or not lanes:
        return
    limit = table_log.clock.now_ms() - close_after // MILLISECOND
    heard_ms = {lane: beat.at_ms for lane, beat in newest_heartbeats(table_log.store).items()}
    silent_lanes = [
        lane
        for lane, last in lane_ends.last_entries(table_log, state, lanes).items()
        if last is not None and max(last.committed_at_ms, heard_ms.get(lane, 0)) <= limit
    ]
    if silent_lanes:
        close_lanes(table_log, silent_lanes)


def choose_oldest_retained(
    table_log: TableLog, state: TableState, retain: dt.timedelta, versions: int | None
) -> tuple[int, str]:
    """Choose the shortest prefix of the table lane whose snapshots are retained; returns it and the reason."""
    oldest, reason = state.head, "only the newest snapshot is kept"
    if retain:
        oldest = _newest_at(table_log, state, retain)
        reason = f"snapshots of the last {str(retain).removesuffix(', 0:00:00')} are kept"
        ahead_ms = state.committed_at_ms - table_log.clock.now_ms()
        if ahead_ms > MAX_AHEAD_MS:
            reason += (
                "; the table's newest entry was written by a clock that is "
                f"{dt.timedelta(milliseconds=ahead_ms)} ahead of this one, and nothing counts as old until that time: "
                "clean with retain 0 and versions, and set the clocks of all machines"
            )
    if versions is not None:
        last = _last_compaction(table_log, state, versions)
        if last < oldest:
            oldest, reason = last, f"the last {versions} compactions are kept"
    # Of all prefixes that need the same files, take the shortest: a snapshot expires only if that makes files garbage.
    for entry in _newest_first(table_log, state.oldest_retained, oldest):
        if changes_files(entry):
            return entry.seq, reason
    return state.oldest_retained, f"nothing expires: {reason}"


def _newest_at(table_log: TableLog, state: TableState, retain: dt.timedelta) -> int:
    """Prefix of the table lane in the snapshot of the time ``retain`` ago. A later time never gives a shorter one."""
    limit = table_log.clock.now_ms() - retain // MILLISECOND
    if limit <= 0:
        return state.oldest_retained
    try:
        cut = cut_at(table_log, moment_of(limit)).at
    except (InvalidInput, SnapshotExpired):  # before the table existed, or already expired
        return state.oldest_retained
    return max(cut.table, state.oldest_retained)


def _last_compaction(table_log: TableLog, state: TableState, versions: int) -> int:
    """The prefix that ends with the oldest of the last ``versions`` compactions."""
    count = 0
    for entry in _newest_first(table_log, state.oldest_retained, state.head):
        if isinstance(entry, Base) and entry.last:
            count += 1
            if count == versions:
                return entry.seq
    return state.oldest_retained


def _newest_first(table_log: TableLog, after: int, until: int) -> Iterator[TableEntry]:
    for last in range(until, after, -WINDOW):
        yield from reversed(read_window(table_log, max(after, last - WINDOW), last))


def read_window(table_log: TableLog, after: int, until: int) -> list[TableEntry]:
    """Entries of the table lane after slot ``after``, up to slot ``until``; they are not cached."""
    return read_table_lane(CommitLog(table_log.env), after, until)
