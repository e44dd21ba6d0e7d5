"""Restore a table to a snapshot, undo one stream since a time, close a lane: the actions that need a barrier.

Nothing is deleted: a restore says which entries are rolled back and which slices are the newest again, and everything
else follows (S18 RolledBackNeverVisible). Schema, lanes and savepoints stay. Sources may send again what was rolled
back: a lane's batches are counted over what is live.
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
from storage.log.fencing_barrier import complete_fencing_barrier, fence_lane
from storage.log.table_log import TableLog, check_promised
from storage.log.time_marks import publish_mark
from storage.read.time_travel import find_moment, milliseconds, named_cut

MAX_TRIES: Final = 20  # each lost try completed somebody else's barrier


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore did.

    Attributes:
        entry: Slot of the DONE from which on it holds.
        kept: Per lane that was cut the last entry that still counts.
        rolled_back: Per lane that was cut how many entries mean nothing now (claims among them).
        kept_ms: When the last entry that counts was committed, by its writer's clock; not of lanes without one.
        rolled_back_ms: When the first and the last of the others were, without the claim that fenced the writer; not of
            lanes that had nothing else.
        in_doubt: Per lane the first and last of the entries that count although a clock may be wrong. Either they
            became visible between two marks, and only their writer's clock says that this was before the time asked
            for; or the table lane says so, and their writer's clock says that it was not. Empty of cuts and savepoints.
    """

    entry: int
    kept: dict[LaneName, int]
    rolled_back: dict[LaneName, int]
    kept_ms: dict[LaneName, int]
    rolled_back_ms: dict[LaneName, tuple[int, int]]
    in_doubt: dict[LaneName, tuple[int, int]]


def restore(table_log: TableLog, target: TableState, at: Cut, label: str) -> RestoreResult:
    """Make the table what it was at a snapshot; whoever writes is fenced.

    Args:
        table_log: The table's.
        target: The table state of the snapshot.
        at: Its cut.
        label: What was asked for, in words.

    Raises:
        SnapshotExpired: Cleaning has given the snapshot up.
    """

    def build(state: TableState) -> Intent:
        check_promised(state, at)
        lanes = list(state.lanes.values())
        last_kept = {lane.name: at.lanes.get(lane.name, 0) for lane in lanes}
        return _intent(table_log, state, lanes, target, last_kept, target.rolled_back, label)

    return _run(table_log, build)


def undo(table_log: TableLog, stream: str, since: dt.datetime | str) -> RestoreResult:
    """Roll back what one stream has committed since a time, a cut or a savepoint; nobody else notices.

    Raises:
        InvalidInput: ``since`` is a time without a zone, or none of these.
        SnapshotExpired: Slices hold what is to be undone, and older ones were given up by cleaning.
        NotFound: The table has no such stream, it has no lanes, or there is no such cut or savepoint.
    """
    table_log.refresh().schema.stream(stream)
    limit = None if isinstance(since, str) else milliseconds(since) - 1
    exact = table_log.exact_cut(named_cut(table_log, since))[1].lanes if isinstance(since, str) else {}
    last_kept: dict[LaneName, int] = {}
    seen: cut.Seqs = exact
    when = since if isinstance(since, str) else since.isoformat()

    def build(state: TableState) -> Intent:
        nonlocal last_kept, seen
        lanes = [lane for lane in state.lanes.values() if lane.stream == stream]
        if not lanes:
            raise NotFound(f"no lane of stream {stream!r} has been written", hint="see: weft show URI streams")
        found = None if limit is None else find_moment(table_log, limit)
        there = exact if found is None else found.at.lanes  # nothing, of a time before the table
        last_kept = {lane.name: there.get(lane.name, 0) for lane in lanes}
        seen = last_kept if found is None else cut.lowest(found.seen, _said_before(table_log, last_kept, limit))
        target = table_log.newest_within(state, last_kept)
        if target is None:
            raise SnapshotExpired(
                f"commits of {stream!r} since {since} are in the slices; cleaning has given up the ones before",
                hint="send corrections as new events, or restore a savepoint",
            )
        return _intent(table_log, state, lanes, target, last_kept, state.rolled_back, f"undo of {stream} since {when}")

    if limit is not None:
        _settle(table_log, limit)
    result = _run(table_log, build)
    # Of closed lanes that are left whole, too, which the result does not name.
    doubt = {lane: (seen.get(lane, 0) + 1, kept) for lane, kept in last_kept.items() if seen.get(lane, 0) < kept}
    return replace(result, in_doubt=doubt)


def _said_before(table_log: TableLog, last_kept: dict[LaneName, int], limit: int | None) -> cut.Seqs:
    """Per lane the last of the entries that are kept that their writer's clock puts at a time or before it."""
    return last_kept if limit is None else table_log.last_while(last_kept, lambda entry: entry.committed_at_ms <= limit)


