"""Undo: roll back what one stream has committed."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Final

from weft.storage.errors import Conflict, InvalidInput
from weft.storage.operations.operation import Context, Face, Operation, Request
from weft.storage.operations.points import PARSED_POINT, Point
from weft.storage.operations.rollbacks import ROLLBACK_COLUMNS, describe_rollback, rollback_rows
from weft.storage.table import Table
from weft.storage.table_facts import clock_lead_ms


class UndoRequest(Request):
    """Roll back what one stream has committed since a time, a cut or a savepoint; other streams are not affected.

    Reports commits that were kept only because a writer's clock says that they are older. With a cut or a savepoint
    there are none.
    """

    stream: Annotated[str, Face(argument=True, completes="stream_names")]
    """The stream."""
    since: Annotated[Point, PARSED_POINT, Face(type=str, completes="savepoints")]
    """A time (ISO 8601 with zone), a cut or a savepoint: later commits are rolled back."""


def _check(request: UndoRequest, _: Context) -> None:
    since = request.since
    if isinstance(since, dt.datetime) and since > dt.datetime.now(dt.UTC):
        raise InvalidInput(f"nothing can have been committed since {since.isoformat()}", hint="use a time in the past")


def _prepare(table: Table, request: UndoRequest, context: Context) -> UndoRequest:
    since = request.since
    table.schema.stream(request.stream)
    if isinstance(since, str):
        with context.naming():
            table.snapshot(since)
    elif ahead_ms := clock_lead_ms(table):
        raise Conflict(
            f"the newest entry of the table lane was written by a clock that is {dt.timedelta(milliseconds=ahead_ms)} "
            "ahead of this machine's: times cannot tell its commits apart",
            hint="undo since a cut or a savepoint instead: weft show URI timeline; and set the clocks of all machines",
        )
    return request


UNDO: Final = Operation(
    name="undo",
    request=UndoRequest,
    check=_check,
    prepare=_prepare,
    question=lambda request, table: f"Undo {request.stream} since {request.since} in {table}? Its writer is fenced.",
    describe=lambda finished: describe_rollback("undone", finished.result),
    columns=ROLLBACK_COLUMNS,
    rows=rollback_rows,
    examples=(
        "weft undo lake/orders_wide payments --since 2026-11-20T10:00:00Z",
        "weft undo lake/orders_wide payments --since before_migration --yes",
    ),
    method=Table.undo,
)
