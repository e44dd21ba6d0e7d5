"""File groups that were left behind in a file which nearly all others have left: pure planning.

Small file groups share files, and a newer slice of one is written elsewhere. Its rows in the shared file mean nothing
from then on, but the file stays for as long as anybody has a part in it: a file group that hardly ever gets rows would
keep many times its size, for ever. So what is left of such a file is compacted too, logs or none. That
writes less than a third of what those that left it have written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from storage.core.log import cut
from storage.core.log.file_refs import FileGroup, FileRef, SliceFile
from storage.core.names import Path
from storage.core.plan.slices import FileSlice

UNREFERENCED_FACTOR: Final = 4
"""What is left of a file is less than one part in this many of its rows."""


def mostly_unreferenced(
    slices: Sequence[FileSlice], leaving: Collection[FileGroup], heads: cut.Seqs
) -> frozenset[FileGroup]:
    """The file groups that would be left behind if those that are ``leaving`` got slices in other files.

    Args:
        slices: Of a snapshot.
        leaving: These are about to be compacted anyway, and are not in the answer.
        heads: Per lane the last entry of the snapshot. A slice that goes as far as this has nothing to give way to: its
            successor would have the same cut, and could not be told from it (rule K3).
    """
    staying = [own.slice for own in slices if own.slice is not None and own.group not in leaving]
    taken: Counter[Path] = Counter()
    for made in staying:
        for file, rows in _stored(made):
            taken[file.path] += rows
    return frozenset(
        made.group
        for made in staying
        if any(made.cut.get(lane, 0) != seq for lane, seq in heads.items())
        and any(taken[file.path] * UNREFERENCED_FACTOR < file.rows for file, _ in _stored(made))
    )


def _stored(made: SliceFile) -> Iterator[tuple[FileRef, int]]:
    """The files of a slice, and how many of their rows are its own."""
    if made.base is not None:
        yield made.base, made.base_rows
    if made.shadow is not None:
        yield made.shadow, made.shadow_rows
