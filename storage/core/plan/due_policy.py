"""Decides which file groups are due for compaction or a fold, from the sizes in a snapshot. Pure functions.

The service, ``weft compact`` and the functions on a cluster use this policy. A file group is due for compaction if one
of these reasons applies; the first one is reported:

- **commits**: many commits (or folds) wait, and every read must fetch and merge a range of each of them. Folds reduce
  their number, and write only waiting rows instead of the whole base. So by default a large file group is left to
  folds, and a small one, which costs little to rewrite, is compacted soon (`commits_of_base`).
- **bytes**: its logs are large compared to its base, so merging is a large part of each read. A base grows with each
  compaction, so each row is rewritten a bounded number of times per doubling.
- **read amplification**: a read fetches many times the bytes of its base, because log blocks are fetched whole.
- **age**: a commit has waited for too long.
- **cold**: a waiting commit, in a fold or not, is far behind the head of its lane. Otherwise a file group that hardly
  ever gets rows would keep shared log files without a limit. All file groups with logs are due then, because only a
  complete compaction moves the start of the log for file groups that have no slice.
- **buckets**: the table's number of buckets was changed, and the file group still has another number
  (`weft.storage.services.split`).
- **mostly unreferenced**: it shares a file that few other file groups still use
  (`weft.storage.core.plan.mostly_unreferenced`).

File groups that are not due for compaction are due for a **fold** when together they have a certain number of commits
that are not folded. Each fold that replaces the folds before it writes all waiting rows again. So a fold is postponed
while it would be small compared to these folds, up to `MAX_POSTPONED` times the number of commits.

A clock is used only for ``age``: it affects when work is done, never the result of a read (PROTOCOL.md, S22 ClockFree).
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from weft.storage.core.log import cut
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.names import LaneName
from weft.storage.core.plan.mostly_unreferenced import mostly_unreferenced
from weft.storage.core.plan.read_cost import read_amplification
from weft.storage.core.plan.regroup_slices import other_bits
from weft.storage.core.plan.slices import FileSlice, LiveFile

COLD_FACTOR: Final = 8
"""A commit is cold when ``min_commits`` (by default `COLD_COMMITS`) times this many entries of its lane follow it."""

COLD_COMMITS: Final = 1_000

LEAST_COMMITS: Final = 8
"""By default, the smallest number of waiting commits that makes a file group due."""

RANGE_BYTES: Final = 16 * 1024
"""One more log range costs a reader about as much as this many bytes of a base, including its compaction, if the file
group is read about ten times between two compactions (``python -m tests.benchmarks.due_policy``)."""

MAX_POSTPONED: Final = 16
"""A fold is no longer postponed when ``fold_commits`` times this many commits are not folded."""


SPLIT_BYTES: Final = 1 << 30
"""A split is proposed when the file groups of a partition are larger than this on average, because a compaction
rewrites a whole file group."""

MAX_BITS: Final = 16


class Work(StrEnum):
    """The kind of work that a file group is due for."""

    COMPACT = "compact"
    FOLD = "fold"


ALL_WORK: Final = frozenset(Work)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePolicy:
    """Settings that decide when file groups are due.

    Attributes:
        min_commits: A file group is due for compaction when this many commits or folds wait for it; at least 1. None
            for `LEAST_COMMITS` with a small base, and more with a large one (`commits_of_base`).
        max_log_ratio: A file group is also due when its logs have more than this multiple of the bytes of its base;
            without a base it is always due.
        max_read_amplification: A file group is also due when a read fetches more than this many times the bytes of its
            base; at least 1. None for no limit.
        max_age: A file group is also due when a commit has waited for longer than this. None for no limit.
        fold_commits: File groups that are not due for compaction are due for a fold when together they have this many
            commits that are not folded; at least 2. None for never.
        min_fold_ratio: A fold also requires that these commits have at least this multiple of the rows in folds, unless
            there are `MAX_POSTPONED` times ``fold_commits`` commits. 0 for no such condition.
    """

    min_commits: int | None = None
    max_log_ratio: float = 0.5
    max_read_amplification: float | None = None
    max_age: dt.timedelta | None = None
    fold_commits: int | None = 64
    min_fold_ratio: float = 0.125


@dataclass(frozen=True, slots=True)
class Due:
    """A file group that is due, with the reason.

    Attributes:
        commits: Number of commits and folds whose rows are not in its slice.
        log_bytes: Stored bytes of those rows.
        base_bytes: Stored bytes of its base and shadow.
        reason: ``commits``, ``bytes``, ``read amplification``, ``age``, ``cold``, ``buckets`` or ``mostly
            unreferenced``.
        work: Compaction or fold.
    """

    commits: int
    log_bytes: int
    base_bytes: int
    reason: str
    work: Work = Work.COMPACT

    @property
    def bytes(self) -> int:
        """Stored bytes that the work reads."""
        return self.log_bytes + (self.base_bytes if self.work is Work.COMPACT else 0)


def commits_of_base(base_bytes: int, max_log_ratio: float) -> int:
    """The number of waiting commits that makes a file group due by default.

    A range counts as `RANGE_BYTES` of logs, independent of its size: 8 commits on a base of 256 KiB, or 128 commits on
    a base of 4 MiB, are as expensive to read as logs of half its size. A large file group never has so many commits,
    because of folds.
    """
    return max(int(max_log_ratio * base_bytes / RANGE_BYTES), LEAST_COMMITS)


def plan_due(
    policy: DuePolicy,
    slices: Sequence[FileSlice],
    files: Sequence[LiveFile],
    heads: cut.Seqs,
    *,
    bits: int | None = None,
    aged: Collection[int] = (),
    work: Collection[Work] = ALL_WORK,
) -> Mapping[FileGroup, Due]:
    """Find the file groups that are due, sorted by file group.

    Args:
        policy: The policy that decides.
        slices: All slices of a snapshot.
        files: The log files of the snapshot.
        heads: Last entry of the snapshot in each lane.
        bits: The bits that file groups should have; None to keep their bits.
        aged: Positions in ``files`` of the files with rows that have waited longer than ``policy.max_age``.
        work: The kinds of work that will be done. Without compaction, file groups that are due for compaction may be
            due for a fold instead.
    """
    waiting = {s.group: set(s.file.tolist()) for s in slices if len(s.rows)}
    due: dict[FileGroup, Due] = {}
    if Work.COMPACT in work:
        with_other_bits = frozenset[FileGroup]() if bits is None else other_bits(slices, bits)
        due = _due_for_compaction(policy, slices, files, heads, waiting, frozenset(aged), with_other_bits)
    if Work.FOLD in work:
        unfolded = [
            s
            for s in slices
            if s.group in waiting and s.group not in due and any(not files[i].is_fold for i in waiting[s.group])
        ]
        if _is_worth_folding(policy, unfolded, files):
            due |= {s.group: _due(s, waiting[s.group], files, "commits", Work.FOLD) for s in unfolded}
    return {s.group: due[s.group] for s in slices if s.group in due}


def _due_for_compaction(
    policy: DuePolicy,
    slices: Sequence[FileSlice],
    files: Sequence[LiveFile],
    heads: cut.Seqs,
    waiting: Mapping[FileGroup, set[int]],
    aged: frozenset[int],
    with_other_bits: frozenset[FileGroup],
) -> dict[FileGroup, Due]:
    cold_after = COLD_FACTOR * (policy.min_commits or COLD_COMMITS)
    log_files = [files[i] for i in set().union(*waiting.values())]
    cold = any(heads.get(lane, seq) - seq >= cold_after for file in log_files for lane, seq in file.reach.items())
    reasons: dict[FileGroup, str] = {}
    for file_slice in slices:
        if file_slice.group not in waiting:
            continue
        least = policy.min_commits or commits_of_base(file_slice.base_bytes, policy.max_log_ratio)
        if len(_commits(waiting[file_slice.group], files)) >= least:
            reason = "commits"
        elif file_slice.log_bytes > policy.max_log_ratio * file_slice.base_bytes:
            reason = "bytes"
        elif (
            policy.max_read_amplification is not None
            and read_amplification(file_slice, files) > policy.max_read_amplification
        ):
            reason = "read amplification"
        elif aged and not aged.isdisjoint(waiting[file_slice.group]):
            reason = "age"
        elif cold:
            reason = "cold"
        else:
            continue
        reasons[file_slice.group] = reason
    reasons |= dict.fromkeys(with_other_bits - reasons.keys(), "buckets")
    reasons |= dict.fromkeys(mostly_unreferenced(slices, reasons.keys(), heads), "mostly unreferenced")
    return {
        s.group: _due(s, waiting.get(s.group, set()), files, reasons[s.group]) for s in slices if s.group in reasons
    }


def propose_buckets(slices: Sequence[FileSlice], bits: int) -> int:
    """Propose a number of buckets from the sizes of file groups: the current number, or more.

    It is only a proposal, because a split rewrites the table once. Small file groups share files, so fewer buckets are
    never proposed.

    Args:
        slices: All slices of a snapshot.
        bits: The bits that file groups have now.
    """
    partition_bytes: Counter[str] = Counter()
    for file_slice in slices:
        partition_bytes[file_slice.group.partition] += file_slice.base_bytes + file_slice.log_bytes
    largest = max(partition_bytes.values(), default=0)
    while bits < MAX_BITS and largest > SPLIT_BYTES << bits:
        bits += 1
    return 1 << bits


def _is_worth_folding(policy: DuePolicy, unfolded: Sequence[FileSlice], files: Sequence[LiveFile]) -> bool:
    """Whether it is worth to fold these file groups, which have commits that are not folded."""
    if policy.fold_commits is None or not unfolded:
        return False
    rows = np.zeros(len(files), np.int64)
    for file_slice in unfolded:
        np.add.at(rows, file_slice.file, file_slice.rows)
    is_fold = np.array([file.is_fold for file in files])
    file_numbers = set(np.flatnonzero((rows > 0) & ~is_fold).tolist())
    commits = len(_commits(file_numbers, files))
    if commits < policy.fold_commits:
        return False
    is_large_enough = rows[~is_fold].sum() >= policy.min_fold_ratio * rows[is_fold].sum()
    return bool(is_large_enough) or commits >= MAX_POSTPONED * policy.fold_commits


def _due(
    file_slice: FileSlice, file_numbers: set[int], files: Sequence[LiveFile], reason: str, work: Work = Work.COMPACT
) -> Due:
    return Due(len(_commits(file_numbers, files)), file_slice.log_bytes, file_slice.base_bytes, reason, work)


def _commits(file_numbers: set[int], files: Sequence[LiveFile]) -> set[tuple[LaneName, int]]:
    """(lane, seq) of the commits and folds that log files belong to."""
    return {(files[i].lane, files[i].seq) for i in file_numbers}
