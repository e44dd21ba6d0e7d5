"""Rewrite: changes the values of a column at a cut, beside live writers (PROTOCOL.md, "Rewrite", X6).

It is a compaction of all file groups whose slices have other values with the same versions. So an event after the cut
wins or loses against a changed value exactly as it would have against the old one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from storage.core.modes import mode_of
from storage.core.modes.latest import Latest
from storage.core.modes.partial import LatestNonNull
from storage.core.schema.table_schema import TableSchema
from storage.errors import Conflict, InvalidInput, SnapshotExpired
from storage.log.table_log import TableLog
from storage.read.snapshot import Snapshot
from storage.services.compaction import Rewriting, rewrite
from storage.services.rewriting_feature import add_rewriting_feature
from storage.services.row_change import Function, NewValues
from storage.services.service_plan import open_plan
from storage.services.tasks import Execute, one_by_one

MAX_TRIES: Final = 10  # each is lost only to another service that published first


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The result of a rewrite.

    Attributes:
        cut: What was rewritten: values of commits up to this cut.
        entry: Slot of the BASE; 0 if the table has no rows.
        file_groups: File groups that were rewritten.
        rows: Visible rows in them.
        seconds: Wall-clock time.
    """

    cut: str
    entry: int
    file_groups: int
    rows: int
    seconds: float


def rewrite_column(
    table_log: TableLog, column: str, function: Function, *, note: str = "", execute: Execute = one_by_one
) -> RewriteResult:
    """Replace the values of a column by those of a function, in all rows that were committed before the call.

    Versions stay as they are: a later event wins if it would have won without the rewrite. What is committed after the
    cut in the result has its own values. Earlier snapshots show the old values until they expire; a restore to one
    brings them back. All file groups are rewritten at once, or none: after an error nothing has changed.

    Args:
        table_log: The table's log.
        column: A value column of a group that is merged by `latest` or `latest_non_null`.
        function: Gets the values that are not NULL as an array, and returns as many new ones; NULLs stay.
        note: A text that the log records.
        execute: Runs the tasks; by default in this process, one file group at a time.

    Raises:
        NotFound: The table has no such column.
        InvalidInput: The column is in the key, orders events or is aggregated, or see `NewValues.apply`.
        Conflict: Other services published first in every attempt.
        CorruptData: A file is missing or damaged.
    """
    started = time.monotonic()
    check_rewritable(table_log.refresh().schema, column)
    add_rewriting_feature(table_log)
    why = f"rewrite of {column}" + (f": {note}" if note else "")
    rewriting = Rewriting(why, NewValues(column, function), whole=True)
    for _ in range(MAX_TRIES):
        snapshot = Snapshot(table_log, *table_log.newest_cut())
        if not snapshot.slices:
            return RewriteResult(str(snapshot.cut), 0, 0, 0, time.monotonic() - started)
        try:
            with open_plan(table_log, snapshot.cut, len(snapshot.slices)) as plan:
                result, entry = rewrite(table_log, snapshot, plan, snapshot.slices, rewriting, execute=execute)
        except (Conflict, SnapshotExpired):
            continue  # a restore, an erase or a clean came between
        if entry:
            seconds = time.monotonic() - started
            return RewriteResult(str(snapshot.cut), entry, len(result.done), result.rows, seconds)
    raise Conflict(
        f"other compactions, folds or restores published first in each of {MAX_TRIES} attempts",
        hint="run it again; stop other compactions if this happens again",
    )


def check_rewritable(schema: TableSchema, name: str) -> None:
    """Refuse a column whose values decide something else, or are computed from state.

    Raises:
        NotFound, InvalidInput: See `rewrite_column`.
    """
    schema.column(name)
    if name in schema.key:
        raise InvalidInput(f"column {name!r} is in the key, which never changes", hint="write rows with other keys")
    group = schema.group_of_column[name]
    if name in group.ordering:
        raise InvalidInput(f"column {name!r} orders the events of group {group.name!r}", hint="choose a value column")
    if not isinstance(mode_of(group), Latest | LatestNonNull):
        raise InvalidInput(
            f"group {group.name!r} is merged by {group.merge!r}: its values are computed from state",
            hint="columns of groups with latest or latest_non_null can be rewritten",
        )
