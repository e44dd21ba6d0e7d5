"""Expire rows: remove the visible rows in which a column is before a limit."""

from __future__ import annotations

from typing import Annotated, Final

from weft.storage.operations.operation import Face, Finished, Operation, Request
from weft.storage.operations.rewrites import REWRITING_COLUMNS, Note, rewriting_rows
from weft.storage.plural import counted
from weft.storage.services.rewrite import RewriteResult
from weft.storage.table import Table


class ExpireRowsRequest(Request):
    """Remove the visible rows in which a column is before a limit. Writers go on.

    Run it once a day for a time to live. All groups of these rows are removed; later events of their keys are new
    data. weft clean deletes the old files.
    """

    column: Annotated[str, Face(argument=True, completes="column_names")]
    """A column with values to compare, for example a time."""
    before: str
    """Remove rows with a smaller value: a number, or a time (ISO 8601)."""
    note: Note = ""


def _describe(finished: Finished[ExpireRowsRequest, RewriteResult]) -> str:
    result, request = finished.result, finished.request
    rows = counted(result.rows, "row")
    return f"{rows} with {request.column} before {request.before} removed, up to {result.cut}"


EXPIRE_ROWS: Final = Operation(
    name="expire_rows",
    request=ExpireRowsRequest,
    question=lambda request, table: (
        f"Remove rows with {request.column} before {request.before} from {table}? This cannot be undone."
    ),
    describe=_describe,
    columns=REWRITING_COLUMNS,
    rows=rewriting_rows,
    examples=("weft expire-rows lake/orders_wide order_ts --before 2025-01-01T00:00:00Z",),
    stage="rewriting",
    method=Table.expire_rows,
)
