"""Explains referenced rows: which row the foreign key of a row names, and why that row has its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import NotFound, TableError
from weft.storage.read.explain.explanation import Explanation, ReferencedRow
from weft.storage.read.explain.row import explain_row
from weft.storage.read.references.reference_rows import as_keys
from weft.storage.read.references.referenced_table import ReferencedTable


def explain_references(
    explained: Explanation, schema: TableSchema, tables: Sequence[ReferencedTable], *, history: bool
) -> Explanation:
    """Add the columns of the references and the explanations of the referenced rows to an explanation.

    Args:
        explained: The explanation of the row alone.
        schema: The schema of its table.
        tables: The references of the snapshot.
        history: As in `weft.storage.read.explain.row.explain_row`.
    """
    if explained.row is None:
        return explained
    whole_row, references = dict(explained.row), []
    for table in tables:
        referenced = _referenced_row(explained.row, schema, table, history=history)
        references.append(referenced)
        if not referenced.problem:
            row = None if referenced.explanation is None else referenced.explanation.row
            names = zip(table.reference.shown_names, table.reference.columns, strict=True)
            whole_row |= {name: None if row is None else row[column] for name, column in names}
    return replace(explained, row=whole_row, references=tuple(references))


def _referenced_row(
    row: Mapping[str, Any], schema: TableSchema, table: ReferencedTable, *, history: bool
) -> ReferencedRow:
    reference = table.reference
    foreign_key = {name: row[name] for name in reference.on}
    referenced = ReferencedRow(reference.name, reference.table, foreign_key)
    if isinstance(table.snapshot_or_error, TableError):
        return replace(referenced, problem=table.snapshot_or_error.message)
    types = {name: schema.column_by_name[name].type for name in reference.on}
    try:
        columns = [pa.array([value], types[name]) for name, value in foreign_key.items()]
    except pa.ArrowException:  # a time that Python cannot represent is text in an explanation
        return replace(referenced, problem="Python cannot represent the value of its foreign key")
    rows, keys = as_keys(table.snapshot_or_error.table_schema, columns)
    if not len(rows):  # NULL, or a value that keys cannot have
        return referenced
    try:
        explanation = explain_row(
            table.snapshot_or_error, {name: column[0].as_py() for name, column in keys.items()}, history=history
        )
    except NotFound:
        return referenced
    except TableError as error:
        return replace(referenced, problem=error.message)
    return replace(referenced, explanation=explanation)
