"""Decides who joins the referenced tables of a view, and plans their scans if Spark does.

Small referenced tables are joined by the tasks that read the table of the view: their columns are columns of the scan
(`weft.streams.read.native_or_merged`), and a query that uses none of them does not pay for them. A worker process reads
the referenced rows once for all of its tasks (`weft.storage.read.references.kept_rows`). That is faster than a
broadcast by Spark, which reads, sends and hashes the rows for every query before it begins to read the table
(`tests/benchmarks/dimensions.py`).

Large ones are joined by Spark, which can sort both sides by the key. Such a view joins its table with each referenced
table whether or not a query uses columns of it, because Spark does not know that a left join on a unique key adds
nothing. If a query uses none, Spark asks the scan of the referenced table for its key alone, without conditions on
other columns. Then no rows of it are needed, and none are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from weft.storage.core.predicate import Condition, columns_of
from weft.storage.errors import TableError
from weft.storage.read.references.referenced_table import ReferencedTable
from weft.streams.read.relation.live_view import JoinedColumns, Part, PinnedPlanner, ReadPlan

SMALL_BYTES: Final = 32 * 1024 * 1024
"""Up to this size of the key and the columns of a reference, every task may have all of its rows. Spark's own limit is
10 MB, and sorting millions of rows by the foreign key costs seconds (`tests/benchmarks/dimensions.py`)."""


def joined_in_tasks(tables: Sequence[ReferencedTable], require: Sequence[str]) -> bool:
    """Whether the tasks that read a table join its referenced tables.

    Args:
        tables: The references of the table.
        require: The groups and references that rows must have. A view that requires a reference needs it for every
            query, whatever the columns, and leaves it to Spark.
    """
    if any(table.reference.name in require or isinstance(table.snapshot_or_error, TableError) for table in tables):
        return False
    return sum(map(_stored_bytes, tables)) <= SMALL_BYTES


def readable_columns(tables: Sequence[ReferencedTable]) -> list[pa.Field]:
    """The columns of the references whose tables can be read."""
    return [
        field for table in tables if not isinstance(table.snapshot_or_error, TableError) for field in table.fields()
    ]


def joined_columns(table: ReferencedTable, require: Sequence[str]) -> JoinedColumns:
    """Return how a view joins a referenced table; ``require`` names the groups and references that rows must have."""
    reference = table.reference
    columns = tuple(zip(reference.columns, reference.shown_names, strict=True))
    required = reference.name in require
    try:
        key = table.files.table_schema.key
    except TableError as error:
        message = f"{type(error).__name__}: {error}"
        return JoinedColumns(reference.name, reference.on, (), columns, required, error=message)
    return JoinedColumns(
        reference.name, reference.on, key, columns, required, small=_stored_bytes(table) <= SMALL_BYTES
    )


def _stored_bytes(table: ReferencedTable) -> float:
    """Estimate the stored bytes of the key and the columns of the reference, from the number of columns."""
    files = table.files
    columns_read = {*files.table_schema.key, *table.reference.columns}
    stored_size = sum(file_slice.base_bytes + file_slice.log_bytes for file_slice in files.slices)
    return stored_size * len(columns_read) / len(files.table_schema.columns)


@dataclass(frozen=True)
class ReferencePlanner(PinnedPlanner):
    """The state of a referenced table in a query. Spark joins its rows before it aggregates or limits them.

    Attributes:
        planner: Plans its scans.
        columns: The columns that the view shows.
        key: The key columns.
        required: Whether the view leaves out rows of its table without a row in this one, so that the keys are needed.
    """

    planner: PinnedPlanner
    columns: Sequence[str]
    key: Sequence[str]
    required: bool

    def schema(self) -> StructType:
        return self.planner.schema()

    def parts(self) -> Sequence[Part]:
        return self.planner.parts()

    def exact(self, filters: Sequence[Condition], part: Part) -> Sequence[int]:
        return self.planner.exact(filters, part)

    def plan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        if self._is_used(columns, filters):
            return self.planner.plan(columns, filters, part)
        return ReadPlan("weft reference, none of its columns is used", (), _no_rows, row_count=0, size_bytes=0)

    def _is_used(self, columns: Sequence[str], filters: Sequence[Condition]) -> bool:
        used_columns = {*columns, *(name for item in filters for name in columns_of(item))}
        # If the view also shows a key column, a use of it cannot be distinguished from the join.
        return self.required or not used_columns.issubset(self.key) or not set(self.columns).isdisjoint(self.key)


def _no_rows(_task: Any) -> Iterator[pa.RecordBatch]:
    return iter(())
