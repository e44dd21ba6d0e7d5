"""Decides when a file group is due for compaction. Pure functions of the sizes that a snapshot knows.

A file group is due for one of these reasons:

- **commits**: many commits (or folds) wait, and every read has to fetch and merge a range of each.
- **bytes**: its logs are large compared to its base, so merging is a large part of reading it. A base grows with each
  compaction, so each row is rewritten a bounded number of times per doubling.
- **cold**: a waiting commit, in a fold or not, is far behind the head of its lane. Otherwise a file group that hardly
  ever gets rows would keep shared log files without a limit. All file groups with logs are due then, because only a
  complete compaction moves the start of the log for file groups that have no slice.
- **mostly unreferenced**: it is one of the last in a shared file (`storage.core.plan.mostly_unreferenced`).

Age is counted in commits, not in time: no clock decides anything here (S22 ClockFree).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from storage.core.log import cut
from storage.core.log.file_refs import FileGroup
from storage.core.names import LaneName
from storage.core.plan.mostly_unreferenced import mostly_unreferenced
from storage.core.plan.slices import FileSlice, LiveFile

COLD_FACTOR: Final = 8
"""A commit is cold when this many times ``min_commits`` entries of its lane follow it."""


@dataclass(frozen=True, slots=True)
class Due:
    """One file group that is due, and why.

    Attributes:
        commits: Commits and folds whose rows are not in its slice.
        log_bytes: Stored bytes of those rows.
        base_bytes: Stored bytes of its base and shadow.
        reason: ``commits``, ``bytes``, ``cold`` or ``mostly unreferenced``.
    """

    commits: int
    log_bytes: int
    base_bytes: int
    reason: str


def plan_due(
    slices: Sequence[FileSlice],
    files: Sequence[LiveFile],
    heads: cut.Seqs,
    *,
    min_commits: int,
    max_log_ratio: float,
) -> Mapping[FileGroup, Due]:
    """The file groups that are due, in order of file group.

    Args:
        slices: All slices of a snapshot.
        files: The log files of the snapshot.
        heads: Per lane the last entry of the snapshot.
        min_commits: A file group with this many waiting commits is due.
        max_log_ratio: A file group whose logs are larger than this share of its base is due; without a base, with any
            log.
    """
    cold_after = COLD_FACTOR * min_commits
    waiting = {s.group: _waiting(s, files) for s in slices if len(s.rows)}
    used = [files[i] for i in {i for file_slice in slices for i in file_slice.file.tolist()}]
    cold = any(heads[lane] - seq >= cold_after for file in used for lane, seq in file.reach.items())
    reasons: dict[FileGroup, str] = {}
    for file_slice in slices:
        if file_slice.group not in waiting:
            continue
        commits = len(waiting[file_slice.group])
        if commits >= min_commits:
            reason = "commits"
        elif file_slice.log_bytes > max_log_ratio * file_slice.base_bytes:
            reason = "bytes"
        elif cold:
            reason = "cold"
        else:
            continue
        reasons[file_slice.group] = reason
    reasons |= dict.fromkeys(mostly_unreferenced(slices, reasons.keys(), heads), "mostly unreferenced")
    return {
        due.group: Due(len(waiting.get(due.group, ())), due.log_bytes, due.base_bytes, reasons[due.group])
        for due in slices
        if due.group in reasons
    }


def _waiting(file_slice: FileSlice, files: Sequence[LiveFile]) -> set[tuple[LaneName, int]]:
    """(lane, seq) of the commits and folds that have rows for a file group."""
    return {(files[i].lane, files[i].seq) for i in set(file_slice.file.tolist())}
