"""The interface between a live view and a table: the planner, the state that a query pins, and the plan of one scan.

Values and interfaces only: every module of this package may import this one, which imports none of them.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from weft.storage.core.predicate import Condition
from weft.storage.read.pushed.first_rows import FirstRows
from weft.storage.read.pushed.partial_aggregates import Aggregation

__all__ = ["JoinedColumns", "ParquetFile", "Part", "PinnedPlanner", "Planner", "ReadPlan"]


class ParquetFile(NamedTuple):
    """A file for Spark's Parquet reader.

    Attributes:
        path: In Hadoop's form, `file:///lake/a b/1.parquet`: a scheme and the path, not percent-encoded.
        size_bytes: The exact size: Spark does not ask the store for it.
        ranges: (offset, length) of the row groups to read; empty for the whole file.
    """

    path: str
    size_bytes: int
    ranges: tuple[tuple[int, int], ...] = ()


class Part(enum.Enum):
    """Which rows of a state a scan returns. In every state each row belongs to exactly one of FILES and REST.

    Spark fixes the scans of a query when it analyses the query, and the state may be another one when the query runs.
    So a part does not determine how it is read: FILES may need tasks in a later state, and REST may be empty.
    """

    WHOLE = "all rows"
    FILES = "rows of Parquet files that need no merge"
    REST = "rows that are merged"


@dataclass(frozen=True)
class ReadPlan:
    """How to read one scan: either tasks for Python workers or Parquet files for Spark's Parquet reader.

    Attributes:
        description: One line for EXPLAIN.
        tasks: One Spark input partition each; pickled. Required even with `parquet_files`, which Spark may be unable
            to read.
        read: `task -> record batches` with exactly the planned columns (any order); pickled, runs in a Python worker.
        parquet_files: Parquet files that contain only rows of the part, and all of its rows that pass the filters; None
            if the scan needs tasks. Spark ignores files whose names begin with `_` or `.`; with such a file tasks are
            used.
        row_count: Upper bound of the number of rows, None if unknown. Spark chooses joins by it.
        size_bytes: Bytes of all columns of the files that are read, None if unknown. Spark chooses joins by it.
        columns: Columns that ``read`` returns, if they are partial aggregates instead of the planned columns.
        filterable: Columns by which a join can filter the scan when the query runs, so that less is read
            (`runtime_filters`); the scan is then planned again.
    """

    description: str
    tasks: Sequence[Any]
    read: Callable[[Any], Iterator[pa.RecordBatch]]
    parquet_files: Sequence[ParquetFile] | None = None
    row_count: int | None = None
    size_bytes: int | None = None
    columns: StructType | None = None
    filterable: Sequence[str] = ()


@dataclass(frozen=True)
class JoinedColumns:
    """Columns of another table that a view shows beside those of its table, joined by a foreign key.

    Attributes:
        name: Name of the join, unique among those of the table.
        on: The columns of the table that hold the key of the other table.
        key: The key columns of the other table, in the same order.
        columns: The columns that are shown: their name in the other table, and in the view.
        required: Whether rows without a row of the other table are left out.
        small: Whether Spark should send the other table to all tasks instead of sorting both tables by the key.
        error: Why the other table cannot be read; empty if it can. Queries that use its columns fail with this text.
    """

    name: str
    on: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    required: bool
    small: bool = False
    error: str = ""


class PinnedPlanner(ABC):
    """One state of a table, from which all plans of a query are made.

    By default it is read by one scan: nothing is joined, and Spark applies filters, aggregates and limits.

    Filters are conditions on columns of `schema`, with their types.
    """

    @abstractmethod
    def schema(self) -> StructType:
        """Return all columns that `plan` can return, in order. The view gets the columns of `joins` from the joins."""

    @abstractmethod
    def plan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        """Plan one scan of a part.

        `columns` may be empty (`count(*)`): batches then carry a number of rows and no columns.
        """

    def joins(self) -> Sequence[JoinedColumns]:
        """Return the joins of the table, in order. Every state with the same schema has the same columns of joins."""
        return ()

    def joined(self, name: str) -> PinnedPlanner:
        """Return the state of the other table of a join that belongs to this state; `name` is the name of the join."""
        raise AssertionError(f"nothing is joined: {name}")

    def parts(self) -> Sequence[Part]:
        """Return the scans that read the table: WHOLE, or FILES and REST if two scans are faster.

        This affects speed only: `plan` must accept every part in every state.
        """
        return (Part.WHOLE,)

    def exact(self, filters: Sequence[Condition], part: Part) -> Sequence[int]:
        """Return positions of the filters that every plan of this state applies as Spark would, also to nulls and NaN.

        Spark calls this before it knows the columns. It does not evaluate these filters again, and reads their columns
        only if the query needs them elsewhere. `()` is always correct. If any filter is returned, the scan is read by
        tasks, not natively.
        """
        del filters, part
        return ()

    def plan_aggregates(
        self, aggregation: Aggregation, filters: Sequence[Condition], part: Part, runtime: Sequence[Condition] = ()
    ) -> ReadPlan | None:
        """Plan a scan of a part whose tasks return partial aggregates, with `ReadPlan.columns`.

        Every filter is `exact`. The result is None if Spark has to aggregate the rows, or does it faster. ``runtime``
        are filters that a join applies to columns of GROUP BY; with them Spark relies on tasks that aggregate.
        """
        del aggregation, filters, part, runtime
        return None

    def plan_first(
        self, columns: Sequence[str], filters: Sequence[Condition], part: Part, first: FirstRows
    ) -> ReadPlan | None:
        """Plan a scan of a part when the query needs only its first rows.

        Every filter is `exact`. Each task returns those of its rows that may be among the first rows. The result is
        None if all rows are read, because only Spark can find the first rows, or does it faster. If `first.in_all`,
        `has_first` was true: one task reads the rows, and Spark applies no limit.
        """
        del columns, filters, part, first
        return None

    def has_first(self, filters: Sequence[Condition], part: Part, count: int) -> bool:
        """Whether `plan_first` can plan one task that surely returns ``count`` rows, whatever the columns are."""
        del filters, part, count
        return False


Planner = Callable[[], PinnedPlanner]
"""A table: returns its newest state. Called once per query, in the driver, possibly from several threads at once."""
