"""What can be read of a table's past, and the files of a snapshot, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from weft.storage.core.log.cut import Cut, JoinedCut
from weft.storage.core.log.entries import Mark, Plan, Savepoint
from weft.storage.core.names import TABLE_LANE
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.inspect.file_groups import log_kind, slice_files

_PAGE: Final = 1_000  # entries that are read at once


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """A state of the table that the log names.

    Attributes:
        cut: Text of its cut.
        at_ms: Time of the entry that names it, Unix milliseconds.
        kind: What named it: a savepoint, the beginning of a compaction or fold, or a mark; ``newest`` for the snapshot
            itself.
        name: Name of the savepoint; empty for others.
        readable: Whether cleaning retains it.
    """

    cut: str
    at_ms: int
    kind: Literal["newest", "savepoint", "compaction", "mark"]
    name: str
    readable: bool


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a snapshot.

    Attributes:
        path: Relative to the location of the table.
        kind: What it is; a fold is a log file of merged registers.
        rows: Its rows; of a log file its events.
        bytes: Its size.
        lane: Lane of the commit; empty for a base, shadow, overlay or fold file.
        seq: Slot of the entry that made it visible; None for a base, shadow or overlay file.
        file_groups: Number of file groups of the snapshot that read it.
    """

    path: str
    kind: Literal["base", "shadow", "overlay", "log", "fold"]
    rows: int
    bytes: int
    lane: str
    seq: int | None
    file_groups: int


def snapshot_points(snapshot: Snapshot) -> list[SnapshotPoint]:
    """The states up to a snapshot that the log names, newest first.

    Raises:
        CorruptData: An entry is missing or damaged.
    """
    table_log, state = snapshot.table_log, snapshot.state
    found = [SnapshotPoint(str(snapshot.cut), state.committed_at_ms, "newest", "", readable=True)]
    for last in range(state.head, 0, -_PAGE):
        for entry in reversed(table_log.commit_log.read_after(TABLE_LANE, max(0, last - _PAGE), last)):
            cut: Cut
            kind: Literal["savepoint", "compaction", "mark"]
            if isinstance(entry, Savepoint):
                cut, kind, name = _cut(entry), "savepoint", entry.name
            elif isinstance(entry, Plan):
                cut, kind, name = Cut(entry.table, entry.cut), "compaction", ""
            elif isinstance(entry, Mark):
                cut, kind, name = Cut(entry.seq, entry.lanes), "mark", ""
            else:
                continue
            found.append(SnapshotPoint(str(cut), entry.committed_at_ms, kind, name, state.keeps(cut)))
    return found


def _cut(entry: Savepoint) -> Cut:
    if not entry.references:
        return Cut(entry.table, entry.lanes)
    references = {name: Cut(each.table, each.lanes) for name, each in entry.references.items()}
    return JoinedCut(entry.table, entry.lanes, references)


def stored_files(snapshot: Snapshot) -> list[StoredFile]:
    """The files that reading a whole snapshot needs, in order of their paths.

    Raises:
        SnapshotExpired: The snapshot has expired.
    """
    found: dict[str, StoredFile] = {}
    for file_slice in snapshot.slices:
        for kind, file, _ in slice_files(file_slice.slice):
            groups = found[file.path].file_groups if file.path in found else 0
            found[file.path] = StoredFile(file.path, kind, file.rows, file.size, "", None, groups + 1)
    for number, live in enumerate(snapshot.files):
        groups = sum(bool((file_slice.file == number).any()) for file_slice in snapshot.slices)
        log = live.file.file
        found[log.path] = StoredFile(log.path, log_kind(live), log.rows, log.size, live.lane, live.seq, groups)
    return [found[path] for path in sorted(found)]
