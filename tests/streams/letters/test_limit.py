"""When the limit of dead letters is exceeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streams.letters.rig import Place, bad, good
from weft.streams.letters.limit import LetterLimit, TooManyDeadLetters, frequent_reasons
from weft.streams.pipeline.run.error_kinds import Ending, ending_of


@pytest.mark.parametrize(
    ("limit", "letters", "messages", "before", "exceeded"),
    [
        (LetterLimit(), 100, 100, 10**9, False),
        (LetterLimit(max_rate=0.1), 10, 100, 0, False),
        (LetterLimit(max_rate=0.1), 11, 100, 0, True),
        (LetterLimit(max_rate=0.1), 1, 1, 0, False),  # a single message
        (LetterLimit(max_rate=0.1), 2, 2, 0, True),
        (LetterLimit(max_rate=0.0), 2, 1_000_000, 0, True),
        (LetterLimit(max_rate=1.0), 5, 5, 0, False),
        (LetterLimit(max_count=10), 10, 10, 0, False),
        (LetterLimit(max_count=10), 1, 100, 10, True),
        (LetterLimit(max_count=10), 0, 100, 11, False),
        (LetterLimit(max_count=0), 1, 100, 0, True),
        (LetterLimit(max_rate=0.5, max_count=10), 11, 100, 0, True),
    ],
)
def test_limits(limit: LetterLimit, letters: int, messages: int, before: int, *, exceeded: bool) -> None:
    assert (limit.describe_excess(letters, messages, before) is not None) == exceeded


def test_the_writer_is_not_restarted() -> None:
    assert ending_of(TooManyDeadLetters("11 of 100")) is Ending.REFUSED


def test_the_message_has_the_most_frequent_reasons(tmp_path: Path) -> None:
    place = Place.new(tmp_path / "place")
    place.write(good(1), bad(2), bad(3))
    assert frequent_reasons(place.letters().store, "q", 0) == "2 x it is bad"
    assert frequent_reasons(place.letters().store, "q", 1) == ""
