"""Explain row: show why a row has its values."""

from __future__ import annotations

from typing import Annotated, Final

from weft.storage.core.types import format_type
from weft.storage.operations.operation import Context, Face, Operation, Request
from weft.storage.operations.points import PARSED_POINT, Point, warn_if_unsettled
from weft.storage.operations.row_keys import parse_key, split_keys
from weft.storage.read.explain.explanation import EXPLANATION_SCHEMA, Explanation
from weft.storage.table import Table


class ExplainRequest(Request):
    """Explain the values of a row: for each column group the stored events, which one wins, and why the others lose.

    Each event is shown with stream, lane, commit, time, ordering value and file. Reads only the blocks of the key.
    """

    key: Annotated[list[str] | str, Face(type=list, metavar="[COLUMN=]VALUE")]
    """Key of the row. Give one for each key column; binaries in hexadecimal. In SQL: COLUMN=VALUE, COLUMN=VALUE."""
    as_of: Annotated[Point | None, PARSED_POINT, Face(type=str, completes="savepoints")] = None
    """Snapshot: a cut, a savepoint or a time (ISO 8601 with zone); now by default."""
    history: bool = False
    """Show all events of the key in the retained log, also those that were merged already."""


def _run(table: Table, request: ExplainRequest, context: Context) -> Explanation:
    snapshot = table.snapshot(request.as_of)
    warn_if_unsettled(request.as_of, snapshot)
    schema = snapshot.table_schema
    texts = split_keys(schema.key, request.key) if isinstance(request.key, str) else request.key
    with context.naming():
        key = parse_key(schema, texts, context.spell("key").partition(" ")[0])
    return snapshot.explain(key, history=request.history)


EXPLAIN: Final = Operation(
    name="explain_row",
    command_name="explain",
    request=ExplainRequest,
    method=Table.explain_row,
    run=_run,
    describe=lambda finished: finished.result.to_text(),
    columns=", ".join(f"{field.name} {format_type(field.type)}" for field in EXPLANATION_SCHEMA),
    rows=lambda finished: finished.result.to_arrow().to_pylist(),
    examples=(
        "weft explain lake/orders_wide --key 7",
        "weft explain lake/orders_wide --key shop_id=3 --key order_id=7 --history",
    ),
    reads_only=True,
)
