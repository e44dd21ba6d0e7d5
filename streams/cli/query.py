"""``weft sql``: prints the result or the plan of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table as Grid
from rich.text import Text

from storage.errors import InvalidInput
from streams.cli.arguments import console, errors
from streams.cli.output import counted, limit_note, print_json, print_rows
from streams.pipeline.model import CommandSettings
from streams.read.read_options import ReadOptions

if TYPE_CHECKING:
    from streams.read.native_or_merged import ScanFacts
    from streams.read.sql_query import PlannedQuery


def run_query(settings: CommandSettings, sql: str, options: ReadOptions, *, limit: int, as_json: bool) -> None:
    """Run a query and print its result. If it is read-optimized, also print which commits it leaves out.

    Args:
        settings: The table and the Spark settings.
        sql: The query, see `streams.read.sql_query.planned_query`.
        options: Which snapshot and which rows to read.
        limit: Maximum number of rows to print; a note says if there were more.
        as_json: One JSON object per row; notes then go to standard error.

    Raises:
        NotFound: The table does not exist, or Java is not installed.
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
        # Fetch one row more than is shown, to know whether there are more without counting them.
        rows = query.rows(limit + 1)
        lacking = _staleness(query) if options.read_optimized else ""
    print_rows(columns, rows[:limit], as_json=as_json)
    notes = errors if as_json else console()
    if not as_json:
        notes.print(limit_note(limit) if len(rows) > limit else counted(len(rows), "row"), style="dim")
    if lacking:
        notes.print(lacking, style="dim")


def explain_query(settings: CommandSettings, sql: str, options: ReadOptions, *, as_json: bool) -> None:
    """Print what a query would read of the table, and Spark's plan. Reads no rows. Arguments as in `run_query`."""
    from streams.read.sql_query import planned_query

    with planned_query(settings, sql, options) as query:
        plan = query.plan()
        scans = query.scans
        lacking = _staleness(query) if options.read_optimized else ""
    if as_json:
        print_json({"scans": scans, "plan": plan})
        return
    out = console()
    if scans:
        out.print(f"snapshot {scans[0].cut}")
        out.print(_draw_scans(scans))
    else:
        out.print("the query reads no file group of the table")
    if lacking:
        out.print(lacking, style="dim")
    out.print(plan, soft_wrap=True)


def _staleness(query: PlannedQuery) -> str:
    """The commits of the snapshot that its base files do not contain yet, as text."""
    if not query.scans:
        return ""
    lacks = query.table.snapshot(query.scans[0].cut).read_optimized().staleness
    if not lacks.rows:
        return "read-optimized: nothing waits for compaction"
    since = "" if lacks.since is None else f" since {lacks.since:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"read-optimized: without {counted(lacks.rows, 'event')} of {counted(lacks.commits, 'commit')}{since}, "
        "which wait for compaction"
    )


def _tasks(scan: ScanFacts) -> str:
    if not scan.tasks:
        return "as Spark divides the files"
    return f"{scan.tasks:,}" + (f" ({counted(scan.divided, 'file group')} divided)" if scan.divided else "")


def _draw_scans(scans: Sequence[ScanFacts]) -> Grid:
    """A table with one column per scan."""
    grid = Grid("", *(f"scan {number}" for number in range(1, len(scans) + 1)))
    facts: dict[str, Callable[[ScanFacts], str]] = {
        "read by": lambda scan: scan.reader,
        "file groups": lambda scan: f"{scan.file_groups:,}",
        "of these with logs": lambda scan: f"{scan.with_logs:,}",
        "file groups skipped": lambda scan: f"{scan.skipped:,}",
        "tasks": _tasks,
        "base bytes": lambda scan: f"{scan.base_bytes:,}",
        "log bytes": lambda scan: f"{scan.log_bytes:,}",
        "columns": lambda scan: ", ".join(scan.columns) or "none, rows are counted",
        "filter": lambda scan: scan.filter or "none",
    }
    for name, cell in facts.items():
        grid.add_row(name, *(Text(cell(scan), overflow="fold") for scan in scans))
    return grid
