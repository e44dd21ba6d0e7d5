"""The names of options that a statement gives to a table: ``FROM t WITH ('require' = 'payment')``.

Spark passes on only options that the catalog knows, and drops the others. A misspelt option would change nothing
without a word, so the names are read from the text of the statement. For DataFrames, which have no text, see
`weft.streams.catalog.reader_options`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from weft.storage.errors import InvalidInput

_TEXT: Final = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\""""
_OPTION: Final = re.compile(rf"""\s*({_TEXT}|[\w.`-]+)\s*(?:=\s*)?({_TEXT}|[^\s,()'"]+)\s*([,)])""")
_CLAUSE: Final = re.compile(r"\s*WITH\s*\(", re.IGNORECASE)


def written_options(after: str) -> list[str]:
    """Names of the options in the WITH clause with which a text begins, in lower case.

    Args:
        after: The statement after the name of the table, and after its point in time.

    Returns:
        The names; empty if there is no such clause, or if it has another form.
    """
    clause = _CLAUSE.match(after)
    if clause is None:
        return []
    names, position, last = [], clause.end(), ","
    while last == ",":
        option = _OPTION.match(after, position)
        if option is None:
            return []
        names.append(option[1].strip("'\"`").lower())
        position, last = option.end(), option[3]
    return names


def check_options(after: str, known: Collection[str]) -> None:
    """Check the options that a statement gives to a table.

    Args:
        after: As in `written_options`.
        known: Names of options.

    Raises:
        InvalidInput: One is not among them.
    """
    check_names(written_options(after), known)


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Check names of options, in lower case.

    Raises:
        InvalidInput: One is not among the known ones.
    """
    for name in given:
        if name not in known:
            raise InvalidInput(
                f"unknown option {name!r} for reading a table", hint=f"options: {', '.join(sorted(known))}"
            )
