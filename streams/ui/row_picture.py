"""The explanation of a row as a picture: the events of each group by arrival, and by ordering value.

The picture has two rows of points. The lower row has the events in the order of their commits, the upper row in the
order of their ordering values, and a line joins the two points of an event. The line of a late event crosses others.
Events of one commit became visible at once, so both rows have them in the order of their ordering values. The winner is
at the right end of the upper row. A square stands for what a compaction or a fold kept of older events: its files do
not contain the events that had lost.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weft.storage.read.explain.explanation import Explanation, StoredVersion
from weft.streams.ui.site import cell_text

MAX_EVENTS: Final = 40  # events of a group that are drawn: the newest
_STEP: Final = 124
_LEFT: Final = 74
_SHORT: Final = 20  # characters of a text in the picture
_LONG: Final = 1_000  # characters of a value in the description of an event
_VALUES: Final = 3  # values of an event that are in the picture
UPPER: Final = 46
LOWER: Final = 150
LINE: Final = 15  # height of a line of text
BELOW: Final = 22  # from the lower line of points to the first text below it


@dataclass(frozen=True, slots=True)
class Point:
    """One event.

    Attributes:
        x_above, x_below: x on the upper and on the lower row.
        version: The event.
        above: Text above the point: the ordering value.
        below: Texts below the point, from top to bottom: its commit, and its values, or "delete".
        is_delete: Whether it is a delete.
        is_merged: Whether it stands for what a compaction or a fold kept of older events.
        text: Description of the event, with a line for each value.
    """

    x_above: int
    x_below: int
    version: StoredVersion
    above: str
    below: tuple[str, ...]
    is_delete: bool
    is_merged: bool
    text: str


@dataclass(frozen=True, slots=True)
class GroupPicture:
    """The picture of one group.

    Attributes:
        name, merge, state: Name, merge mode and state of the group.
        ordering: Names of its ordering columns.
        columns: Names of the other columns for which an event has a value.
        points: Its events, in the order of their commits.
        left_out: Number of older events that are not drawn.
        width, height: Size of the picture.
        versions: All events, for the list below the picture.
        merged: Files of compactions and folds with events of the group, older ones first; True for a fold.
    """

    name: str
    merge: str
    state: str
    ordering: str
    columns: tuple[str, ...]
    points: tuple[Point, ...]
    left_out: int
    width: int
    height: int
    versions: tuple[StoredVersion, ...]
    merged: Mapping[str, bool]


def draw_groups(explanation: Explanation) -> list[GroupPicture]:
    """Draw a picture of each group of a row."""
    return [
        _draw(group.name, group.merge, group.state, explanation.of_group(group.name)) for group in explanation.groups
    ]


def _draw(name: str, merge: str, state: str, versions: Sequence[StoredVersion]) -> GroupPicture:
    drawn = versions[-MAX_EVENTS:]
    ranked = sorted(range(len(drawn)), key=lambda number: _rank(drawn[number]))
    upper = {number: rank for rank, number in enumerate(ranked)}
    lower = _lower_positions(drawn)
    days = {value.date() for version in drawn for value in version.ordering.values() if isinstance(value, dt.datetime)}
    columns = tuple(dict.fromkeys(itertools.chain.from_iterable(version.values for version in versions)))
    ordered_columns = _order_columns(columns, drawn)
    points = tuple(
        Point(
            x_above=_LEFT + _STEP * upper[number],
            x_below=_LEFT + _STEP * lower[number],
            version=version,
            above=_short(", ".join(_label(value, with_day=len(days) > 1) for value in version.ordering.values())),
            below=tuple(map(_short, _lower_texts(version, ordered_columns))),
            is_delete=_is_delete(version),
            is_merged=version.stored_in != "log",
            text=_describe(version),
        )
        for number, version in enumerate(drawn)
    )
    lines = max((len(point.below) for point in points), default=0)
    return GroupPicture(
        name=name,
        merge=merge,
        state=state,
        ordering=", ".join(drawn[0].ordering) if drawn else "",
        columns=columns,
        points=points,
        left_out=len(versions) - len(drawn),
        width=_LEFT * 2 + _STEP * max(0, len(drawn) - 1),
        height=LOWER + BELOW + LINE * (lines + 1),
        versions=tuple(versions),
        merged={version.file: version.stored_in == "fold" for version in versions if version.stored_in != "log"},
    )


def _lower_positions(versions: Sequence[StoredVersion]) -> list[int]:
    """Return the positions of events on the lower row: by commit, and by ordering value within a commit.

    The order of arrival within a commit is not used: a compaction does not keep it.
    """
    below, commits = list(range(len(versions))), dict[object, list[int]]()
    for number, version in enumerate(versions):
        commits.setdefault((version.lane, version.commit) if version.commit is not None else number, []).append(number)
    for numbers in commits.values():
        ranked = sorted(numbers, key=lambda number: _rank(versions[number]))
        for place, number in zip(numbers, ranked, strict=True):
            below[number] = place
    return below


def _rank(version: StoredVersion) -> list[tuple[bool, Any]]:
    """Return a sort key that orders events by their ordering values, with NULLs first."""
    return [(value is not None, value) for value in version.ordering.values()]


def _is_delete(version: StoredVersion) -> bool:
    return "delete" in version.operation


def _order_columns(columns: Sequence[str], versions: Sequence[StoredVersion]) -> list[str]:
    """Return the columns with those first whose values differ between the events."""

    def same(name: str) -> bool:
        return len({cell_text(version.values[name]) for version in versions if name in version.values}) < 2

    return sorted(columns, key=same)


def _lower_texts(version: StoredVersion, columns: Sequence[str]) -> list[str]:
    commit = "merged" if version.commit is None else f"{version.lane}:{version.commit}"
    if _is_delete(version):
        return [commit, version.operation]
    assignments = [f"{name}={_value(version.values[name])}" for name in columns if name in version.values]
    more = len(assignments) - _VALUES
    return [commit, *assignments[:_VALUES], *([f"and {more} more"] if more > 0 else [])]


def _describe(version: StoredVersion) -> str:
    """Describe an event, with a line for each of its values. Very long values are cut, but not in the list below."""
    of = "" if version.commit is None else f" of commit {version.lane}:{version.commit}"
    at = "" if version.committed_at is None else f", {version.committed_at:%Y-%m-%d %H:%M:%S} UTC"
    values = {**version.ordering, **version.values}
    origin = (
        [] if version.stored_in == "log" else [f"kept by a {'fold' if version.stored_in == 'fold' else 'compaction'}"]
    )
    return "\n".join(
        [
            f"{version.result}: {version.why}",
            f"{version.operation}{of}{at}",
            *origin,
            *(f"{name} = {_short(_value(value), _LONG)}" for name, value in values.items()),
        ]
    )


def _value(value: Any) -> str:
    return "NULL" if value is None else cell_text(value)


def _label(value: Any, *, with_day: bool) -> str:
    """Format an ordering value; if all times are of one day, without the date."""
    if isinstance(value, dt.datetime):
        text = f"{value:%H:%M:%S.%f}"[:-3]
        return f"{value:%m-%d} {text}" if with_day else text
    return _value(value)


def _short(text: str, longest: int = _SHORT) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
