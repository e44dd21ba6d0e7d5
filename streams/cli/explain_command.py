"""``weft explain``: why a row has its values."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.storage.operations.points import parse_point
from weft.streams.cli import completion
from weft.streams.cli.arguments import Json, StorageOption, Target, open_table, usage_errors
from weft.streams.cli.examples import examples
from weft.streams.cli.output import print_result
from weft.streams.read.as_of import warn_if_unsettled
from weft.streams.read.text_values import parse_key

explaining = typer.Typer()


@explaining.command(
    epilog=examples(
        "weft explain lake/orders_wide --key 7",
        "weft explain lake/orders_wide --key shop_id=3 --key order_id=7 --history",
    )
)
def explain(
    target: Target,
    key: Annotated[
        list[str],
        typer.Option(
            "--key",
            metavar="[COLUMN=]VALUE",
            help="Key of the row. Give one for each key column; binaries in hexadecimal.",
        ),
    ],
    as_of: Annotated[
        str | None,
        typer.Option(
            help="Snapshot: a cut, a savepoint or a time (ISO 8601 with zone); now by default.",
            autocompletion=completion.savepoints,
        ),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="All events of the key that the retained log has, also merged ones.")
    ] = False,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Why a row has its values: per column group the stored events, which one wins, and why the others lose.

    Each event is shown with stream, lane, commit, time, ordering value and file. Reads only the blocks of the key.
    """
    with usage_errors():
        point = parse_point(as_of)
    table = open_table(target, storage_option)
    snapshot = table.snapshot(point)
    warn_if_unsettled(point, snapshot)
    with usage_errors():
        wanted = parse_key(snapshot.table_schema, key, "--key")
    explanation = snapshot.explain(wanted, history=history)
    print_result(explanation, explanation.to_text(), as_json=as_json)
