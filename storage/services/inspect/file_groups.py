"""The files that a snapshot reads, and the time since which each file group waits for compaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np

from weft.storage.core.log.file_refs import FileRef
from weft.storage.core.plan.slices import FileSlice, LiveFile
from weft.storage.errors import NotFound
from weft.storage.read.snapshot import Snapshot

_Kind: TypeAlias = Literal["base", "shadow", "overlay", "log", "fold"]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a snapshot reads, or the part of it that one file group reads.

    Attributes:
        path: Relative to the location of the table.
        kind: Kind of the file; a fold is a log file of merged registers.
        rows: Number of rows (of events in a log file) that the file group reads, or the snapshot.
        file_rows: Number of all rows in the file. Other file groups may share it.
        bytes: Size of the file.
        lane: Lane of the commit; empty for a base, shadow, overlay or fold file.
        seq: Slot of the entry that made it visible; None for a base, shadow or overlay file.
        blocks: (block, first row in the block, rows) of each range of a log file that the file group reads; empty for
            other files, and for files of a whole snapshot.
        file_groups: Number of file groups of the snapshot that read the file; 1 in the files of one file group. 0 for a
            log file of which every file group has newer slices, while the snapshot as a whole has not covered it.
    """

    path: str
    kind: _Kind
    rows: int
    file_rows: int
    bytes: int
    lane: str = ""
    seq: int | None = None
    blocks: tuple[tuple[int, int, int], ...] = ()
    file_groups: int = 1


_LAST: Final = np.iinfo(np.int64).max


def stored_files(snapshot: Snapshot) -> list[StoredFile]:
    """The files that reading a whole snapshot needs, and its other log files that are not covered, by path.

    Raises:
        SnapshotExpired: The snapshot has expired.
    """
    files_by_path = {file.path: replace(file, file_groups=0) for file in map(_log_file, snapshot.files)}
    for file in (file for file_slice in snapshot.slices for file in _files_of(snapshot, file_slice)):
        groups = files_by_path[file.path].file_groups if file.path in files_by_path else 0
        files_by_path[file.path] = replace(file, rows=file.file_rows, blocks=(), file_groups=groups + 1)
    return [files_by_path[path] for path in sorted(files_by_path)]


def group_files(snapshot: Snapshot, file_group: str) -> list[StoredFile]:
    """The files of one file group: base, shadow and overlays, then folds and logs, oldest first.

    Args:
        snapshot: The snapshot.
        file_group: Its name, as `weft.storage.services.inspect.inspect.FileReport` has it.

    Raises:
        NotFound: The snapshot has no such file group.
        SnapshotExpired: The snapshot has expired.
    """
    file_slice = next((file_slice for file_slice in snapshot.slices if str(file_slice.group) == file_group), None)
    if file_slice is None:
        raise NotFound(
            f"the table has no file group {file_group!r} with rows", hint="list them with: weft show URI files"
        )
    return list(_files_of(snapshot, file_slice))


def _files_of(snapshot: Snapshot, file_slice: FileSlice) -> Iterator[StoredFile]:
    if (slice_file := file_slice.slice) is not None:
        files: list[tuple[_Kind, FileRef | None, int]] = [
            ("base", slice_file.base, slice_file.base_rows),
            ("shadow", slice_file.shadow, slice_file.shadow_rows),
            *(("overlay", overlay.file, overlay.file.rows) for overlay in slice_file.overlays),
        ]
        yield from (StoredFile(file.path, kind, rows, file.rows, file.size) for kind, file, rows in files if file)
    for number in np.unique(file_slice.file).tolist():
        is_in_file = file_slice.file == number
        block, start, rows = file_slice.block[is_in_file], file_slice.start[is_in_file], file_slice.rows[is_in_file]
        blocks = tuple(zip(block.tolist(), start.tolist(), rows.tolist(), strict=True))
        yield replace(_log_file(snapshot.files[number]), rows=int(rows.sum()), blocks=blocks)


def _log_file(log_file: LiveFile) -> StoredFile:
    """A log file with all of its rows."""
    kind: _Kind = "fold" if log_file.is_fold else "log"
    file = log_file.file.file
    return StoredFile(file.path, kind, file.rows, file.rows, file.size, log_file.lane, log_file.seq)


def waiting_since(snapshot: Snapshot) -> dict[str, int]:
    """Time of the oldest commit or fold that waits in each file group, in Unix milliseconds.

    File groups without logs are left out.

    Raises:
        CorruptData: An entry is damaged.
        StoreUnavailable: The store does not answer.
    """
    log = snapshot.table_log.commit_log
    entry_of_commit = {(file.lane, file.seq): log.entry(file.lane, file.seq) for file in snapshot.files}
    entries = (entry_of_commit[file.lane, file.seq] for file in snapshot.files)
    times = np.array([_LAST if entry is None else entry.committed_at_ms for entry in entries], np.int64)
    waiting = (file_slice for file_slice in snapshot.slices if len(file_slice.file))
    return {str(file_slice.group): int(times[file_slice.file].min()) for file_slice in waiting}
