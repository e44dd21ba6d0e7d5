"""Finds file groups in shared files that are mostly unreferenced. Pure functions.

Small file groups share files, and a newer slice of one is written to another file. Then its rows in the shared file are
unused, but the file is kept until all its file groups have newer slices: a file group that seldom gets rows would keep
a file of many times its size. So the remaining file groups of such a file are compacted too, with or
without logs. This writes less than a third of the bytes that compacting the other file groups has written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.file_refs import FileGroup, FileRef, SliceFile
from weft.storage.core.names import Path
from weft.storage.core.plan.slices import FileSlice

UNREFERENCED_FACTOR: Final = 4
"""A file is mostly unreferenced if slices refer to less than one in this many of its rows."""


def mostly_unreferenced(
    slices: Sequence[FileSlice], leaving: Collection[FileGroup], heads: cut.Seqs
) -> frozenset[FileGroup]:
    """File groups in files that are mostly unreferenced once the file groups in ``leaving`` have newer slices.

    Args:
        slices: All slices of a snapshot.
        leaving: File groups that are compacted anyway; they are not in the result.
        heads: Last entry of the snapshot in each lane. A slice with this cut is not compacted, because its successor
            would have the same cut (PROTOCOL.md, K3).
    """
    staying = [file_slice.slice for file_slice in slices if file_slice.slice and file_slice.group not in leaving]
    referenced_rows: Counter[Path] = Counter()
    for newest_slice in staying:
        for file, rows in _files_of(newest_slice):
            referenced_rows[file.path] += rows
    return frozenset(
        newest_slice.group
        for newest_slice in staying
        if any(newest_slice.cut.get(lane, 0) != seq for lane, seq in heads.items())
        and any(referenced_rows[file.path] * UNREFERENCED_FACTOR < file.rows for file, _ in _files_of(newest_slice))
    )


def _files_of(file_slice: SliceFile) -> Iterator[tuple[FileRef, int]]:
    """The files of a slice, each with the number of its rows that belong to the slice."""
    if file_slice.base is not None:
        yield file_slice.base, file_slice.base_rows
    if file_slice.shadow is not None:
        yield file_slice.shadow, file_slice.shadow_rows
