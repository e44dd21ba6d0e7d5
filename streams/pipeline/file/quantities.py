"""Sizes, times and durations in words, the same in every display."""

from __future__ import annotations

import datetime as dt
import time
from typing import Final

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def size(stored: float) -> str:
    """A number of bytes, such as ``12.3 MB``."""
    for unit in _UNITS[:-1]:
        if stored < 1000:
            return f"{stored:,.0f} {unit}" if unit == "B" else f"{stored:,.1f} {unit}"
        stored /= 1000
    return f"{stored:,.1f} {_UNITS[-1]}"


def moment(milliseconds: int) -> str:
    """A time in UTC, of Unix milliseconds."""
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def age(milliseconds: int) -> str:
    """The time since then, of Unix milliseconds; 0 for the future."""
    return duration(max(0.0, time.time() - milliseconds / 1000))


def duration(seconds: float) -> str:
    """A duration in its largest unit, such as ``3.2 min``."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
