"""What a view reads: the planner that its owner gives, the state that a query pins, and the plan of one scan.

Values and protocols only, so that every other part of the relation can know them and they know none.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

__all__ = ["ParquetFile", "Part", "PinnedPlanner", "Planner", "ReadPlan"]


class ParquetFile(NamedTuple):
    """A file for Spark's own reader.

    Attributes:
        path: As Hadoop writes it, `file:///lake/a b/1.parquet`: a scheme and the path, not percent-encoded.
        size_bytes: Exactly: nobody asks the store again.
    """

    path: str
    size_bytes: int


class Part(enum.Enum):
    """Which rows of a state a relation has: of every state, each row is in FILES or in REST, and in one of them only.

    What a query is made of is fixed when it is analysed, and its state may be another one when it is executed. So a
    part says nothing of how it is read: FILES may turn out to need tasks, and REST to be empty.
    """

    WHOLE = "all rows"
    FILES = "rows in files as they are"
    REST = "rows that are merged"


@dataclass(frozen=True)
class ReadPlan:
    """How to read one scan: either tasks for Python workers or Parquet files for Spark's own reader.

    Attributes:
        description: One line for EXPLAIN.
        tasks: One Spark input partition each; pickled. Always needed: `parquet_files` is an offer, not a promise.
        read: `task -> record batches` with exactly the planned columns (any order); pickled, runs in a Python worker.
        parquet_files: Not None: these Parquet files as they are hold rows of the part only, and all of them that the
            filters want. Names that begin with `_` or `.` are hidden to Spark; with such a file the tasks are used.
        row_count: Rows at most, if known; Spark chooses joins by it.
        size_bytes: Bytes of what is read with all of its columns, if known; likewise.
    """

    description: str
    tasks: Sequence[Any]
    read: Callable[[Any], Iterator[pa.RecordBatch]]
    parquet_files: Sequence[ParquetFile] | None = None
    row_count: int | None = None
    size_bytes: int | None = None


class PinnedPlanner(Protocol):
    """One state of a table: it answers the same for as long as a query lives."""

    def schema(self) -> StructType:
        """All columns, in order."""

    def parts(self) -> Sequence[Part]:
        """The relations to read a table in this state by: WHOLE, or FILES and REST where each is worth a scan.

        A matter of speed only: whatever is answered, `plan` answers for every part of every state.
        """

    def exact(self, filters: Sequence[Filter], part: Part) -> Sequence[int]:
        """Which of these filters every plan of this state will apply row by row, with Spark's semantics (nulls, NaN).

        Asked before the columns are known, as Spark does. Such a filter is not evaluated again, and its columns are
        only read if the query itself needs them. `()` is always right. A state that took filters is not read natively.
        """

    def plan(self, columns: Sequence[str], filters: Sequence[Filter], part: Part) -> ReadPlan:
        """Plan one scan of a part.

        `columns` may be empty (`count(*)`): batches then carry a number of rows and no columns.
        """


class Planner(Protocol):
    """The table as it moves on."""

    def pin(self) -> PinnedPlanner:
        """The newest state; called once a query, in the driver, possibly from several threads at once."""
