"""Checks the names of options in a statement: ``FROM t WITH ('require' = 'payment')``.

Spark passes on only options that the catalog knows, and drops the others, so a misspelt option would be ignored without
an error. Therefore the names are read from the text of the statement. `weft.streams.catalog.reader_options` does the
same for DataFrames, which have no text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from weft.storage.errors import InvalidInput

_TEXT: Final = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\""""
_OPTION: Final = re.compile(rf"""\s*({_TEXT}|[\w.`-]+)\s*(?:=\s*)?({_TEXT}|[^\s,()'"]+)\s*([,)])""")
_CLAUSE: Final = re.compile(r"\s*WITH\s*\(", re.IGNORECASE)


def parse_option_names(after: str) -> list[str]:
    """Parse the names of the options in the WITH clause with which a text begins.

    Args:
        after: The statement after the name of the table, and after its point in time.

    Returns:
        The names in lower case; empty without a WITH clause, or if it has another form.
    """
    clause = _CLAUSE.match(after)
    if clause is None:
        return []
    names, position, separator = [], clause.end(), ","
    while separator == ",":
        option = _OPTION.match(after, position)
        if option is None:
            return []
        names.append(option[1].strip("'\"`").lower())
        position, separator = option.end(), option[3]
    return names


def check_options(after: str, allowed: Collection[str]) -> None:
    """Check the options of a statement for a table.

    Args:
        after: As in `parse_option_names`.
        allowed: Names of all options.

    Raises:
        InvalidInput: An option is unknown.
    """
    check_names(parse_option_names(after), allowed)


def check_names(names: Iterable[str], allowed: Collection[str]) -> None:
    """Check names of options, in lower case.

    Raises:
        InvalidInput: An option is unknown.
    """
    for name in names:
        if name not in allowed:
            raise InvalidInput(
                f"unknown option {name!r} for reading a table", hint=f"options: {', '.join(sorted(allowed))}"
            )
