"""Runs the queries of ``weft sql``: prints or writes the result or the plan."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from weft.storage.errors import InvalidInput
from weft.storage.plural import counted
from weft.streams.cli.arguments import PIPE_WIDTH, console, stderr
from weft.streams.cli.output import draw_rows, limit_note, print_json, print_rows
from weft.streams.cli.progress import poll_progress
from weft.streams.read.plain_values import csv_cell, json_value

if TYPE_CHECKING:
    from weft.streams.read.scan_facts import ScanFacts
    from weft.streams.read.sql_query import PlannedQuery, SqlSession

Format = Literal["table", "csv", "json", "parquet"]
DEFAULT_LIMIT: Final = 100


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Options for the output of query results.

    Attributes:
        form: Format of the result.
        output: The file to write; None for standard output.
        limit: Maximum number of rows. If None, a file gets all rows, and standard output `DEFAULT_LIMIT`.
        read_optimized: Whether to print which commits are not yet in base files.
        quiet: Whether to hide progress.
    """

    form: Format
    output: Path | None
    limit: int | None
    read_optimized: bool
    quiet: bool = False

    @property
    def max_rows(self) -> int | None:
        """Maximum number of rows; None for all."""
        return DEFAULT_LIMIT if self.limit is None and self.output is None else self.limit


def run_query(session: SqlSession, options: ResultOptions, sql: str) -> None:
    """Run a query and print or write its result. For a read-optimized query, also print which commits it leaves out.

    A statement without a result, such as ``SET`` or ``CREATE VIEW``, prints nothing.

    Args:
        session: The session that runs the query.
        options: Options for the output. JSON is one object per row. Notes go to standard error, except below a table.
        sql: The query.

    Raises:
        InvalidInput: Spark refuses the query (the message is Spark's, without the Java stack), the format cannot hold
            the result, or the file cannot be written.
    """
    # One row more than is printed shows whether there are more, without counting them.
    fetch_limit = None if options.max_rows is None else options.max_rows + 1
    with poll_progress("running", session.progress, quiet=options.quiet), session.query(sql) as query:
        columns = query.frame.columns
        if not columns:
            return
        repeated = sorted(name for name, count in Counter(columns).items() if count > 1)
        if repeated and options.form in {"json", "parquet"}:
            what = "a JSON object can" if options.form == "json" else "Parquet files can"
            raise InvalidInput(
                f"the answer has several columns called {repeated[0]!r}; {what} hold only one",
                hint="rename them: SELECT a.x AS x, b.x AS other_x",
            )
        if options.form == "parquet":
            table = query.arrow(fetch_limit)
            fetched = len(table)
        else:
            rows = query.rows(fetch_limit)
            fetched = len(rows)
        staleness = _describe_staleness(query) if options.read_optimized else ""
    count = fetched if options.max_rows is None else min(fetched, options.max_rows)
    if options.output is None:
        _print(columns, rows[:count], options.form)
    elif options.form == "parquet":
        with _replacing(options.output) as path:
            pq.write_table(table.slice(0, count), path)
    else:
        with _replacing(options.output) as path, path.open("w", encoding="utf-8", newline="") as file:
            _write(columns, rows[:count], options.form, file)
    is_printed_table = options.form == "table" and options.output is None
    notes = console() if is_printed_table else stderr
    if options.output is not None:
        notes.print(f"{counted(count, 'row')} in {options.output}", style="dim", soft_wrap=True)
    if fetched > count:
        notes.print(limit_note(count), style="dim")
    elif is_printed_table:
        notes.print(counted(count, "row"), style="dim")
    if staleness:
        notes.print(staleness, style="dim")


def _print(columns: Sequence[str], rows: Sequence[Sequence[Any]], form: Format) -> None:
    if form == "csv":
        text = io.StringIO(newline="")
        _write(columns, rows, form, text)
        typer.echo(text.getvalue(), nl=False)
    else:
        print_rows(columns, rows, as_json=form == "json")


def _write(columns: Sequence[str], rows: Sequence[Sequence[Any]], form: Format, file: TextIO) -> None:
    match form:
        case "csv":
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([csv_cell(value) for value in row] for row in rows)
        case "json":
            for row in rows:
                record = json_value(dict(zip(columns, row, strict=True)))
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        case _:
            Console(file=file, highlight=False, markup=False, width=PIPE_WIDTH).print(draw_rows(columns, rows))


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a path beside the target. Its file replaces the target at the end of the block; an error removes it.

    Raises:
        InvalidInput: The file cannot be written.
    """
    path = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield path
        path.replace(target)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(f"cannot write {target}: {error}", hint="choose another file") from error
    finally:
        path.unlink(missing_ok=True)


def explain_query(session: SqlSession, options: ResultOptions, sql: str) -> None:
    """Print what a query would read of the table, and Spark's plan; reads no rows. Arguments as in `run_query`."""
    with session.query(sql) as query:
        plan = query.plan()
        scans = query.scans
        staleness = _describe_staleness(query) if options.read_optimized else ""
    if options.form == "json":
        print_json({"scans": scans, "plan": plan})
        return
    out = console()
    if scans:
        out.print(f"snapshot {scans[0].cut}")
        out.print(_draw_scans(scans))
    else:
        out.print("the query reads no file group of the table")
    if staleness:
        out.print(staleness, style="dim")
    out.print(plan, soft_wrap=True)


def _describe_staleness(query: PlannedQuery) -> str:
    """Describe the commits of the snapshot that are not yet in base files; "" if the query does not read the table."""
    if not query.scans or query.table is None:
        return ""
    staleness = query.table.snapshot(query.scans[0].cut).read_optimized().staleness
    if not staleness.rows:
        return "read-optimized: nothing waits for compaction"
    since = "" if staleness.since is None else f" since {staleness.since:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"read-optimized: without {counted(staleness.rows, 'event')} of {counted(staleness.commits, 'commit')}{since}, "
        "which wait for compaction"
    )


def _format_tasks(scan: ScanFacts) -> str:
    if not scan.tasks:
        return "as Spark divides the files"
    return f"{scan.tasks:,}" + (f" ({counted(scan.divided, 'file group')} divided)" if scan.divided else "")


def _draw_scans(scans: Sequence[ScanFacts]) -> Grid:
    """Draw the facts about scans as a table with one column per scan."""
    grid = Grid("", *(f"scan {number}" for number in range(1, len(scans) + 1)))
    cells: dict[str, Callable[[ScanFacts], str]] = {
        "read by": lambda scan: scan.reader,
        "file groups": lambda scan: f"{scan.file_groups:,}",
        "of these with logs": lambda scan: f"{scan.with_logs:,}",
        "file groups skipped": lambda scan: f"{scan.skipped:,}",
        "known from statistics": lambda scan: f"{scan.known:,}",
        "tasks": _format_tasks,
        "base bytes": lambda scan: f"{scan.base_bytes:,}",
        "log bytes": lambda scan: f"{scan.log_bytes:,}",
        "columns": lambda scan: ", ".join(scan.columns) or "none, rows are counted",
        "filter": lambda scan: scan.filter or "none",
        "returns": lambda scan: scan.pushed or "rows",
    }
    for name, cell in cells.items():
        grid.add_row(name, *(Text(cell(scan), overflow="fold") for scan in scans))
    return grid
