"""Times that people type into the page."""

from __future__ import annotations

import datetime as dt

import pytest

from weft.storage.errors import InvalidInput
from weft.streams.ui.page_times import page_point

NOON = dt.datetime(2026, 11, 23, 12, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("2026-11-23 12:00", NOON),
        ("2026-11-23 12:00:00.000", NOON),
        ("2026-11-23T12:00:00Z", NOON),
        ("2026-11-23T13:00+01:00", NOON),
        (" before-import ", "before-import"),
        ("cut:1:7:orders=12", "cut:1:7:orders=12"),
        ("", None),
    ],
)
def test_a_time_without_a_zone_is_in_utc_as_the_page_shows_it(text: str, point: dt.datetime | str | None) -> None:
    assert page_point(text) == point


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 min ago", 600), ("2 h ago", 7200), ("1d ago", 86400), ("5 s ago", 5)]
)
def test_a_time_may_be_relative_to_now(text: str, seconds: int) -> None:
    found = page_point(text)
    assert abs((dt.datetime.now(dt.UTC) - found).total_seconds() - seconds) < 60


def test_what_is_neither_a_time_nor_a_cut_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not a time"):
        page_point("half past: nine")
