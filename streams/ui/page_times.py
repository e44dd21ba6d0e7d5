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
    """Parse ISO 8601 (UTC if it names no zone) or ``15 min ago`` into a time with a zone. Raises ValueError."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return dt.datetime.now(dt.UTC) - int(ago[1]) * _UNITS[ago[2]]
    time = dt.datetime.fromisoformat(text.strip())
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)


def page_value(text: str) -> str:
    """Parse a value of an ordering column: a time becomes ISO 8601 with its zone, any other text stays as it is."""
    stripped = text.strip()
    if ":" in stripped or _AGO.fullmatch(stripped):
        with contextlib.suppress(ValueError, OverflowError):
            return page_time(stripped).isoformat()
    return stripped


def page_point(text: str) -> Any:
    """Parse a point in the history of a table: a time, the name of a savepoint, or a cut; None for an empty text.

    Raises:
        InvalidInput: The text contains a colon but is neither a time nor a cut.
    """
    stripped = text.strip()
    if ":" in stripped or _AGO.fullmatch(stripped):
        try:
            return page_time(stripped)
        except (ValueError, OverflowError):
            pass  # a cut, or an error that says what is wrong
    return parse_point(stripped or None)
