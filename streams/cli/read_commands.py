"""Commands that read a table without Spark: what changed between two snapshots."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa
import typer

from weft.storage.core.python_values import python_rows
from weft.storage.operations.points import EARLIEST, parse_point, warn_if_unsettled
from weft.storage.plural import counted
from weft.streams.cli import completion
from weft.streams.cli.arguments import (
    Json,
    StorageOption,
    Target,
    console,
    open_table,
    split_names,
    stderr,
    usage_errors,
)
from weft.streams.cli.examples import examples
from weft.streams.cli.output import limit_note, print_rows
from weft.streams.cli.progress import Quiet, progress

read_commands = typer.Typer()


@read_commands.command(
    epilog=examples(
        "weft changes lake/orders_wide --since before_migration",
        "weft changes lake/orders_wide --since 2026-11-20T10:00:00Z --columns status,paid --before",
    )
)
def changes(
    target: Target,
    since: Annotated[
        str,
        typer.Option(
            help="A cut, a savepoint, a time (ISO 8601 with zone), or earliest.", autocompletion=completion.savepoints
        ),
    ],
    until: Annotated[
        str | None, typer.Option(help="End of the range, in the same forms; the newest snapshot by default.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Columns to show besides the key: a,b,c. Other columns are not compared.")
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="Groups that a row must have: a,b,c.")] = None,
    before: Annotated[bool, typer.Option("--before", help="Also show the row before the change.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 100,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show the rows that differ between two snapshots, each once: insert, update or delete, and the column groups.

    The last line says where to continue next time.
    """
    with usage_errors():
        since_point = None if since == EARLIEST else parse_point(since)
        until_point = parse_point(until)
    table = open_table(target, storage_option)
    first = None if since_point is None else table.snapshot(since_point)
    last = table.snapshot(until_point)
    if first is not None:
        warn_if_unsettled(since_point, first)
    warn_if_unsettled(until_point, last)
    changed_rows = table.changes(
        None if first is None else str(first.cut),
        str(last.cut),
        columns=split_names(columns),
        require=split_names(require),
        before=before,
    )
    with progress("comparing", quiet=quiet):
        rows, has_more = _read_head(changed_rows, limit)
    print_rows(changed_rows.schema.names, rows, as_json=as_json)
    note = limit_note(limit) if has_more else f"{counted(len(rows), 'row')}; continue with --since {last.cut}"
    # With --json standard output contains only rows.
    (stderr if as_json else console()).print(note, style="dim", soft_wrap=True)


def _read_head(reader: pa.RecordBatchReader, limit: int) -> tuple[list[tuple[object, ...]], bool]:
    """Read the first rows; return them, and whether there are more."""
    rows: list[tuple[object, ...]] = []
    for batch in reader:
        rows.extend(python_rows(batch.slice(0, limit + 1 - len(rows))))
        if len(rows) > limit:
            return rows[:limit], True
    return rows, False
