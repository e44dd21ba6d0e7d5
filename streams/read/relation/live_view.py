"""Live Spark SQL views over a `Planner`, with column pruning, filter pushdown, and one state of the table per query.

Rules:

1. **A view is live.** It is stored as the text of a query over a table function. Every query resolves the function
   again, so the next `spark.sql` sees the newest state *and the newest schema*.
2. **One query, one state.** The planner is called once for each Spark `QueryExecution`, however often the view occurs
   in it (self-join, union, subquery): see `query_state`. A DataFrame that is derived from another one (`df.filter(..)`,
   `df.count()`) is another query: it sees the newest rows, with the columns that the DataFrame was created with. The
   *same* DataFrame collected twice gives the same rows, as always in Spark.
3. **Filters never change an answer.** Spark evaluates every filter again unless the state declared it exact.
4. **Nothing here runs in tasks or per row.** The driver plans. Tasks run `ReadPlan.read` in Python workers, or Spark's
   Parquet reader if the rows are in Parquet files that need no merge.

Spark's Python data source API (`pyspark.sql.datasource`) pushes filters but does not prune columns, and it starts a
Python worker to plan each query. So the view implements Spark's public connector interfaces in the driver through py4j
(`spark_scan`), and passes to Spark what that worker would have sent (`jvm`). If there is no access to the JVM (Spark
Connect) or its classes differ, `without_jvm` gives the same answers, but slower, and not live.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from weft.storage.errors import InvalidInput
from weft.streams.read.relation.planner_interface import (
    JoinedColumns,
    ParquetFile,
    Part,
    PinnedPlanner,
    Planner,
    ReadPlan,
)

if TYPE_CHECKING:
    from weft.streams.read.relation.jvm import Jvm

__all__ = [
    "JoinedColumns",
    "ParquetFile",
    "Part",
    "PinnedPlanner",
    "Planner",
    "ReadPlan",
    "RelationFallbackWarning",
    "create_relation_view",
    "relation_dataframe",
]


class RelationFallbackWarning(UserWarning):
    """The view works, but is slower and not live; the message says why."""


def create_relation_view(spark: SparkSession, name: str, planner: Planner) -> None:
    """Create or replace the live temporary view `name` over `planner`.

    Raises:
        InvalidInput: `name` is not a plain identifier.
        pyspark.errors.AnalysisException: The planner raised an error; the message is the planner's.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidInput(
            f"view name {name!r} is not a plain identifier",
            hint="use letters, digits and underscores, and begin with a letter or an underscore",
        )
    jvm = _jvm_or_warn(spark)
    if jvm is None:
        from weft.streams.read.relation.without_jvm import fixed_dataframe

        fixed_dataframe(spark, planner).createOrReplaceTempView(name)
        return
    from weft.streams.read.relation.spark_scan import register_view

    register_view(jvm, name, planner)


def relation_dataframe(spark: SparkSession, planner: Planner, *, name: str = "weft") -> DataFrame:
    """A DataFrame over `planner`, with the present columns, and the newest rows whenever a query over it is planned.

    For one fixed snapshot pass a planner that always returns the same state. `name` is shown in EXPLAIN.
    """
    jvm = _jvm_or_warn(spark)
    if jvm is None:
        from weft.streams.read.relation.without_jvm import fixed_dataframe

        return fixed_dataframe(spark, planner)
    from weft.streams.read.relation.spark_scan import new_dataframe

    return new_dataframe(jvm, name, planner)


def _jvm_or_warn(spark: SparkSession) -> Jvm | None:
    from weft.streams.read.relation.jvm import Jvm, UnsupportedSessionError
    from weft.streams.read.relation.spark_scan import check_interfaces

    try:
        return Jvm.of(spark, check_interfaces)
    except UnsupportedSessionError as error:
        warnings.warn(
            f"{error}; reading through a plain Python data source instead: answers are the same, but all columns are "
            "read, and newer rows are not visible until the view is created again",
            RelationFallbackWarning,
            stacklevel=3,
        )
        return None
