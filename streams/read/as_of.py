"""Parses points in the history of a table: a time, the name of a savepoint, or a cut."""

from __future__ import annotations

import datetime as dt
import logging
from collections import deque
from typing import Any, Final

from storage import Snapshot, Table
from storage.engine import clock_lead_ms, is_cut
from storage.errors import Conflict, InvalidInput

Point = dt.datetime | str
_TOLD: Final[deque[tuple[str, dt.datetime, str]]] = deque(maxlen=64)
"""The newest warnings of this process."""
EARLIEST: Final = "earliest"
"""For changes instead of a point: from before the first commit, so that every row is an insert."""


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
    if isinstance(value, str) and ":" in value and not is_cut(value):
        return parse_moment(value)
    if isinstance(value, dt.datetime):
        return _with_zone(value)
    if not isinstance(value, str | None):
        raise ValueError("not a time, a name or a cut")  # noqa: TRY004 - what pydantic takes for a wrong value
    return value


def warn_if_unsettled(point: Point | None, snapshot: Snapshot) -> None:
    """Log a warning with the cut of a time that may still resolve to another cut, once for each cut.

    A query may ask for its snapshot several times: when it is analysed, and when it is planned.
    """
    if not isinstance(point, dt.datetime) or snapshot.settled:
        return
    warning_key = (snapshot.table_log.store.uri, point, str(snapshot.cut))
    if warning_key not in _TOLD:
        _TOLD.append(warning_key)
        logging.getLogger("weft").warning(
            "as_of %s is %s now, but may still change: no mark was recorded since (weft mark)",
            point.isoformat(),
            snapshot.cut,
        )


def check_clocks(table: Table) -> None:
    """Refuse to roll back by time if a clock that was ahead has made the times of the table useless.

    Times in the table lane never decrease. From the entry of such a clock until real time has caught up with it, all
    commits look newer than any time that a user would give, and too much would be rolled back.

    Raises:
        Conflict: There is such a clock.
    """
    ahead_ms = clock_lead_ms(table)
    if ahead_ms:
        ahead = dt.timedelta(milliseconds=ahead_ms)
        raise Conflict(
            f"the newest entry of the table lane was written by a clock that is {ahead} ahead of this machine's: times "
            "cannot tell its commits apart",
            hint="undo since a cut or a savepoint instead: weft show URI timeline; and set the clocks of all machines",
        )


def _with_zone(moment: dt.datetime) -> dt.datetime:
    if moment.tzinfo is None:
        text = moment.isoformat()
        raise InvalidInput(f"the time {text!r} has no zone", hint=f"for example {text}Z, or {text}+01:00")
    return moment
