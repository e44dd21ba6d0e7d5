"""Changes between two snapshots: finds the file groups and keys that can differ, and compares only those.

Only rows with keys that were committed between the two cuts can differ. The log files of these commits contain the
keys; both snapshots are read for these keys, and `weft.storage.core.merge.diff` compares the rows. A file group is
compared as a whole only if that is less work or the only possibility:

- more was committed to the file group in between than it contains now;
- the earlier snapshot is retained only by a savepoint or a pin, so later logs may have been deleted;
- keys were erased in between, which log files do not show.

A row of a table with references can also differ in the columns of a reference: `weft.storage.read.changes.plan` plans
the same scan, which also reads the rows whose foreign key names a changed row of a referenced table.

`weft.storage.read.changes.tasks` divides the work into tasks.

If the changes cannot be returned completely, the read fails (PROTOCOL.md, S21 IncrementalComplete): with
`OffsetExpired` if cleaning has removed one of the snapshots, with `OffsetInvalidated` if a restore or an undo lies
between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from weft.storage.clock import Stamps
from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import one_array, union
from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.file_refs import FileGroup, SliceFile
from weft.storage.core.log.table_state import TableState
from weft.storage.core.merge.diff import ChangeShape, diff
from weft.storage.core.merge.locate_keys import key_columns, locate_keys
from weft.storage.core.model import Reference
from weft.storage.core.plan.slices import FileSlice
from weft.storage.environment import Environment
from weft.storage.errors import InvalidInput, MissingFile, OffsetExpired, OffsetInvalidated, SnapshotExpired
from weft.storage.log import live_files
from weft.storage.log.table_log import TableLog
from weft.storage.read.changes.tasks import ChangeTask, ComparedFiles, Comparison, change_tasks
from weft.storage.read.plan.log_slices import keys_of_commits, log_slices, start_of
from weft.storage.read.plan.read_task import ReadTask
from weft.storage.read.references.reference_rows import KeyedRows, ReferenceRows, RowCache
from weft.storage.read.request.scan_request import Keys, ScanRequest
from weft.storage.read.scan.scan import Scan
from weft.storage.read.snapshot import Snapshot

_START_OVER: Final = "read the whole table again (since=None; as a stream: with a new checkpoint)"
_EXPIRED: Final = (
    f"{_START_OVER} and continue from its cut; consumers that lag need a longer retention (clean retain), or a "
    "savepoint at their cut"
)


@dataclass(frozen=True)
class Side:
    """One of the two snapshots, read with the newest schema.

    Attributes:
        scan: Scan of the columns of the table and the arrivals of their groups, without tasks.
        references: Readers of the rows of referenced tables, by the references that the snapshot has.
    """

    scan: Scan
    references: Mapping[str, ReferenceRows] = field(default_factory=dict)


@dataclass(frozen=True)
class ChangeScan:
    """Planned changes. Like a `Scan` it can be pickled, and its tasks can be read anywhere.

    Attributes:
        shape: Columns of the result; in its schema each used reference is a column group.
        before: The earlier snapshot; None if all rows are inserts.
        after: The later snapshot.
        tasks: The work; no key is in the results of two tasks.
        used: The references whose columns the result compares.
        required: Names of the references that must be present in a row.
        referring: Finders of rows whose foreign key names a changed row, one for each changed referenced table.
    """

    shape: ChangeShape
    before: Side | None
    after: Side
    tasks: tuple[ChangeTask, ...]
    used: tuple[Reference, ...] = ()
    required: tuple[str, ...] = ()
    referring: tuple[Referring, ...] = ()

    @property
    def arrow(self) -> pa.Schema:
        """Schema of every batch."""
        return self.shape.arrow

    def without_tasks(self) -> ChangeScan:
        """A copy without the tasks, for processes that receive tasks one by one."""
        return replace(self, tasks=())

    def to_reader(self) -> pa.RecordBatchReader:
        """All changes as a stream of batches, one task after the other. Reading it raises the errors of `read`."""
        batches = (batch for task in self.tasks for batch in self.read(task))
        return pa.RecordBatchReader.from_batches(self.arrow, batches)

    def read(self, task: ChangeTask) -> Iterator[pa.RecordBatch]:
        """Read the changes of one task: one row per changed key, in no particular order.

        Each process reads the referenced tables itself.

        Raises:
            CorruptData: A file that one of the snapshots needs is missing or damaged.
            OffsetExpired: A file is missing because the snapshot has expired.
            InvalidInput: A merge function has failed.
        """
        with expiring():
            candidates = None if self.before is None else self._candidates(self.before, task)
            side, earlier = self.before or self.after, []
            if self.before is not None and task.before is not None:
                earlier = list(self.before.scan.read(task.before, candidates))
            before = _arrays(pa.Table.from_batches(earlier, side.scan.arrow))
            after = map(_arrays, self.after.scan.read(task.after, candidates))
            yield from diff(self.shape, self._joined(side, before), (self._joined(self.after, rows) for rows in after))

    def _candidates(self, before: Side, task: ChangeTask) -> Keys | None:
        """Keys of the rows that can differ, by file group; None for all rows of the task."""
        touched = task.touched
        if touched is None:
            return None
        scan = self.after.scan
        with _logs_after(scan.env, before.scan.at):
            _, keys = keys_of_commits(scan.env, scan.schema, touched.files, touched.slices, task.levels)
        for reference in self.referring:
            for group, vector in reference.keys(task.after, task.levels).items():
                keys[group] = union([keys[group], vector]) if group in keys else vector
        return keys

    def _joined(self, side: Side, rows: Arrays) -> Arrays:
        """Add the columns of the references to rows of the table, and an arrival for each, as if it were a group."""
        columns, count = dict(rows), len(rows[self.shape.schema.key[0]])
        keep = np.ones(count, np.bool_)
        for reference in self.used:
            group = self.shape.schema.group_by_name[reference.name]
            if reference.name in side.references:
                foreign_keys = [columns[name] for name in reference.on]
                keyed = side.references[reference.name].of(foreign_keys)
                numbers = keyed.find(foreign_keys)
                shown_columns = zip(reference.shown_names, reference.columns, strict=True)
                columns |= {name: keyed.values(column, numbers) for name, column in shown_columns}
            else:
                numbers = pa.nulls(count, pa.int64())
                columns |= {name: pa.nulls(count, self.shape.schema.field(name).type) for name in reference.shown_names}
            columns[names.arrival(group.id)] = numbers
            if reference.name in self.required:
                keep &= np.asarray(numbers.is_valid())
        if keep.all():
            return columns
        positions = pa.array(np.flatnonzero(keep))
        return {name: column.take(positions) for name, column in columns.items()}


@dataclass(frozen=True)
class Referring:
    """Finds the rows whose foreign key names a changed row of a referenced table.

    Attributes:
        on: The columns of the foreign key.
        changes: The changes of the referenced table.
        scan: Scan of the key and the foreign key of the later rows, without tasks.
    """

    on: tuple[str, ...]
    changes: ChangeScan
    scan: Scan
    _cache: RowCache = field(default_factory=RowCache, compare=False, repr=False)

    def keys(self, task: ReadTask, levels: Collection[int]) -> Keys:
        """The keys of these rows of a task, by file group of these numbers of bits."""
        changed = self._changed()
        if not len(changed.rows):
            return {}
        schema, parts = self.scan.schema, []
        for batch in self.scan.read(task):
            numbers = changed.find([batch.column(name) for name in self.on])
            parts.append(batch.filter(numbers.is_valid()).select(schema.key))
        keys = pa.Table.from_batches(parts, pa.schema([self.scan.arrow.field(name) for name in schema.key]))
        return locate_keys(schema, key_columns(schema, keys), levels) if len(keys) else {}

    def _changed(self) -> KeyedRows:
        with self._cache.lock:
            if self._cache.rows is None:
                schema = self.changes.shape.schema
                self._cache.rows = KeyedRows.of(schema, self.changes.to_reader().read_all().select(schema.key))
            return self._cache.rows


def scan_changes(
    since: Snapshot | None,
    until: Snapshot,
    columns: Sequence[str] | None,
    require: Sequence[str] | None,
    *,
    before: bool,
    under: TableState | None = None,
    every_group: bool = False,
) -> ChangeScan:
    """Plan the changes between two snapshots of a table, both read with the schema of the later one.

    Args:
        since: The earlier snapshot; None to get every row of the later one as an insert.
        until: The later snapshot.
        columns: Columns of the result besides the key; None for all. A row has changed if it differs in
            these columns.
        require: Names of groups that must be present in a row; other rows count as absent.
        before: Add the struct column ``_before`` with the earlier row.
        under: A still later state of the table, whose schema is used instead.
        every_group: Plan tasks that have all file groups and keys, also those without commits, for readers that look
            for other rows that can differ. `ChangeScan.read` does not read file groups without commits.

    Raises:
        InvalidInput: ``since`` is not before ``until``, or `ChangeShape.of` refuses the columns.
        NotFound: A column or group does not exist.
        OffsetExpired: One of the snapshots has expired.
        OffsetInvalidated: A restore or an undo lies between them.
    """
    shape = ChangeShape.of((under or until.state).schema, columns, before=before)
    if since is not None:
        check_order(since.cut, until)
    until = under_schema(until, under or until.state)
    with expiring():
        after = until.choose_slices(ScanRequest(shape.columns, require=require, arrivals=True)).without_tasks()
        env = until.table_log.env
        if since is None:
            inserts = [Comparison((), (file_slice,), None) for file_slice in until.slices]
            files = ComparedFiles((), until.files, ())
            tasks = change_tasks(env, until.table_schema, inserts, files, None, until.cut)
            return ChangeScan(shape, None, Side(after), tuple(tasks))
        since = under_schema(since, until.state)
        # Rows that a BASE has rewritten differ without a commit, so their keys are in no log file (PROTOCOL.md, D3).
        if max(until.table_log.refresh().oldest_retained, until.state.rewritten) <= since.cut.table:
            with _logs_after(env, since.cut):  # a large index is in a sidecar
                start = start_of(since.cut, until.state)
                touched = live_files.committed_files(until.table_log, until.state, start, until.cut.lanes)
            shape = replace(shape, touched=frozenset(group for live in touched for group in live.file.groups))
            work = _touched_groups(since, until, log_slices(until.state, touched))
        else:
            touched, work = [], _whole_groups(since, until)
        if every_group:
            work += _untouched_groups(since, until, work)
        first = since.choose_slices(ScanRequest(shape.earlier, require=require, arrivals=True)).without_tasks()
        files = ComparedFiles(since.files, until.files, touched)
        tasks = change_tasks(env, until.table_schema, work, files, since.cut, until.cut, every_key=every_group)
        return ChangeScan(shape, Side(first), Side(after), tuple(tasks))


def under_schema(snapshot: Snapshot, later: TableState) -> Snapshot:
    """The snapshot with the schema of a later state, without its references."""
    if snapshot.state.schema_rev == later.schema_rev:
        return snapshot
    state = replace(snapshot.state, schema=later.schema, schema_rev=later.schema_rev)
    return Snapshot(snapshot.table_log, state, snapshot.at)


def check_order(since: Cut, until: Snapshot) -> None:
    """Check that a snapshot continues from an earlier cut.

    Raises:
        InvalidInput: The cut is not before the snapshot.
        OffsetInvalidated: A restore or an undo lies between them.
    """
    if not is_after(since, until):
        raise InvalidInput(
            f"cannot read changes from {since} up to {until.cut}, because the second cut is not after the first",
            hint="pass the earlier cut as since and the later cut as until",
        )
    if until.state.restored > since.table:
        raise OffsetInvalidated(
            f"the table was restored (entry {until.state.restored} of the table lane) after {since}: rows of that cut "
            "may have been rolled back",
            hint=f"{_START_OVER}, replace the data that was derived from earlier changes, and continue from its cut",
        )


def is_after(since: Cut, until: Snapshot) -> bool:
    """Whether a snapshot contains every entry of an earlier cut, apart from entries that a restore rolled back."""
    return since.table <= until.cut.table and cut.within(start_of(since, until.state), until.cut.lanes)


def _touched_groups(since: Snapshot, until: Snapshot, touched: Sequence[FileSlice]) -> list[Comparison]:
    """Comparisons of the file groups with commits in between."""
    work = []
    for old, new, commits in _align_file_groups(since.slices, until.slices, touched):
        if commits and new:  # if new is empty, the events had no effect, and compaction had no rows to keep
            stored = sum(part.log_bytes + part.base_bytes for part in new)
            by_keys = bool(old) and sum(part.log_bytes for part in commits) <= stored
            work.append(Comparison(old, new, commits if by_keys else None))
    return work


def _whole_groups(since: Snapshot, until: Snapshot) -> list[Comparison]:
    """Comparisons of whole file groups whose files differ between the snapshots."""
    fresh = np.array([not cut.within(live.reach, since.cut.lanes) for live in until.files], np.bool_)
    return [
        Comparison(old, new, None)
        for old, new, _ in _align_file_groups(since.slices, until.slices, ())
        if new and (_files(old) != _files(new) or any(fresh[part.file].any() for part in new))
    ]


def _files(parts: Sequence[FileSlice]) -> list[SliceFile | None]:
    return [part.slice for part in parts]


def _untouched_groups(since: Snapshot, until: Snapshot, work: Sequence[Comparison]) -> list[Comparison]:
    """Comparisons without commits of the file groups that are not in ``work``."""
    compared = {part.group for item in work for part in item.after}
    none = np.empty(0, np.int64)
    return [
        Comparison(old, new, (FileSlice(new[0].group, None, none, none, none, none, 0, 0),))
        for old, new, _ in _align_file_groups(since.slices, until.slices, ())
        if new and new[0].group not in compared
    ]


def _align_file_groups(*sides: Sequence[FileSlice]) -> Iterator[tuple[tuple[FileSlice, ...], ...]]:
    """Align the file groups of several plans: yields for each set of common keys the file groups of every plan.

    That is one file group of each plan, unless file groups were split or merged in between.
    """
    levels = sorted({part.group.bits for side in sides for part in side})
    groups = sorted({part.group for side in sides for part in side}, key=lambda group: (group.bits, group))
    largest: dict[FileGroup, FileGroup] = {}
    for group in groups:
        larger = (group.within(bits) for bits in levels if bits < group.bits)
        largest[group] = next((larger_group for larger_group in larger if larger_group in largest), group)
    aligned: dict[FileGroup, list[list[FileSlice]]] = {}
    for number, side in enumerate(sides):
        for part in side:
            aligned.setdefault(largest[part.group], [[] for _ in sides])[number].append(part)
    for group in sorted(aligned):
        yield tuple(tuple(parts) for parts in aligned[group])


@contextlib.contextmanager
def expiring() -> Iterator[None]:
    """Raise `OffsetExpired` for a `SnapshotExpired` in the block, for blocks that read a range of changes.

    Raises:
        OffsetExpired: A snapshot has expired.
    """
    try:
        yield
    except OffsetExpired:
        raise
    except SnapshotExpired as error:
        raise OffsetExpired(error.message, hint=_EXPIRED) from error


@contextlib.contextmanager
def _logs_after(env: Environment, at: Cut) -> Iterator[None]:
    """Explain missing files in a block that reads files of commits after a cut.

    These files exist if the cut is ``oldest_retained`` or newer (PROTOCOL.md, D3).

    Raises:
        OffsetExpired: A file is missing because cleaning has removed it.
        CorruptData: A file is missing although cleaning retains it.
    """
    try:
        yield
    except MissingFile as error:
        if TableLog(env, Stamps()).refresh().oldest_retained <= at.table:
            raise
        raise OffsetExpired(
            f"cleaning removed what was committed after {at} while the changes were read: {error.message}",
            hint=_EXPIRED,
        ) from error


def _arrays(rows: pa.Table | pa.RecordBatch) -> Arrays:
    return {name: one_array(column) for name, column in zip(rows.schema.names, rows.columns, strict=True)}
