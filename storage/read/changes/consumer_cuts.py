"""The cuts of a consumer of changes, which goes from cut to cut: whether one follows another, and where a step ends.

With columns of references a cut names the cuts of all tables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut, JoinedCut, parse_cut
from weft.storage.core.log.entries import Data, Entry
from weft.storage.core.names import LaneName
from weft.storage.log import snapshot_cut
from weft.storage.read.changes.change_scan import check_order, is_after
from weft.storage.read.plan.log_slices import start_of
from weft.storage.read.snapshot import Snapshot

WINDOW: Final = 64  # entries of a lane that are read in one round trip; few of them are claims


def referenced_cuts(at: str) -> frozenset[str]:
    """Names of the references whose cuts are in the text of a cut."""
    return frozenset(parse_cut(at).references)


def follows(since: str, until: Snapshot) -> bool:
    """Whether a snapshot has everything that the text of an earlier cut has; a restore may be in between."""
    return is_after(parse_cut(since), until)


def advance_cut(since: Snapshot, until: Snapshot, commits: int) -> Cut:
    """The cut of a snapshot between two others of a table, with about ``commits`` commits more than the earlier one.

    Only commits of the table itself are counted. The cuts of the referenced tables are those of the later snapshot:
    every row is seen with the referenced rows that were committed before it.

    Raises:
        InvalidInput, OffsetInvalidated: See `check_order`.
    """
    end, last = bounded_cut(since, until, commits), until.cut
    return JoinedCut(end.table, end.lanes, last.references) if isinstance(last, JoinedCut) else end


def bounded_cut(since: Snapshot, until: Snapshot, commits: int) -> Cut:
    """The cut of a snapshot between two others, with about ``commits`` commits more than the earlier one.

    The cut is one moment if the later snapshot is one, and the commits that began before some entry of the table lane
    are at most ``commits`` and at least half of them. Otherwise commits are taken in order of time. There are more if
    some of them are visible only together with others: through a newer entry of the table lane, or because a slice has
    merged them already.

    Raises:
        InvalidInput, OffsetInvalidated: See `check_order`.
    """
    check_order(since.cut, until)
    table_log, start, end = until.table_log, start_of(since.cut, until.state), until.cut.lanes
    state = table_log.refresh()
    while True:
        window = {lane: min(last, start.get(lane, 0) + commits + WINDOW) for lane, last in end.items()}
        tails = table_log.commit_log.read_tails({lane: (start.get(lane, 0), last) for lane, last in window.items()})
        found = [entry for tail in tails.values() for entry in tail if isinstance(entry, Data)]
        if window == end and len(found) <= commits:
            return until.cut
        found.sort(key=lambda entry: entry.stamp)
        partly = [_last_commit(entries) for lane, entries in tails.items() if window[lane] < end[lane]]
        chosen = _begun_before_an_entry(found, partly, commits) or found[:commits]
        left = {(entry.lane, entry.seq) for entry in found} - {(entry.lane, entry.seq) for entry in chosen}
        lanes = {lane: _last_before(tail, left, start.get(lane, 0)) for lane, tail in tails.items()}
        _, at = snapshot_cut.longest_cut(table_log, until.cut.table, lanes)
        if state.keeps(at) and not cut.within(at.lanes, start):
            return at
        commits *= 2


def _last_before(tail: Sequence[Entry], left: Collection[tuple[LaneName, int]], start: int) -> int:
    """The last entry of a lane before the first commit that is left out; claims belong to what they follow.

    Slices and plans may name the claims, so a cut without them would be readable only in an older table state.
    """
    last = start
    for entry in tail:
        if (entry.lane, entry.seq) in left:
            break
        last = entry.seq
    return last


def _last_commit(entries: Sequence[Entry]) -> Data | None:
    return next((entry for entry in reversed(entries) if isinstance(entry, Data)), None)


def _begun_before_an_entry(found: Sequence[Data], partly: Sequence[Data | None], most: int) -> list[Data]:
    """The commits that began before an entry of the table lane (W9): that which gives most of them.

    Empty if none gives at least half of those that there may be, because steps must not become small.

    Args:
        found: Commits of some lanes, in order of stamps.
        partly: The last commit that was read of each lane that has more; None if only claims were read of it.
        most: How many commits there may be.
    """
    seen = [entry.table_seen for entry in found if entry.table_seen is not None]
    # What was not read yet knows at least as much as what was.
    unread = [(entry.table_seen if entry is not None else None) or 0 for entry in partly]
    if len(seen) < len(found):
        return []
    ascending, limit = sorted(seen), min(unread, default=max(seen, default=0) + 1)
    ends = [
        ascending[count]
        for count in range((most + 1) // 2, min(most, len(seen) - 1) + 1)
        if ascending[count - 1] < ascending[count] <= limit
    ]
    return [entry for entry in found if ends and entry.table_seen is not None and entry.table_seen < ends[-1]]
