"""``weft sql``: runs one Spark SQL query over one table, in a new local Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from storage import Table
from storage.errors import InvalidInput
from streams.pipeline.model import CommandSettings, TableLocation
from streams.read.native_or_merged import ScanFacts
from streams.read.read_options import ReadOptions
from streams.read.relation.live_view import create_relation_view
from streams.read.view import planner_of
from streams.spark.session import temporary_session
from streams.spark.sql_text import quoted
from streams.spark.task_errors import python_problem

VIEW: Final = "t"
"""Name of the table in every query, besides its folder name."""


@dataclass(frozen=True)
class PlannedQuery:
    """A query in a new Spark session.

    Attributes:
        table: The table.
        scans: The scans of the table that Spark has planned so far.
        frame: The query.
    """

    table: Table
    scans: list[ScanFacts]
    frame: DataFrame

    def plan(self) -> str:
        """Spark's physical plan; fills `scans`, and reads nothing."""
        plan: str = self.frame._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - EXPLAIN only prints it
        return plan

    def rows(self, limit: int) -> list[Any]:
        """The first rows.

        Raises:
            InvalidInput: Python cannot represent a value.
        """
        try:
            return self.frame.limit(limit).collect()
        except (ValueError, OverflowError) as error:
            raise InvalidInput(
                f"Python cannot represent a value of the answer: {error}", hint="cast it to string in the query"
            ) from error


@contextmanager
def planned_query(settings: CommandSettings, sql: str, options: ReadOptions) -> Iterator[PlannedQuery]:
    """Start Spark, analyse a query, and stop Spark at the end of the block.

    Args:
        settings: The table and the Spark settings.
        sql: The query. The table is called `VIEW` or by its folder name.
        options: Which snapshot and which rows to read.

    Raises:
        NotFound: The table does not exist, or Java is not installed.
        InvalidInput: Spark refuses the query; also raised for errors within the block.
    """
    location = settings.table
    # Opened before Spark is started, so that a missing table is reported at once.
    table = Table.open(location.uri, storage_options=location.storage_options)
    options.check(table)
    with temporary_session("weft sql", settings.spark) as spark, _spark_errors(location):
        scans: list[ScanFacts] = []
        yield PlannedQuery(table, scans, _frame(spark, location, sql, options, scans))


def _frame(
    spark: SparkSession, location: TableLocation, sql: str, options: ReadOptions, scans: list[ScanFacts]
) -> DataFrame:
    planner = planner_of(spark, location.uri, options, location.storage_options, scans.append)
    create_relation_view(spark, VIEW, planner)
    for name in view_names(location)[1:]:
        # The second view reads the first one, so that a query that uses both names sees one snapshot.
        spark.sql(f"CREATE TEMPORARY VIEW {quoted(name)} AS SELECT * FROM {VIEW}")  # noqa: S608
    return spark.sql(sql)


def view_names(location: TableLocation) -> tuple[str, ...]:
    """Names of the table in a query."""
    # Spark ignores the case of names: a folder called T needs no second view.
    return (VIEW,) if location.name.lower() == VIEW else (VIEW, location.name)


@contextmanager
def _spark_errors(location: TableLocation) -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        if (problem := python_problem(str(error))) is not None:
            raise problem from None
        names = " and ".join(view_names(location))
        raise InvalidInput(short_message(error), hint=f"in the query the table is called {names}") from None


def short_message(error: Exception) -> str:
    """The first sentences of an error of Spark, without the plan and the Java stack."""
    text = str(error).split("\n\nJVM stacktrace", 1)[0].split(";\n", 1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(line for line in lines if not line.startswith("at "))
