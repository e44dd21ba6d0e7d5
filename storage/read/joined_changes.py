"""Changes of a table with references: rows that differ in their own columns, or in what a reference shows (D1, M11).

A row can differ only if it has changed itself, or if the row of a referenced table has changed that its foreign key
names. So the candidates are the changed rows of the table, and the rows whose foreign key is among the changed keys of
a referenced table: these are found by a scan of the foreign keys alone. Both sides of the candidates are read by key,
joined, and compared like rows of one table in which each reference is a column group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import names
from storage.core.arrays import Arrays
from storage.core.keys import KeyVector, one_array
from storage.core.log.file_refs import FileGroup
from storage.core.merge.diff import ChangeShape, diff
from storage.core.merge.locate_keys import key_columns, locate_keys
from storage.core.model import Column, Group, Reference
from storage.core.schema.table_schema import TableSchema
from storage.errors import OffsetInvalidated
from storage.read.changes import scan_changes, under_schema
from storage.read.joined_scan import check_required
from storage.read.plan_scan import plan_scan
from storage.read.pruning import Keys
from storage.read.reference_rows import KeyedRows, ReferenceRows
from storage.read.scan import Scan
from storage.read.scan_request import ScanRequest
from storage.read.snapshot import Snapshot

KEYS_AT_ONCE: Final = 256 * 1024
"""Candidates whose rows are compared at a time: more only if one file group has more."""


def shows_references(until: Snapshot, columns: Sequence[str] | None, require: Sequence[str] | None) -> bool:
    """Whether changes have to be compared with those of referenced tables. Arguments as in `joined_changes`."""
    schema = until.table_schema
    shown = {name for reference in schema.references for name in reference.shown}
    asked = schema.references if columns is None else shown.intersection(columns)
    return bool(asked) or any(name in schema.reference_by_name for name in require or ())


def joined_changes(
    since: Snapshot | None,
    until: Snapshot,
    columns: Sequence[str] | None,
    require: Sequence[str] | None,
    *,
    before: bool,
) -> pa.RecordBatchReader:
    """The changes between two snapshots of a table with references. Arguments as in `storage.Table.changes`.

    Raises:
        InvalidInput: ``since`` is not before ``until``.
        NotFound: The table has no such column, group or reference; or there is no referenced table.
        OffsetExpired: One of the snapshots of the tables has expired.
        OffsetInvalidated: One of the tables was restored in between, or a reference refers to another table since.
    """
    work = _Work.of(since, until, columns, require, before=before)
    batches = chain.from_iterable(work.compare(wanted) for wanted in work.candidates())
    return pa.RecordBatchReader.from_batches(work.shape.arrow, batches)


@dataclass(frozen=True)
class _Side:
    """One of the two snapshots, under the schema of the later one.

    Attributes:
        snapshot: The snapshot of the table.
        references: The snapshots of the referenced tables by reference, and how to read their rows.
    """

    snapshot: Snapshot
    references: Mapping[str, tuple[Snapshot, ReferenceRows]]

    @classmethod
    def of(cls, snapshot: Snapshot, used: Sequence[Reference], until: Snapshot) -> _Side:
        found = {}
        for reference in used:
            if reference.name in snapshot.table_schema.reference_by_name:
                later = until.of_reference(reference.name)
                other = under_schema(snapshot.of_reference(reference.name), later.state)
                wanted = list(dict.fromkeys((*later.table_schema.key, *reference.columns)))
                rows = ReferenceRows(plan_scan(other.table_files, ScanRequest(wanted)))
                found[reference.name] = (other, rows)
        return cls(under_schema(snapshot, until.state), found)


@dataclass(frozen=True)
class _Work:
    """What is compared.

    Attributes:
        shape: Columns of the result, over a schema in which each used reference is a column group.
        used: The references whose changes count.
        require: Names of the groups and references that must be present in a row.
        earlier: The earlier side; None for an empty table.
        later: The later side.
    """

    shape: ChangeShape
    used: tuple[Reference, ...]
    require: tuple[str, ...]
    earlier: _Side | None
    later: _Side

    @classmethod
    def of(
        cls,
        since: Snapshot | None,
        until: Snapshot,
        columns: Sequence[str] | None,
        require: Sequence[str] | None,
        *,
        before: bool,
    ) -> _Work:
        schema, required = until.table_schema, tuple(dict.fromkeys(require or ()))
        check_required(schema, required)
        used = tuple(
            reference
            for reference in schema.references
            if columns is None or reference.name in required or not set(reference.shown).isdisjoint(columns)
        )
        for reference in used:
            _check_same(since, reference)
        shape = ChangeShape.of(_with_references(until, used), columns, before=before)
        earlier = None if since is None else _Side.of(since, used, until)
        return cls(shape, used, required, earlier, _Side.of(until, used, until))

    @cached_property
    def groups(self) -> list[str]:
        """The required groups of the table."""
        return [name for name in self.require if name in self.later.snapshot.table_schema.group_by_name]

    @cached_property
    def columns(self) -> list[str]:
        """The columns of the table that are read: those of the result, the key, and the foreign keys."""
        schema = self.later.snapshot.table_schema
        asked = (name for name in self.shape.columns if name in schema.column_by_name)
        return list(dict.fromkeys((*schema.key, *asked, *(name for reference in self.used for name in reference.on))))

    def candidates(self) -> Iterator[Keys | None]:
        """Keys of rows that can differ, by file group, in parts; None for all rows."""
        if self.earlier is None:
            yield None
            return
        schema = self.later.snapshot.table_schema
        changed = scan_changes(self.earlier.snapshot, self.later.snapshot, self.columns, self.groups, before=False)
        found = [changed.to_reader().read_all().select(schema.key)]
        found += [self._referring(reference) for reference in self.used]
        table = pa.concat_tables(each.cast(found[0].schema) for each in found)
        if not len(table):
            return
        part: dict[FileGroup, KeyVector] = {}
        count = 0
        for group, vector in locate_keys(schema, key_columns(schema, table)).items():
            part[group] = vector
            count += len(vector)
            if count >= KEYS_AT_ONCE:
                yield part
                part, count = {}, 0
        if part:
            yield part

    def _referring(self, reference: Reference) -> pa.Table:
        """The keys of the later rows whose foreign key names a changed row of the referenced table."""
        assert self.earlier is not None, "every row is a candidate"
        later, _ = self.later.references[reference.name]
        earlier = self.earlier.references.get(reference.name)
        changes = scan_changes(earlier[0] if earlier else None, later, list(reference.columns), None, before=False)
        keyed = KeyedRows.of(later.table_schema, changes.to_reader().read_all().select(later.table_schema.key))
        table = self.later.snapshot
        key = list(table.table_schema.key)
        valid = pc.field(reference.on[0]).is_valid()
        scan = plan_scan(table.table_files, ScanRequest(list(dict.fromkeys((*key, *reference.on))), valid))
        parts = []
        for task in scan.tasks if len(keyed.rows) else ():
            for batch in scan.read(task):
                numbers = keyed.find([batch.column(name) for name in reference.on])
                parts.append(batch.filter(numbers.is_valid()).select(key))
        return pa.Table.from_batches(parts, pa.schema([scan.arrow.field(name) for name in key]))

    def compare(self, wanted: Keys | None) -> Iterator[pa.RecordBatch]:
        """The changes of some rows."""
        no_rows = self._joined(self.later, pa.RecordBatch.from_pylist([], self._scan(self.later, {}).arrow))
        earlier = self._rows(self.earlier, wanted) if self.earlier is not None else iter(())
        tables = [pa.table(dict(rows)) for rows in chain([no_rows], earlier)]
        before = pa.concat_tables(tables)
        yield from diff(
            self.shape,
            {name: one_array(before.column(name)) for name in before.schema.names},
            self._rows(self.later, wanted),
        )

    def _scan(self, side: _Side, wanted: Keys | None) -> Scan:
        return plan_scan(
            side.snapshot.table_files, ScanRequest(self.columns, require=self.groups, arrivals=True, keys=wanted)
        )

    def _rows(self, side: _Side, wanted: Keys | None) -> Iterator[Arrays]:
        scan = self._scan(side, wanted)
        for task in scan.tasks:
            for batch in scan.read(task):
                yield self._joined(side, batch)

    def _joined(self, side: _Side, batch: pa.RecordBatch) -> Arrays:
        """Rows of the table with the columns of the references, and an arrival for each as if it were a group."""
        columns: dict[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        keep = np.ones(len(batch), np.bool_)
        for reference in self.used:
            group = self.shape.schema.group_by_name[reference.name]
            if reference.name in side.references:
                _, rows = side.references[reference.name]
                keyed = rows.of([columns[name] for name in reference.on])
                numbers = keyed.find([columns[name] for name in reference.on])
                shown = zip(reference.shown, reference.columns, strict=True)
                columns |= {name: one_array(keyed.rows.column(column).take(numbers)) for name, column in shown}
            else:
                numbers = pa.nulls(len(batch), pa.int64())
                columns |= {name: pa.nulls(len(batch), self.shape.schema.field(name).type) for name in reference.shown}
            columns[names.arrival(group.id)] = numbers
            if reference.name in self.require:
                keep &= np.asarray(numbers.is_valid())
        if keep.all():
            return columns
        places = pa.array(np.flatnonzero(keep))
        return {name: column.take(places) for name, column in columns.items()}


def _check_same(since: Snapshot | None, reference: Reference) -> None:
    """Check that a reference of the earlier snapshot refers to the same table by the same columns.

    Raises:
        OffsetInvalidated: It does not.
    """
    known = since.table_schema.reference_by_name.get(reference.name) if since is not None else None
    if known is not None and replace(known, columns=reference.columns, prefix=reference.prefix) != reference:
        raise OffsetInvalidated(
            f"reference {reference.name!r} has referred to {known.table} by {', '.join(known.on)}, and now refers to "
            f"{reference.table} by {', '.join(reference.on)}",
            hint="read the table from its beginning, and continue from the cut of that snapshot",
        )


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
