"""Changes between two snapshots: which file groups and keys can differ, and both read for those alone.

What can differ are the rows of keys that commits between the two cuts name. Log files of commits give these keys, of
each file group by itself; both snapshots are read for them, and `storage.core.merge.diff` compares. No table is
compared with another, but for file groups where that is less work, or all that can be done:

- more was committed to the file group in between than it holds by now;
- the earlier snapshot is kept by name only (a savepoint, a pin), so that logs of after it may be gone.

What cannot be answered completely is refused (S21 IncrementalComplete): `OffsetExpired` if cleaning has given up one of
the snapshots, `OffsetInvalidated` if a restore or an undo lies between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from storage.clock import Stamps
from storage.core.arrays import Arrays
from storage.core.keys import one_array
from storage.core.log import cut
from storage.core.log.cut import Cut
from storage.core.log.entries import Data
from storage.core.log.file_refs import FileGroup
from storage.core.log.table_state import TableState
from storage.core.merge.diff import ChangeShape, diff
from storage.core.modes import NO_MERGERS
from storage.core.plan.slices import FileSlice, LiveFile, plan_slices
from storage.environment import Environment, Tuning
from storage.errors import InvalidInput, MissingFile, OffsetExpired, OffsetInvalidated, SnapshotExpired
from storage.files.log_reader import LogReader
from storage.log.table_log import TableLog
from storage.read.pruning import Keys
from storage.read.read_task import ReadTask, read_task
from storage.read.scan import Scan
from storage.read.scan_request import ScanRequest
from storage.read.snapshot import Snapshot

WINDOW: Final = 64  # entries of a lane that one round trip brings anyway; claims among the commits are few
_ANEW: Final = "read the snapshot anew (since=None; as a stream: with a new checkpoint)"
_EXPIRED: Final = (
    f"{_ANEW} and go on from its cut; consumers that lag need a longer retention (clean retain), or a savepoint at the "
    "cut where they stand"
)


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """A run of file groups.

    Attributes:
        before: Them in the earlier snapshot; None where everything is new.
        after: Them in the later one.
        touched: What was committed to them in between, where keys are taken from it; None for all rows.
    """

    before: ReadTask | None
    after: ReadTask
    touched: ReadTask | None


@dataclass(frozen=True)
class ChangeScan:
    """Planned changes; like a `Scan` it can be pickled, and its tasks read anywhere."""

    shape: ChangeShape
    before: Scan | None
    after: Scan
    tasks: tuple[ChangeTask, ...]

    @property
    def arrow(self) -> pa.Schema:
        """Schema of every batch."""
        return self.shape.arrow

    def without_tasks(self) -> ChangeScan:
        """What all tasks need besides themselves, where they travel one by one."""
        return replace(self, tasks=())

    def to_reader(self) -> pa.RecordBatchReader:
        """All tasks, one after the other, as a stream: memory is that of one task."""

        def batches() -> Iterator[pa.RecordBatch]:
            for task in self.tasks:
                yield from self.read(task)

        return pa.RecordBatchReader.from_batches(self.arrow, batches())

    def read(self, task: ChangeTask) -> Iterator[pa.RecordBatch]:
        """Changes of one task.

        Raises:
            CorruptData: A file that one of the snapshots needs is missing or damaged.
            OffsetExpired: It is missing because cleaning has given the snapshot up meanwhile.
        """
        with expiring():
            keys = self._keys(task.touched)
            before: list[pa.RecordBatch] = []
            if self.before is not None and task.before is not None:
                before = list(self.before.read(task.before, keys))
            first = _joined(before, (self.before or self.after).arrow)
            yield from diff(self.shape, first, map(_columns, self.after.read(task.after, keys)))

    def _keys(self, touched: ReadTask | None) -> Keys | None:
        """Keys of the commits in between, by file group."""
        if touched is None:
            return None
        assert self.before is not None, "commits lie between two snapshots"
        env, schema = self.after.env, self.shape.schema
        columns = {*schema.key, schema.sort_column}
        logs = LogReader(env, schema, touched.files, touched.slices, [columns] * len(touched.slices), NO_MERGERS)
        result = {}
        with _logs_after(env, self.before.at):
            for own in touched.slices:
                found = logs.collapse(own, (), ())
                assert found is not None, "a range has rows"
                result[own.group] = found.directory.keys
        return result


def scan_changes(
    since: Snapshot | None,
    until: Snapshot,
    columns: Sequence[str] | None,
    require: Sequence[str] | None,
    *,
    before: bool,
    under: TableState | None = None,
) -> ChangeScan:
    """Plan the changes between two snapshots of a table, both seen under the schema of the later one.

    Args:
        since: The earlier snapshot; None for one without rows.
        until: The later one.
        columns: Of the answer, besides the key; None for all. Only what differs in them is a change.
        require: Groups that a row must have to be in a snapshot at all.
        before: With the image of before.
        under: A later state of the table still: both are seen under its schema.

    Raises:
        InvalidInput: ``since`` is not before ``until``, or see `ChangeShape.of`.
        NotFound: The table has no such column or group.
        OffsetExpired: Cleaning has given up one of the snapshots.
        OffsetInvalidated: A restore or an undo lies between them.
    """
    shape = ChangeShape.of((under or until.state).schema, columns, before=before)
    if since is not None:
        check_order(since.cut, until)
    until = _under(until, under or until.state)
    with expiring():
        after = replace(until.plan_scan(ScanRequest(shape.columns, require=require, arrivals=True)), tasks=())
        if since is None:
            runs = _runs([_Work(None, own, None) for own in until.slices], until.table_log.env.tuning)
            return ChangeScan(shape, None, after, tuple(_task(run, [], until.files, []) for run in runs))
        since = _under(since, until.state)
        if until.table_log.refresh().oldest_retained <= since.cut.table:
            with _logs_after(until.table_log.env, since.cut):  # an index may stand in a file of its own
                start = _start(since.cut, until.state)
                touched = until.table_log.committed_files(until.state, start, until.cut.lanes)
            shape = replace(shape, touched=frozenset(group for live in touched for group in live.file.groups))
            work = _by_keys(since, until, _ranges(until.state, touched))
        else:
            touched, work = [], _whole(since, until)
        first = replace(since.plan_scan(ScanRequest(shape.earlier, require=require, arrivals=True)), tasks=())
        tasks = [_task(run, since.files, until.files, touched) for run in _runs(work, until.table_log.env.tuning)]
        return ChangeScan(shape, first, after, tuple(tasks))


def _under(snapshot: Snapshot, later: TableState) -> Snapshot:
    """The snapshot as it is seen under the schema of a later state."""
    if snapshot.state.schema_rev == later.schema_rev:
        return snapshot
    state = replace(snapshot.state, schema=later.schema, schema_rev=later.schema_rev)
    return Snapshot(snapshot.table_log, state, snapshot.cut)


def check_order(since: Cut, until: Snapshot) -> None:
    """Refuse to compare where the later snapshot does not go on from the earlier one.

    Raises:
        InvalidInput: It is not the later one.
        OffsetInvalidated: A restore or an undo lies between them.
    """
    if since.table > until.cut.table or not cut.within(_start(since, until.state), until.cut.lanes):
        raise InvalidInput(
            f"there are no changes from {since} up to {until.cut}, which is not after it",
            hint="changes run forwards: give the earlier cut as since, the later one as until",
        )
    if until.state.restored > since.table:
        raise OffsetInvalidated(
            f"the table was restored (entry {until.state.restored} of the table lane) after {since}: what it showed "
            "may never have been",
            hint=f"{_ANEW}, replace what was made of the changes so far, and go on from its cut",
        )


def _start(since: Cut, state: TableState) -> cut.Seqs:
    """How far an earlier snapshot goes in each lane, as a later state knows the lanes.

    A claim may stand behind the end of a lane: it came too late for its closing. A snapshot that was taken before
    anybody could know of the closing has it in its cut, and no later one does; there is nothing in it.
    """
    ends = {name: lane.closed for name, lane in state.lanes.items() if lane.closed is not None}
    return {lane: min(seq, ends.get(lane, seq)) for lane, seq in since.lanes.items()}


@dataclass(frozen=True, slots=True)
class _Work:
    """One file group in both snapshots, and what was committed to it in between; None: compare all its rows."""

    before: FileSlice | None
    after: FileSlice
    touched: FileSlice | None

    @property
    def parts(self) -> list[FileSlice]:
        return [own for own in (self.before, self.after, self.touched) if own is not None]

    @property
    def bytes(self) -> int:
        return sum(own.log_bytes + own.base_bytes for own in self.parts)

    @property
    def rows(self) -> int:
        return sum(own.stored_rows for own in self.parts)


def _ranges(state: TableState, files: Sequence[LiveFile]) -> list[FileSlice]:
    """Per file group all that log files hold of it, as if nothing had been compacted or folded."""
    return plan_slices(replace(state, slices={}, covered={}, folds=(), folded={}), files)


def _by_keys(since: Snapshot, until: Snapshot, touched: Sequence[FileSlice]) -> list[_Work]:
    """File groups that commits in between name."""
    before, after = _by_group(since), _by_group(until)
    work = []
    for own in touched:
        new, old = after.get(own.group), before.get(own.group)
        if new is not None:  # else events touched nothing, and compaction found nothing to keep
            by_keys = old is not None and own.log_bytes <= new.log_bytes + new.base_bytes
            work.append(_Work(old, new, own if by_keys else None))
    return work


def _whole(since: Snapshot, until: Snapshot) -> list[_Work]:
    """File groups of which the two snapshots do not plainly read the same."""
    fresh = np.array([not cut.within(live.reach, since.cut.lanes) for live in until.files], np.bool_)
    before = _by_group(since)
    work = []
    for own in until.slices:
        old = before.get(own.group)
        if old is None or old.slice != own.slice or fresh[own.file].any():
            work.append(_Work(old, own, None))
    return work


def _by_group(snapshot: Snapshot) -> dict[FileGroup, FileSlice]:
    return {own.group: own for own in snapshot.slices}


def _runs(work: Sequence[_Work], tuning: Tuning) -> list[list[_Work]]:
    """Neighbours of about the bytes and rows of a task; where keys are known and where not, apart."""
    runs: list[list[_Work]] = []
    for known in (True, False):
        size, rows = tuning.change_task_bytes, tuning.change_task_rows
        for item in work:
            if (item.touched is not None) is known:
                size, rows = size + item.bytes, rows + item.rows
                if size > tuning.change_task_bytes or rows > tuning.change_task_rows:
                    runs.append([])
                    size, rows = item.bytes, item.rows
                runs[-1].append(item)
    return runs


def _task(
    run: Sequence[_Work], before: Sequence[LiveFile], after: Sequence[LiveFile], touched: Sequence[LiveFile]
) -> ChangeTask:
    old = [item.before for item in run if item.before is not None]
    ranges = [item.touched for item in run if item.touched is not None]
    return ChangeTask(
        before=read_task(old, before) if old else None,
        after=read_task([item.after for item in run], after),
        touched=read_task(ranges, touched) if ranges else None,
    )


def bounded_cut(since: Snapshot, until: Snapshot, commits: int) -> Cut:
    """A snapshot between two others with about ``commits`` commits more than the earlier one, in order of time.

    Commits that only a newer prefix of the table lane knows, or that its slices hold already, come with others: then
    there are more.

    Raises:
        InvalidInput, OffsetInvalidated: See `check_order`.
    """
    check_order(since.cut, until)
    table_log, start, end = until.table_log, _start(since.cut, until.state), until.cut.lanes
    state = table_log.refresh()
    while True:
        window = {lane: min(last, start.get(lane, 0) + commits + WINDOW) for lane, last in end.items()}
        tails = table_log.commit_log.read_tails({lane: (start.get(lane, 0), last) for lane, last in window.items()})
        found = [entry for tail in tails.values() for entry in tail if isinstance(entry, Data)]
        if window == end and len(found) <= commits:
            return until.cut
        found.sort(key=lambda entry: entry.stamp)
        lanes = {lane: start.get(lane, 0) for lane in end} | {entry.lane: entry.seq for entry in found[:commits]}
        _, at = table_log.longest_cut(until.cut.table, lanes)
        if state.keeps(at) and not cut.within(at.lanes, start):
            return at
        commits *= 2


@contextlib.contextmanager
def expiring() -> Iterator[None]:
    """What is given up in here are the ends of a range of changes.

    Raises:
        OffsetExpired: Cleaning has given a snapshot up.
    """
    try:
        yield
    except OffsetExpired:
        raise
    except SnapshotExpired as error:
        raise OffsetExpired(error.message, hint=_EXPIRED) from error


@contextlib.contextmanager
def _logs_after(env: Environment, at: Cut) -> Iterator[None]:
    """Read in the block what was committed after a snapshot: kept as long as that is ``oldest_retained`` or newer (D3).

    Raises:
        OffsetExpired: A file is missing, and cleaning was faster.
        CorruptData: A file is missing that must be there.
    """
    try:
        yield
    except MissingFile as error:
        if TableLog(env, Stamps()).refresh().oldest_retained <= at.table:
            raise
        raise OffsetExpired(
            f"cleaning has given up what was committed after {at} while changes were being read: {error.message}",
            hint=_EXPIRED,
        ) from error


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Arrays:
    table = pa.Table.from_batches(batches, schema)
    return {name: one_array(column) for name, column in zip(table.schema.names, table.columns, strict=True)}


def _columns(batch: pa.RecordBatch) -> Arrays:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
