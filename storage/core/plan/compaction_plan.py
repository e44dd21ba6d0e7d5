"""When a file group is due for compaction: pure planning, from the sizes that a snapshot knows.

Two reasons of its own, and two of the table's:
- **commits**: so many commits (or folds of them) wait for it, each a range that every read has to fetch and merge;
- **bytes**: its logs are large against its base, so merging is a large part of reading it. As a base grows by what is
  folded into it, each row is rewritten a bounded number of times per doubling;
- **cold**: a commit waits, be it in a fold, that lies far behind its lane's head. A file group that hardly ever gets
  rows would keep shared log files, and the entries that name them, for ever: in every reader's way, if they are not
  folded, and in the store. All file groups with logs are done then, because only a complete compaction lets the log's
  beginning move for file groups that have no slice at all;
- **mostly unreferenced**: it keeps a file that nearly all others have left (`storage.core.plan.mostly_unreferenced`).

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
        commits: Commits whose rows wait.
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
        slices: Of a snapshot.
        files: Log files that the slices point into.
        heads: Per lane the last entry of the snapshot.
        min_commits: So many waiting commits make a file group due.
        max_log_ratio: Logs larger than this part of the base make it due; without a base any log does.
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
        own.group: Due(len(waiting.get(own.group, ())), own.log_bytes, own.base_bytes, reasons[own.group])
        for own in slices
        if own.group in reasons
    }


def _waiting(file_slice: FileSlice, files: Sequence[LiveFile]) -> set[tuple[LaneName, int]]:
    """(lane, seq) of the commits and folds that have rows for a file group."""
    return {(files[i].lane, files[i].seq) for i in set(file_slice.file.tolist())}
