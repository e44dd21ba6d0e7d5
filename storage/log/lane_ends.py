"""Finds where lanes end, and observes the stamps of their last entries.

The searches begin at entries that certainly exist: in a slice or a fold, or named by the table lane.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import reduce

from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import Header
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName, describe_lane
from weft.storage.errors import NotFound
from weft.storage.log.table_log import TableLog


def heads(table_log: TableLog, state: TableState, lower_bounds: cut.Seqs | None = None) -> dict[LaneName, int]:
    """Last entry of every lane; ``lower_bounds``: an entry that exists, by lane."""
    starts = _lower_bounds(state, lower_bounds)
    open_lanes = [lane.name for lane in state.lanes.values() if lane.closed is None]
    # A closed lane is not searched: a claim may follow its end.
    ends = table_log.commit_log.last_where({lane: (starts.get(lane, 0), None) for lane in open_lanes})
    return {lane.name: ends[lane.name] if lane.closed is None else lane.closed for lane in state.lanes.values()}


def observe_heads(
    table_log: TableLog,
    state: TableState,
    lower_bounds: cut.Seqs | None = None,
    lanes: Collection[LaneName] | None = None,
) -> dict[LaneName, int]:
    """`heads` of some lanes; later stamps of this process will be larger than the stamps of their commits.

    Args:
        table_log: The table.
        state: The newest state that this process has read, whose stamp it has observed.
        lower_bounds: An entry that exists, by lane.
        lanes: Some lanes of ``state``; None for all.
    """
    observed = [lane for lane in state.lanes.values() if lanes is None or lane.name in lanes]
    # A closed lane need not be read: the stamp of the DONE that closed it is larger (PROTOCOL.md, W2).
    ends = {lane.name: lane.closed for lane in observed if lane.closed is not None}
    open_lanes = [lane.name for lane in observed if lane.closed is None]
    for lane, entry in last_entries(table_log, state, open_lanes, lower_bounds).items():
        ends[lane] = entry.seq if entry is not None else 0
        table_log.stamps.observe(entry.stamp if entry is not None else 0)
    return ends


def last_entries(
    table_log: TableLog, state: TableState, lanes: Collection[LaneName], lower_bounds: cut.Seqs | None = None
) -> dict[LaneName, Header | None]:
    """The last entry of some lanes; None for an empty lane. ``lower_bounds``: an entry that exists, by lane."""
    starts = _lower_bounds(state, lower_bounds)
    return table_log.commit_log.last_entries({lane: starts.get(lane, 0) for lane in lanes})


def follow(table_log: TableLog, at: Cut) -> TableState:
    """Read the last commits of a cut; later stamps of this process will be larger than their stamps.

    Returns:
        The newest state.

    Raises:
        NotFound: The table has no such entry or lane.
    """
    state = table_log.refresh()
    cut_seqs = {lane: seq for lane, seq in at.lanes.items() if seq}
    newest = table_log.commit_log.last_entries(cut_seqs)  # those of retired lanes stay in the store
    missing = [f"entry {seq} of {describe_lane(lane)}" for lane, seq in cut_seqs.items() if not newest.get(lane)]
    if at.table > state.head:
        missing.append(f"entry {at.table} of the table lane")
    if missing:
        raise NotFound(
            f"the table at {table_log.store.uri} has no {missing[0]}, which cut {at} names",
            hint="use a cut of this table that weft returned, unchanged",
        )
    for entry in newest.values():
        table_log.stamps.observe(entry.stamp if entry is not None else 0)
    return state


def last_while(table_log: TableLog, heads: cut.Seqs, condition: Callable[[Header], bool]) -> dict[LaneName, int]:
    """The last entry of each lane up to ``heads`` for which a condition holds; it must hold for none after it."""
    # The result is usually after the archived entries, so the search starts at their end.
    archived = {lane: seq for lane, seq in table_log.archived.items() if 0 < seq < heads.get(lane, 0)}
    probes = table_log.commit_log.last_where({lane: (seq, seq + 1) for lane, seq in archived.items()}, condition)
    bounds = {lane: (0, head) for lane, head in heads.items()}
    bounds |= {lane: (seq, heads[lane]) if seq > archived[lane] else (0, seq) for lane, seq in probes.items()}
    return table_log.commit_log.last_where(bounds, condition)


def _lower_bounds(state: TableState, lower_bounds: cut.Seqs | None) -> cut.Seqs:
    """An entry of each lane that certainly exists: in a slice or a fold, named by the table lane, or a lower bound."""
    return reduce(cut.highest, state.reached(), cut.highest(state.seen, lower_bounds or {}))
