"""The past states of a table that its log names: savepoints, compactions and marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import Mark, Plan, Savepoint, joined_cut
from weft.storage.core.names import TABLE_LANE
from weft.storage.read.snapshot import Snapshot

_PAGE: Final = 1_000  # entries that are read at once


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """A state of the table that the log names.

    Attributes:
        cut: Text of its cut.
        at_ms: Time of the entry that names it, in Unix milliseconds.
        kind: Kind of this entry: a savepoint, the beginning of a compaction or fold, or a mark; ``newest`` for the
            snapshot itself.
        name: Name of the savepoint; empty for other kinds.
        readable: Whether cleaning retains it.
    """

    cut: str
    at_ms: int
    kind: Literal["newest", "savepoint", "compaction", "mark"]
    name: str
    readable: bool


def snapshot_points(snapshot: Snapshot) -> list[SnapshotPoint]:
    """List the states up to a snapshot that the log names, newest first.

    Raises:
        CorruptData: An entry is missing or damaged.
    """
    table_log, state = snapshot.table_log, snapshot.state
    points = [SnapshotPoint(str(snapshot.cut), state.committed_at_ms, "newest", "", readable=True)]
    for last in range(state.head, 0, -_PAGE):
        for entry in reversed(table_log.commit_log.read_after(TABLE_LANE, max(0, last - _PAGE), last)):
            kind: Literal["savepoint", "compaction", "mark"]
            if isinstance(entry, Savepoint):
                cut = joined_cut(Cut(entry.table, entry.lanes), entry.references)
                kind, name = "savepoint", entry.name
            elif isinstance(entry, Plan):
                cut, kind, name = Cut(entry.table, entry.cut), "compaction", ""
            elif isinstance(entry, Mark):
                cut, kind, name = Cut(entry.seq, entry.lanes), "mark", ""
            else:
                continue
            points.append(SnapshotPoint(str(cut), entry.committed_at_ms, kind, name, state.keeps(cut)))
    return points
