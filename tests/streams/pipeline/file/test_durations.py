"""Durations and lateness as pipeline files write them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from weft.storage.config.config_file import parse_duration
from weft.streams.pipeline.file.pipeline_file import parse_lateness


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2 seconds", 2), ("1 second", 1), ("10 minutes", 600), ("1 hour", 3600), ("2 days", 172800), ("500 ms", 0.5),
     ("250 milliseconds", 0.25), ("1.5s", 1.5), (3, 3), (0.5, 0.5), ("7", 7), ("0 seconds", 0)],
)  # fmt: skip
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "seconds", "-1 s", "1 fortnight", True, None, "1 2 s", "400 days", [1]])
def test_invalid_durations(text: Any) -> None:
    with pytest.raises(ValueError, match=r"not a duration|longer than a year"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("10 minutes", dt.timedelta(minutes=10)), ("0 s", dt.timedelta(0)), ("1.5s", dt.timedelta(seconds=1.5)),
     (100, 100), ("100", 100), (0, 0), (dt.timedelta(1), dt.timedelta(1))],
)  # fmt: skip
def test_lateness_is_a_duration_or_a_number(given: Any, meant: Any) -> None:
    assert parse_lateness(given) == meant
    assert type(parse_lateness(given)) is type(meant)


@pytest.mark.parametrize("given", ["", "soon", "-1 s", "-1", "400 days", True, 1.5, None, [1]])
def test_invalid_lateness(given: Any) -> None:
    with pytest.raises(ValueError, match=r"not a lateness|not a duration|longer than a year"):
        parse_lateness(given)