def _settle(table_log: TableLog, limit: int) -> None:
    """Record a mark if what is asked for rests on a time that is not settled: who asks again gets the same."""
    found = find_moment(table_log, limit)
    if found is not None and not found.settled:
        publish_mark(table_log)


def fence(table_log: TableLog, name: LaneName) -> int:
    """Claim a lane for nobody, so that whoever was writing there can commit nothing more. Slot of the claim.

    Raises:
        NotFound: The table has no such lane.
        Conflict: It is closed.
    """
    _open_lane(table_log.refresh(), name)
    return fence_lane(table_log, name, "an operator, who took the writer for dead")


def _open_lane(state: TableState, name: LaneName) -> None:
    lane = state.lanes.get(name)
    if lane is None:
        raise NotFound(f"the table has no lane {name!r}", hint=f"lanes: {', '.join(state.lanes) or 'none'}")
    if lane.closed is not None:
        raise Conflict(f"lane {name!r} is closed already", hint="nothing is to be done")


def close_lane(table_log: TableLog, name: LaneName) -> int:
    """End a lane for ever: its writer is fenced, nobody can write to it or needs to look at its end. Its last entry.

    Raises:
        NotFound: The table has no such lane.
        Conflict: It is closed already.
    """

    def build(state: TableState) -> Intent:
        _open_lane(state, name)
        return Intent(**table_log.header(state), lanes={name: table_log.commit_log.head(name)}, restore=None)

    _begin(table_log, build)
    closed = complete_fencing_barrier(table_log).lanes[name].closed
    assert closed is not None, "a completed closing closes the lane"
    return closed


def _intent(
    table_log: TableLog,
    state: TableState,
    lanes: list[Lane],
    target: TableState,
    last_kept: dict[LaneName, int],
    rolled_back: cut.SpansByLane,
    label: str,
) -> Intent:
    spans: dict[LaneName, list[Span]] = {}
    for lane in lanes:
        kept = last_kept[lane.name]
        spans[lane.name] = [
            (after, min(until, kept)) for after, until in rolled_back.get(lane.name, ()) if after < kept
        ]
        if lane.closed is not None and lane.closed > kept:
            spans[lane.name].append((kept, lane.closed))  # nobody can write there: no claim is needed
    open_lanes = [lane.name for lane in lanes if lane.closed is None]
    return Intent(
        **table_log.header(state),
        lanes={name: table_log.commit_log.head(name, last_kept[name]) for name in open_lanes},
        restore=Restoration(
            label=label,
            table=target.head,
            last_kept={name: last_kept[name] for name in open_lanes},
            rolled_back=spans,
            covered=dict(target.covered),
            slices=list(target.slices.values()),
        ),
    )


def _run(table_log: TableLog, build: Callable[[TableState], Intent]) -> RestoreResult:
    intent = _begin(table_log, build)
    assert intent.restore is not None, "a restore was begun"
    complete_fencing_barrier(table_log)
    # Who completed it may have been somebody else, and the table may have moved on since.
    later = read_table_lane(table_log.commit_log, intent.seq)
    done = next(entry for entry in later if isinstance(entry, Done) and entry.intent == intent.seq)
    kept = dict(intent.restore.last_kept)
    ends = dict(done.heads)
    # A closed lane gets no claim: its span, the last one, says how far it is cut, unless it was cut there before.
    before = table_log.at(intent.seq - 1)
    for lane, spans in intent.restore.rolled_back.items():
        if lane in kept or not spans or tuple(spans) == before.rolled_back.get(lane, ()):
            continue
        if spans[-1][1] == before.lanes[lane].closed:
            kept[lane], ends[lane] = spans[-1]
    return RestoreResult(
        entry=done.seq,
        kept=kept,
        rolled_back={lane: end - kept[lane] for lane, end in ends.items()},
        kept_ms={lane: _committed_ms(table_log, lane, seq) for lane, seq in kept.items() if seq},
        rolled_back_ms={
            lane: (_committed_ms(table_log, lane, kept[lane] + 1), _committed_ms(table_log, lane, last))
            for lane, end in ends.items()
            if (last := end - (lane in done.heads)) > kept[lane]
        },
        in_doubt={},
    )


def _committed_ms(table_log: TableLog, lane: LaneName, seq: int) -> int:
    entry = table_log.commit_log.entry(lane, seq)
    assert entry is not None, "a lane has all its entries"
    return entry.committed_at_ms


def _begin(table_log: TableLog, build: Callable[[TableState], Intent]) -> Intent:
    """Publish an INTENT, after completing every one that is open: there is one at a time."""

    def build_alone(state: TableState) -> Intent | None:
        return None if state.intent is not None else build(state)

    for _ in range(MAX_TRIES):
        complete_fencing_barrier(table_log)
        published = table_log.publish(build_alone)
        if published is not None:
            return published
    raise Conflict(f"lost {MAX_TRIES} races against other restores", hint="see who else restores this table")
