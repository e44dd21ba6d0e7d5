"""Result columns of the operations that rewrite all file groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from pydantic import Field

from weft.storage.operations.operation import Finished, Row
from weft.storage.services.rewrite import RewriteResult

REWRITING_COLUMNS: Final = "cut string, file_groups bigint, rows bigint, deletes bigint, changed boolean"
Note = Annotated[str, Field(description="A text for the log, such as a ticket.")]


def rewriting_rows(finished: Finished[Any, RewriteResult]) -> Iterable[Row]:
    """The result of a rewrite as one row with `REWRITING_COLUMNS`."""
    result = finished.result
    row = {name: getattr(result, name) for name in ("cut", "file_groups", "rows", "deletes")}
    return [{**row, "changed": bool(result.entry)}]
