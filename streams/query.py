"""``weft sql``: one Spark SQL query over one table, in a local Spark of its own."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from storage import Table
from storage.errors import InvalidInput
from streams.pipeline_model import TableLocation
from streams.show import json_value

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

VIEW: Final = "t"
"""The table's name in every query, beside its folder name."""


def run_query(console: Console, location: TableLocation, sql: str, *, limit: int, as_json: bool) -> None:
    """Run a query and print its answer.

    Args:
        console: Where to.
        location: The table.
        sql: The query; the table is `VIEW`, and goes by its folder name too.
        limit: Rows at most; a note says if there were more.
        as_json: One JSON object a row.

    Raises:
        NotFound: There is no table, or no Java.
        InvalidInput: Spark refuses the query; the message is its own, without the Java.
    """
    # Before Spark is started: a table that is not there needs no JVM to be told so.
    Table.open(location.uri, storage_options=location.storage_options)
    from streams.session import build_session

    with tempfile.TemporaryDirectory(prefix="weft-sql-") as scratch:
        spark = build_session("weft sql", {}, scratch=Path(scratch) / "spark", quick_start=True, quiet=True)
        try:
            columns, rows = _answer(spark, location, sql, limit)
        finally:
            spark.stop()
    cut = len(rows) > limit
    if as_json:
        for row in rows[:limit]:
            print(json.dumps(dict(zip(columns, json_value(tuple(row)), strict=True)), ensure_ascii=False))  # noqa: T201 - the answer
        return
    console.print(_grid(columns, rows[:limit]))
    more = f"the first {limit:,} rows; --limit shows more" if cut else f"{len(rows):,} row{'s' * (len(rows) != 1)}"
    console.print(more, style="dim")


def _answer(spark: SparkSession, location: TableLocation, sql: str, limit: int) -> tuple[list[str], list[Row]]:
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from streams.view import create_view

    # PySpark prints a page of JSON for every mistake in a query; what it says is raised as well.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    table_names = tuple(dict.fromkeys((VIEW, location.name)))
    for name in table_names:
        create_view(spark, location.uri, name, storage_options=location.storage_options)
    try:
        frame = spark.sql(sql)
        # One row more than is shown tells whether there are more, without counting them.
        return frame.columns, frame.limit(limit + 1).collect()
    except PySparkException as error:
        raise InvalidInput(short_message(error), hint=f"the table is called {' and '.join(table_names)}") from None


def short_message(error: Exception) -> str:
    """The first sentences of Spark's message: no plan, no Java stack."""
    text = str(error).split("\n\nJVM stacktrace", 1)[0].split(";\n", 1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(line for line in lines if not line.startswith("at "))


def _grid(columns: list[str], rows: list[Row]) -> Grid:
    grid = Grid()
    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    for column, right in zip(columns, numeric, strict=True):
        grid.add_column(Text(column), justify="right" if right and rows else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_text(value) for value in row))
    return grid


def _text(value: Any) -> Text:
    if value is None:
        return Text("NULL", "dim")
    plain = json_value(value)
    return Text(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False))
