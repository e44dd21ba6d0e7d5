"""Points in the history of a table: a time, the name of a savepoint, or a cut."""

from __future__ import annotations

import datetime as dt
import logging
from collections import deque
from typing import Any, Final

from pydantic import BeforeValidator

from weft.storage.core.log.cut import PREFIX
from weft.storage.errors import InvalidInput
from weft.storage.read.snapshot import Snapshot

Point = dt.datetime | str
"""A time with zone, a savepoint or a cut."""
EARLIEST: Final = "earliest"
"""For changes, in place of a point: before the first commit, so that every row is an insert."""
_RECENT_WARNINGS: Final[deque[tuple[str, dt.datetime, str]]] = deque(maxlen=64)
"""The latest warnings of this process: (URI of the table, time, cut)."""


def parse_moment(text: str) -> dt.datetime:
    """Parse a time in ISO 8601 with a time zone.

    Raises:
        InvalidInput: The text is not a time, or has no zone.
    """
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a time", hint="for example 2026-11-20T10:30:00Z") from None
    return _with_zone(moment)


def parse_point(value: Any) -> Any:
    """Parse a point: text with a colon is a time or a cut, other text the name of a savepoint. None stays None.

    Raises:
        InvalidInput: The text contains a colon but is neither a time nor a cut, or the time has no zone.
        ValueError: The value is neither a text nor a datetime.
    """
    if isinstance(value, str) and ":" in value and not value.startswith(PREFIX):
        return parse_moment(value)
    if isinstance(value, dt.datetime):
        return _with_zone(value)
    if not isinstance(value, str | None):
        raise ValueError("not a time, a name or a cut")  # noqa: TRY004 - pydantic reports a ValueError as a wrong value
    return value


def _with_zone(moment: dt.datetime) -> dt.datetime:
    if moment.tzinfo is None:
        text = moment.isoformat()
        raise InvalidInput(f"the time {text!r} has no zone", hint=f"for example {text}Z, or {text}+01:00")
    return moment


PARSED_POINT: Final = BeforeValidator(parse_point)
"""Validator of a field with a `Point`, which users write as text."""


def warn_if_unsettled(point: Point | None, snapshot: Snapshot) -> None:
    """Log a warning with the cut of a time that may still resolve to another cut, once for each cut.

    A query may resolve its snapshot several times: when it is analysed, and when it is planned.
    """
    if not isinstance(point, dt.datetime) or snapshot.settled:
        return
    warning_key = (snapshot.table_log.store.uri, point, str(snapshot.cut))
    if warning_key not in _RECENT_WARNINGS:
        _RECENT_WARNINGS.append(warning_key)
        logging.getLogger("weft").warning(
            "as_of %s is %s now, but may still change: no mark was recorded since (weft mark)",
            point.isoformat(),
            snapshot.cut,
        )
