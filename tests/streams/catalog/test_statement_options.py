"""Names of options in the text of a statement; without Spark. `tests/sql/bad_input.sql` has a statement."""

from __future__ import annotations

import pytest

from weft.storage.errors import InvalidInput
from weft.streams.catalog.statement_options import check_options, parse_option_names


@pytest.mark.parametrize(
    ("after", "names"),
    [
        ("", []),
        (" x JOIN u WITH ('a' = 'b')", []),
        (" WITH ('require' = 'payment') x", ["require"]),
        ("\n with('Require'='a,b)', \"as_of\" 'it\\'s', settled = true,`before`=1) WHERE a = 'WITH (x = 1)'", None),
        (" WITH ()", []),
        (" WITH (a = (1))", []),
        (" WITHOUT (a = 1)", []),
    ],
)
def test_the_names_of_a_clause(after: str, names: list[str] | None) -> None:
    assert parse_option_names(after) == (["require", "as_of", "settled", "before"] if names is None else names)


def test_an_unknown_option_is_refused_with_those_that_there_are() -> None:
    check_options(" WITH (b = 1)", ("a", "b"))
    with pytest.raises(InvalidInput, match=r"unknown option 'c' for reading a table\n +hint: options: a, b"):
        check_options(" WITH (b = 1, C = 2)", ("b", "a"))
