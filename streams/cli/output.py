"""Output of commands: tables and text for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import typer
from rich.table import Table as Grid
from rich.text import Text

from streams.cli.arguments import console
from streams.read.plain_values import json_value

T = TypeVar("T")


def print_result(result: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command, as one JSON object or in words."""
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
        grid.add_row(*(Text(cell(fact)) for cell in columns.values()))  # Text: rich would take brackets for markup
    return grid


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool) -> None:
    """Print rows of a table: with lines around the cells, or one JSON object for each."""
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
        return
    console().print(draw_rows(columns, rows))


def draw_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Grid:
    """Draw rows of a table with lines around the cells."""
    grid = Grid()
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int | float | None) for row in rows)
        grid.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(_cell, row))
    return grid


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", "dim")
    plain = json_value(value)
    return Text(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False))


def counted(number: int, what: str) -> str:
    """A number and a noun, which is in the plural unless the number is one."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def limit_note(limit: int) -> str:
    """The note below a result that was cut to its first rows."""
    return f"the first {limit:,} rows; --limit shows more"
