"""``weft sql``: one query, a script, or a prompt."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.storage import Table
from weft.storage.errors import InvalidInput, NotFound, TableError
from weft.storage.store.open_store import check_reachable
from weft.streams.cli import completion
from weft.streams.cli.arguments import (
    FAILED,
    Json,
    StorageOption,
    Target,
    hint_at_tables,
    load_target,
    split_names,
    stderr,
    usage_errors,
)
from weft.streams.cli.cancellation import run_until_ctrl_c, start_until_ctrl_c
from weft.streams.cli.examples import examples
from weft.streams.cli.exit_codes import INTERRUPTED
from weft.streams.cli.progress import Quiet, progress
from weft.streams.cli.query import Format, ResultOptions, explain_query, run_query
from weft.streams.cli.statements import Statement, split_statements
from weft.streams.pipeline.file.model import CommandSettings
from weft.streams.read.read_options import ReadOptions

if TYPE_CHECKING:
    from weft.streams.read.sql_query import SqlSession

sql_command = typer.Typer()


@sql_command.command(
    epilog=examples(
        'weft sql lake/orders_wide "SELECT status, count(*) FROM t GROUP BY status"',
        "weft sql lake/orders_wide",
        "weft sql shop/pipeline.yaml --file report.sql --format csv --output report.csv",
        'weft sql lake/orders_wide "SELECT * FROM t" --as-of before_migration --require payment',
    )
)
def sql(
    target: Target,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[SQL]",
            help="The query, or several with semicolons; the table is called t or by the name of its folder. Without "
            "it: a script from standard input, or a prompt on a terminal.",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A script: statements with semicolons.")] = None,
    output_format: Annotated[
        Format | None, typer.Option("--format", help="Form of the result; by default a table.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File for the result of one query, all rows of it; needed for parquet.")
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            help="A time (ISO 8601 with zone), a savepoint or a cut; now by default.",
            autocompletion=completion.savepoints,
        ),
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="Groups that a row must have; a,b,c.")] = None,
    read_optimized: Annotated[
        bool, typer.Option("--read-optimized", help="Read base files only, as of the last compaction.")
    ] = False,
    complete_through: Annotated[
        str | None, typer.Option(help="Fail if events up to this time, date or integer may still arrive.")
    ] = None,
    complete_groups: Annotated[
        list[str] | None, typer.Option(help="Groups that --complete-through applies to; all by default; a,b,c.")
    ] = None,
    settled: Annotated[
        bool,
        typer.Option("--settled", help="Fail if the snapshot at the time of --as-of may still change; see weft mark."),
    ] = False,
    moment: Annotated[
        bool,
        typer.Option("--moment", help="Read the table at one moment, also if many writers commit (see READING.md)."),
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print what would be read, and Spark's plan.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of rows; by default 100, or all with --output.")
    ] = None,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run Spark SQL over a table, in a new local Spark with the settings in section spark of the pipeline.

    The location may also be a folder of tables, or an empty one (in a bucket: a prefix without objects). Then tables
    are called by their folders: shop.orders_wide. CREATE TABLE, INSERT and CALL are for such a folder.

    At the prompt a statement ends with a semicolon, Ctrl-C cancels it, Ctrl-D leaves. A script stops at the first
    statement that fails or is cancelled by Ctrl-C, with exit code 1.
    """
    with usage_errors():
        form = _choose_format(output_format, output, as_json=as_json, explain=explain)
        statements = _read_statements(query, file)
        if output is not None and (statements is None or len(statements) != 1):
            raise InvalidInput("--output is for the result of one query", hint="give one query")
        options = ReadOptions.of(
            {
                "as_of": as_of,
                "require": split_names(require),
                "read_optimized": read_optimized,
                "complete_through": complete_through,
                "complete_groups": split_names(complete_groups),
                "settled": settled,
                "moment": moment,
            }
        )
    settings = load_target(target, storage_option, "spark")
    check_reachable(settings.table.uri, settings.table.storage_options)
    result_options = ResultOptions(form, output, limit, options.read_optimized, quiet)
    _run(settings, options, statements, result_options, explain=explain)


def _run(
    settings: CommandSettings,
    options: ReadOptions,
    statements: Sequence[Statement] | None,
    result_options: ResultOptions,
    *,
    explain: bool,
) -> None:
    with contextlib.ExitStack() as stack:
        try:
            with progress("starting Spark", quiet=result_options.quiet):
                session = start_until_ctrl_c(lambda: stack.enter_context(_session(settings, options)))
        except KeyboardInterrupt:
            stderr.print("cancelled", style="yellow")
            raise typer.Exit(INTERRUPTED) from None
        run = functools.partial(explain_query if explain else run_query, session, result_options)
        if statements is None:
            from weft.streams.cli.sql_prompt import run_prompt

            run_prompt(settings.table.name, session.names, run, session.cancel)
            return
        for statement in statements:
            try:
                run_until_ctrl_c(run, statement.text, session.cancel)
            except KeyboardInterrupt:
                stderr.print("cancelled", style="yellow")
                raise typer.Exit(FAILED) from None
            except TableError as error:
                if len(statements) > 1:
                    error.message = f"line {statement.line}: {error.message}"
                raise


def _session(settings: CommandSettings, options: ReadOptions) -> AbstractContextManager[SqlSession]:
    """Start a session over the table at the location, or over the tables below it."""
    from weft.streams.read.sql_query import sql_session

    location = settings.table
    try:
        with hint_at_tables():
            Table.open(location.uri, storage_options=location.storage_options)
    except NotFound:
        from weft.streams.catalog.lake_session import is_lake, lake_session, note_on_empty

        if not is_lake(location):
            raise
        with usage_errors():
            if options != ReadOptions():
                raise InvalidInput(
                    f"{location.uri} has several tables, each with its own snapshots",
                    hint="choose the snapshot in the query: SELECT * FROM shop.orders TIMESTAMP AS OF '...'",
                ) from None
        note = note_on_empty(location)
        if note is not None:
            stderr.print(note, style="dim", soft_wrap=True, markup=False)
        return lake_session(settings)
    return sql_session(settings, options)


def _choose_format(output_format: Format | None, output: Path | None, *, as_json: bool, explain: bool) -> Format:
    form = output_format or ("json" if as_json else "table")
    if as_json and form != "json":
        raise InvalidInput(f"--json and --format {form} exclude each other", hint="leave one of them out")
    if form == "parquet" and output is None:
        raise InvalidInput("--format parquet: a file is missing", hint="add --output FILE")
    if explain and (form in {"csv", "parquet"} or output is not None):
        raise InvalidInput("--explain prints a table, or JSON", hint="leave out --format and --output, or give --json")
    return form


def _read_statements(query: str | None, file: Path | None) -> list[Statement] | None:
    """Read the statements to run; None for a prompt."""
    if query is not None and file is not None:
        raise InvalidInput("a query and --file exclude each other", hint="leave one of them out")
    if query is None and file is None and sys.stdin.isatty():
        return None
    try:
        text = query if query is not None else sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {file or 'standard input'}: {error}", hint="give a file in UTF-8") from error
    statements = split_statements(text)
    if not statements:
        raise InvalidInput(
            "there is no query", hint="give a query, or a script with --file, or run weft sql on a terminal"
        )
    return statements
