"""The watermark of a stream as a report for operators."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from weft.storage.core.plan.watermarks import Watermark, to_ticks
from weft.storage.core.types import encode_scalar


@dataclass(frozen=True, slots=True)
class StreamReport:
    """Watermark of one stream for one group.

    Attributes:
        column: The first ordering column; None if its type has no watermarks.
        watermark: No later event of the stream is below this value (JSON form); None if there is no watermark.
        lag_ms: Milliseconds between the watermark and the clock; None if the watermark is not a time.
        late: Events so far that were below the watermark.
        held_by: The open lanes that hold back the watermark.
    """

    stream: str
    group: str
    column: str | None
    watermark: Any
    lag_ms: int | None
    late: int
    held_by: tuple[str, ...]


def stream_report(mark: Watermark, now_ms: int) -> StreamReport:
    """Report a watermark. ``now_ms``: the time in Unix milliseconds."""
    lag_ms = None
    if isinstance(mark.value, dt.date):
        moment = mark.value if isinstance(mark.value, dt.datetime) else dt.datetime.combine(mark.value, dt.time.min)
        # A date means its beginning, and a time without zone is in UTC.
        lag_ms = max(0, now_ms - (to_ticks(moment) // 1_000))
    return StreamReport(
        mark.stream, mark.group, mark.column, encode_scalar(mark.value), lag_ms, mark.late, mark.held_by
    )
