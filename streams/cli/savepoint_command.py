"""``weft savepoint``: creates, lists and releases savepoints, three operations in one command."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from weft.storage.errors import InvalidInput
from weft.storage.operations.savepoint import RELEASE, SAVEPOINT, SavepointRequest
from weft.streams.cli import completion
from weft.streams.cli.arguments import Json, StorageOption, Target, open_table, stderr, usage_errors
from weft.streams.cli.examples import examples
from weft.streams.cli.operation_commands import run_command
from weft.streams.cli.output import print_result

savepoint_command = typer.Typer()
_FIELDS = SavepointRequest.model_fields


@savepoint_command.command(epilog=examples(*SAVEPOINT.examples, "weft savepoint lake/orders_wide", *RELEASE.examples))
def savepoint(
    target: Target,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the savepoint; without one, all savepoints are listed.",
            autocompletion=completion.savepoints,
        ),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help=_FIELDS["as_of"].description, autocompletion=completion.savepoints)
    ] = None,
    note: Annotated[str, typer.Option(help=_FIELDS["note"].description)] = "",
    release: Annotated[bool, typer.Option("--release", help="Release it: cleaning may delete its files.")] = False,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Keep a snapshot under a name, until it is released; or list all savepoints."""
    if name is None:
        if release or as_of or note:
            with usage_errors():
                raise InvalidInput("a savepoint needs a name", hint="give one: weft savepoint TARGET NAME")
        _print_savepoints(target, storage_option, as_json=as_json)
    elif release:
        run_command(RELEASE, {"name": name}, target=target, storage_option=storage_option, as_json=as_json)
    else:
        values = {"name": name, "as_of": as_of, "note": note}
        run_command(SAVEPOINT, values, target=target, storage_option=storage_option, as_json=as_json)


def _print_savepoints(target: str, storage_option: list[str] | None, *, as_json: bool) -> None:
    savepoints = open_table(target, storage_option).savepoints()
    if not savepoints and not as_json:
        stderr.print("there are no savepoints", style="dim")
    for point in savepoints:
        time = dt.datetime.fromtimestamp(point.made_at_ms / 1000, dt.UTC).isoformat(timespec="seconds")
        print_result(point, f"{point.name}  {time}  {point.cut}  {point.note}".rstrip(), as_json=as_json)
