"""The procedure that explains a row."""

from __future__ import annotations

from typing import Any

from weft.storage.core.types import format_type
from weft.storage.operations.points import parse_point
from weft.storage.read.explain.explanation import EXPLANATION_SCHEMA
from weft.streams.catalog.procedure import Session, open_table, procedure
from weft.streams.read.text_values import parse_key, split_keys


@procedure({field.name: format_type(field.type) for field in EXPLANATION_SCHEMA}, reads=True)
def explain_row(
    session: Session, table: str, key: str, as_of: str | None = None, *, history: bool = False
) -> list[dict[str, Any]]:
    """Why a row has its values: per column group the stored events, which one wins, and why the others lose.

    ``key`` is the value of the key column; for a key of several columns, ``COLUMN=VALUE, COLUMN=VALUE``.
    Spaces belong to the value, except those between a comma and a column.
    """
    snapshot = open_table(session, table).snapshot(parse_point(as_of))
    schema = snapshot.table_schema
    texts = split_keys(schema.key, key)
    return snapshot.explain(parse_key(schema, texts, "key"), history=history).to_arrow().to_pylist()
