"""``weft sql``: one Spark SQL query over one table, run or explained, in a local Spark of its own."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from storage import Table
from storage.errors import InvalidInput
from streams.cli.arguments import errors
from streams.cli.show import json_value
from streams.pipeline.model import CommandSettings, TableLocation
from streams.read.read_options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from streams.read.table_planner import ScanFacts

VIEW: Final = "t"
"""The table's name in every query, beside its folder name."""


def run_query(
    console: Console, settings: CommandSettings, sql: str, options: ReadOptions, *, limit: int, as_json: bool
) -> None:
    """Run a query and print its answer; of a read-optimized one also what it lacks.

    Args:
        console: Where to.
        settings: The table, and how Spark is set up.
        sql: The query; the table is `VIEW`, and goes by its folder name too.
        options: Which snapshot of it, and which rows.
        limit: Rows at most; a note says if there were more.
        as_json: One JSON object a row; the notes then go to standard error.

    Raises:
        NotFound: There is no table, or no Java.
        InvalidInput: Spark refuses the query; the message is its own, without the Java.
    """
    with _planned(settings, sql, options) as query:
        columns = query.frame.columns
        twice = sorted(name for name, count in Counter(columns).items() if count > 1)
        if as_json and twice:
            raise InvalidInput(
                f"the answer has several columns called {twice[0]!r}, of which JSON would keep one",
                hint="give each a name of its own: SELECT a.x AS x, b.x AS other_x",
            )
        # One row more than is shown tells whether there are more, without counting them.
        rows = _collected(query.frame.limit(limit + 1))
        lacking = _lacking(query) if options.read_optimized else ""
    notes = errors if as_json else console
    if as_json:
        for row in rows[:limit]:
            print(json.dumps(dict(zip(columns, json_value(tuple(row)), strict=True)), ensure_ascii=False))  # noqa: T201 - the answer
    else:
        console.print(draw_rows(columns, rows[:limit]))
        cut = len(rows) > limit
        more = f"the first {limit:,} rows; --limit shows more" if cut else f"{len(rows):,} row{'s' * (len(rows) != 1)}"
        console.print(more, style="dim")
    if lacking:
        notes.print(lacking, style="dim")


def explain_query(
    console: Console, settings: CommandSettings, sql: str, options: ReadOptions, *, as_json: bool
) -> None:
    """Print what a query would read of the table, and Spark's plan; nothing is read. Arguments as of `run_query`."""
    with _planned(settings, sql, options) as query:
        plan = query.frame._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - EXPLAIN only prints it
        scans = query.scans
        lacking = _lacking(query) if options.read_optimized else ""
    if as_json:
        print(json.dumps({"scans": [asdict(scan) for scan in scans], "plan": plan}, ensure_ascii=False))  # noqa: T201 - the answer
        return
    if scans:
        console.print(f"snapshot {scans[0].cut}")
        console.print(_draw_scans(scans))
    else:
        console.print("no file group of the table is looked at")
    if lacking:
        console.print(lacking, style="dim")
    console.print(plan, soft_wrap=True)


@dataclass
class _Query:
    """A query in a Spark of its own, and what is known of the scans that it has planned."""

    table: Table
    scans: list[ScanFacts]
    frame: DataFrame


@contextmanager
def _planned(settings: CommandSettings, sql: str, options: ReadOptions) -> Iterator[_Query]:
    location = settings.table
    # Before Spark is started: a table that is not there needs no JVM to be told so.
    table = Table.open(location.uri, storage_options=location.storage_options)
    options.check(table)
    from streams.spark.session import build_session

    with tempfile.TemporaryDirectory(prefix="weft-sql-") as scratch:
        spark = build_session("weft sql", settings.spark, scratch=Path(scratch) / "spark", quick_start=True, quiet=True)
        try:
            with _refusals(location):
                scans: list[ScanFacts] = []
                yield _Query(table, scans, _frame(spark, location, sql, options, scans))
        finally:
            spark.stop()


def _frame(
    spark: SparkSession, location: TableLocation, sql: str, options: ReadOptions, scans: list[ScanFacts]
) -> DataFrame:
    from streams.read.relation.live_view import create_relation_view
    from streams.read.view import planner_of

    planner = planner_of(spark, location.uri, options, location.storage_options, scans.append)
    create_relation_view(spark, VIEW, planner)
    for name in _names(location)[1:]:
        # A view of the view: whatever they are called, one query sees one snapshot.
        spark.sql(f"CREATE TEMPORARY VIEW `{name.replace('`', '``')}` AS SELECT * FROM {VIEW}")  # noqa: S608
    return spark.sql(sql)


def _names(location: TableLocation) -> tuple[str, ...]:
    # Spark ignores the case of names: a folder called T needs no view of its own.
    return (VIEW,) if location.name.lower() == VIEW else (VIEW, location.name)


@contextmanager
def _refusals(location: TableLocation) -> Iterator[None]:
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # PySpark prints a page of JSON for every mistake in a query; what it says is raised as well.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        yield
    except PySparkException as error:
        raise InvalidInput(short_message(error), hint=f"the table is called {' and '.join(_names(location))}") from None


def _collected(frame: DataFrame) -> list[Any]:
    try:
        return frame.collect()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"a value of the answer is none that Python knows: {error}", hint="cast it to string in the query"
        ) from error


def _lacking(query: _Query) -> str:
    """What the base files lack of the snapshot that they were read of."""
    if not query.scans:
        return ""
    lacks = query.table.snapshot(query.scans[0].cut).read_optimized().staleness
    if not lacks.rows:
        return "read-optimized: nothing waits for compaction"
    since = "" if lacks.since is None else f" since {lacks.since:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"read-optimized: without {lacks.rows:,} event{'s' * (lacks.rows != 1)} of {lacks.commits:,} "
        f"commit{'s' * (lacks.commits != 1)}{since}, which wait for compaction"
    )


def _draw_scans(scans: Sequence[ScanFacts]) -> Grid:
    """A column per scan."""
    grid = Grid("", *(f"scan {number}" for number in range(1, len(scans) + 1)))
    facts: dict[str, Callable[[ScanFacts], str]] = {
        "read by": lambda scan: scan.reader,
        "file groups": lambda scan: f"{scan.file_groups:,}",
        "of these with logs": lambda scan: f"{scan.with_logs:,}",
        "file groups skipped": lambda scan: f"{scan.skipped:,}",
        "base bytes": lambda scan: f"{scan.base_bytes:,}",
        "log bytes": lambda scan: f"{scan.log_bytes:,}",
        "columns": lambda scan: ", ".join(scan.columns) or "none, rows are counted",
        "filter": lambda scan: scan.filter or "none",
    }
    for name, told in facts.items():
        grid.add_row(name, *(Text(told(scan), overflow="fold") for scan in scans))
    return grid


def short_message(error: Exception) -> str:
    """The first sentences of Spark's message: no plan, no Java stack."""
    text = str(error).split("\n\nJVM stacktrace", 1)[0].split(";\n", 1)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(line for line in lines if not line.startswith("at "))


def draw_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Grid:
    """Rows for eyes."""
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
