"""Rewrite: change the values of a column in all existing rows."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import model_validator

from weft.storage.errors import InvalidInput
from weft.storage.operations.operation import Context, Face, Finished, Operation, Request
from weft.storage.operations.rewrites import REWRITING_COLUMNS, Note, rewriting_rows
from weft.storage.plural import counted
from weft.storage.services.rewrite import RewriteResult, check_rewritable
from weft.storage.table import Table


class RewriteRequest(Request):
    """Change the values of a column in all rows, for example: --set "email = sha2(email, 256)". Writers go on.

    Versions do not change, so later events win or lose as before; NULLs stay NULL. Earlier snapshots show the old
    values until weft clean expires them. The column must be in a group with latest or latest_non_null, and must not
    order events.
    """

    column: Annotated[str, Face(command=False)]
    """The column."""
    expression: Annotated[str, Face(flag="--set", metavar="'COLUMN = EXPRESSION'", python="function")]
    """A Spark SQL expression of that column."""
    note: Note = ""

    @model_validator(mode="before")
    @classmethod
    def _split_assignment(cls, values: Any) -> Any:
        """The command has one option for both: ``--set 'column = expression'``."""
        if not isinstance(values, dict) or "column" in values or "expression" not in values:
            return values
        column, separator, expression = (part.strip() for part in values["expression"].partition("="))
        if not (column and separator and expression):
            text = f"--set {values['expression']!r} is not an assignment"
            raise InvalidInput(text, hint="for example --set 'email = sha2(email, 256)'")
        return {**values, "column": column, "expression": expression}


def _prepare(table: Table, request: RewriteRequest, context: Context) -> RewriteRequest:
    schema = table.schema
    with context.naming():
        check_rewritable(schema, request.column)
        if context.function is not None:  # a command starts Spark only after the question
            context.function(request.column, request.expression, schema.column(request.column).type)
    return request


def _run(table: Table, request: RewriteRequest, context: Context) -> RewriteResult:
    assert context.function is not None, "the caller can evaluate expressions"
    function = context.function(request.column, request.expression, table.schema.column(request.column).type)
    return table.rewrite(
        request.column, function, note=request.note, execute=context.execute, progress=context.progress
    )


def _describe(finished: Finished[RewriteRequest, RewriteResult]) -> str:
    result = finished.result
    if not result.entry:
        return "the table has no rows"
    return (
        f"{finished.request.column} is rewritten up to {result.cut}: {counted(result.file_groups, 'file group')}, "
        f"{counted(result.rows, 'row')}; earlier snapshots show the old values until weft clean expires them"
    )


REWRITE: Final = Operation(
    name="rewrite",
    request=RewriteRequest,
    prepare=_prepare,
    question=lambda request, table: f"Rewrite {request.column} in all rows of {table}? This cannot be undone.",
    run=_run,
    describe=_describe,
    columns=REWRITING_COLUMNS,
    rows=rewriting_rows,
    examples=("weft rewrite lake/orders_wide --set 'email = sha2(email, 256)'",),
    stage="starting Spark",
    needs_spark=True,
    method=Table.rewrite,
)
