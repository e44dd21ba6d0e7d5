"""How objects show themselves in a notebook: small tables in HTML, which look right on dark and on light pages.

Everything is escaped. There are no colours and no scripts: lines and dimmed text follow the colour of the page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

MOST_ITEMS: Final = 5  # of a collection, in a cell
MOST_ROWS: Final = 200
_LINE: Final = "border-bottom:1px solid currentColor;border-color:color-mix(in srgb,currentColor 25%,transparent)"
_CELL: Final = f"text-align:left;vertical-align:top;padding:2px 10px 2px 0;background:none;{_LINE}"
_DIM: Final = "opacity:0.65;font-weight:normal"


class Shown:
    """A frozen dataclass that shows its fields in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        return facts(type(self).__name__, {each.name: getattr(self, each.name) for each in fields})


def facts(title: str, values: Mapping[str, Any]) -> str:
    """A title, and a table of names and values."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL};{_DIM}">{escape(name.replace("_", " "))}</th>'
        f'<td style="{_CELL}">{escape(cell(value))}</td></tr>'
        for name, value in values.items()
    )
    return f"<div><strong>{escape(title)}</strong>{_table(rows)}</div>"


def rows(title: str, columns: Sequence[str], found: Iterable[Sequence[Any]]) -> str:
    """A title, and a table with named columns; the first `MOST_ROWS` rows."""
    head = "".join(f'<th scope="col" style="{_CELL};{_DIM}">{escape(name)}</th>' for name in columns)
    listed = list(found)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell(value))}</td>' for value in row) + "</tr>"
        for row in listed[:MOST_ROWS]
    )
    more = f'<div style="{_DIM}">and {len(listed) - MOST_ROWS:,} more</div>' if len(listed) > MOST_ROWS else ""
    named = f"<strong>{escape(title)}</strong>" if title else ""
    return f"<div>{named}{_table(f'<thead><tr>{head}</tr></thead><tbody>{body}</tbody>')}{more}</div>"


def text(title: str, lines: str) -> str:
    """A title, and text as it is."""
    style = "background:none;color:inherit;white-space:pre-wrap;margin:4px 0"
    return f'<div><strong>{escape(title)}</strong><pre style="{style}">{escape(lines)}</pre></div>'


def cell(value: Any) -> str:
    """A value in few words."""
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
            return _listed([f"{cell(name)}: {cell(each)}" for name, each in value.items()])
        case Sequence() | frozenset():
            return _listed([cell(each) for each in value])
    return str(value)


def _listed(items: Sequence[str]) -> str:
    if not items:
        return "none"
    more = f", and {len(items) - MOST_ITEMS:,} more" if len(items) > MOST_ITEMS else ""
    return ", ".join(items[:MOST_ITEMS]) + more


def _table(inner: str) -> str:
    return f'<table style="border-collapse:collapse;margin:4px 0;color:inherit">{inner}</table>'
