"""The explanation of a row as a picture: the events of each group as they came, and as ordering values order them.

Two lines of points. On the lower one events stand in the order of their commits, on the upper one in the order of their
ordering values; a line joins both. An event that came late crosses others on its way. The winner is at the right end of
the upper line.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any, Final

from storage.engine import Explanation, StoredVersion
from streams.read.plain_values import csv_cell

MOST: Final = 40  # events of a group that are drawn: the newest
_STEP: Final = 112
_LEFT: Final = 74
UPPER: Final = 46
LOWER: Final = 150
HEIGHT: Final = 196


@dataclass(frozen=True, slots=True)
class Point:
    """One event.

    Attributes:
        x_above, x_below: Its places on the upper and the lower line.
        version: The event.
        above, below: Labels: its ordering value, and its commit.
        is_delete: Whether it is a delete.
    """

    x_above: int
    x_below: int
    version: StoredVersion
    above: str
    below: str
    is_delete: bool


@dataclass(frozen=True, slots=True)
class GroupPicture:
    """The picture of one group.

    Attributes:
        name, merge, state: Of the group.
        ordering: Names of its ordering columns.
        points: Its events, in the order of their commits.
        left_out: Number of older events that are not drawn.
        width: Of the picture.
        versions: All events, for the list below it.
    """

    name: str
    merge: str
    state: str
    ordering: str
    points: tuple[Point, ...]
    left_out: int
    width: int
    versions: tuple[StoredVersion, ...]


def draw_groups(explanation: Explanation) -> list[GroupPicture]:
    """The picture of each group of a row."""
    return [
        _draw(group.name, group.merge, group.state, explanation.of_group(group.name)) for group in explanation.groups
    ]


def _draw(name: str, merge: str, state: str, versions: Sequence[StoredVersion]) -> GroupPicture:
    shown = versions[-MOST:]

    def compare(one: int, other: int) -> int:
        return _compare(shown[one].ordering, shown[other].ordering)

    place = {number: rank for rank, number in enumerate(sorted(range(len(shown)), key=cmp_to_key(compare)))}
    days = {value.date() for version in shown for value in version.ordering.values() if isinstance(value, dt.datetime)}
    points = tuple(
        Point(
            x_above=_LEFT + _STEP * place[number],
            x_below=_LEFT + _STEP * number,
            version=version,
            above=_short(", ".join(_label(value, with_day=len(days) > 1) for value in version.ordering.values())),
            below="merged" if version.commit is None else f"{version.lane}:{version.commit}",
            is_delete="delete" in version.operation,
        )
        for number, version in enumerate(shown)
    )
    return GroupPicture(
        name=name,
        merge=merge,
        state=state,
        ordering=", ".join(shown[0].ordering) if shown else "",
        points=points,
        left_out=len(versions) - len(shown),
        width=_LEFT * 2 + _STEP * max(0, len(shown) - 1),
        versions=tuple(versions),
    )


def _compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """Order of two events by their ordering values: NULLs first; 0 for equal ones, which stay as they came."""
    for left, right in zip(one.values(), other.values(), strict=False):
        if left is None or right is None:
            if (left is None) != (right is None):
                return -1 if left is None else 1
        elif left != right:
            return -1 if left < right else 1
    return 0


def _label(value: Any, *, with_day: bool) -> str:
    """An ordering value in the picture; of times of one day the time alone."""
    if isinstance(value, dt.datetime):
        text = f"{value:%H:%M:%S.%f}"[:-3]
        return f"{value:%m-%d} {text}" if with_day else text
    return csv_cell(value) or "NULL"


def _short(text: str) -> str:
    return text if len(text) <= 19 else f"{text[:18]}…"
