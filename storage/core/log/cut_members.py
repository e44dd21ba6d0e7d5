"""Which entries of a lane belong to a cut (PROTOCOL.md, R2 and W9)."""

from __future__ import annotations

from collections.abc import Mapping

from weft.storage.core.log.entries import Data, Entry, LaneEntry
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName
from weft.storage.errors import NotOneMoment


def count_members(tail: list[LaneEntry], rev: int, table_seen: int) -> int:
    """Number of entries that belong to a snapshot with this revision and prefix of the table lane (R2)."""
    for count, entry in enumerate(tail):
        if not belongs_to(entry, rev, table_seen):
            return count
    return len(tail)


def belongs_to(entry: LaneEntry, rev: int, seen: int) -> bool:
    """Whether the writer of an entry knew nothing of the table lane after a revision, and after a prefix."""
    table_seen = entry.table_seen if isinstance(entry, Data) else None
    return entry.table_rev <= rev and (table_seen is None or table_seen <= seen)


def check_tells_table_seen(state: TableState, tails: Mapping[LaneName, list[Entry]]) -> None:
    """Check that every commit that the table lane does not name says what its writer had read of it (PROTOCOL.md, W9).

    Raises:
        NotOneMoment: A commit does not.
    """
    silent = [
        f"lane {lane!r} of stream {state.lanes[lane].stream!r}"
        for lane, tail in tails.items()
        if any(
            isinstance(entry, Data) and entry.table_seen is None and entry.seq > state.seen.get(lane, 0)
            for entry in tail
        )
    ]
    if silent:
        raise NotOneMoment(
            f"an earlier version of weft commits to {', '.join(silent)}, and does not say what its writers knew",
            hint="upgrade these writers; or try again, after a mark (weft mark), because it fails only if they and "
            "others commit meanwhile; or read without moment, and give a savepoint the cut of such a snapshot",
        )
