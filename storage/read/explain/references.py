"""Explains what a row shows of referenced tables: which row its foreign key names, and why that row has its values."""

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
    """An explanation that has the columns of the references, and explains the referenced rows.

    Args:
        explained: The explanation of the row alone.
        schema: The schema of its table.
        tables: The references of the snapshot.
        history: As in `weft.storage.read.explain.row.explain_row`.
    """
    if explained.row is None:
        return explained
    shown, found = dict(explained.row), []
    for table in tables:
        each = _referenced_row(explained.row, schema, table, history=history)
        found.append(each)
        if not each.problem:
            row = None if each.explanation is None else each.explanation.row
            names = zip(table.reference.shown, table.reference.columns, strict=True)
            shown |= {name: None if row is None else row[column] for name, column in names}
    return replace(explained, row=shown, references=tuple(found))


def _referenced_row(
    row: Mapping[str, Any], schema: TableSchema, table: ReferencedTable, *, history: bool
) -> ReferencedRow:
    reference = table.reference
    foreign_key = {name: row[name] for name in reference.on}
    named = ReferencedRow(reference.name, reference.table, foreign_key)
    if isinstance(table.found, TableError):
        return replace(named, problem=table.found.message)
    types = {name: schema.column_by_name[name].type for name in reference.on}
    try:
        columns = [pa.array([value], types[name]) for name, value in foreign_key.items()]
    except pa.ArrowException:  # a time that Python lacks is text in an explanation
        return replace(named, problem="Python has no value for its foreign key")
    rows, keys = as_keys(table.found.table_schema, columns)
    if not len(rows):  # NULL, or a value that no key has
        return named
    try:
        explanation = explain_row(
            table.found, {name: column[0].as_py() for name, column in keys.items()}, history=history
        )
    except NotFound:
        return named
    except TableError as error:
        return replace(named, problem=error.message)
    return replace(named, explanation=explanation)
