"""Which entries of a lane belong to a cut (PROTOCOL.md, R2 and W9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.storage.core.log.entries import Data, Entry, LaneEntry
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName
from weft.storage.errors import NotOneMoment


def belongs_to(entry: LaneEntry, rev: int, head: int) -> bool:
    """Whether the writer of an entry knew no later revision of the table than ``rev``, and no entry after ``head``.

    A commit of a version that does not say what its writer knew counts as if it had read nothing after ``head``.
    """
    table_seen = entry.table_seen if isinstance(entry, Data) else None
    return entry.table_rev <= rev and (table_seen is None or table_seen <= head)


def count_members(tail: Sequence[LaneEntry], rev: int, head: int) -> int:
    """Number of entries at the beginning of a tail that belong to a snapshot; arguments as for `belongs_to`."""
    return next((count for count, entry in enumerate(tail) if not belongs_to(entry, rev, head)), len(tail))


def check_tells_table_seen(state: TableState, tails: Mapping[LaneName, Sequence[Entry]]) -> None:
    """Refuse commits that do not say what their writers had read of the table lane (PROTOCOL.md, W9).

    Commits that the table lane names need not say it.

    Raises:
        NotOneMoment: There is such a commit.
    """
    lanes = [
        f"lane {lane!r} of stream {state.lanes[lane].stream!r}"
        for lane, tail in tails.items()
        if any(
            isinstance(entry, Data) and entry.table_seen is None and entry.seq > state.seen.get(lane, 0)
            for entry in tail
        )
    ]
    if lanes:
        raise NotOneMoment(
            f"an earlier version of weft commits to {', '.join(lanes)}, and does not record what its writers had read",
            hint="upgrade these writers; or try again after a mark (weft mark), because it fails only if they and "
            "others commit meanwhile; or read without moment, and give a savepoint the cut of such a snapshot",
        )
