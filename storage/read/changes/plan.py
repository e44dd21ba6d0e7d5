"""Plans the changes between two snapshots, with or without the columns of references; for `Table.changes` and engines.

A consumer of changes goes from cut to cut. With columns of references a cut names the cuts of all tables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from weft.storage.core.log.cut import Cut, JoinedCut, parse_cut
from weft.storage.read.changes.bounded_cut import bounded_cut
from weft.storage.read.changes.change_scan import ChangeScan, expiring, is_after, scan_changes
from weft.storage.read.changes.joined import joined_shape, plan_joined_changes, shows_references
from weft.storage.read.snapshot import Snapshot


def change_schema(
    newest: Snapshot, columns: Sequence[str] | None, require: Sequence[str] | None = None, *, before: bool
) -> pa.Schema:
    """Columns of the changes of a table, under the schemas of a snapshot; other arguments as in `plan_changes`.

    Raises:
        NotFound: The table has no such column, group or reference; or there is no referenced table.
    """
    return joined_shape(newest, columns, require, before=before).arrow


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
    with expiring():
        if shows_references(newest.table_schema, columns, require):
            return plan_joined_changes(since, until, columns, require, before=before, under=newest, unseen=unseen)
        return scan_changes(since, until, columns, require, before=before, under=newest.state)


def referenced_cuts(at: str) -> frozenset[str]:
    """Names of the references whose cuts are in the text of a cut."""
    return frozenset(parse_cut(at).references)


def follows(since: str, until: Snapshot) -> bool:
    """Whether a snapshot has everything that the text of an earlier cut has; a restore may be in between."""
    return is_after(parse_cut(since), until)


def advance_cut(since: Snapshot, until: Snapshot, commits: int) -> Cut:
    """The cut of a snapshot between two others of a table, with about ``commits`` commits more than the earlier one.

    Only commits of the table itself are counted. The cuts of the referenced tables are those of the later snapshot:
    every row is seen with the referenced rows that were committed before it.

    Raises:
        InvalidInput, OffsetInvalidated: See `weft.storage.read.changes.change_scan.check_order`.
    """
    end, last = bounded_cut(since, until, commits), until.cut
    return JoinedCut(end.table, end.lanes, last.references) if isinstance(last, JoinedCut) else end
