"""Steps of a consumer of changes from cut to cut: whether a cut follows another one, and where a step ends.

The cut of a consumer that reads columns of references names the cuts of all tables.
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
    """Whether a snapshot contains every entry of an earlier cut (its text), even if a restore is in between."""
    return is_after(parse_cut(since), until)


def advance_cut(since: Snapshot, until: Snapshot, commits: int) -> Cut:
    """Choose the cut of a snapshot between two others, with about ``commits`` commits more than the earlier one.

    Only commits of the table itself are counted. The cuts of the referenced tables are those of the later snapshot:
    every row is read with the referenced rows that were committed before it.

    Raises:
        InvalidInput, OffsetInvalidated: See `check_order`.
    """
    end, last = bounded_cut(since, until, commits), until.cut
    return JoinedCut(end.table, end.lanes, last.references) if isinstance(last, JoinedCut) else end


def bounded_cut(since: Snapshot, until: Snapshot, commits: int) -> Cut:
    """Choose the cut of a snapshot of one table between two others, with about ``commits`` commits more.

    The cut is one moment if the later snapshot is one, and between half of ``commits`` and ``commits`` commits began
    before some entry of the table lane. Otherwise commits are taken in order of time. There are more if some of them
    are visible only together with others: through a newer entry of the table lane, or because a slice has merged them
    already.

    Raises:
        InvalidInput, OffsetInvalidated: See `check_order`.
    """
    check_order(since.cut, until)
    table_log, start, end = until.table_log, start_of(since.cut, until.state), until.cut.lanes
    state = table_log.refresh()
    while True:
        window = {lane: min(last, start.get(lane, 0) + commits + WINDOW) for lane, last in end.items()}
        tails = table_log.commit_log.read_tails({lane: (start.get(lane, 0), last) for lane, last in window.items()})
        data_entries = [entry for tail in tails.values() for entry in tail if isinstance(entry, Data)]
        if window == end and len(data_entries) <= commits:
            return until.cut
        data_entries.sort(key=lambda entry: entry.stamp)
        last_read = [_last_commit(entries) for lane, entries in tails.items() if window[lane] < end[lane]]
        included = _commits_before_an_entry(data_entries, last_read, commits) or data_entries[:commits]
        excluded = {(entry.lane, entry.seq) for entry in data_entries} - {(entry.lane, entry.seq) for entry in included}
        lanes = {lane: _last_before(tail, excluded, start.get(lane, 0)) for lane, tail in tails.items()}
        _, at = snapshot_cut.longest_cut(table_log, until.cut.table, lanes)
        if state.keeps(at) and not cut.within(at.lanes, start):
            return at
        commits *= 2


def _last_before(tail: Sequence[Entry], excluded: Collection[tuple[LaneName, int]], start: int) -> int:
    """The last entry of a lane before the first excluded commit; claims after an included commit are included.

    Slices and plans may name the claims, so a cut without them would be readable only in an older table state.
    """
    last = start
    for entry in tail:
        if (entry.lane, entry.seq) in excluded:
            break
        last = entry.seq
    return last


def _last_commit(entries: Sequence[Entry]) -> Data | None:
    return next((entry for entry in reversed(entries) if isinstance(entry, Data)), None)


def _commits_before_an_entry(commits: Sequence[Data], last_read: Sequence[Data | None], most: int) -> list[Data]:
    """The commits that began before an entry of the table lane (PROTOCOL.md, W9), for the entry with the most commits.

    Empty if every entry has less than half of ``most`` commits, because steps must not become small.

    Args:
        commits: Commits of some lanes, in order of stamps.
        last_read: The last commit that was read of each lane with further entries; None if only claims were read.
        most: Largest number of commits.
    """
    table_entries = [entry.table_seen for entry in commits if entry.table_seen is not None]
    # A commit that was not read yet has seen at least the entry that the last commit of its lane has.
    unread = [(entry.table_seen if entry is not None else None) or 0 for entry in last_read]
    if len(table_entries) < len(commits):
        return []
    ascending, limit = sorted(table_entries), min(unread, default=max(table_entries, default=0) + 1)
    ends = [
        ascending[count]
        for count in range((most + 1) // 2, min(most, len(table_entries) - 1) + 1)
        if ascending[count - 1] < ascending[count] <= limit
    ]
    return [entry for entry in commits if ends and entry.table_seen is not None and entry.table_seen < ends[-1]]
