"""Output of commands: tables and text for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import typer
from rich.table import Table as Grid
from rich.text import Text

from storage.engine import TableSchema
from streams.cli.arguments import console

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


def json_value(value: Any) -> Any:
    """Convert a value for JSON: dataclasses and structs become objects, types that JSON lacks become text."""
    if isinstance(value, TableSchema):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return {field.name: json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "__fields__"):  # a struct, as Spark's rows have it
        return {name: json_value(item) for name, item in zip(value.__fields__, value, strict=True)}
    if isinstance(value, list | tuple | frozenset | set):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


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
