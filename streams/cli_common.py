"""What all commands share: their arguments, how an error is told, and the exit codes.

0: ok. 1: something failed. 2: the command line or the pipeline file is wrong, and nothing was done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from storage.errors import TableError

if TYPE_CHECKING:
    from storage import Table

FAILED: Final = 1
USAGE: Final = 2
PIPE_WIDTH: Final = 240

errors: Final = Console(stderr=True, highlight=False, markup=False)

Target = Annotated[str, typer.Argument(metavar="PIPELINE|URI", help="A pipeline file (*.yaml), or a table's location.")]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of tables.")]


def console() -> Console:
    # A pipe has no width of its own, and cutting what is meant for another program helps nobody.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


@contextmanager
def telling() -> Iterator[None]:
    """Turns an error of weft into one red line, its hint, and an exit code."""
    try:
        yield
    except TableError as error:
        errors.print(error.message, style="red", soft_wrap=True)
        if error.hint:
            errors.print(f"hint: {error.hint}", style="dim", soft_wrap=True)
        raise typer.Exit(FAILED) from None


@contextmanager
def usage() -> Iterator[None]:
    """What is wrong in here was given on the command line or in the pipeline file: nothing has been done."""
    try:
        with telling():
            yield
    except typer.Exit:
        raise typer.Exit(USAGE) from None


def open_table(target: str) -> Table:
    """The table that a command is about."""
    from storage import Table
    from streams.pipeline import load_location

    with usage():
        location = load_location(target)
    return Table.open(location.uri, storage_options=location.storage_options)
