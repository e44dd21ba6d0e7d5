"""Commands that change the rows of a table beside live writers: erase, rewrite, expire rows, time to live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import typer

from storage.engine import EraseResult, TableSchema, check_rewritable
from storage.errors import InvalidInput
from storage.plural import counted
from streams.cli import completion
from streams.cli.arguments import (
    FAILED,
    Json,
    StorageOption,
    Target,
    load_target,
    open_location,
    open_table,
    usage_errors,
)
from streams.cli.examples import examples
from streams.cli.output import print_result
from streams.cli.progress import Quiet, progress
from streams.cli.service_commands import Yes, confirm

changes_of_rows = typer.Typer()

_FORMATS: Final = ".parquet, .csv (with a header) or .jsonl (one object a line)"
SHOWN: Final = 20  # paths of each kind; --json has all


@changes_of_rows.command(
    epilog=examples("weft erase lake/orders_wide --keys customers.csv --expire-snapshots --note 'ticket 12'")
)
def erase(
    target: Target,
    keys: Annotated[Path, typer.Option(help=f"A file with the key columns: {_FORMATS}. Other columns are ignored.")],
    expire_snapshots: Annotated[
        bool,
        typer.Option("--expire-snapshots", help="Expire all earlier snapshots, and remove pins, that have the keys."),
    ] = False,
    release_savepoints: Annotated[
        bool, typer.Option("--release-savepoints", help="Release savepoints that have the keys.")
    ] = False,
    note: Annotated[str, typer.Option(help="A text for the log, such as a ticket; it must not contain keys.")] = "",
    yes: Yes = False,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Remove keys physically, from every file of a table, and prove it by reading all of them back. Writers go on.

    Refused while retained snapshots, savepoints or pins need files with the keys, unless the options below allow to
    release them. If it was interrupted, run it again. Exit code 1 if an object still has a key.

    Not part of a table, and not changed: Kafka topics, dead letters, checkpoints of Spark, backups, old versions of
    objects, and what the table is published as: publish it again. Messages with the keys that are read later are new
    data.
    """
    table = open_table(target, storage_option)
    with usage_errors():
        given = read_keys(keys, table.schema)
    confirm(f"Erase {counted(given.num_rows, 'key')} from {table.uri}? This cannot be undone.", yes=yes)
    with progress("looking for the keys", quiet=quiet) as show:
        result = table.erase(
            given, expire_snapshots=expire_snapshots, release_savepoints=release_savepoints, note=note, progress=show
        )
    print_result(result, describe(result), as_json=as_json)
    if not result.complete:
        raise typer.Exit(FAILED)


