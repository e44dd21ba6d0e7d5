"""Changes of a table with references: rows that differ in their own columns, or in what a reference shows (D1, M11).

A row can differ only if it has changed itself, or if the row of a referenced table has changed that its foreign key
names. So each task compares the rows with keys that were committed in between, and those whose foreign key is among the
changed keys of a referenced table: these are found by a scan of the foreign keys alone, if that table has changed at
all. Both sides are read by key, joined, and compared like rows of one table in which each reference is a column group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import KeyVector, one_array
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.merge.diff import ChangeShape, diff
from weft.storage.core.merge.locate_keys import key_columns, locate_keys
from weft.storage.core.model import Column, Group, Reference
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, OffsetExpired, OffsetInvalidated
from weft.storage.read.changes.change_scan import ChangeScan, expiring, scan_changes, under_schema
from weft.storage.read.changes.tasks import ChangeTask
from weft.storage.read.plan.read_task import ReadTask
from weft.storage.read.references.reference_rows import KeyedRows, ReferenceRows, RowCache
from weft.storage.read.request.filter_input import parse_filter
from weft.storage.read.request.projection import check_required
from weft.storage.read.request.scan_request import Keys, ScanRequest
from weft.storage.read.scan.plan_scan import plan_scan
from weft.storage.read.scan.scan import Scan
from weft.storage.read.snapshot import Snapshot


def shows_references(schema: TableSchema, columns: Collection[str] | None, require: Collection[str] | None) -> bool:
    """Whether changes have to be compared with those of referenced tables.

    Args:
        schema: The schema of the later snapshot.
        columns: Columns of the result besides the key; None for all.
        require: Names of groups and references that must be present in a row.
    """
    return bool(_used(schema, columns, require or ()))


def _used(schema: TableSchema, columns: Collection[str] | None, require: Collection[str]) -> tuple[Reference, ...]:
    return tuple(
        reference
        for reference in schema.references
        if columns is None or reference.name in require or not set(reference.shown).isdisjoint(columns)
    )


@dataclass(frozen=True)
class _Referring:
    """Finds the rows whose foreign key names a changed row of a referenced table.

    Attributes:
        on: The columns of the foreign key.
        changes: The changes of the referenced table.
        scan: Reads the key and the foreign key of the later rows, without tasks.
    """

    on: tuple[str, ...]
    changes: ChangeScan
    scan: Scan
    _cache: RowCache = field(default_factory=RowCache, compare=False, repr=False)

    def keys(self, task: ReadTask, levels: Collection[int]) -> Keys:
        """The keys of such rows of a task, by file group of these numbers of bits."""
        changed = self._changed()
        if not len(changed.rows):
            return {}
        schema, parts = self.scan.schema, []
        for batch in self.scan.read(task):
            numbers = changed.find([batch.column(name) for name in self.on])
            parts.append(batch.filter(numbers.is_valid()).select(schema.key))
        found = pa.Table.from_batches(parts, pa.schema([self.scan.arrow.field(name) for name in schema.key]))
        return locate_keys(schema, key_columns(schema, found), levels) if len(found) else {}

    def _changed(self) -> KeyedRows:
        with self._cache.lock:
            if self._cache.rows is None:
                schema = self.changes.shape.schema
                self._cache.rows = KeyedRows.of(schema, self.changes.to_reader().read_all().select(schema.key))
            return self._cache.rows


@dataclass(frozen=True)
class _Side:
    """One of the two snapshots, under the newest schema.

    Attributes:
        scan: Reads the columns of the table and the arrivals of their groups, without tasks.
        references: How to read the rows of referenced tables; without a reference that the snapshot does not have.
    """

    scan: Scan
    references: Mapping[str, ReferenceRows]


@dataclass(frozen=True)
class JoinedChangeScan:
    """Planned changes of a table with references. Like a `ChangeScan` it can be pickled, and read anywhere.

    Attributes:
        shape: Columns of the result, over a schema in which each used reference is a column group.
        used: The references whose changes count.
        required: Names of the references that must be present in a row.
        own: The changes of the table itself, without tasks: which keys were committed in between.
        referring: The references to tables that have changed.
        before: The earlier snapshot; None if all rows are inserts.
        after: The later snapshot.
        tasks: The work; no key is in the results of two tasks.
    """

    shape: ChangeShape
    used: tuple[Reference, ...]
    required: tuple[str, ...]
    own: ChangeScan
    referring: tuple[_Referring, ...]
    before: _Side | None
    after: _Side
    tasks: tuple[ChangeTask, ...]

    @property
    def arrow(self) -> pa.Schema:
        """Schema of every batch."""
        return self.shape.arrow

    def without_tasks(self) -> JoinedChangeScan:
        """A copy without the tasks, for processes that receive tasks one by one."""
        return replace(self, tasks=())

    def to_reader(self) -> pa.RecordBatchReader:
        """All changes as a stream of batches, one task after the other. Reading it raises the errors of `read`."""
        batches = (batch for task in self.tasks for batch in self.read(task))
        return pa.RecordBatchReader.from_batches(self.arrow, batches)

    def read(self, task: ChangeTask) -> Iterator[pa.RecordBatch]:
        """Changes of one task, in no particular order. Each process reads the referenced tables itself.

        Raises the errors of `ChangeScan.read`.
        """
        with expiring():
            wanted = None if self.before is None else self._candidates(self.before, task)
            side, earlier = self.before or self.after, []
            if self.before is not None and task.before is not None:
                earlier = list(self.before.scan.read(task.before, wanted))
            before = pa.Table.from_batches(earlier, side.scan.arrow)
            after = self.after.scan.read(task.after, wanted)
            yield from diff(
                self.shape,
                self._joined(side, before),
                (self._joined(self.after, pa.Table.from_batches([batch])) for batch in after),
            )

    def _candidates(self, before: _Side, task: ChangeTask) -> Keys | None:
        """Keys of the rows that can differ; None for all rows of the task."""
        touched = self.own.touched_keys(before.scan.at, task)
        if touched is None:
            return None
        found: dict[FileGroup, KeyVector] = dict(touched)
        for each in self.referring:
            for group, vector in each.keys(task.after, task.levels).items():
                found[group] = keys.union([found[group], vector]) if group in found else vector
        return found

    def _joined(self, side: _Side, rows: pa.Table) -> Arrays:
        """Rows of the table with the columns of the references, and an arrival for each as if it were a group."""
        columns: dict[str, pa.Array] = {name: one_array(rows.column(name)) for name in rows.schema.names}
        keep = np.ones(len(rows), np.bool_)
        for reference in self.used:
            group = self.shape.schema.group_by_name[reference.name]
            if reference.name in side.references:
                foreign_keys = [columns[name] for name in reference.on]
                keyed = side.references[reference.name].of(foreign_keys)
                numbers = keyed.find(foreign_keys)
                shown = zip(reference.shown, reference.columns, strict=True)
                columns |= {name: keyed.values(column, numbers) for name, column in shown}
            else:
                numbers = pa.nulls(len(rows), pa.int64())
                columns |= {name: pa.nulls(len(rows), self.shape.schema.field(name).type) for name in reference.shown}
            columns[names.arrival(group.id)] = numbers
            if reference.name in self.required:
                keep &= np.asarray(numbers.is_valid())
        if keep.all():
            return columns
        places = pa.array(np.flatnonzero(keep))
        return {name: column.take(places) for name, column in columns.items()}


def plan_joined_changes(
    since: Snapshot | None,
    until: Snapshot,
    columns: Sequence[str] | None,
    require: Sequence[str] | None,
    *,
    before: bool,
    under: Snapshot | None = None,
    unseen: tuple[Collection[str], Collection[str]] = ((), ()),
) -> JoinedChangeScan:
    """Plan the changes between two snapshots of a table with references.

    Arguments and errors are those of `weft.storage.read.changes.plan.plan_changes`, which calls it.
    """
    newest = under or until
    schema, required = newest.table_schema, tuple(dict.fromkeys(require or ()))
    used = _used(schema, columns, required)
    for reference in used:
        _check_same(None if reference.name in unseen[0] else since, reference)
        _check_same(None if reference.name in unseen[1] else until, reference)
    shape = joined_shape(newest, columns, required, before=before)
    groups = [name for name in required if name in schema.group_by_name]
    foreign_keys = [name for reference in used for name in reference.on]
    asked = (name for name in shape.columns if name in schema.column_by_name)
    wanted = list(dict.fromkeys((*schema.key, *asked, *foreign_keys)))
    earlier = {} if since is None else _referenced(since, used, newest, unseen[0])
    later = _referenced(until, used, newest, unseen[1])
    referring = [] if since is None else list(_find_referring(until, newest, used, earlier, later))
    own = scan_changes(since, until, wanted, groups, before=False, under=newest.state, every_group=bool(referring))
    if own.shape.touched is not None:
        ids = {shape.schema.group_by_name[reference.name].id for reference in used}
        shape = replace(shape, touched=own.shape.touched | ids)
    after = _side(until, newest, wanted, groups, later, used)
    first = None
    if since is not None:
        read = {*shape.earlier, *foreign_keys, *schema.key}
        first = _side(since, newest, [name for name in wanted if name in read], groups, earlier, used)
    required_references = tuple(name for name in required if name in schema.reference_by_name)
    return JoinedChangeScan(
        shape, used, required_references, own.without_tasks(), tuple(referring), first, after, own.tasks
    )


def _referenced(
    snapshot: Snapshot, used: Sequence[Reference], newest: Snapshot, unseen: Collection[str]
) -> dict[str, Snapshot]:
    """The snapshots of the referenced tables that belong to a snapshot, under their newest schemas."""
    return {
        reference.name: under_schema(snapshot.of_reference(reference.name), newest.of_reference(reference.name).state)
        for reference in used
        if reference.name in snapshot.table_schema.reference_by_name and reference.name not in unseen
    }


def _side(
    snapshot: Snapshot,
    newest: Snapshot,
    columns: Sequence[str],
    groups: Sequence[str],
    referenced: Mapping[str, Snapshot],
    used: Sequence[Reference],
) -> _Side:
    request = ScanRequest(columns, require=groups, arrivals=True)
    scan = under_schema(snapshot, newest.state).choose_slices(request).without_tasks()
    rows = {}
    for reference in used:
        if reference.name in referenced:
            other = referenced[reference.name]
            wanted = list(dict.fromkeys((*other.table_schema.key, *reference.columns)))
            rows[reference.name] = ReferenceRows(plan_scan(other, ScanRequest(wanted)))
    return _Side(scan, rows)


def _find_referring(
    until: Snapshot,
    newest: Snapshot,
    used: Sequence[Reference],
    earlier: Mapping[str, Snapshot],
    later: Mapping[str, Snapshot],
) -> Iterator[_Referring]:
    """Those references whose table has changes, or that only one of the snapshots has."""
    table = under_schema(until, newest.state)
    for reference in used:
        ends = (earlier.get(reference.name), later.get(reference.name))
        first, last = ends if ends[1] is not None else (None, ends[0])
        if last is None:
            continue
        with _of_reference(reference):
            changes = scan_changes(first, last, list(reference.columns), None, before=False)
        if changes.tasks:
            wanted = list(dict.fromkeys((*table.table_schema.key, *reference.on)))
            request = ScanRequest(wanted, parse_filter(pc.field(reference.on[0]).is_valid()))
            yield _Referring(reference.on, changes, table.choose_slices(request).without_tasks())


@contextlib.contextmanager
def _of_reference(reference: Reference) -> Iterator[None]:
    """Name the reference in errors of the changes of its table."""
    try:
        yield
    except (OffsetExpired, OffsetInvalidated, InvalidInput) as error:
        raise type(error)(f"reference {reference.name!r}: {error.message}", hint=error.hint) from error


def _check_same(since: Snapshot | None, reference: Reference) -> None:
    """Check that a reference of the earlier snapshot refers to the same table by the same columns.

    Raises:
        OffsetInvalidated: It does not.
    """
    known = since.table_schema.reference_by_name.get(reference.name) if since is not None else None
    if known is not None and replace(known, columns=reference.columns, prefix=reference.prefix) != reference:
        now = f"{reference.table} by {', '.join(reference.on)}"
        if known.table_id != reference.table_id:
            now = f"another table at {now}"
        raise OffsetInvalidated(
            f"reference {reference.name!r} has referred to {known.table} by {', '.join(known.on)}, and now refers to "
            f"{now}",
            hint="read the table from its beginning, and continue from the cut of that snapshot",
        )


def joined_shape(
    newest: Snapshot, columns: Sequence[str] | None, require: Sequence[str] | None, *, before: bool
) -> ChangeShape:
    """Columns of the changes under the schemas of a snapshot. Other arguments as in `plan_joined_changes`.

    Raises:
        NotFound: The table has no such column, group or reference; or there is no referenced table.
    """
    check_required(newest.table_schema, tuple(require or ()))
    used = _used(newest.table_schema, columns, require or ())
    return ChangeShape.of(_with_references(newest, used), columns, before=before)


def _with_references(until: Snapshot, used: Sequence[Reference]) -> TableSchema:
    """The schema of the table with a column group for each reference."""
    schema = until.table_schema
    columns, groups = list(schema.columns), list(schema.groups)
    for reference in used:
        other = until.of_reference(reference.name).table_schema
        for name, column in zip(reference.shown, reference.columns, strict=True):
            columns.append(Column(len(columns) + 1, name, other.column_by_name[column].type))
        groups.append(Group(groups[-1].id + 1, reference.name, reference.shown, (), "latest"))
    return replace(schema, columns=tuple(columns), groups=tuple(groups), references=())
