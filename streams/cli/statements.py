"""Splits SQL text into statements at semicolons outside of quotes and comments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.streams.spark.sql_parts import Kind, parts, remove_comments


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement.

    Attributes:
        text: The statement without its semicolon.
        line: The line of the text in which it begins, from 1.
        ended: Whether a semicolon ends it; only the last one may lack it.
    """

    text: str
    line: int
    ended: bool


def split_statements(text: str) -> list[Statement]:
    """The statements of a text. What has only spaces and comments is none."""
    return [statement for statement in _pieces(text) if remove_comments(statement.text).strip()]


def is_complete(text: str) -> bool:
    """Whether a text ends outside of quotes and comments, and its last statement ends with a semicolon."""
    *_, last = _pieces(text)
    return not remove_comments(last.text).strip()


def _pieces(text: str) -> Iterator[Statement]:
    """Everything up to each semicolon, then what follows the last one; in an open quote that is all the rest."""
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
