"""Plans the scans of a referenced table in a query over a view of the table that refers to it.

A view joins its table with each referenced table whether or not a query uses columns of it, because Spark does not know
that a left join on a unique key adds nothing. If a query uses none, Spark asks the scan of the referenced table for its
key alone, without conditions on other columns. Then no rows of it are needed, and none are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from storage.engine import ReferencedTable
from storage.errors import TableError
from streams.read.relation.live_view import JoinedColumns, Part, PinnedPlanner, ReadPlan
from streams.read.relation.pushed_filters import columns_of


def joined_columns(table: ReferencedTable, require: Sequence[str]) -> JoinedColumns:
    """What a view shows of a referenced table; ``require`` names the groups and references that rows must have."""
    reference = table.reference
    columns = tuple(zip(reference.columns, reference.shown, strict=True))
    required = reference.name in require
    try:
        key = table.files.schema.key
    except TableError as error:
        return JoinedColumns(reference.name, reference.on, (), columns, required, f"{type(error).__name__}: {error}")
    return JoinedColumns(reference.name, reference.on, key, columns, required)


@dataclass(frozen=True)
class ReferencePlanner:
    """The state of a referenced table in a query.

    Attributes:
        planner: Plans its scans.
        columns: The columns that the view shows.
        key: The key columns.
        required: Whether the view leaves out the rows of its table that have no row here: then the keys are needed.
    """

    planner: PinnedPlanner
    columns: Sequence[str]
    key: Sequence[str]
    required: bool

    def schema(self) -> StructType:
        return self.planner.schema()

    def joins(self) -> Sequence[JoinedColumns]:
        return ()

    def joined(self, name: str) -> PinnedPlanner:
        return self.planner.joined(name)

    def parts(self) -> Sequence[Part]:
        return self.planner.parts()

    def exact(self, filters: Sequence[Filter], part: Part) -> Sequence[int]:
        return self.planner.exact(filters, part)

    def plan(self, columns: Sequence[str], filters: Sequence[Filter], part: Part) -> ReadPlan:
        if self._is_used(columns, filters):
            return self.planner.plan(columns, filters, part)
        return ReadPlan("weft reference, none of its columns is used", (), _no_rows, row_count=0, size_bytes=0)

    def _is_used(self, columns: Sequence[str], filters: Sequence[Filter]) -> bool:
        used = {*columns, *(name for each in filters for name in columns_of(each))}
        # A key column that the view shows cannot be told from the one that it joins by.
        return self.required or not used.issubset(self.key) or not set(self.columns).isdisjoint(self.key)


def _no_rows(_task: Any) -> Iterator[pa.RecordBatch]:
    return iter(())
