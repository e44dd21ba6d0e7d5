"""Times as Unix milliseconds, which entries have, and as datetimes, which users give and read."""

from __future__ import annotations

import datetime as dt
from typing import Final

from weft.storage.errors import InvalidInput

MILLISECOND: Final = dt.timedelta(milliseconds=1)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def milliseconds(moment: dt.datetime) -> int:
    """Unix milliseconds of a time, rounded down.

    Raises:
        InvalidInput: The time has no time zone.
    """
    if moment.tzinfo is None:
        raise InvalidInput(f"the time {moment} has no time zone", hint="give an aware datetime, for example in UTC")
    return (moment - _EPOCH) // MILLISECOND


def moment_of(time_ms: int) -> dt.datetime:
    """The UTC time of a number of Unix milliseconds."""
    return _EPOCH + time_ms * MILLISECOND


def format_time(time_ms: int) -> str:
    """Unix milliseconds as text in ISO 8601, such as ``2026-11-20T10:30:00.000+00:00``."""
    return moment_of(time_ms).isoformat(timespec="milliseconds")
