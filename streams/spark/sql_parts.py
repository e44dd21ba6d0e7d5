"""Comments, quotations and semicolons in the text of Spark SQL, as Spark's lexer finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final

_PART: Final = re.compile(
    r"""(?P<comment>--(?:\\\n|[^\r\n])*)|(?P<bracket>/\*)|(?P<end>;)"""
    r"""|(?P<quoted>[rR](?:'[^']*'|"[^"]*")|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|\$\$.*?\$\$)"""
    r"""|(?P<open>['"`]|\$\$)|\w+|[^\w;'"`$/-]+|.""",
    re.DOTALL,
)
_BRACKETS: Final = re.compile(r"/\*(?!\+)|\*/")


class Kind(Enum):
    """Kind of a part of a text."""

    COMMENT = "comment"
    QUOTED = "quoted"
    END = "end"  # a semicolon outside of comments and quotations
    OPEN = "open"  # a comment or quotation that does not end: the rest of the text
    OTHER = "other"


def parts(text: str) -> Iterator[tuple[Kind, int, int]]:
    """Divide a text as Spark's lexer does; yields the kind, begin and end of each part.

    Comments in brackets may be nested, and a backslash at the end of a line continues a ``--`` comment.
    """
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        assert part is not None, "any character is a part"
        kind, end = part.lastgroup or "other", part.end()
        if kind == "bracket":
            end = _end_of_comment(text, position)
            kind = "comment" if end else "open"
        if kind == "open":
            end = len(text)
        yield Kind(kind), position, end
        position = end


def remove_comments(text: str) -> str:
    """Replace each comment of a text by a space."""
    return "".join(" " if kind is Kind.COMMENT else text[start:end] for kind, start, end in parts(text))


def _end_of_comment(text: str, start: int) -> int:
    """Return the end of a comment in brackets; 0 if it does not end."""
    depth = 0
    for bracket in _BRACKETS.finditer(text, start + 2):
        if bracket.group() == "/*":
            depth += 1
        elif depth == 0:
            return bracket.end()
        else:
            depth -= 1
    return 0
