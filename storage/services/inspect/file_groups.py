"""What a file group of a snapshot reads: its files with their blocks, and since when its oldest commit waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from weft.storage.core.log.file_refs import FileRef, SliceFile
from weft.storage.core.plan.slices import FileSlice, LiveFile
from weft.storage.errors import NotFound
from weft.storage.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GroupFile:
    """One file that a file group reads.

    Attributes:
        path: Relative to the location of the table.
        kind: What it is; a fold is a log file of merged registers.
        rows: Its rows in this file group; of a log file events.
        file_rows: All its rows. Other file groups may share the file.
        bytes: Its size.
        lane: Lane of the commit; empty for a base, shadow, overlay or fold file.
        seq: Slot of the entry that made it visible; None for a base, shadow or overlay file.
        blocks: (block, first row in the block, rows) of each range of a log file; empty for any other file.
    """

    path: str
    kind: Literal["base", "shadow", "overlay", "log", "fold"]
    rows: int
    file_rows: int
    bytes: int
    lane: str
    seq: int | None
    blocks: tuple[tuple[int, int, int], ...]


_LAST: Final = np.iinfo(np.int64).max


def group_files(snapshot: Snapshot, file_group: str) -> list[GroupFile]:
    """The files of one file group: base, shadow and overlays, then folds and logs, oldest first.

    Args:
        snapshot: The snapshot.
        file_group: Its name, as `weft.storage.services.inspect.inspect.FileReport` has it.

    Raises:
        NotFound: The snapshot has no such file group.
        SnapshotExpired: The snapshot has expired.
    """
    found = next((each for each in snapshot.slices if str(each.group) == file_group), None)
    if found is None:
        raise NotFound(
            f"the table has no file group {file_group!r} with rows", hint="weft show URI files lists all of them"
        )
    of_slice = (
        GroupFile(file.path, kind, rows, file.rows, file.size, "", None, ())
        for kind, file, rows in slice_files(found.slice)
    )
    return [*of_slice, *_of_logs(snapshot, found)]


def slice_files(made: SliceFile | None) -> Iterator[tuple[Literal["base", "shadow", "overlay"], FileRef, int]]:
    """The files of a slice: what each is, the file, and its rows in the file group."""
    if made is None:
        return
    if made.base is not None:
        yield "base", made.base, made.base_rows
    if made.shadow is not None:
        yield "shadow", made.shadow, made.shadow_rows
    yield from (("overlay", overlay.file, overlay.file.rows) for overlay in made.overlays)


def _of_logs(snapshot: Snapshot, found: FileSlice) -> Iterator[GroupFile]:
    for number in np.unique(found.file).tolist():
        live, chosen = snapshot.files[number], found.file == number
        log, kind = live.file.file, log_kind(live)
        block, start, rows = found.block[chosen], found.start[chosen], found.rows[chosen]
        ranges = zip(block.tolist(), start.tolist(), rows.tolist(), strict=True)
        yield GroupFile(log.path, kind, int(rows.sum()), log.rows, log.size, live.lane, live.seq, tuple(ranges))


def log_kind(live: LiveFile) -> Literal["log", "fold"]:
    """What a log file is; a fold has merged registers."""
    return "fold" if live.is_fold else "log"


def waiting_since(snapshot: Snapshot) -> dict[str, int]:
    """When the oldest commit or fold that waits in each file group was made, Unix milliseconds.

    File groups without logs are left out.

    Raises:
        CorruptData: An entry is damaged.
        StoreUnavailable: The store does not answer.
    """
    log = snapshot.table_log.commit_log
    made = {(file.lane, file.seq): log.entry(file.lane, file.seq) for file in snapshot.files}
    entries = (made[file.lane, file.seq] for file in snapshot.files)
    times = np.array([_LAST if entry is None else entry.committed_at_ms for entry in entries], np.int64)
    return {str(each.group): int(times[each.file].min()) for each in snapshot.slices if len(each.file)}
