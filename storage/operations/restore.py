"""Restore: bring a table back to a snapshot."""

from __future__ import annotations

from typing import Annotated, Final

from weft.storage.operations.operation import Context, Face, Operation, Request
from weft.storage.operations.points import PARSED_POINT, Point
from weft.storage.operations.rollbacks import ROLLBACK_COLUMNS, describe_rollback, rollback_rows
from weft.storage.table import Table


class RestoreRequest(Request):
    """Restore a table to a snapshot. Fences all writers; later commits are rolled back, and no file is deleted."""

    to: Annotated[
        Point, PARSED_POINT, Face(type=str, argument=True, metavar="SAVEPOINT|TIME|CUT", completes="savepoints")
    ]
    """The snapshot to restore."""


def _prepare(table: Table, request: RestoreRequest, _: Context) -> RestoreRequest:
    table.snapshot(request.to)
    return request


RESTORE: Final = Operation(
    name="restore",
    request=RestoreRequest,
    prepare=_prepare,
    question=lambda request, table: f"Restore {table} to {request.to}? Every writer is fenced.",
    describe=lambda finished: describe_rollback("restored", finished.result),
    columns=ROLLBACK_COLUMNS,
    rows=rollback_rows,
    examples=(
        "weft restore lake/orders_wide before_migration",
        "weft restore lake/orders_wide 2026-11-20T10:00:00Z --yes",
    ),
    method=Table.restore,
)
