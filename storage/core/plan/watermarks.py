"""Watermarks: what a lane promises of events to come, and what that makes of a stream. Pure numbers.

A writer that declares a lateness says: my events come late by that much at most. So once it has committed a first
ordering value ``m`` of a group, its lane *promises* ``m - lateness``: no later event of the lane has a first ordering
value below it. The lane is complete through T, T included, if its promise is above T. Rules:

1. Only integers, dates and timestamps carry watermarks: of these, "so much later" is exact. A lateness is a number for
   integers, a duration for the others; of dates whole days, rounded up.
2. A promise never falls, and whoever writes the lane next is held to it, whatever it declares. An event that breaks it
   is merged like any other, and counted as late.
3. An event without a first ordering value says nothing and breaks nothing; nor does a retraction, for groups that do
   not see it.
4. Whatever is rounded or cut off is so towards the smaller promise.

Numbers are *ticks*: the integer itself, days or microseconds since 1970; they survive a widening of the column.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from storage.core import names
from storage.core.log.entries import Promise
from storage.core.model import Group, Op, Stream
from storage.core.modes import mode_of
from storage.core.names import LaneName
from storage.core.schema.table_schema import TableSchema
from storage.core.types import decode_scalar, encode_scalar, format_type
from storage.errors import InvalidInput

Lateness = int | dt.timedelta
Value = int | dt.date | dt.datetime

_MICROSECOND: Final = dt.timedelta(microseconds=1)
_DAY: Final = dt.timedelta(days=1)
_DATE_0: Final = dt.date(1970, 1, 1)
_TIME_0: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a wall-clock reading, and the naive form of an instant
_LEAST_INTEGER: Final = -(1 << 63)  # of bigint: what a narrower column is widened to keeps its promises
DAY_TICKS: Final = 24 * 3600 * 1_000_000  # of timestamps
CARRY: Final = "integers, dates and timestamps carry watermarks"


@dataclass(frozen=True, slots=True)
class Seen:
    """First ordering values of some events of one group: the largest in ticks, and how many broke the promise.

    ``highest`` is None where no event has one.
    """

    highest: int | None
    late: int


@dataclass(frozen=True, slots=True)
class LanePromise:
    """What one lane says of one group at a snapshot.

    Attributes:
        value: No later event of the lane is below it; None: it promises nothing.
        late: Its events so far that were below a promise made before.
        closed: Nothing more can come from it.
    """

    value: Value | None
    late: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Watermark:
    """What one stream says of one group at a snapshot.

    Attributes:
        stream, group: Which.
        column: The first ordering column, whose values it speaks of; None where the group's order carries none.
        value: No later event of the stream has a smaller one, as its lanes declare; None: nothing is promised.
        late: Events of the stream so far that broke a promise; they are merged like any other.
        lanes: Its lanes, in the order in which they were added.
    """

    stream: str
    group: str
    column: str | None
    value: Value | None
    late: int
    lanes: Mapping[LaneName, LanePromise]

    @property
    def held_by(self) -> tuple[LaneName, ...]:
        """The open lanes that the stream waits for: those without a promise, else those with the least."""
        return tuple(name for name, lane in self.lanes.items() if not lane.closed and lane.value == self.value)


Watermarks = Mapping[str, Mapping[str, Watermark]]
"""By stream, then by group."""


def check_lateness(lateness: object, schema: TableSchema, stream: Stream) -> None:
    """Refuse a lateness that none of a stream's groups can use; those that cannot make no promise.

    Raises:
        InvalidInput: It is negative, no lateness at all, or of a kind that no first ordering column of the stream has.
    """
    if isinstance(lateness, bool) or not isinstance(lateness, int | dt.timedelta):
        raise InvalidInput(f"lateness: {lateness!r} is none", hint="give a timedelta, or an integer for integers")
    if (lateness if isinstance(lateness, int) else lateness // _MICROSECOND) < 0:
        raise InvalidInput(f"lateness: {lateness} is negative", hint="0 says that events come in order")
    carrying = {
        group.ordering[0]: first
        for group in (schema.group_by_name[name] for name in stream.groups)
        if (first := watermark_type(group, schema)) is not None
    }
    if any(lateness_ticks(lateness, first) is not None for first in carrying.values()):
        return
    if not carrying:
        raise InvalidInput(
            f"lateness: no group of stream {stream.name!r} can have a watermark",
            hint=f"leave it out: {CARRY}, and only as the first ordering column of a group",
        )
    kind = "a number" if isinstance(lateness, int) else "a duration"
    wanted = "an integer" if isinstance(lateness, dt.timedelta) else "a duration (10 minutes, a timedelta)"
    ordered = ", ".join(f"{name} {format_type(first)}" for name, first in carrying.items())
    raise InvalidInput(
        f"lateness: {lateness} is {kind}, but stream {stream.name!r} is ordered by {ordered}",
        hint=f"give {wanted}: how much smaller than the largest value so far a later one may be",
    )


def lateness_ticks(lateness: Lateness, arrow_type: pa.DataType) -> int | None:
    """A lateness in ticks of a column; None where it is not of the column's kind."""
    if isinstance(lateness, int):
        return lateness if pa.types.is_integer(arrow_type) else None
    if pa.types.is_date32(arrow_type):
        return -(-lateness // _DAY)
    return lateness // _MICROSECOND if pa.types.is_timestamp(arrow_type) else None


def watched(
    schema: TableSchema, stream: Stream, lateness: Lateness | None, promised: Mapping[int, Promise]
) -> dict[str, int | None]:
    """Groups of which the next commit must be seen: per name what its lane has promised, in ticks (None: nothing)."""
    found: dict[str, int | None] = {}
    for group in (schema.group_by_name[name] for name in stream.groups):
        first = watermark_type(group, schema)
        if first is None:
            continue
        before = promised.get(group.id)
        if before is not None or (lateness is not None and lateness_ticks(lateness, first) is not None):
            found[group.name] = None if before is None else to_ticks(decode_scalar(before.value, first))
    return found


def see(rows: pa.Table, groups: Sequence[Group], promised: Mapping[str, int | None]) -> dict[str, Seen]:
    """Look at the events of a commit, or of a part of it.

    Args:
        rows: Key columns, whole groups and `names.OP`, n rows in any order.
        groups: Those that the rows have.
        promised: From `watched`.
    """
    retracts: pa.ChunkedArray | None = None
    if any(mode_of(group).retracts for group in groups):
        mask = pc.equal(rows.column(names.OP), int(Op.RETRACT))
        retracts = mask if pc.any(mask).as_py() else None
    found = {}
    for group in groups:
        if group.name not in promised:
            continue
        numbers = _numbers(rows.column(group.ordering[0]))
        if retracts is not None and not mode_of(group).retracts:
            numbers = numbers.filter(pc.invert(retracts))
        before = promised[group.name]
        late = 0 if before is None else pc.sum(pc.less(numbers, pa.scalar(before, pa.int64()))).as_py() or 0
        found[group.name] = Seen(pc.max(numbers).as_py(), late)
    return found


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64 ticks of a column, NULLs as they are."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return column.cast(pa.int64())


def combine_seen(parts: Iterable[Mapping[str, Seen]]) -> dict[str, Seen]:
    """What several parts of one commit have seen."""
    found: dict[str, Seen] = {}
    for part in parts:
        for group, seen in part.items():
            known = found.get(group, Seen(None, 0))
            values = [value for value in (known.highest, seen.highest) if value is not None]
            found[group] = Seen(max(values, default=None), known.late + seen.late)
    return found


def advanced(
    promised: Mapping[int, Promise], seen: Mapping[str, Seen], lateness: Lateness | None, schema: TableSchema
) -> dict[int, Promise]:
    """What the lane promises with its next commit, by group id.

    Args:
        promised: What it has promised before.
        seen: All events of the commit.
        lateness: Of the writer; None: it makes no promises of its own, and is held to those that there are.
        schema: The commit's.
    """
    result = dict(promised)
    for name, own in seen.items():
        group = schema.group_by_name[name]
        first = watermark_type(group, schema)
        assert first is not None, "only groups that carry watermarks are watched"
        before = promised.get(group.id)
        ticks = [] if before is None else [to_ticks(decode_scalar(before.value, first))]
        distance = None if lateness is None else lateness_ticks(lateness, first)
        if distance is not None and own.highest is not None:
            ticks.append(max(own.highest - distance, _least(first)))
        if ticks:
            value = encode_scalar(from_ticks(max(ticks), first))
            result[group.id] = Promise(value=value, late=own.late + (0 if before is None else before.late))
    return result


def of_streams(
    schema: TableSchema, lanes: Mapping[LaneName, tuple[str, bool]], promises: Mapping[LaneName, Mapping[int, Promise]]
) -> Watermarks:
    """Watermarks of every stream and group.

    Args:
        schema: The snapshot's.
        lanes: Of the snapshot: stream, and whether the lane is closed.
        promises: Per lane those of its last live commit, by group id; a lane that has none may be left out.
    """
    return {
        str(stream.name): {
            name: _of_stream(stream.name, schema.group_by_name[name], schema, lanes, promises) for name in stream.groups
        }
        for stream in schema.streams
    }


def _of_stream(
    stream: str,
    group: Group,
    schema: TableSchema,
    lanes: Mapping[LaneName, tuple[str, bool]],
    promises: Mapping[LaneName, Mapping[int, Promise]],
) -> Watermark:
    first = watermark_type(group, schema)
    own: dict[LaneName, LanePromise] = {}
    for lane, (fed_by, closed) in lanes.items():
        if fed_by == stream:
            promise = promises.get(lane, {}).get(group.id)
            value = None if promise is None or first is None else decode_scalar(promise.value, first)
            own[lane] = LanePromise(value, 0 if promise is None else promise.late, closed)
    column = None if first is None else group.ordering[0]
    return Watermark(stream, group.name, column, _least_of(own.values()), sum(p.late for p in own.values()), own)


def _least_of(lanes: Collection[LanePromise]) -> Value | None:
    """Open lanes hold a stream back, all of them; once there is none left, its largest promise stays."""
    values = [lane.value for lane in lanes if not lane.closed]
    if not values:
        return max((lane.value for lane in lanes if lane.value is not None), key=to_ticks, default=None)
    known = [value for value in values if value is not None]
    return min(known, key=to_ticks) if len(known) == len(values) else None


def to_ticks(value: Value) -> int:
    """The number of a value; naive and aware datetimes alike count from their own 1970."""
    if isinstance(value, dt.datetime):
        return (value - (_TIME_0 if value.tzinfo is None else _TIME_0.replace(tzinfo=dt.UTC))) // _MICROSECOND
    return (value - _DATE_0) // _DAY if isinstance(value, dt.date) else value


def from_ticks(ticks: int, arrow_type: pa.DataType) -> Value:
    """The value of a number that is one of the column's; inverse of `to_ticks`."""
    if pa.types.is_date32(arrow_type):
        return _DATE_0 + dt.timedelta(days=ticks)
    if pa.types.is_timestamp(arrow_type):
        moment = _TIME_0 + dt.timedelta(microseconds=ticks)
        return moment.replace(tzinfo=dt.UTC) if arrow_type.tz is not None else moment
    return ticks


def _least(arrow_type: pa.DataType) -> int:
    """No event is below it, ever: what lies below it can be promised as this."""
    if pa.types.is_integer(arrow_type):
        return _LEAST_INTEGER
    return to_ticks(dt.date.min) * (DAY_TICKS if pa.types.is_timestamp(arrow_type) else 1)


def watermark_type(group: Group, schema: TableSchema) -> pa.DataType | None:
    """Type of the group's first ordering column, if that carries watermarks."""
    if not group.ordering:
        return None
    first = schema.column_by_name[group.ordering[0]].type
    carries = pa.types.is_integer(first) or pa.types.is_date32(first) or pa.types.is_timestamp(first)
    return first if carries else None
