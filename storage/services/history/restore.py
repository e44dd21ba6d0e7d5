"""Restore a table to a snapshot, undo one stream, fence or close a lane: services that stop the writers of some lanes.

Restore and undo delete nothing: they record which entries are rolled back and which slices are the newest ones again,
and everything else follows from that (PROTOCOL.md, "Fencing barriers: restore, undo, close a lane"). Schema, lanes and
savepoints are unchanged. Sources may send again what was rolled back, because a lane only counts batches that are not
rolled back.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut, Span
from weft.storage.core.log.entries import Done, Intent, Restoration
from weft.storage.core.log.needed_files import subtract_spans
from weft.storage.core.log.table_state import Lane, TableState, check_promised
from weft.storage.core.names import LaneName
from weft.storage.errors import Conflict, NotFound, SnapshotExpired
from weft.storage.log import lane_ends, snapshot_cut
from weft.storage.log.commit_log import read_table_lane
from weft.storage.log.fencing_barrier import complete_fencing_barrier, fence_lane
from weft.storage.log.table_log import TableLog
from weft.storage.log.time_marks import publish_mark
from weft.storage.read.time_travel import find_moment, named_cut
from weft.storage.shown import Shown
from weft.storage.times import milliseconds

MAX_TRIES: Final = 20  # in each lost race another restore, undo or close was completed


@dataclass(frozen=True, slots=True)
class RestoreResult(Shown):
    """The result of a restore or undo. All fields but ``in_doubt`` list only lanes with rolled-back entries.

    Attributes:
        entry: Slot of the DONE in the table lane. Readers see the result from this entry on.
        kept: Last entry that was kept, by lane; 0 for none.
        rolled_back: Number of entries that this call rolled back, by lane, including claims.
        kept_ms: Commit time of the last entry that was kept (writer's clock), by lane; lanes without such an entry are
            left out.
        rolled_back_ms: Commit times of the first and the last entry that this call rolled back, by lane, without the
            claim that fenced the writer; lanes with no other entry are left out.
        in_doubt: First and last entry that may have been kept because of a wrong clock, by lane. Either the requested
            time was between two marks, and only the writer's clock says that the entries became visible before it; or
            the table lane says so, and the writer's clock contradicts. Empty if the target was a cut or a savepoint.
        before: Number of entries after the last kept one that earlier restores or undos had rolled back, by lane; lanes
            without such entries are left out.
    """

    entry: int
    kept: dict[LaneName, int]
    rolled_back: dict[LaneName, int]
    kept_ms: dict[LaneName, int]
    rolled_back_ms: dict[LaneName, tuple[int, int]]
    in_doubt: dict[LaneName, tuple[int, int]]
    before: dict[LaneName, int] = field(default_factory=dict)


def restore(table_log: TableLog, target: TableState, target_cut: Cut, label: str) -> RestoreResult:
    """Restore the table to a snapshot; all writers are fenced.

    Args:
        table_log: The table's log.
        target: The table state of the snapshot.
        target_cut: The cut of the snapshot.
        label: The request in words, for the log.

    Raises:
        SnapshotExpired: The snapshot has expired.
        Conflict: Other restores won every race.
    """

    def build(state: TableState) -> Intent:
        check_promised(state, target_cut)
        last_kept = {lane: target_cut.lanes.get(lane, 0) for lane in state.lanes}
        return _intent(table_log, state, state.lanes.values(), target, last_kept, target.rolled_back, label)

    return _restore(table_log, build)


@dataclass(frozen=True, slots=True)
class _UndoPoint:
    """Last entry of each lane that an undo keeps, and last entry that it keeps even if clocks were wrong."""

    last_kept: cut.Seqs
    certain: cut.Seqs


def undo(table_log: TableLog, stream: str, since: dt.datetime | str) -> RestoreResult:
    """Roll back what one stream has committed, see `weft.Table.undo`."""
    table_log.refresh().schema.stream(stream)
    if isinstance(since, str):
        point_text, find_point = since, _undo_point_of_cut(table_log, since)
    else:
        point_text, find_point = since.isoformat(), _undo_point_of_time(table_log, milliseconds(since) - 1)
    point = _UndoPoint({}, {})

    def build(state: TableState) -> Intent:
        nonlocal point
        lanes = [lane for lane in state.lanes.values() if lane.stream == stream]
        if not lanes:
            raise NotFound(
                f"there is nothing of stream {stream!r} to undo: it has no lane",
                hint="see weft show URI log: the stream has not written, or a clean has retired its closed lanes",
            )
        point = find_point([lane.name for lane in lanes])
        target = snapshot_cut.newest_within(table_log, state, point.last_kept)
        if target is None:
            raise SnapshotExpired(
                f"commits of {stream!r} since {since} are in the slices, and the slices before those have expired",
                hint="send corrections as new events, or restore a savepoint",
            )
        label = f"undo of {stream} since {point_text}"
        return _intent(table_log, state, lanes, target, point.last_kept, state.rolled_back, label)

    result = _restore(table_log, build)
    # Includes closed lanes without rolled-back entries, which the result leaves out.
    certain = {lane: point.certain.get(lane, 0) for lane in point.last_kept}
    doubt = {lane: (certain[lane] + 1, last) for lane, last in point.last_kept.items() if certain[lane] < last}
    return replace(result, in_doubt=doubt)


def _undo_point_of_cut(table_log: TableLog, since: str) -> Callable[[Sequence[LaneName]], _UndoPoint]:
    kept_cut = snapshot_cut.exact_cut(table_log, named_cut(table_log, since))[1]

    def find(lanes: Sequence[LaneName]) -> _UndoPoint:
        state = table_log.refresh()
        if kept_cut.table < state.complete_from:
            # The cut may have expired meanwhile, and lanes with later commits may have been retired since.
            check_promised(state, kept_cut)
        last_kept = {lane: kept_cut.lanes.get(lane, 0) for lane in lanes}
        return _UndoPoint(last_kept, last_kept)

    return find


def _undo_point_of_time(table_log: TableLog, limit_ms: int) -> Callable[[Sequence[LaneName]], _UndoPoint]:
    """Find the undo point of a time. ``limit_ms``: the last millisecond that the undo keeps."""
    moment = find_moment(table_log, limit_ms)
    if moment is not None and not moment.settled:
        publish_mark(table_log)  # so that the same request gives the same result later

    def find(lanes: Sequence[LaneName]) -> _UndoPoint:
        moment = find_moment(table_log, limit_ms)
        if (moment.at.table if moment is not None else 0) < table_log.refresh().complete_from:
            raise SnapshotExpired(
                "lanes with commits since that time may have been closed, and are not listed any more",
                hint="send corrections as new events, or restore a savepoint",
            )
        if moment is None:  # a time before the table existed
            return _UndoPoint(dict.fromkeys(lanes, 0), {})
        last_kept = {lane: moment.at.lanes.get(lane, 0) for lane in lanes}
        # Only entries up to here are certain: by their writer's clock, later ones were committed after the limit.
        agreed_ends = lane_ends.last_while(table_log, last_kept, lambda entry: entry.committed_at_ms <= limit_ms)
        return _UndoPoint(last_kept, cut.lowest(moment.seen, agreed_ends))

    return find


def fence(table_log: TableLog, name: LaneName) -> int:
    """Publish a claim in a lane, so that its writer cannot commit any more; returns the slot of the claim.

    Raises:
        NotFound: The table has no such lane.
        Conflict: The lane is closed, or its writer won every race for the next slot.
    """
    check_open(table_log, table_log.refresh(), name)
    return fence_lane(table_log, name, "an operator, who considered the writer dead")


def close_lane(table_log: TableLog, name: LaneName) -> int:
    """Close a lane permanently: its writer is fenced, and no writer can claim it again; returns its last entry.

    Raises:
        NotFound: The table has no such lane.
        Conflict: The lane is already closed.
    """

    def check(state: TableState) -> list[LaneName]:
        check_open(table_log, state, name)
        return [name]

    return _close(table_log, check)[name]


def close_lanes(table_log: TableLog, names: Collection[LaneName]) -> None:
    """Close the lanes among ``names`` that are open; see `close_lane`."""
    _close(
        table_log,
        lambda state: [name for name in names if name in state.lanes and state.lanes[name].closed is None],
    )


def _close(table_log: TableLog, choose: Callable[[TableState], Sequence[LaneName]]) -> cut.Seqs:
    """Close lanes of the newest state; returns the last entry of each."""

    def build(state: TableState) -> Intent:
        lanes = {name: table_log.commit_log.head(name) for name in choose(state)}
        return Intent(**table_log.header(state), lanes=lanes, restore=None)

    intent = _publish_intent(table_log, build)
    complete_fencing_barrier(table_log)
    # Another process may have completed it.
    later_entries = read_table_lane(table_log.commit_log, intent.seq)
    return next(entry.heads for entry in later_entries if isinstance(entry, Done) and entry.intent == intent.seq)


def check_open(table_log: TableLog, state: TableState, name: LaneName) -> None:
    """Refuse a lane that cannot be fenced or closed.

    Raises:
        NotFound: The table has no such lane, and never had it.
        Conflict: The lane is closed; maybe so long ago that the table does not list it any more.
    """
    lane = state.lanes.get(name)
    if lane is None and not table_log.was_retired(name):
        raise NotFound(f"the table has no lane {name!r}", hint=f"lanes: {', '.join(state.lanes) or 'none'}")
    if lane is None or lane.closed is not None:
        raise Conflict(f"lane {name!r} is already closed", hint="nothing has to be done")


def _intent(
    table_log: TableLog,
    state: TableState,
    lanes: Iterable[Lane],
    target: TableState,
    last_kept: cut.Seqs,
    rolled_back: cut.SpansByLane,
    label: str,
) -> Intent:
    """Build the INTENT that restores the slices of ``target`` and keeps the entries of lanes up to ``last_kept``."""
    spans: dict[LaneName, list[Span]] = {}
    open_lanes = []
    for lane in lanes:
        name, last = lane.name, last_kept[lane.name]
        spans[name] = [(after, min(until, last)) for after, until in rolled_back.get(name, ()) if after < last]
        if lane.closed is None:
            open_lanes.append(name)
        elif lane.closed > last:
            spans[name].append((last, lane.closed))  # needs no claim, because no writer can claim a closed lane
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


def _restore(table_log: TableLog, build: Callable[[TableState], Intent]) -> RestoreResult:
    intent = _publish_intent(table_log, build)
    assert intent.restore is not None, "a restore was begun"
    complete_fencing_barrier(table_log)
    # Another process may have completed the restore, and later entries may exist.
    later_entries = read_table_lane(table_log.commit_log, intent.seq)
    done_entry = next(entry for entry in later_entries if isinstance(entry, Done) and entry.intent == intent.seq)
    last_kept = dict(intent.restore.last_kept)
    ends = dict(done_entry.heads)
    # A closed lane gets no claim. Its last span is what this restore rolled back, unless that was rolled back before.
    state_before = table_log.at(intent.seq - 1)
    for lane, spans in intent.restore.rolled_back.items():
        if lane in last_kept or not spans or tuple(spans) == state_before.rolled_back.get(lane, ()):
            continue
        if spans[-1][1] == state_before.lanes[lane].closed:
            last_kept[lane], ends[lane] = spans[-1]
    earlier_spans = {
        lane: _within(state_before.rolled_back.get(lane, ()), last_kept[lane], end) for lane, end in ends.items()
    }
    new_spans = {
        lane: subtract_spans([(last_kept[lane], end - (lane in done_entry.heads))], earlier_spans[lane])
        for lane, end in ends.items()
    }
    return RestoreResult(
        entry=done_entry.seq,
        kept=last_kept,
        rolled_back={lane: end - last_kept[lane] - _length(earlier_spans[lane]) for lane, end in ends.items()},
        kept_ms={lane: _committed_ms(table_log, lane, seq) for lane, seq in last_kept.items() if seq},
        rolled_back_ms={
            lane: (_committed_ms(table_log, lane, spans[0][0] + 1), _committed_ms(table_log, lane, spans[-1][1]))
            for lane, spans in new_spans.items()
            if spans
        },
        in_doubt={},
        before={lane: _length(spans) for lane, spans in earlier_spans.items() if spans},
    )


def _within(spans: Iterable[Span], after: int, until: int) -> list[Span]:
    """The parts of spans inside the span (after, until), ascending."""
    parts = sorted((max(first, after), min(last, until)) for first, last in spans)
    return [(first, last) for first, last in parts if first < last]


def _length(spans: Iterable[Span]) -> int:
    return sum(last - first for first, last in spans)


def _committed_ms(table_log: TableLog, lane: LaneName, seq: int) -> int:
    entry = table_log.commit_log.entry(lane, seq)
    assert entry is not None, "a lane has all its entries"
    return entry.committed_at_ms


def _publish_intent(table_log: TableLog, build: Callable[[TableState], Intent]) -> Intent:
    """Publish an INTENT. Only one may be open at a time, so an open one is completed first."""

    def build_alone(state: TableState) -> Intent | None:
        return None if state.intent is not None else build(state)

    for _ in range(MAX_TRIES):
        complete_fencing_barrier(table_log)
        intent = table_log.publish(build_alone)
        if intent is not None:
            return intent
    raise Conflict(
        f"{MAX_TRIES} other restores, undos or closes of this table were faster",
        hint="find out who else restores this table",
    )
