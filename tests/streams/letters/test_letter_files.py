"""Names of dead letters, which come from a command line or the address of a page."""

from __future__ import annotations

import pytest

from weft.storage.errors import InvalidInput
from weft.streams.letters.letter_files import parse_name


@pytest.mark.parametrize("name", ["2f1c/7-0:3", "2f1c/7-0.jsonl:3"])
def test_a_name_is_a_file_and_a_line(name: str) -> None:
    assert parse_name(name) == ("2f1c/7-0.jsonl", 3)


@pytest.mark.parametrize("name", ["../7-0:1", "./7-0:1", "_plans/7-0:1", "/7-0:1", "a/b/7-0:1", "a/../7-0:1", "7-0:1"])
def test_a_name_leads_to_no_file_outside_of_the_folder(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a dead letter"):
        parse_name(name)
