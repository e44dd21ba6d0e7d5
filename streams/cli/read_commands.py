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
    column_names,
    console,
    errors,
    open_table,
    usage_errors,
)
from weft.streams.cli.examples import examples
from weft.streams.cli.output import limit_note, print_rows
from weft.streams.cli.progress import Quiet, progress

reads = typer.Typer()


@reads.command(
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
    """Rows that differ between two snapshots, each once: insert, update or delete, and in which column groups.

    The last line says where to continue next time.
    """
    with usage_errors():
        first, last = (None if since == EARLIEST else parse_point(since)), parse_point(until)
    table = open_table(target, storage_option)
    begin, later = (None if first is None else table.snapshot(first)), table.snapshot(last)
    for point, found in ((first, begin), (last, later)):
        if found is not None:
            warn_if_unsettled(point, found)
    end = later.cut
    answer = table.changes(
        None if begin is None else str(begin.cut),
        str(end),
        columns=column_names(columns),
        require=column_names(require),
        before=before,
    )
    names = answer.schema.names
    with progress("comparing", quiet=quiet):
        rows, more = _head(answer, limit)
    print_rows(names, rows, as_json=as_json)
    note = limit_note(limit) if more else f"{counted(len(rows), 'row')}; continue with --since {end}"
    # With --json standard output contains only rows.
    (errors if as_json else console()).print(note, style="dim", soft_wrap=True)


def _head(answer: pa.RecordBatchReader, limit: int) -> tuple[list[tuple[object, ...]], bool]:
    """The first rows, and whether there are more."""
    rows: list[tuple[object, ...]] = []
    for batch in answer:
        rows.extend(python_rows(batch.slice(0, limit + 1 - len(rows))))
        if len(rows) > limit:
            return rows[:limit], True
    return rows, False
