"""Restore a table to a snapshot, undo one stream since a time, close a lane: the actions that need a barrier.

Nothing is deleted: a restore says which entries mean nothing any more (void spans) and which slices are the newest
again, and everything else follows (S18 VoidNeverVisible). Schema, lanes and savepoints stay. Sources may send again
what was made void: a lane's batches are counted over what is live.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from storage.barrier import complete_barrier, fence_lane
from storage.commit_log import read_table_lane
from storage.core import cut
from storage.core.cut import Cut, Span
from storage.core.entries import Done, Intent, Restoration
from storage.core.names import LaneName
from storage.core.timeline import Lane, TableState
from storage.errors import Conflict, NotFound, SnapshotExpired
from storage.timeline import Timeline, check_promised

MAX_TRIES: Final = 20  # each lost try completed somebody else's barrier


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore did.

    Attributes:
        entry: Slot of the DONE from which on it holds.
        kept: Per lane that was cut the last entry that still counts.
        void: Per lane that was cut how many entries mean nothing now (claims among them).
    """

    entry: int
    kept: dict[LaneName, int]
    void: dict[LaneName, int]


def restore(timeline: Timeline, target: TableState, at: Cut, label: str) -> RestoreResult:
    """Make the table what it was at a snapshot; whoever writes is fenced.

    Args:
        timeline: The table's.
        target: The table state of the snapshot.
        at: Its cut.
        label: What was asked for, in words.

    Raises:
        SnapshotExpired: Cleaning has given the snapshot up.
    """

    def build(state: TableState) -> Intent:
        check_promised(state, at)
        lanes = list(state.lanes.values())
        keep = {lane.name: at.lanes.get(lane.name, 0) for lane in lanes}
        return _intent(timeline, state, lanes, target, keep, target.void, label)

    return _run(timeline, build)


def undo(timeline: Timeline, stream: str, since: dt.datetime) -> RestoreResult:
    """Make void what one stream has committed since a time; no other lane is touched, no other writer notices.

    Raises:
        SnapshotExpired: Slices hold what is to be undone, and older ones were given up by cleaning.
        NotFound: The table has no such stream, or it has no lanes.
    """

    def build(state: TableState) -> Intent:
        lanes = [lane for lane in state.lanes.values() if lane.stream == stream]
        if not lanes:
            raise NotFound(f"no lane of stream {stream!r} has been written", hint="see: weft show URI streams")
        keep = {lane.name: timeline.last_before(lane, since) for lane in lanes}
        target = timeline.newest_within(state, keep)
        if target is None:
            raise SnapshotExpired(
                f"commits of {stream!r} since {since} are in the slices; cleaning has given up the ones before",
                hint="send corrections as new events, or restore a savepoint",
            )
        return _intent(timeline, state, lanes, target, keep, state.void, f"undo of {stream} since {since.isoformat()}")

    timeline.refresh().schema.stream(stream)
    return _run(timeline, build)


def fence(timeline: Timeline, name: LaneName) -> int:
    """Claim a lane for nobody, so that whoever was writing there can commit nothing more. Slot of the claim.

    Raises:
        NotFound: The table has no such lane.
        Conflict: It is closed.
    """
    _open_lane(timeline.refresh(), name)
    return fence_lane(timeline, name, "an operator, who took the writer for dead")


def _open_lane(state: TableState, name: LaneName) -> None:
    lane = state.lanes.get(name)
    if lane is None:
        raise NotFound(f"the table has no lane {name!r}", hint=f"lanes: {', '.join(state.lanes) or 'none'}")
    if lane.closed is not None:
        raise Conflict(f"lane {name!r} is closed already", hint="nothing is to be done")


def close_lane(timeline: Timeline, name: LaneName) -> int:
    """End a lane for ever: its writer is fenced, nobody can write to it or needs to look at its end. Its last entry.

    Raises:
        NotFound: The table has no such lane.
        Conflict: It is closed already.
    """

    def build(state: TableState) -> Intent:
        _open_lane(state, name)
        return Intent(**timeline.header(state), lanes={name: timeline.log.head(name)}, restore=None)

    _begin(timeline, build)
    closed = complete_barrier(timeline).lanes[name].closed
    assert closed is not None, "a completed closing closes the lane"
    return closed


def _intent(
    timeline: Timeline,
    state: TableState,
    lanes: list[Lane],
    target: TableState,
    keep: dict[LaneName, int],
    void: cut.Voids,
    label: str,
) -> Intent:
    header = timeline.header(state)
    spans: dict[LaneName, list[Span]] = {}
    for lane in lanes:
        kept = keep[lane.name]
        spans[lane.name] = [(after, min(until, kept)) for after, until in void.get(lane.name, ()) if after < kept]
        if lane.closed is not None and lane.closed > kept:
            spans[lane.name].append((kept, lane.closed))  # nobody can write there: no claim is needed
    open_lanes = [lane.name for lane in lanes if lane.closed is None]
    return Intent(
        **header,
        lanes={name: timeline.log.head(name, keep[name]) for name in open_lanes},
        restore=Restoration(
            label=label,
            table=target.head,
            keep={name: keep[name] for name in open_lanes},
            void=spans,
            covered=dict(target.covered),
            slices=timeline.log.in_place_or_sidecar(header["seq"], list(target.slices.values())),
        ),
    )


def _run(timeline: Timeline, build: Callable[[TableState], Intent]) -> RestoreResult:
    intent = _begin(timeline, build)
    assert intent.restore is not None, "a restore was begun"
    complete_barrier(timeline)
    # Who completed it may have been somebody else, and the table may have moved on since.
    later = read_table_lane(timeline.log, intent.seq)
    done = next(entry for entry in later if isinstance(entry, Done) and entry.intent == intent.seq)
    kept = dict(intent.restore.keep)
    return RestoreResult(done.seq, kept, {lane: head - kept[lane] for lane, head in done.heads.items()})


def _begin(timeline: Timeline, build: Callable[[TableState], Intent]) -> Intent:
    """Publish an INTENT, after completing every one that is open: there is one at a time."""

    def build_alone(state: TableState) -> Intent | None:
        return None if state.intent is not None else build(state)

    for _ in range(MAX_TRIES):
        complete_barrier(timeline)
        published = timeline.publish(build_alone)
        if published is not None:
            return published
    raise Conflict(f"lost {MAX_TRIES} races against other restores", hint="see who else restores this table")
