"""Splits SQL text into statements at semicolons outside of quotes and comments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.streams.spark.sql_parts import Kind, parts, remove_comments


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a script.

    Attributes:
        text: The statement without its semicolon.
        line: The line of the script in which it begins, from 1.
        ended: Whether a semicolon ends it; only the last statement may lack one.
    """

    text: str
    line: int
    ended: bool


def split_statements(text: str) -> list[Statement]:
    """Split a text into its statements. Parts that contain only spaces and comments are left out."""
    return [statement for statement in _pieces(text) if remove_comments(statement.text).strip()]


def is_complete(text: str) -> bool:
    """Whether a text ends outside of quotes and comments, and its last statement ends with a semicolon."""
    *_, last = _pieces(text)
    return not remove_comments(last.text).strip()


def _pieces(text: str) -> Iterator[Statement]:
    """Yield the text before each semicolon, then the text after the last one. An open quote extends to the end."""
    start = 0
    for kind, begin, end in parts(text):
        if kind is Kind.END:
            yield _statement(text, start, begin, ended=True)
            start = end
    yield _statement(text, start, len(text), ended=False)


def _statement(text: str, start: int, end: int, *, ended: bool) -> Statement:
    body = text[start:end]
    first = start + len(body) - len(body.lstrip())
    return Statement(body.strip(), text.count("\n", 0, first) + 1, ended)
