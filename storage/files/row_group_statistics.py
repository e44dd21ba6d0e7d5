"""The statistics of row groups in the footers of base and shadow files. Nothing is read here."""

from __future__ import annotations

from typing import Any

from weft.storage.core.predicate import ColumnRange
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.files.footers import Footer


def key_span(footer: Footer, schema: TableSchema, row_group: int) -> tuple[Any, Any] | None:
    """A lower and an upper bound of the values of the sort column in a row group; None if there are no statistics.

    The row group may contain rows of several file groups. Long texts may be truncated.
    """
    span = row_group_range(footer, schema, row_group, schema.sort_column)
    return None if span is None or span.least is None or span.largest is None else (span.least, span.largest)


def column_ranges(footer: Footer, schema: TableSchema, name: str) -> list[ColumnRange | None]:
    """The statistics of a user column in every row group of a file, as the file has them; None if it has none."""
    return [row_group_range(footer, schema, number, name) for number in range(footer.metadata.num_row_groups)]


def row_group_range(footer: Footer, schema: TableSchema, row_group: int, name: str) -> ColumnRange | None:
    """The statistics of a column in a row group, as the file has them; None if it has none."""
    metadata = footer.metadata.row_group(row_group)
    statistics = metadata.column(footer.leaves[name]).statistics if name in footer.leaves else None
    if statistics is None:
        return None
    nulls = statistics.null_count if statistics.has_null_count else None
    try:
        least, largest = (statistics.min, statistics.max) if statistics.has_min_max else (None, None)
    except (ValueError, OverflowError):  # a time beyond the calendar of Python
        least = largest = None
    return ColumnRange(schema.slice.field(name).type, least, largest, nulls, metadata.num_rows)
