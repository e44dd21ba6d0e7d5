"""``weft sql``: Spark SQL queries in a new local Spark session, over one table or over the tables of a catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from weft.storage import Table
from weft.storage.errors import InvalidInput
from weft.storage.services.steps.progress import Stage
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.read.read_only import ReadOnlyQueries
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.scan_facts import ScanFacts
from weft.streams.read.view import planner_of
from weft.streams.spark.running_tasks import running_tasks
from weft.streams.spark.session import temporary_session
from weft.streams.spark.sql_text import quoted
from weft.streams.spark.task_errors import python_problem

VIEW: Final = "t"
"""Name of the table in every query, besides its folder name."""


@dataclass(frozen=True)
class PlannedQuery:
    """A query that Spark has analysed.

    Attributes:
        table: The table; None in a session over a catalog.
        scans: The scans of the table that Spark has planned so far for this query.
        frame: The query.
    """

    table: Table | None
    scans: list[ScanFacts]
    frame: DataFrame

    def plan(self) -> str:
        """Return Spark's physical plan. This fills `scans`; no rows are read."""
        plan: str = self.frame._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - EXPLAIN only prints it
        return plan

    def rows(self, limit: int | None) -> list[Any]:
        """Return the first ``limit`` rows, or all rows.

        Raises:
            InvalidInput: Python cannot represent a value.
        """
        try:
            return self._first(limit).collect()
        except (ValueError, OverflowError) as error:
            raise InvalidInput(
                f"Python cannot represent a value of the answer: {error}", hint="cast it to string in the query"
            ) from error

    def arrow(self, limit: int | None) -> pa.Table:
        """Return the first ``limit`` rows, or all rows, as an Arrow table."""
        return self._first(limit).toArrow()

    def _first(self, limit: int | None) -> DataFrame:
        return self.frame if limit is None else self.frame.limit(limit)


class SqlSession:
    """A Spark session for queries; from `sql_session`, or from `weft.streams.catalog.lake_session.lake_session`."""

    def __init__(
        self,
        spark: SparkSession,
        hint: str,
        names: Callable[[], list[str]],
        table: Table | None = None,
        scans: list[ScanFacts] | None = None,
        look_at: Callable[[ReadOptions], None] | None = None,
        read_only: ReadOnlyQueries | None = None,
    ) -> None:
        """Wrap a session.

        Args:
            spark: The session.
            hint: Hint of errors, with the names of the tables.
            names: Returns the names of tables and columns that a query may use.
            table: The table of queries, if there is only one.
            scans: List of the scans of that table, which its planner fills.
            look_at: Changes which snapshot and rows of that table queries read.
            read_only: Analyses queries, if the session is restricted to queries.
        """
        self._spark, self._hint, self._table = spark, hint, table
        self._look_at, self._read_only = look_at, read_only
        self._scans: list[ScanFacts] = [] if scans is None else scans
        self.names = names

    def look_at(self, options: ReadOptions) -> None:
        """Change which snapshot and which rows of the table the next queries read.

        Raises:
            InvalidInput: The session has more than one table.
            TableError: The table has no such snapshot.
        """
        if self._look_at is None:
            raise InvalidInput("the session has several tables", hint="use t TIMESTAMP AS OF '...' in the query")
        self._look_at(options)

    def cancel(self) -> None:
        """Cancel all jobs of the session. Call it in another thread than that of the query."""
        self._spark.sparkContext.cancelAllJobs()

    def progress(self) -> Stage | None:
        """Return the numbers of tasks of the running query. Call it in another thread than that of the query."""
        return running_tasks(self._spark, "running")

    @contextmanager
    def query(self, sql: str) -> Iterator[PlannedQuery]:
        """Analyse a query. Commands such as ``SET`` or ``CREATE VIEW`` are run.

        Raises:
            InvalidInput: Spark refuses the query; also raised for errors within the block.
        """
        self._scans.clear()
        with spark_errors(self._hint):
            frame = self._spark.sql(sql) if self._read_only is None else self._read_only.query(sql)
            yield PlannedQuery(self._table, self._scans, frame)


@contextmanager
def sql_session(settings: CommandSettings, options: ReadOptions) -> Iterator[SqlSession]:
    """Start Spark, and stop it at the end of the block.

    Args:
        settings: The table and the Spark settings. In queries the table is called `VIEW` or by its folder name.
        options: Which snapshot and which rows queries read.

    Raises:
        NotFound: The table does not exist, or Java is not installed.
        InvalidInput: Spark refuses its settings.
    """
    location = settings.table
    # Opened before Spark is started, so that a missing table is reported at once.
    table = Table.open(location.uri, storage_options=location.storage_options)
    options.check(table)
    scans: list[ScanFacts] = []
    hint = f"in the query the table is called {' and '.join(view_names(location))}"
    with temporary_session("weft sql", settings.spark) as spark:

        def look_at(options: ReadOptions) -> None:
            planner = planner_of(spark, location.uri, options, location.storage_options, scans.append)
            create_relation_view(spark, VIEW, planner)

        with spark_errors(hint):
            look_at(options)
            for name in view_names(location)[1:]:
                # The second view reads the first one, so that a query that uses both names sees one snapshot.
                spark.sql(f"CREATE TEMPORARY VIEW {quoted(name)} AS SELECT * FROM {VIEW}")  # noqa: S608

        def names() -> list[str]:
            return [*(entry.name for entry in spark.catalog.listTables()), *table.schema.column_by_name]

        yield SqlSession(spark, hint, names, table, scans, look_at)


def view_names(location: TableLocation) -> tuple[str, ...]:
    """Return the names of the table in a query."""
    # Spark ignores the case of names: a folder called T needs no second view.
    return (VIEW,) if location.name.lower() == VIEW else (VIEW, location.name)


@contextmanager
def spark_errors(hint: str) -> Iterator[None]:
    """Convert errors of Spark, also internal ones, to `InvalidInput` with a hint, but not errors of weft in workers."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if (problem := python_problem(error)) is not None:
            raise problem from None
        # An error of weft that came through the JVM has its own hint.
        message, _, own_hint = short_message(error).partition("\nhint: ")
        if message.startswith("[MISSING_CATALOG_ABILITY.FUNCTIONS]"):
            # Spark asks the current catalog only after it has searched its own functions.
            message = "there is no such function: the catalog has only the functions of Spark"
            own_hint = (
                "see https://spark.apache.org/docs/latest/api/sql/, "
                "or SHOW FUNCTIONS IN spark_catalog.default in weft sql"
            )
        raise InvalidInput(message, hint=own_hint or hint) from None


def short_message(error: Exception) -> str:
    """Return the message of an error of Spark, without the plan and the Java stack."""
    text = str(error).split("\n\nJVM stacktrace", 1)[0].split(";\n", 1)[0]
    # Spark adds these around errors of a catalog.
    text = text.removeprefix("[USER_RAISED_EXCEPTION] ").removesuffix(" SQLSTATE: P0001")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, Py4JJavaError):  # one that PySpark does not know, such as an internal error of Spark
        causes = [line for line in lines if line.startswith((": ", "Caused by: "))]
        return "\n".join(line.removeprefix(": ") for line in causes)
    return "\n".join(line for line in lines if not line.startswith("at "))
