"""``weft sql``: prints the answer or the plan of a query."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from storage.errors import InvalidInput
from streams.cli.arguments import errors
from streams.cli.show import json_value
from streams.pipeline.model import CommandSettings
from streams.read.read_options import ReadOptions

if TYPE_CHECKING:
    from streams.read.sql_query import PlannedQuery
    from streams.read.table_planner import ScanFacts


def run_query(
    console: Console, settings: CommandSettings, sql: str, options: ReadOptions, *, limit: int, as_json: bool
) -> None:
    """Run a query and print its answer; of a read-optimized one also what it lacks.

    Args:
        console: Where to print.
        settings: The table and the Spark settings.
        sql: The query, see `streams.read.sql_query.planned_query`.
        options: Which snapshot and which rows to read.
        limit: Most rows to print; a note says if there were more.
        as_json: One JSON object per row; notes then go to standard error.

    Raises:
        NotFound: There is no table, or no Java.
        InvalidInput: Spark refuses the query; the message is Spark's, without the Java stack.
    """
    from streams.read.sql_query import planned_query

    with planned_query(settings, sql, options) as query:
        columns = query.frame.columns
        repeated = sorted(name for name, count in Counter(columns).items() if count > 1)
        if as_json and repeated:
            raise InvalidInput(
                f"the answer has several columns called {repeated[0]!r}; a JSON object can hold only one",
                hint="rename them: SELECT a.x AS x, b.x AS other_x",
            )
        # One row more than is shown tells whether there are more, without counting them.
        rows = query.rows(limit + 1)
        lacking = _staleness(query) if options.read_optimized else ""
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
    """Print what a query would read of the table, and Spark's plan. Reads no rows. Arguments as of `run_query`."""
    from streams.read.sql_query import planned_query

    with planned_query(settings, sql, options) as query:
        plan = query.plan()
        scans = query.scans
        lacking = _staleness(query) if options.read_optimized else ""
    if as_json:
        print(json.dumps({"scans": [asdict(scan) for scan in scans], "plan": plan}, ensure_ascii=False))  # noqa: T201 - the answer
        return
    if scans:
        console.print(f"snapshot {scans[0].cut}")
        console.print(_draw_scans(scans))
    else:
        console.print("the query reads no file group of the table")
    if lacking:
        console.print(lacking, style="dim")
    console.print(plan, soft_wrap=True)


def _staleness(query: PlannedQuery) -> str:
    """What the snapshot has that its base files do not have yet, as text."""
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


def draw_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Grid:
    """Rows as a table for a terminal."""
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
