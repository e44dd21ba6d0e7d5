"""Warns of points in the history of a table whose snapshot may still change."""

from __future__ import annotations

import datetime as dt
import logging
from collections import deque
from typing import Final

from weft.storage import Snapshot
from weft.storage.operations.points import Point

_TOLD: Final[deque[tuple[str, dt.datetime, str]]] = deque(maxlen=64)
"""The newest warnings of this process."""
EARLIEST: Final = "earliest"
"""For changes instead of a point: from before the first commit, so that every row is an insert."""


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
