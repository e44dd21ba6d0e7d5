"""Restore a table to a snapshot, undo one stream since a time, close a lane: the actions that need a barrier.

Nothing is deleted: a restore says which entries mean nothing any more (void spans) and which slices are the newest
again, and everything else follows (S18 VoidNeverVisible). Schema, lanes and savepoints stay. Sources may send again
what was made void: a lane's batches are counted over what is live.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from storage.core.log import cut
from storage.core.log.cut import Cut, Span
from storage.core.log.entries import Done, Intent, Restoration
from storage.core.log.table_state import Lane, TableState
from storage.core.names import LaneName
from storage.errors import Conflict, NotFound, SnapshotExpired
from storage.log.commit_log import read_table_lane
from storage.log.fencing_barrier import complete_barrier, fence_lane
from storage.log.table_log import Timeline, check_promised
from storage.log.time_marks import publish_mark
from storage.read.time_travel import find_moment, milliseconds, named_cut

MAX_TRIES: Final = 20  # each lost try completed somebody else's barrier


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore did.

    Attributes:
        entry: Slot of the DONE from which on it holds.
        kept: Per lane that was cut the last entry that still counts.
        void: Per lane that was cut how many entries mean nothing now (claims among them).
        kept_ms: When the last entry that counts was committed, by its writer's clock; not of lanes without one.
        void_ms: When the first and the last of the others were, the claim that fenced the writer left out; not of
            lanes that had nothing else.
        in_doubt: Per lane the first and last of the entries that count although a clock may be wrong. Either they
            became visible between two marks, and only their writer's clock says that this was before the time asked
            for; or the table lane says so, and their writer's clock says that it was not. Empty of cuts and savepoints.
    """

    entry: int
    kept: dict[LaneName, int]
    void: dict[LaneName, int]
    kept_ms: dict[LaneName, int]
    void_ms: dict[LaneName, tuple[int, int]]
    in_doubt: dict[LaneName, tuple[int, int]]


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


def undo(timeline: Timeline, stream: str, since: dt.datetime | str) -> RestoreResult:
    """Make void what one stream has committed since a time, a cut or a savepoint; nobody else notices.

    Raises:
        InvalidInput: ``since`` is a time without a zone, or none of these.
        SnapshotExpired: Slices hold what is to be undone, and older ones were given up by cleaning.
        NotFound: The table has no such stream, it has no lanes, or there is no such cut or savepoint.
    """
    timeline.refresh().schema.stream(stream)
    limit = None if isinstance(since, str) else milliseconds(since) - 1
    exact = timeline.exact_cut(named_cut(timeline, since))[1].lanes if isinstance(since, str) else {}
    keep: dict[LaneName, int] = {}
    seen: cut.Seqs = exact
    when = since if isinstance(since, str) else since.isoformat()

    def build(state: TableState) -> Intent:
        nonlocal keep, seen
        lanes = [lane for lane in state.lanes.values() if lane.stream == stream]
        if not lanes:
            raise NotFound(f"no lane of stream {stream!r} has been written", hint="see: weft show URI streams")
        found = None if limit is None else find_moment(timeline, limit)
        there = exact if found is None else found.at.lanes  # nothing, of a time before the table
        keep = {lane.name: there.get(lane.name, 0) for lane in lanes}
        seen = keep if found is None else cut.lowest(found.seen, _said_before(timeline, keep, limit))
        target = timeline.newest_within(state, keep)
        if target is None:
            raise SnapshotExpired(
                f"commits of {stream!r} since {since} are in the slices; cleaning has given up the ones before",
                hint="send corrections as new events, or restore a savepoint",
            )
        return _intent(timeline, state, lanes, target, keep, state.void, f"undo of {stream} since {when}")

    if limit is not None:
        _settle(timeline, limit)
    result = _run(timeline, build)
    # Of closed lanes that are left whole, too, which the result does not name.
    doubt = {lane: (seen.get(lane, 0) + 1, kept) for lane, kept in keep.items() if seen.get(lane, 0) < kept}
    return replace(result, in_doubt=doubt)


def _said_before(timeline: Timeline, keep: dict[LaneName, int], limit: int | None) -> cut.Seqs:
    """Per lane the last of the entries that are kept that their writer's clock puts at a time or before it."""
    return keep if limit is None else timeline.last_while(keep, lambda entry: entry.committed_at_ms <= limit)


def _settle(timeline: Timeline, limit: int) -> None:
    """Record a mark if what is asked for rests on a time that is not settled: who asks again gets the same."""
    found = find_moment(timeline, limit)
    if found is not None and not found.settled:
        publish_mark(timeline)


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
    ends = dict(done.heads)
    # A closed lane gets no claim: its span, the last one, says how far it is cut, unless it was cut there before.
    before = timeline.at(intent.seq - 1)
    for lane, spans in intent.restore.void.items():
        if lane in kept or not spans or tuple(spans) == before.void.get(lane, ()):
            continue
        if spans[-1][1] == before.lanes[lane].closed:
            kept[lane], ends[lane] = spans[-1]
    return RestoreResult(
        entry=done.seq,
        kept=kept,
        void={lane: end - kept[lane] for lane, end in ends.items()},
        kept_ms={lane: _committed_ms(timeline, lane, seq) for lane, seq in kept.items() if seq},
        void_ms={
            lane: (_committed_ms(timeline, lane, kept[lane] + 1), _committed_ms(timeline, lane, last))
            for lane, end in ends.items()
            if (last := end - (lane in done.heads)) > kept[lane]
        },
        in_doubt={},
    )


def _committed_ms(timeline: Timeline, lane: LaneName, seq: int) -> int:
    entry = timeline.log.entry(lane, seq)
    assert entry is not None, "a lane has all its entries"
    return entry.committed_at_ms


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
