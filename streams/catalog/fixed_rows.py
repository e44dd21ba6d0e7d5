"""A relation whose rows are in the memory of the driver: they are sent to a task, which returns them to Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from weft.storage.core.predicate import Condition
from weft.streams.read.relation.planner_interface import Part, PinnedPlanner, ReadPlan


@dataclass(frozen=True)
class FixedRows(PinnedPlanner):
    """A planned relation with fixed rows. Spark applies all filters to them.

    Attributes:
        name: Name of the relation in EXPLAIN.
        rows: The rows.
    """

    name: str
    rows: pa.Table

    def schema(self) -> StructType:
        return from_arrow_schema(self.rows.schema)

    def plan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        del filters, part
        # A table without columns has no rows, so if no columns are needed, all are kept.
        rows = self.rows.select(columns) if columns else self.rows
        return ReadPlan(f"weft {self.name}", (rows,), _batches, row_count=rows.num_rows, size_bytes=rows.nbytes)


def _batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(rows.to_batches())
