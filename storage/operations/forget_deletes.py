"""Forget deletes: drop old deletes of rows that have no other data."""

from __future__ import annotations

from typing import Annotated, Final

from weft.storage.operations.operation import Face, Finished, Operation, Request
from weft.storage.operations.rewrites import REWRITING_COLUMNS, Note, rewriting_rows
from weft.storage.plural import counted
from weft.storage.services.rewrite import RewriteResult
from weft.storage.table import Table


class ForgetDeletesRequest(Request):
    """Forget old deletes of rows that have no other data. Use it only if no older event of the group will arrive.

    A later event that is older than a forgotten delete brings its row back. Rows that are hidden by a delete and
    have values in other groups stay. Writers go on.
    """

    group: Annotated[str, Face(argument=True, completes="group_names")]
    """A group with ordering columns."""
    before: str
    """Forget deletes with a smaller first ordering value: a number, or a time (ISO 8601)."""
    note: Note = ""


def _describe(finished: Finished[ForgetDeletesRequest, RewriteResult]) -> str:
    result, request = finished.result, finished.request
    deletes = counted(result.deletes, "delete")
    return f"{deletes} of {request.group} before {request.before} forgotten, up to {result.cut}"


FORGET_DELETES: Final = Operation(
    name="forget_deletes",
    request=ForgetDeletesRequest,
    question=lambda request, table: (
        f"Forget deletes of {request.group} before {request.before} in {table}? This cannot be undone."
    ),
    describe=_describe,
    columns=REWRITING_COLUMNS,
    rows=rewriting_rows,
    examples=("weft forget-deletes lake/orders_wide order --before 2025-01-01T00:00:00Z",),
    stage="rewriting",
    method=Table.forget_deletes,
)
