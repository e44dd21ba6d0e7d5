"""A live Spark SQL view over something that plans its own reads: columns pruned, filters pushed, one state a query.

It decides when the table's state is taken, who gets to see which columns and filters, and which of Spark's
doors is used. Rules:

1. **A view is live.** It is stored as text that names a table function; every query resolves that function anew, so the
   newest state *and the newest schema* are seen at the next `spark.sql`, and nothing of an earlier query is kept.
2. **One query, one state.** `Planner.pin` is called once for each Spark `QueryExecution`, however often the view occurs
   in it (self-join, union, subquery): see `relation_pins`. A DataFrame that is derived from another (`df.filter(..)`,
   `df.count()`) is a query of its own and therefore sees the newest rows with the columns it was made with; the *same*
   DataFrame collected twice gives the same rows, as in Spark itself.
3. **Filters never change an answer.** Spark evaluates every filter again unless the state declared it exact.
4. **Nothing here runs in tasks or per row.** The driver plans; tasks run `ReadPlan.read` in ordinary Python workers, or
   Spark's own Parquet reader where the answer lies in Parquet files as it is.

Spark's Python data source API (`pyspark.sql.datasource`) pushes filters but does not prune columns, and it starts a
Python worker to plan each query. The view therefore implements Spark's public connector interfaces from the driver
through py4j (`relation_scan`) and fills in what that worker would have sent (`relation_jvm`). Where there is no JVM to
talk to (Spark Connect) or its classes differ, `relation_fallback` gives the same answers, slower and not live.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from storage.errors import InvalidInput
from streams.read.relation.planner_interface import ParquetFile, Part, PinnedPlanner, Planner, ReadPlan

if TYPE_CHECKING:
    from streams.read.relation.jvm import Jvm

__all__ = [
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
    """The view works but is slower, and not live: the reason is in the text."""


def create_relation_view(spark: SparkSession, name: str, planner: Planner) -> None:
    """Create or replace the temporary view `name` over `planner`; live, see the rules above.

    Raises:
        InvalidInput: `name` is not a plain identifier.
        pyspark.errors.AnalysisException: The planner refused; the message is the planner's.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InvalidInput(
            f"view name {name!r} is not a plain identifier",
            hint="use letters, digits and underscores, beginning with a letter or an underscore",
        )
    jvm = _jvm_or_warn(spark)
    if jvm is None:
        from streams.read.relation.fallback import fixed_dataframe

        fixed_dataframe(spark, planner).createOrReplaceTempView(name)
        return
    from streams.read.relation.spark_scan import register_view

    register_view(jvm, name, planner)


def relation_dataframe(spark: SparkSession, planner: Planner, *, name: str = "weft") -> DataFrame:
    """A DataFrame over `planner`: columns as of now, rows as of each execution (each derived query pins anew).

    For one fixed snapshot hand in a planner whose `pin` always returns the same state. `name` is shown in EXPLAIN.
    """
    jvm = _jvm_or_warn(spark)
    if jvm is None:
        from streams.read.relation.fallback import fixed_dataframe

        return fixed_dataframe(spark, planner)
    from streams.read.relation.spark_scan import new_dataframe

    return new_dataframe(jvm, name, planner)


def _jvm_or_warn(spark: SparkSession) -> Jvm | None:
    from streams.read.relation.jvm import Jvm, UnfitError
    from streams.read.relation.spark_scan import check_interfaces

    try:
        return Jvm.of(spark, check_interfaces)
    except UnfitError as error:
        warnings.warn(
            f"{error}; reading through a plain Python data source instead: answers are the same, but every column is "
            "read, and the rows stay those of this moment (create the view again to see newer ones)",
            RelationFallbackWarning,
            stacklevel=3,
        )
        return None
