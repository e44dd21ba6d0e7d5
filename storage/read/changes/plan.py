"""Plans the changes between two snapshots, with or without the columns of references; for `Table.changes` and engines.

The changes of a table with references are rows that differ in their own columns, or in what a reference shows (D1,
M11). A row can differ only if it has changed itself, or if the row of a referenced table has changed that its foreign
key names. So each task compares the rows with keys that were committed in between, and those whose foreign key is among
the changed keys of a referenced table: these are found by a scan of the foreign keys alone, if that table has changed
at all. Both sides are read by key, joined, and compared like rows of one table in which each reference is a column
group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.merge.diff import ChangeShape
from weft.storage.core.model import Column, Group, Reference
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import OffsetInvalidated
from weft.storage.read.changes.change_scan import ChangeScan, Referring, Side, expiring, scan_changes, under_schema
from weft.storage.read.references.reference_rows import ReferenceRows
from weft.storage.read.references.referenced_table import naming
from weft.storage.read.request.filter_input import parse_filter
from weft.storage.read.request.projection import check_required
from weft.storage.read.request.scan_request import ScanRequest
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


def change_schema(
    newest: Snapshot, columns: Sequence[str] | None, require: Sequence[str] | None = None, *, before: bool
) -> pa.Schema:
    """Columns of the changes of a table, under the schemas of a snapshot; other arguments as in `plan_changes`.

    Raises:
        NotFound: The table has no such column, group or reference; or there is no referenced table.
    """
    return _shape(newest, columns, require, before=before).arrow


@expiring()
def plan_changes(
    since: Snapshot | None,
    until: Snapshot,
    columns: Sequence[str] | None,
    require: Sequence[str] | None,
    *,
    before: bool,
    under: Snapshot | None = None,
    unseen: tuple[Collection[str], Collection[str]] = ((), ()),
) -> ChangeScan:
    """Plan the changes between two snapshots of a table.

    Args:
        since: The earlier snapshot; None to get every row of the later one as an insert.
        until: The later snapshot.
        columns: Columns of the result besides the key, also those of references; None for all. A row has changed if it
            differs in them.
        require: Names of groups and references that must be present in a row; other rows count as absent.
        before: Add the struct column ``_before`` with the earlier row.
        under: A still later snapshot, whose schemas are used instead of those of ``until``.
        unseen: References that the consumer does not see in the earlier and in the later snapshot: rows show NULL.

    Raises:
        InvalidInput: ``since`` is not before ``until``.
        NotFound: The table has no such column, group or reference; or there is no referenced table.
        OffsetExpired: One of the snapshots of the tables has expired.
        OffsetInvalidated: One of the tables was restored in between, or a reference refers to another table since.
    """
    newest = under or until
    schema, required = newest.table_schema, tuple(dict.fromkeys(require or ()))
    used = _used(schema, columns, required)
    if not used:
        return scan_changes(since, until, columns, require, before=before, under=newest.state)
    for reference in used:
        _check_same(None if reference.name in unseen[0] else since, reference)
        _check_same(None if reference.name in unseen[1] else until, reference)
    shape = _shape(newest, columns, required, before=before)
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
    first = None
    if since is not None:
        read = {*shape.earlier, *foreign_keys, *schema.key}
        request = ScanRequest([name for name in wanted if name in read], require=groups, arrivals=True)
        scan = under_schema(since, newest.state).choose_slices(request).without_tasks()
        first = _side(scan, earlier, used)
    return ChangeScan(
        shape,
        first,
        _side(own.after.scan, later, used),
        own.tasks,
        used,
        tuple(name for name in required if name in schema.reference_by_name),
        tuple(referring),
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


def _side(scan: Scan, referenced: Mapping[str, Snapshot], used: Sequence[Reference]) -> Side:
    rows = {}
    for reference in used:
        if reference.name in referenced:
            other = referenced[reference.name]
            wanted = list(dict.fromkeys((*other.table_schema.key, *reference.columns)))
            rows[reference.name] = ReferenceRows(plan_scan(other, ScanRequest(wanted)))
    return Side(scan, rows)


def _find_referring(
    until: Snapshot,
    newest: Snapshot,
    used: Sequence[Reference],
    earlier: Mapping[str, Snapshot],
    later: Mapping[str, Snapshot],
) -> Iterator[Referring]:
    """Those references whose table has changes, or that only one of the snapshots has."""
    table = under_schema(until, newest.state)
    for reference in used:
        ends = (earlier.get(reference.name), later.get(reference.name))
        first, last = ends if ends[1] is not None else (None, ends[0])
        if last is None:
            continue
        with naming(reference):
            changes = scan_changes(first, last, list(reference.columns), None, before=False)
        if changes.tasks:
            wanted = list(dict.fromkeys((*table.table_schema.key, *reference.on)))
            request = ScanRequest(wanted, parse_filter(pc.field(reference.on[0]).is_valid()))
            yield Referring(reference.on, changes, table.choose_slices(request).without_tasks())


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


def _shape(
    newest: Snapshot, columns: Sequence[str] | None, require: Sequence[str] | None, *, before: bool
) -> ChangeShape:
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