@changes_of_rows.command(epilog=examples("weft rewrite lake/orders_wide --set 'email = sha2(email, 256)'"))
def rewrite(
    target: Target,
    assignment: Annotated[
        str, typer.Option("--set", metavar="'COLUMN = EXPRESSION'", help="A Spark SQL expression of that column.")
    ],
    note: Annotated[str, typer.Option(help="A text for the log, such as a ticket.")] = "",
    yes: Yes = False,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Change the values of a column in all rows, for example: --set "email = sha2(email, 256)". Writers go on.

    Versions stay: later events win or lose as before. NULLs stay. Earlier snapshots show the old values until
    weft clean expires them. The column must be in a group with latest or latest_non_null, and must not order events.
    """
    settings = load_target(target, storage_option, "spark")
    column, separator, expression = (part.strip() for part in assignment.partition("="))
    with usage_errors():
        if not (column and separator and expression):
            raise InvalidInput(f"--set {assignment!r} is no assignment", hint="--set 'email = sha2(email, 256)'")
    table = open_location(settings.table)
    with usage_errors():
        check_rewritable(table.schema, column)
    confirm(f"Rewrite {column} in all rows of {table.uri}? This cannot be undone.", yes=yes)
    from streams.read.sql_function import sql_function

    kind = table.schema.column(column).type
    with (
        progress("starting Spark", quiet=quiet) as show,
        sql_function(settings.spark, column, expression, kind) as function,
    ):
        result = table.rewrite(column, function, note=note, progress=show)
    text = (
        f"{column} is rewritten up to {result.cut}: {counted(result.file_groups, 'file group')}, "
        f"{counted(result.rows, 'row')}; earlier snapshots show the old values until weft clean expires them"
    )
    print_result(result, text if result.entry else "the table has no rows", as_json=as_json)


@changes_of_rows.command(epilog=examples("weft expire-rows lake/orders_wide order_ts --before 2025-01-01T00:00:00Z"))
def expire_rows(
    target: Target,
    column: Annotated[
        str,
        typer.Argument(
            help="A column with values to compare, for example a time.", autocompletion=completion.column_names
        ),
    ],
    before: Annotated[str, typer.Option(help="Remove rows with a smaller value: a number, or a time (ISO 8601).")],
    note: Annotated[str, typer.Option(help="A text for the log.")] = "",
    yes: Yes = False,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Remove the visible rows in which a column is before a limit. Run it once a day for a time to live. Writers go on.

    All groups of these rows are removed; later events of their keys are new data. weft clean deletes the old files.
    """
    table = open_table(target, storage_option)
    confirm(f"Remove rows with {column} before {before} from {table.uri}? This cannot be undone.", yes=yes)
    with progress("rewriting", quiet=quiet) as show:
        result = table.expire_rows(column, before, note=note, progress=show)
    text = f"{counted(result.rows, 'row')} with {column} before {before} removed, up to {result.cut}"
    print_result(result, text, as_json=as_json)


@changes_of_rows.command(epilog=examples("weft apply-ttl lake/orders_wide"))
def apply_ttl(
    target: Target, storage_option: StorageOption = None, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Remove the rows and deletes that are older than the table's time to live. Writers go on.

    The services of weft run and weft services do it continuously; weft alter set-ttl sets it. File groups in which
    nothing is overdue are not rewritten. weft clean deletes the old files.
    """
    table = open_table(target, storage_option)
    with progress("looking for old rows", quiet=quiet) as show:
        result = table.apply_ttl(progress=show)
    text = (
        f"{counted(result.rows, 'row')} and {counted(result.deletes, 'delete')} removed from "
        f"{counted(result.file_groups, 'file group')}"
    )
    if result.skipped:
        text += f"; {counted(result.skipped, 'file group')} skipped, because another service was first: run it again"
    print_result(result, text, as_json=as_json)


@changes_of_rows.command(epilog=examples("weft forget-deletes lake/orders_wide order --before 2025-01-01T00:00:00Z"))
def forget_deletes(
    target: Target,
    group: Annotated[str, typer.Argument(help="A group with ordering columns.", autocompletion=completion.group_names)],
    before: Annotated[
        str, typer.Option(help="Forget deletes with a smaller first ordering value: a number, or a time (ISO 8601).")
    ],
    note: Annotated[str, typer.Option(help="A text for the log.")] = "",
    yes: Yes = False,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Forget old deletes, where nothing else is known of the row. Only if no older event of the group will come.

    A later event that is older than a forgotten delete brings its row back. Rows that are hidden by a delete and have
    values in other groups stay. Writers go on.
    """
    table = open_table(target, storage_option)
    confirm(f"Forget deletes of {group} before {before} in {table.uri}? This cannot be undone.", yes=yes)
    with progress("rewriting", quiet=quiet) as show:
        result = table.forget_deletes(group, before, note=note, progress=show)
    text = f"{counted(result.deletes, 'delete')} of {group} before {before} forgotten, up to {result.cut}"
    print_result(result, text, as_json=as_json)


def read_keys(file: Path, schema: TableSchema) -> pa.Table:
    """The key columns of a file, with the types of the table.

    Raises:
        InvalidInput: The file cannot be read, has another format, or lacks a key column.
    """
    names = list(schema.key)
    types = {name: schema.column_by_name[name].type for name in names}
    try:
        match file.suffix:
            case ".parquet":
                return pq.read_table(file, columns=names)
            case ".csv":
                options = pc.ConvertOptions(column_types=types, include_columns=names, strings_can_be_null=False)
                lines = pc.ParseOptions(newlines_in_values=True)
                return pc.read_csv(file, parse_options=lines, convert_options=options)
            case ".jsonl" | ".ndjson":
                parsing = pj.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="ignore")
                return pj.read_json(file, parse_options=parsing)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(
            f"the keys in {file} cannot be read: {error}", hint=f"it needs the columns {', '.join(names)}"
        ) from error
    raise InvalidInput(f"{file} is of no known format", hint=f"give a file that ends with {_FORMATS}")


def describe(result: EraseResult) -> str:
    """The report in words: what was done, what was read back, and what is left."""
    lines = [
        f"{counted(result.keys, 'key')} erased up to {result.cut}"
        if result.complete
        else f"NOT COMPLETE: {counted(len(result.remains), 'object')} with a key, or that cannot be read"
    ]
    deleted = sum(tally.files for tally in result.deleted.values())
    lines.append(
        f"{counted(result.file_groups, 'file group')} rewritten, {counted(deleted, 'file')} deleted, "
        f"key ranges removed from {counted(result.redacted, 'entry')} of the log"
    )
    lines.extend(f"savepoint {name} is released" for name in result.released)
    lines.extend(f"{dependent} cannot be read any more: it needed a released savepoint" for dependent in result.broken)
    lines.extend(f"a pin of {owner} is removed" for owner in result.unpinned)
    lines.extend(f"compaction {plan} is aborted" for plan in result.aborted)
    read = ", ".join(f"{tally.files:,} {kind}" for kind, tally in sorted(result.read.items()))
    total = sum(tally.bytes for tally in result.read.values())
    lines.append(f"read back: {read}; {total / 1e6:.1f} MB")
    lines.extend(f"still there: {left.path}: {left.why}" for left in result.remains[:SHOWN])
    lines.extend(
        f"newer, not erased: {path} (committed after the cut, or not committed yet)" for path in result.newer[:SHOWN]
    )
    lines.extend(f"not a file of the table, not read: {path}" for path in result.unread[:SHOWN])
    lines.append(
        "not part of the table: Kafka topics, dead letters, Spark's checkpoints, backups, and what the table is "
        "published as (publish it again)"
    )
    return "\n".join(lines)
