"""Finds the cut of a snapshot, with the table state that belongs to it (PROTOCOL.md, R1 to R4, R7).

A snapshot is a table state and a position in every lane. The slices and folds of the state have no entry after these
positions (R3), and the entries up to these positions were written by writers that knew no later state (R2).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from weft.storage.core.log import cut, cut_members
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import lane_entries
from weft.storage.core.log.table_state import TableState, check_promised
from weft.storage.core.names import LaneName
from weft.storage.errors import CorruptData, NotFound
from weft.storage.log.archived_entries import Slot
from weft.storage.log.lane_ends import last_while
from weft.storage.log.one_moment import OneMoment
from weft.storage.log.pins import unexpired
from weft.storage.log.table_log import TableLog

MAX_READ_TRIES: Final = 10  # a snapshot is read again only if a compaction was published meanwhile


class HeadCut(NamedTuple):
    """The newest snapshot.

    Attributes:
        state: The table state.
        at: The cut.
        is_moment: Whether it is certain that the cut has every commit that was visible before one in it began (S31).
    """

    state: TableState
    at: Cut
    is_moment: bool


def newest_cut(table_log: TableLog, *, moment: bool = False) -> HeadCut:
    """The head snapshot: reads T first, and every lane strictly after it (PROTOCOL.md, R1 to R3, R7).

    Args:
        table_log: The table.
        moment: If it is not certain that the newest cut is one moment, return the moment at which the newest entry
            of the table lane was published. It has every commit that was acknowledged before.

    Raises:
        NotOneMoment: ``moment`` is set, and a version without rule W9 of PROTOCOL.md commits at the same time.
    """
    for _ in range(MAX_READ_TRIES):
        # The archives of the slot after T and of the lanes are requested together, which saves a round.
        doubts: list[Slot] = []
        state = table_log.refresh_with_doubts(doubts)
        start = state.log_start()
        rounds = OneMoment(state.seen, partial(cut_members.belongs_to, rev=state.rev, head=state.head))
        tails = table_log.commit_log.read_tails(
            {lane.name: (start.get(lane.name, 0), lane.closed) for lane in state.lanes.values()},
            state.seen,
            doubts,
            rounds,
        )
        if any(table_log.commit_log.archives.knows(slot) for slot in doubts):
            continue  # the table lane has entries after T, in an archive
        head = state.head if rounds.is_one or not moment else state.head - 1
        if head < state.head:
            cut_members.check_tells_table_seen(state, tails)
        lanes = {}
        for lane, tail in tails.items():
            base_seq = start.get(lane, 0)
            lanes[lane] = base_seq + cut_members.count_members(lane_entries(tail), state.rev, head)
            table_log.commit_log.forget_before(lane, base_seq)
        if state.readable_at(lanes):
            return HeadCut(state, Cut(state.head, lanes), rounds.is_one or moment)
    raise CorruptData(
        f"slices of {table_log.store.uri} contain commits that are in no lane",
        hint="entries were removed: restore them from a copy of the store",
    )


def ends_at_moment(table_log: TableLog, state: TableState, ends: cut.Seqs) -> dict[LaneName, int]:
    """The last entry of each lane at the moment at which the newest entry of a state was published (R7).

    Args:
        table_log: The table.
        state: A table state.
        ends: The last entry of each lane, read after that entry was visible; 0 of lanes that are missing.

    Raises:
        NotOneMoment: A version without rule W9 of PROTOCOL.md has committed in between.
    """
    starts = {
        name: state.seen.get(name, 0) if lane.closed is None else lane.closed for name, lane in state.lanes.items()
    }
    until = {
        lane: max(seq, ends.get(lane, 0)) if state.lanes[lane].closed is None else seq for lane, seq in starts.items()
    }
    tails = table_log.commit_log.read_tails({lane: (seq, until[lane]) for lane, seq in starts.items()})
    cut_members.check_tells_table_seen(state, tails)
    rev, head = state.rev, state.head - 1
    return {
        lane: starts[lane] + cut_members.count_members(lane_entries(tail), rev, head) for lane, tail in tails.items()
    }


def longest_cut(table_log: TableLog, table: int, lanes: cut.Seqs) -> tuple[TableState, Cut]:
    """The snapshot of the longest prefix up to ``table`` for which R3 holds with ``lanes``, cut off by R2.

    Args:
        table_log: The table.
        table: Length of a prefix of the table lane.
        lanes: Last entry of each lane of that prefix; lanes that were retired since may be left out.
    """
    past = _newest_state(table_log, 1, table, lambda state: state.readable_at(state.complete(lanes)))
    if past is None:
        raise CorruptData(
            "the first entry of the table lane contains slices, so it is not a CREATE",
            hint="it was replaced: restore it from a copy of the store",
        )
    # Revisions ascend within a lane (S19).
    ends = last_while(table_log, past.complete(lanes), lambda entry: entry.table_rev <= past.rev)
    return past, Cut(past.head, ends)


def exact_cut(table_log: TableLog, at: Cut) -> tuple[TableState, Cut]:
    """The snapshot of a cut.

    Raises:
        NotFound: The table has no such entry or lane, or was never in that state.
        SnapshotExpired: Cleaning has expired the snapshot.
    """
    state = table_log.at(at.table)
    check_kept(table_log, at)
    for lane, seq in at.lanes.items():
        entry = table_log.commit_log.entry(lane, seq) if lane in state.lanes and seq else None
        if lane not in state.lanes or (seq and entry is None):
            raise NotFound(f"cut {at}: lane {lane!r} has no entry {seq}", hint="use a cut of this table")
        if entry is not None and entry.table_rev > state.rev:
            raise NotFound(
                f"cut {at}: lane {lane!r} is ahead of the table lane",
                hint="use a cut that weft returned, unchanged",
            )
    if not state.readable_at(at.lanes):
        raise NotFound(
            f"cut {at} was never a state of the table: its slices contain later commits",
            hint="use a cut that weft returned, unchanged",
        )
    return state, at


def check_kept(table_log: TableLog, at: Cut) -> None:
    """Refuse a snapshot whose files cleaning may have deleted (PROTOCOL.md, R4).

    Raises:
        SnapshotExpired: The snapshot has expired, and no savepoint, pin or open compaction keeps it.
    """
    state = table_log.refresh()
    # Pins and open compactions may end at any moment: the read may be tried, but nothing is guaranteed.
    if state.keeps(at) or any(plan.at == at for plan in state.plans.values()):
        return
    if not any(pin.at == at for pin in unexpired(table_log.store, table_log.clock)):
        check_promised(state, at)


def newest_within(table_log: TableLog, state: TableState, last_kept: cut.Seqs) -> TableState | None:
    """The newest state whose slices contain nothing after ``last_kept`` in the lanes of ``last_kept``.

    None if all such states have expired, or are older than the last restore or the last BASE that rewrites.
    """

    def fits(past: TableState) -> bool:
        return all(slice_cut.get(lane, 0) <= seq for slice_cut in past.slices.cuts() for lane, seq in last_kept.items())

    return state if fits(state) else _newest_state(table_log, state.oldest_continued, state.head - 1, fits)


def _newest_state(
    table_log: TableLog, oldest: int, table: int, fits: Callable[[TableState], bool]
) -> TableState | None:
    """The state of the longest prefix of ``oldest`` to ``table`` entries for which a condition holds."""
    while table >= oldest:
        newest: TableState | None = None
        first = table
        for state in table_log.states_up_to(table):
            first = min(first, state.head)
            if state.head >= oldest and fits(state):
                newest = state
        if newest is not None:
            return newest
        table = first - 1
    return None
