"""Numbers with a noun."""

from __future__ import annotations

import pytest

from weft.storage.plural import counted


@pytest.mark.parametrize(
    ("number", "what", "words"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (1234, "file group", "1,234 file groups"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (2, "key", "2 keys"),
    ],
)
def test_a_noun_follows_its_number(number: int, what: str, words: str) -> None:
    assert counted(number, what) == words
