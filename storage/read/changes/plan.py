"""Plans the changes between two snapshots, with or without the columns of references; for `Table.changes` and engines.

The changes of a table with references are rows that differ in their own columns, or in columns of a reference
(PROTOCOL.md, D1; MERGE.md, M11). A row can differ only if it has changed itself, or if its foreign key names a changed
row of a referenced table. So each task compares the rows with keys that were committed in between, and those whose
foreign key is among the changed keys of a referenced table. A scan of the foreign keys alone finds the latter, if that
table has changed at all. Both sides are read by key, joined, and compared like rows of one table in which each
reference is a column group.
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
    """Whether changes depend on referenced tables.

    Args:
        schema: The schema of the later snapshot.
        columns: Columns of the result besides the key; None for all.
        require: Names of groups and references that must be present in a row.
    """
    return bool(_used_references(schema, columns, require or ()))


def _used_references(
    schema: TableSchema, columns: Collection[str] | None, require: Collection[str]
) -> tuple[Reference, ...]:
    return tuple(
        reference
        for reference in schema.references
        if columns is None or reference.name in require or not set(reference.shown_names).isdisjoint(columns)
    )


def change_schema(
    newest: Snapshot, columns: Sequence[str] | None, require: Sequence[str] | None = None, *, before: bool
) -> pa.Schema:
    """Columns of the changes of a table, with the schemas of a snapshot; other arguments as in `plan_changes`.

    Raises:
        NotFound: A column, group, reference or referenced table does not exist.
    """
    return _build_shape(newest, columns, require, before=before).arrow


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
            differs in these columns.
        require: Names of groups and references that must be present in a row; other rows count as absent.
        before: Add the struct column ``_before`` with the earlier row.
        under: A still later snapshot, whose schemas are used instead of those of ``until``.
        unseen: References that the consumer does not see in the earlier and in the later snapshot: their columns are
            NULL.

    Raises:
        InvalidInput: ``since`` is not before ``until``.
        NotFound: A column, group, reference or referenced table does not exist.
        OffsetExpired: One of the snapshots of the tables has expired.
        OffsetInvalidated: One of the tables was restored in between, or a reference refers to another table now.
    """
    newest = under or until
    schema, required = newest.table_schema, tuple(dict.fromkeys(require or ()))
    used = _used_references(schema, columns, required)
    if not used:
        return scan_changes(since, until, columns, require, before=before, under=newest.state)
    for reference in used:
        _check_same(None if reference.name in unseen[0] else since, reference)
        _check_same(None if reference.name in unseen[1] else until, reference)
    shape = _build_shape(newest, columns, required, before=before)
    groups = [name for name in required if name in schema.group_by_name]
    foreign_keys = [name for reference in used for name in reference.on]
    own_columns = (name for name in shape.columns if name in schema.column_by_name)
    read_columns = list(dict.fromkeys((*schema.key, *own_columns, *foreign_keys)))
    earlier = {} if since is None else _referenced_snapshots(since, used, newest, unseen[0])
    later = _referenced_snapshots(until, used, newest, unseen[1])
    referring = [] if since is None else list(_find_referring(until, newest, used, earlier, later))
    own = scan_changes(
        since, until, read_columns, groups, before=False, under=newest.state, every_group=bool(referring)
    )
    if own.shape.touched is not None:
        ids = {shape.schema.group_by_name[reference.name].id for reference in used}
        shape = replace(shape, touched=own.shape.touched | ids)
    first = None
    if since is not None:
        earlier_columns = {*shape.earlier, *foreign_keys, *schema.key}
        request = ScanRequest([name for name in read_columns if name in earlier_columns], require=groups, arrivals=True)
        scan = under_schema(since, newest.state).choose_slices(request).without_tasks()
        first = _build_side(scan, earlier, used)
    return ChangeScan(
        shape,
        first,
        _build_side(own.after.scan, later, used),
        own.tasks,
        used,
        tuple(name for name in required if name in schema.reference_by_name),
        tuple(referring),
    )


def _referenced_snapshots(
    snapshot: Snapshot, used: Sequence[Reference], newest: Snapshot, unseen: Collection[str]
) -> dict[str, Snapshot]:
    """The snapshots of the referenced tables that belong to a snapshot, under their newest schemas."""
    return {
        reference.name: under_schema(snapshot.of_reference(reference.name), newest.of_reference(reference.name).state)
        for reference in used
        if reference.name in snapshot.table_schema.reference_by_name and reference.name not in unseen
    }


def _build_side(scan: Scan, referenced: Mapping[str, Snapshot], used: Sequence[Reference]) -> Side:
    rows = {}
    for reference in used:
        if reference.name in referenced:
            other = referenced[reference.name]
            columns = list(dict.fromkeys((*other.table_schema.key, *reference.columns)))
            rows[reference.name] = ReferenceRows(plan_scan(other, ScanRequest(columns)))
    return Side(scan, rows)


def _find_referring(
    until: Snapshot,
    newest: Snapshot,
    used: Sequence[Reference],
    earlier: Mapping[str, Snapshot],
    later: Mapping[str, Snapshot],
) -> Iterator[Referring]:
    """The references whose table has changes, or that only one of the snapshots has."""
    table = under_schema(until, newest.state)
    for reference in used:
        ends = (earlier.get(reference.name), later.get(reference.name))
        first, last = ends if ends[1] is not None else (None, ends[0])
        if last is None:
            continue
        with naming(reference):
            changes = scan_changes(first, last, list(reference.columns), None, before=False)
        if changes.tasks:
            columns = list(dict.fromkeys((*table.table_schema.key, *reference.on)))
            request = ScanRequest(columns, parse_filter(pc.field(reference.on[0]).is_valid()))
            yield Referring(reference.on, changes, table.choose_slices(request).without_tasks())


def _check_same(since: Snapshot | None, reference: Reference) -> None:
    """Check that a reference of the earlier snapshot refers to the same table by the same columns.

    Raises:
        OffsetInvalidated: It refers to another table, or by other columns.
    """
    earlier = since.table_schema.reference_by_name.get(reference.name) if since is not None else None
    if earlier is not None and replace(earlier, columns=reference.columns, prefix=reference.prefix) != reference:
        now = f"{reference.table} by {', '.join(reference.on)}"
        if earlier.table_id != reference.table_id:
            now = f"another table at {now}"
        raise OffsetInvalidated(
            f"reference {reference.name!r} referred to {earlier.table} by {', '.join(earlier.on)}, and now refers to "
            f"{now}",
            hint="read the table from its beginning, and continue from the cut of that snapshot",
        )


def _build_shape(
    newest: Snapshot, columns: Sequence[str] | None, require: Sequence[str] | None, *, before: bool
) -> ChangeShape:
    check_required(newest.table_schema, tuple(require or ()))
    used = _used_references(newest.table_schema, columns, require or ())
    return ChangeShape.of(_with_references(newest, used), columns, before=before)


def _with_references(until: Snapshot, used: Sequence[Reference]) -> TableSchema:
    """The schema of the table with a column group for each reference."""
    schema = until.table_schema
    columns, groups = list(schema.columns), list(schema.groups)
    for reference in used:
        other = until.of_reference(reference.name).table_schema
        for name, column in zip(reference.shown_names, reference.columns, strict=True):
            columns.append(Column(len(columns) + 1, name, other.column_by_name[column].type))
        groups.append(Group(groups[-1].id + 1, reference.name, reference.shown_names, (), "latest"))
    return replace(schema, columns=tuple(columns), groups=tuple(groups), references=())
