"""Finds the file groups of a snapshot that are due for compaction or a fold, by `weft.storage.core.plan.due_policy`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce

from weft.storage.core.log import cut
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.table_state import LiveFold, TableState
from weft.storage.core.names import TABLE_LANE, LaneName, slot_path
from weft.storage.core.plan.due_policy import ALL_WORK, Due, DuePolicy, Work, plan_due
from weft.storage.core.plan.slices import FileSlice
from weft.storage.errors import CorruptData
from weft.storage.log.commit_log import CommitLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.times import MILLISECOND

Only = Callable[[FileSlice], bool]
"""Selects the file groups to work on."""


def every_group(_: FileSlice) -> bool:
    """Select all file groups."""
    return True


def find_due(snapshot: Snapshot, policy: DuePolicy, work: Collection[Work] = ALL_WORK) -> Mapping[FileGroup, Due]:
    """Find the file groups of a head snapshot that are due, in order of file group; see `plan_due`."""
    aged_files: Collection[int] = ()
    if policy.max_age is not None:
        before_ms = snapshot.table_log.clock.now_ms() - policy.max_age // MILLISECOND
        aged_files = find_aged(snapshot, before_ms)
    bits = snapshot.table_schema.bucket_bits
    return plan_due(policy, snapshot.slices, snapshot.files, snapshot.cut.lanes, bits=bits, aged=aged_files, work=work)


def only_due(snapshot: Snapshot, policy: DuePolicy | None, only: Only) -> Only:
    """Restrict ``only`` to file groups that are due for compaction. Without a policy it is returned unchanged."""
    if policy is None:
        return only
    due = find_due(snapshot, policy, {Work.COMPACT})
    return lambda file_slice: file_slice.group in due and only(file_slice)


def find_aged(snapshot: Snapshot, before_ms: int) -> list[int]:
    """Positions of log files with rows that were committed before a time (Unix milliseconds, by writers' clocks)."""
    table_log = snapshot.table_log
    state = snapshot.state
    entries_by_commit = {(file.lane, file.seq): [(file.lane, file.seq)] for file in snapshot.files if not file.is_fold}
    entries_by_commit |= {(TABLE_LANE, fold.slot): _first_entries(state, fold) for fold in state.folds}
    aged_commits = {
        commit
        for commit, entries in entries_by_commit.items()
        if any(_committed_at(table_log.commit_log, entry) < before_ms for entry in entries)
    }
    return [position for position, file in enumerate(snapshot.files) if (file.lane, file.seq) in aged_commits]


def _first_entries(state: TableState, fold: LiveFold) -> list[tuple[LaneName, int]]:
    """The first entry of each lane that a fold may contain. No event of the fold is older than all of them."""
    slice_end = reduce(
        cut.lowest, {id(cut_of_group): cut_of_group for cut_of_group in map(state.slices.cut_of, fold.groups)}.values()
    )
    fold_end = cut.only(fold.to, state.lanes)
    return [(lane, slice_end.get(lane, 0) + 1) for lane, seq in fold_end.items() if seq > slice_end.get(lane, 0)]


def _committed_at(commit_log: CommitLog, entry: tuple[LaneName, int]) -> int:
    """Time of an entry in Unix milliseconds: commit time or stamp, the earlier. A time to live uses the stamp."""
    log_entry = commit_log.entry(*entry)
    if log_entry is None:
        raise CorruptData(
            f"{slot_path(*entry)} is missing, although the table has later entries",
            hint="restore it from a copy of the store; weft verify finds more",
        )
    return min(log_entry.committed_at_ms, log_entry.stamp)
