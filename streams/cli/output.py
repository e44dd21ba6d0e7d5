"""Output of commands: tables and text for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from weft.storage.plural import counted
from weft.streams.cli.arguments import console
from weft.streams.read.plain_values import json_value

T = TypeVar("T")

_MIN_CELL: Final = 6  # characters of a cell in a table that is cut to the width of a terminal


def print_result(result: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command: as one JSON object, or the text for people."""
    if as_json:
        print_json(result)
    else:
        typer.echo(text)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(json_value(value), ensure_ascii=False))


def draw(facts: Iterable[T], columns: Mapping[str, Callable[[T], str]], right: Sequence[str] = ()) -> Grid:
    """Draw a table without borders, with one row per fact.

    Args:
        facts: The items to show.
        columns: Functions that give the text of a cell, by title.
        right: Titles of the columns that are aligned to the right.
    """
    grid = Grid(box=None, pad_edge=False)
    for title in columns:
        grid.add_column(title, justify="right" if title in right else "left")
    for fact in facts:
        # As Text, because rich takes brackets in a str for markup.
        grid.add_row(*(Text(cell(fact)) for cell in columns.values()))
    return grid


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool) -> None:
    """Print rows of a table: with lines around the cells, or as one JSON object per row."""
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
        return
    out = console()
    if sys.stdout.isatty() and _width(columns, rows) > out.width:
        _print_narrow(out, columns, rows)
    else:
        out.print(draw_rows(columns, rows))


def draw_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Grid:
    """Draw rows of a table with lines around the cells."""
    grid = Grid()
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)
        grid.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(_cell, row))
    return grid


def _width(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    """Characters of the widest line of a table with lines around the cells."""
    widths = [
        max([cell_len(name), *(cell_len(_cell(row[number]).plain) for row in rows)])
        for number, name in enumerate(columns)
    ]
    return sum(widths) + 3 * len(widths) + 1


def _print_narrow(out: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows that are wider than the terminal: cut long values, or print each row as a list of its columns."""
    if len(columns) * (_MIN_CELL + 3) + 1 <= out.width:
        grid = draw_rows(columns, rows)
        for column in grid.columns:
            column.overflow, column.no_wrap, column.min_width = "ellipsis", True, _MIN_CELL
        out.print(grid)
        out.print(
            "long values are cut to the width of the terminal; --json and --format csv have all of them", style="dim"
        )
        return
    name_width = max(map(cell_len, columns), default=0)
    for number, row in enumerate(rows, 1):
        out.print(f"row {number}", style="bold")
        for name, value in zip(columns, row, strict=True):
            line = Text(f"  {name:<{name_width}}  ", no_wrap=True, overflow="ellipsis").append_text(_cell(value))
            out.print(line, no_wrap=True, overflow="ellipsis")


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", "dim")
    plain = json_value(value)
    return Text(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False))


def limit_note(limit: int, what: str = "row") -> str:
    """Return the note below a result that was cut to its first rows."""
    return f"the first {counted(limit, what)}; --limit shows more"
