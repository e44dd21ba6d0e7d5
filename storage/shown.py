"""HTML of objects for notebooks: small tables, which look right on dark and on light pages.

Everything is escaped. There are no colours and no scripts: lines and dimmed text follow the colour of the page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

MAX_ITEMS: Final = 5  # of a collection, in a cell
MAX_ROWS: Final = 200
_LINE: Final = "border-bottom:1px solid currentColor;border-color:color-mix(in srgb,currentColor 25%,transparent)"
_CELL: Final = f"text-align:left;vertical-align:top;padding:2px 10px 2px 0;background:none;{_LINE}"
_DIM: Final = "opacity:0.65;font-weight:normal"


class Shown:
    """A frozen dataclass that shows its fields in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        return facts(type(self).__name__, {field.name: getattr(self, field.name) for field in fields})


def facts(title: str, values: Mapping[str, Any]) -> str:
    """A title, and a table of names and values."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL};{_DIM}">{escape(name.replace("_", " "))}</th>'
        f'<td style="{_CELL}">{escape(cell(value))}</td></tr>'
        for name, value in values.items()
    )
    return f"<div><strong>{escape(title)}</strong>{_table(rows)}</div>"


def rows(title: str, columns: Sequence[str], values: Iterable[Sequence[Any]]) -> str:
    """A title, and a table with named columns; the first `MAX_ROWS` rows."""
    head = "".join(f'<th scope="col" style="{_CELL};{_DIM}">{escape(name)}</th>' for name in columns)
    listed = list(values)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell(value))}</td>' for value in row) + "</tr>"
        for row in listed[:MAX_ROWS]
    )
    more = f'<div style="{_DIM}">and {len(listed) - MAX_ROWS:,} more</div>' if len(listed) > MAX_ROWS else ""
    heading = f"<strong>{escape(title)}</strong>" if title else ""
    return f"<div>{heading}{_table(f'<thead><tr>{head}</tr></thead><tbody>{body}</tbody>')}{more}</div>"


def text(title: str, lines: str) -> str:
    """A title, and preformatted text."""
    style = "background:none;color:inherit;white-space:pre-wrap;margin:4px 0"
    return f'<div><strong>{escape(title)}</strong><pre style="{style}">{escape(lines)}</pre></div>'


def cell(value: Any) -> str:
    """A value as short text."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case str():
            return value
        case Mapping():
            return _listed([f"{cell(name)}: {cell(item)}" for name, item in value.items()])
        case Sequence() | frozenset():
            return _listed([cell(item) for item in value])
    return str(value)


def _listed(items: Sequence[str]) -> str:
    if not items:
        return "none"
    more = f", and {len(items) - MAX_ITEMS:,} more" if len(items) > MAX_ITEMS else ""
    return ", ".join(items[:MAX_ITEMS]) + more


def _table(inner: str) -> str:
    return f'<table style="border-collapse:collapse;margin:4px 0;color:inherit">{inner}</table>'
