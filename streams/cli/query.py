"""``weft sql``: prints or writes the result or the plan of a query."""

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
from weft.streams.cli.arguments import PIPE_WIDTH, console, errors
from weft.streams.cli.output import draw_rows, limit_note, print_json, print_rows
from weft.streams.cli.progress import watched
from weft.streams.read.plain_values import csv_cell, json_value

if TYPE_CHECKING:
    from weft.streams.read.scan_facts import ScanFacts
    from weft.streams.read.sql_query import PlannedQuery, SqlSession

Format = Literal["table", "csv", "json", "parquet"]
DEFAULT_LIMIT: Final = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """How results are shown.

    Attributes:
        form: Their format.
        output: The file to write; None for standard output.
        limit: Maximum number of rows; None: all rows into a file, else `DEFAULT_LIMIT`.
        read_optimized: Whether to say which commits base files lack.
        quiet: Whether to show no progress.
    """

    form: Format
    output: Path | None
    limit: int | None
    read_optimized: bool
    quiet: bool = False

    @property
    def rows(self) -> int | None:
        """Maximum number of rows; None for all."""
        return DEFAULT_LIMIT if self.limit is None and self.output is None else self.limit

    @property
    def fetched(self) -> int | None:
        """One row more, to know whether there are more without counting them."""
        return None if self.rows is None else self.rows + 1


def run_query(session: SqlSession, answer: Answer, sql: str) -> None:
    """Run a query and print or write its result. If it is read-optimized, also print which commits it leaves out.

    A statement without a result, such as ``SET`` or ``CREATE VIEW``, prints nothing.

    Args:
        session: Where the query runs.
        answer: How the result is shown. JSON is one object per row; notes on other formats than tables go to standard
            error.
        sql: The query.

    Raises:
        InvalidInput: Spark refuses the query (the message is Spark's, without the Java stack), the format cannot hold
            the result, or the file cannot be written.
    """
    with watched("running", session.progress, quiet=answer.quiet), session.query(sql) as query:
        columns = query.frame.columns
        if not columns:
            return
        repeated = sorted(name for name, count in Counter(columns).items() if count > 1)
        if repeated and answer.form in {"json", "parquet"}:
            what = "a JSON object can" if answer.form == "json" else "Parquet files can"
            raise InvalidInput(
                f"the answer has several columns called {repeated[0]!r}; {what} hold only one",
                hint="rename them: SELECT a.x AS x, b.x AS other_x",
            )
        if answer.form == "parquet":
            table = query.arrow(answer.fetched)
            found = len(table)
        else:
            rows = query.rows(answer.fetched)
            found = len(rows)
        lacking = _staleness(query) if answer.read_optimized else ""
    shown = found if answer.rows is None else min(found, answer.rows)
    if answer.output is None:
        _print(columns, rows[:shown], answer.form)
    elif answer.form == "parquet":
        with _replacing(answer.output) as path:
            pq.write_table(table.slice(0, shown), path)
    else:
        with _replacing(answer.output) as path, path.open("w", encoding="utf-8", newline="") as file:
            _write(columns, rows[:shown], answer.form, file)
    notes = console() if answer.form == "table" and answer.output is None else errors
    cut = found > shown
    if answer.output is not None:
        notes.print(f"{counted(shown, 'row')} in {answer.output}", style="dim", soft_wrap=True)
    if cut:
        notes.print(limit_note(shown), style="dim")
    elif answer.form == "table" and answer.output is None:
        notes.print(counted(shown, "row"), style="dim")
    if lacking:
        notes.print(lacking, style="dim")


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
                named = json_value(dict(zip(columns, row, strict=True)))
                file.write(json.dumps(named, ensure_ascii=False) + "\n")
        case _:
            Console(file=file, highlight=False, markup=False, width=PIPE_WIDTH).print(draw_rows(columns, rows))


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A file beside the target, which replaces it at the end of the block, or is removed after an error.

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


def explain_query(session: SqlSession, answer: Answer, sql: str) -> None:
    """Print what a query would read of the table, and Spark's plan. Reads no rows. Arguments as in `run_query`."""
    with session.query(sql) as query:
        plan = query.plan()
        scans = query.scans
        lacking = _staleness(query) if answer.read_optimized else ""
    if answer.form == "json":
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
    if not query.scans or query.table is None:
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
        "known from statistics": lambda scan: f"{scan.known:,}",
        "tasks": _tasks,
        "base bytes": lambda scan: f"{scan.base_bytes:,}",
        "log bytes": lambda scan: f"{scan.log_bytes:,}",
        "columns": lambda scan: ", ".join(scan.columns) or "none, rows are counted",
        "filter": lambda scan: scan.filter or "none",
        "returns": lambda scan: scan.pushed or "rows",
    }
    for name, cell in facts.items():
        grid.add_row(name, *(Text(cell(scan), overflow="fold") for scan in scans))
    return grid
