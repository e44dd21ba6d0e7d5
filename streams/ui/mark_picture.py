"""The picture of watermarks: bars that show how far each stream is complete, and the value that the reader entered."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from weft.storage.services.inspect.stream_report import StreamReport
from weft.streams.pipeline.file.quantities import duration

TOP: Final = 30
_MARGIN: Final = 0.06  # of the axis, on both sides
_HALF: Final = 56  # width of half the longest name of a line
_MAX_NAME: Final = 26  # characters of a name
_GAP: Final = 8  # between a bar and its label
_LETTER: Final = 7.5  # upper bound of the width of a letter of a label, so that the picture does not cut it
_BOLD: Final = 8.4  # the same for names, which are bold


@dataclass(frozen=True, slots=True)
class Shape:
    """A layout of the picture for a width of screens; lengths are in pixels.

    Attributes:
        name: Name of the layout in the styles.
        width: Width of the picture.
        names: Width of the names left of the bars; 0 if names and values are above the bars.
        room: Width right of the bars, for values.
        row: Height of a stream.
        middle: Distance from the top of a stream to the middle of its bar.
    """

    name: str
    width: int
    names: int
    room: int
    row: int
    middle: int


SHAPES: Final = (Shape("broad", 800, 230, 90, 30, 15), Shape("narrow", 330, 0, 16, 46, 32))
"""For large screens and for small ones."""


@dataclass(frozen=True, slots=True)
class MarkBar:
    """One stream and group.

    Attributes:
        name: Its name.
        end: Right end of its bar.
        label_at: Where its label begins; where it ends if ``is_left``.
        y: Middle of the bar.
        label: How far the stream is behind the present; its watermark if that is an integer.
        late: Whether the watermark is not past the value that the reader entered.
        is_left: Whether the label is right-aligned, because the picture would cut it otherwise.
    """

    name: str
    end: float
    label_at: float
    y: int
    label: str
    late: bool
    is_left: bool


@dataclass(frozen=True, slots=True)
class MarkPicture:
    """Bars of one unit: times, or integers.

    Attributes:
        shape: Layout of the picture.
        unit: Title of the axis.
        bars: The streams, the slowest first.
        lines: Vertical lines: x, x of the name, and name.
        height: Height of the picture.
    """

    shape: Shape
    unit: str
    bars: list[MarkBar]
    lines: list[tuple[float, float, str]]
    height: int


def draw_marks(marks: Sequence[StreamReport], through: str, now_ms: int) -> list[MarkPicture]:
    """Draw one picture of the watermarks that are times and one of those that are integers, in every shape.

    Args:
        marks: The watermarks.
        through: The value that the reader entered; "" for none.
        now_ms: The present, Unix milliseconds.
    """
    pictures = []
    for is_time in (True, False):
        values = {}
        for mark in marks:
            value = _number(mark.watermark)
            if value is not None and isinstance(mark.watermark, str) == is_time:
                values[f"{mark.stream}: {mark.group}"] = value
        if values:
            threshold, now = _threshold(through, is_time=is_time), now_ms / 1000 if is_time else None
            pictures += [_picture(values, threshold, now, shape) for shape in SHAPES]
    return pictures


def is_behind(mark: StreamReport, through: str) -> bool:
    """Whether a stream may still send events up to a value; true without a watermark."""
    value, threshold = _number(mark.watermark), _threshold(through, is_time=isinstance(mark.watermark, str))
    return value is None or (threshold is not None and value <= threshold)


def _threshold(through: str, *, is_time: bool) -> float | None:
    if is_time:
        return _number(through) if through else None
    return float(through) if through.lstrip("-").isdecimal() else None


def _picture(values: dict[str, float], threshold: float | None, now: float | None, shape: Shape) -> MarkPicture:
    drawn_values = [*values.values(), *([now] if now is not None else [])]
    low, high = min(drawn_values), max(drawn_values)
    room = max(1.0, high - low)
    low, high = low - room * _MARGIN, high + room * _MARGIN
    if threshold is not None:  # a distant value is drawn at the edge, so that the bars can still be compared
        low, high = max(low - room, min(low, threshold)), min(high + room, max(high, threshold))

    def place(value: float) -> float:
        return round(shape.names + (shape.width - shape.names - shape.room) * (value - low) / (high - low), 1)

    newest = now if now is not None else max(values.values())
    bars = []
    for number, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        behind = newest - value
        words = f"{duration(max(0.0, behind))} behind" if now is not None else f"{value:,.0f}"
        late = threshold is not None and value <= threshold
        label = (max(place(value), place(newest)) if now is not None else place(value)) + _GAP
        is_left = label + len(words) * _LETTER > shape.width
        room = shape.names or shape.width - len(words) * _LETTER
        length = min(_MAX_NAME, int((room - 10) / _BOLD))
        short = name if len(name) <= length else f"{name[: length - 1]}…"
        at = shape.width - _GAP if is_left else label
        bars.append(MarkBar(short, place(value), at, TOP + shape.row * number + shape.middle, words, late, is_left))
    drawn = [(place(now), "now")] if now is not None else []
    if threshold is not None:
        drawn.append((place(min(max(threshold, low), high)), "asked"))
    lines = [(x, min(max(x, _HALF), shape.width - _HALF), name) for x, name in drawn]
    unit = "complete before" if now is not None else "complete before, values"
    return MarkPicture(shape, unit, bars, lines, TOP + shape.row * len(bars) + 12)


def _number(value: Any) -> float | None:
    """Return a watermark as a number: an integer, or the Unix seconds of a time or date; None for anything else."""
    if isinstance(value, int):
        return float(value)
    try:
        moment = dt.datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)).timestamp()
