"""Rewrite: changes values, forgets old deletes, or removes old rows, while writers run (PROTOCOL.md, "Rewrite").

It is a compaction of all file groups whose new slices have other values with the same versions. So an event after the
cut wins or loses against a changed value exactly as against the old one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from weft.storage.core.log.features import ERASE, REWRITTEN
from weft.storage.core.modes import mode_of
from weft.storage.core.modes.latest import Latest
from weft.storage.core.modes.partial import LatestNonNull
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import encode_scalar
from weft.storage.errors import InvalidInput
from weft.storage.log.schema_entry import add_feature
from weft.storage.log.table_log import TableLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.compaction.compaction import Rewriting, rewrite
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.services.steps.row_change import Function, NewValues, WithoutOldDeletes, WithoutOldRows
from weft.storage.services.steps.service_plan import open_plan, retry_on_newest
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.shown import Shown


@dataclass(frozen=True, slots=True)
class RewriteResult(Shown):
    """The result of a rewrite.

    Attributes:
        cut: The result of all commits up to this cut was rewritten.
        entry: Slot of the BASE; 0 if the table has no rows.
        file_groups: File groups that were rewritten.
        rows: Visible rows that were rewritten or, by `expire_rows` and `forget_deletes`, removed.
        deletes: Hidden rows that were removed: keys with deletes only. 0 after a rewrite of a column.
        seconds: Wall-clock time.
    """

    cut: str
    entry: int
    file_groups: int
    rows: int
    deletes: int
    seconds: float


def new_values(schema: TableSchema, column: str, function: Function) -> Rewriting:
    """Replace the values of a column, see `weft.Table.rewrite`."""
    check_rewritable(schema, column)
    return Rewriting(f"rewrite of {column}", NewValues(column, function), all_or_nothing=True)


def without_old_deletes(schema: TableSchema, group: str, before: object) -> Rewriting:
    """Forget old deletes of a group, see `weft.Table.forget_deletes`."""
    limit = _limit(schema, group, before)
    description = f"forgetting deletes of {group} before {encode_scalar(limit)}"
    return Rewriting(description, WithoutOldDeletes(group, limit), all_or_nothing=True)


def without_old_rows(schema: TableSchema, column: str, before: object) -> Rewriting:
    """Remove rows by the value of a column, see `weft.Table.expire_rows`."""
    kind = schema.column(column).type
    group = schema.group_of_column.get(column)
    if group is None or not isinstance(mode_of(group), Latest | LatestNonNull) or pa.types.is_nested(kind):
        raise InvalidInput(
            f"rows cannot expire by column {column!r}",
            hint="choose a column that is not nested, of a group with latest or latest_non_null",
        )
    limit = _cast_limit(column, kind, before)
    description = f"expiry of rows with {column} before {encode_scalar(limit)}"
    return Rewriting(description, WithoutOldRows(column, limit), all_or_nothing=True)


def _limit(schema: TableSchema, name: str, before: object) -> Any:
    """Cast the limit to the type of the group's first ordering column. Raises as `forget_deletes` does."""
    group = schema.group(name)
    if not group.ordering or not isinstance(mode_of(group), Latest | LatestNonNull):
        raise InvalidInput(
            f"group {name!r} has no deletes with ordering values", hint="choose a group with ordering columns"
        )
    return _cast_limit(group.ordering[0], schema.column(group.ordering[0]).type, before)


def _cast_limit(column: str, kind: pa.DataType, before: object) -> Any:
    """Cast a limit to the type of a column.

    Raises:
        InvalidInput: It is None, or of another type.
    """
    try:
        limit = pa.scalar(before).cast(kind).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        example = ", for example 2026-11-20T10:30:00Z" if pa.types.is_timestamp(kind) and kind.tz else ""
        hint = f"give a value of column {column!r}{example}"
        raise InvalidInput(f"{before!r} is not a {kind}: {error}", hint=hint) from error
    if limit is None:
        raise InvalidInput("the limit is missing", hint=f"give a value of column {column!r}")
    return limit


def rewrite_all(
    table_log: TableLog,
    request: Callable[[TableSchema], Rewriting],
    note: str = "",
    execute: Execute = one_by_one,
    progress: OnStage = unobserved,
) -> RewriteResult:
    """Rewrite all file groups in one BASE, or none of them (rule X6).

    Args:
        table_log: The log of the table.
        request: Checks the request against the newest schema, and returns the rewriting.
        note: A text to record in the log.
        execute: Runs the tasks; by default in this process, one file group at a time.
        progress: Called during the work with the stored bytes that were read.
    """
    rewriting = request(table_log.refresh().schema)
    if note:
        rewriting = replace(rewriting, description=f"{rewriting.description}: {note}")
    start_time = time.monotonic()
    add_feature(table_log, ERASE, REWRITTEN)

    def attempt(snapshot: Snapshot, reserve_ms: int) -> RewriteResult | None:
        if not snapshot.slices:
            return RewriteResult(str(snapshot.cut), 0, 0, 0, 0, time.monotonic() - start_time)
        with open_plan(table_log, snapshot.cut, len(snapshot.slices), reserve_ms) as plan:
            outcome = rewrite(table_log, snapshot, plan, snapshot.slices, rewriting, execute=execute, progress=progress)
        seconds, result = time.monotonic() - start_time, outcome.result
        if not outcome.entry:
            return None
        rows = result.rows if isinstance(rewriting.change, NewValues) else outcome.visible_left_out
        return RewriteResult(str(snapshot.cut), outcome.entry, len(result.done), rows, outcome.hidden_left_out, seconds)

    return retry_on_newest(table_log, attempt)[1]


def check_rewritable(schema: TableSchema, name: str) -> None:
    """Refuse a column that is part of the key, orders events, or is computed from state.

    Raises:
        NotFound, InvalidInput: See `weft.Table.rewrite`.
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
            hint="choose a column of a group with latest or latest_non_null",
        )
