"""Times as people type them into the page: as the page shows them, in UTC, or relative to now."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from typing import Any, Final

from weft.storage.operations.points import parse_point

EXAMPLE: Final = "2026-11-20 10:30:00 (in UTC), 15 min ago, 1 h ago or 2 d ago"
_AGO: Final = re.compile(r"(\d{1,6}) ?(s|min|h|d) ago")
_UNITS: Final = {
    "s": dt.timedelta(seconds=1),
    "min": dt.timedelta(minutes=1),
    "h": dt.timedelta(hours=1),
    "d": dt.timedelta(days=1),
}


def page_time(text: str) -> dt.datetime:
    """A time with a zone: ISO 8601, in UTC if it names none, or ``15 min ago``. Raises ValueError."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return dt.datetime.now(dt.UTC) - int(ago[1]) * _UNITS[ago[2]]
    found = dt.datetime.fromisoformat(text.strip())
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


def page_value(text: str) -> str:
    """A value of an ordering column: of a time ISO 8601 with its zone; any other text as it is."""
    given = text.strip()
    if ":" in given or _AGO.fullmatch(given):
        with contextlib.suppress(ValueError, OverflowError):
            return page_time(given).isoformat()
    return given


def page_point(text: str) -> Any:
    """A point in the history of a table: a time, the name of a savepoint, or a cut; None for an empty text.

    Raises:
        InvalidInput: The text contains a colon but is neither a time nor a cut.
    """
    given = text.strip()
    if ":" in given or _AGO.fullmatch(given):
        try:
            return page_time(given)
        except (ValueError, OverflowError):
            pass  # a cut, or an error that says what is wrong
    return parse_point(given or None)
