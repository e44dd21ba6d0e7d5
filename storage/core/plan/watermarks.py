"""Watermarks of lanes and of streams, as pure functions.

A writer declares a lateness: the first ordering value of an event is at most that much smaller than the largest value
before it. Once it has committed a first ordering value ``m`` of a group, its lane *promises* ``m - lateness``: no later
event of the lane has a smaller first ordering value. The lane is complete through X, inclusive, if its promise is above
X.

1. Only integers, dates and timestamps have watermarks, because their distances are exact. A lateness is a number for
   integers and a duration for dates and timestamps; for dates it is rounded up to whole days.
2. A promise never decreases, even if the next writer of the lane declares another lateness. An event that breaks it is
   merged like any other, and counted as late.
3. An event without a first ordering value neither changes nor breaks a promise. The same holds for a retraction in a
   group that ignores retractions.
4. Rounding is towards the smaller promise.

Values are computed as *ticks*: the integer itself, or days or microseconds since 1970. A wider column type does not
change them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import names
from weft.storage.core.log.entries import Promise
from weft.storage.core.model import Group, Op, Stream
from weft.storage.core.modes import mode_of
from weft.storage.core.names import LaneName
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import decode_scalar, encode_scalar, format_type
from weft.storage.errors import InvalidInput

Lateness = int | dt.timedelta
Value = int | dt.date | dt.datetime

_MICROSECOND: Final = dt.timedelta(microseconds=1)
_DAY: Final = dt.timedelta(days=1)
_DATE_0: Final = dt.date(1970, 1, 1)
_TIME_0: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a wall-clock reading, and the naive form of an instant
_LEAST_INTEGER: Final = -(1 << 63)  # the smallest bigint, so that promises stay valid when a column is widened
DAY_TICKS: Final = 24 * 3600 * 1_000_000  # microseconds of a day
CARRY: Final = "integers, dates and timestamps carry watermarks"


@dataclass(frozen=True, slots=True)
class Seen:
    """First ordering values of some events of one group.

    Attributes:
        highest: The largest value, in ticks; None if no event has one.
        late: Number of values that were below the promise.
    """

    highest: int | None
    late: int


@dataclass(frozen=True, slots=True)
class LanePromise:
    """The watermark of one lane for one group at a snapshot.

    Attributes:
        value: No later event of the lane has a smaller first ordering value; None without a watermark.
        late: Number of events of the lane that were below an earlier promise.
        ended: Whether the lane is closed or finished, so that it has no writer.
    """

    value: Value | None
    late: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of one stream for one group at a snapshot.

    Attributes:
        stream, group: Names of the stream and the group.
        column: The first ordering column; None if the group cannot have a watermark.
        value: No later event of the stream has a smaller first ordering value, as its writers declare; None without a
            watermark.
        late: Number of events of the stream that broke a promise; they are merged like any other.
        lanes: Watermarks of its lanes, in the order in which the lanes were added.
    """

    stream: str
    group: str
    column: str | None
    value: Value | None
    late: int
    lanes: Mapping[LaneName, LanePromise]

    @property
    def held_by(self) -> tuple[LaneName, ...]:
        """The lanes in use that determine the watermark: those without one, otherwise those with the smallest."""
        return tuple(name for name, lane in self.lanes.items() if not lane.ended and lane.value == self.value)


Watermarks = Mapping[str, Mapping[str, Watermark]]
"""Watermarks by stream, then by group."""


def check_lateness(lateness: object, schema: TableSchema, stream: Stream) -> None:
    """Refuse a lateness that no group of a stream can use.

    Raises:
        InvalidInput: The lateness is negative, has a wrong type, or does not fit any first ordering column of the
            stream.
    """
    if isinstance(lateness, bool) or not isinstance(lateness, int | dt.timedelta):
        raise InvalidInput(
            f"lateness: {lateness!r} is not a timedelta or an integer",
            hint="use a timedelta for dates and times, an integer for integers",
        )
    if (lateness if isinstance(lateness, int) else lateness // _MICROSECOND) < 0:
        raise InvalidInput(f"lateness: {lateness} is negative", hint="use 0 if events come in order")
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
    expected = "an integer" if isinstance(lateness, dt.timedelta) else "a duration (10 minutes, a timedelta)"
    orderings = ", ".join(f"{name} {format_type(first)}" for name, first in carrying.items())
    raise InvalidInput(
        f"lateness: {lateness} is {kind}, but stream {stream.name!r} is ordered by {orderings}",
        hint=f"use {expected}: how much smaller than the largest value so far a later value may be",
    )


def lateness_ticks(lateness: Lateness, arrow_type: pa.DataType) -> int | None:
    """A lateness in ticks of a column; None if the column needs another kind of lateness."""
    if isinstance(lateness, int):
        return lateness if pa.types.is_integer(arrow_type) else None
    if pa.types.is_date32(arrow_type):
        return -(-lateness // _DAY)
    return lateness // _MICROSECOND if pa.types.is_timestamp(arrow_type) else None


def watched(
    schema: TableSchema, stream: Stream, lateness: Lateness | None, promised: Mapping[int, Promise]
) -> dict[str, int | None]:
    """Groups whose values the next commit must report: the promise of the lane in ticks by group name, or None."""
    promises: dict[str, int | None] = {}
    for group in (schema.group_by_name[name] for name in stream.groups):
        first = watermark_type(group, schema)
        if first is None:
            continue
        before = promised.get(group.id)
        if before is not None or (lateness is not None and lateness_ticks(lateness, first) is not None):
            promises[group.name] = None if before is None else to_ticks(decode_scalar(before.value, first))
    return promises


def see(rows: pa.Table, groups: Sequence[Group], promised: Mapping[str, int | None]) -> dict[str, Seen]:
    """Collect the first ordering values of the events of a commit, or of a part of it, by group name.

    Args:
        rows: Key columns, whole groups and `names.OP`, in any order.
        groups: Groups of the rows.
        promised: The result of `watched`.
    """
    retracts: pa.ChunkedArray | None = None
    if any(mode_of(group).retracts for group in groups):
        mask = pc.equal(rows.column(names.OP), int(Op.RETRACT))
        retracts = mask if pc.any(mask).as_py() else None
    seen_by_group = {}
    for group in groups:
        if group.name not in promised:
            continue
        numbers = _numbers(rows.column(group.ordering[0]))
        if retracts is not None and not mode_of(group).retracts:
            numbers = numbers.filter(pc.invert(retracts))
        before = promised[group.name]
        late = 0 if before is None else pc.sum(pc.less(numbers, pa.scalar(before, pa.int64()))).as_py() or 0
        seen_by_group[group.name] = Seen(pc.max(numbers).as_py(), late)
    return seen_by_group


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64 ticks of a column; NULL stays NULL."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return column.cast(pa.int64())


def combine_seen(parts: Iterable[Mapping[str, Seen]]) -> dict[str, Seen]:
    """Combine the values of several parts of one commit."""
    seen_by_group: dict[str, Seen] = {}
    for part in parts:
        for group, seen in part.items():
            earlier = seen_by_group.get(group, Seen(None, 0))
            values = [value for value in (earlier.highest, seen.highest) if value is not None]
            seen_by_group[group] = Seen(max(values, default=None), earlier.late + seen.late)
    return seen_by_group


def advanced(
    promised: Mapping[int, Promise], values_seen: Mapping[str, Seen], lateness: Lateness | None, schema: TableSchema
) -> dict[int, Promise]:
    """Promises of the lane with its next commit, by group id.

    Args:
        promised: Promises so far.
        values_seen: Values of all events of the commit.
        lateness: Lateness of the writer; None to keep earlier promises and add none.
        schema: Schema of the commit.
    """
    result = dict(promised)
    for name, values in values_seen.items():
        group = schema.group_by_name[name]
        first = watermark_type(group, schema)
        assert first is not None, "only groups that carry watermarks are watched"
        before = promised.get(group.id)
        ticks = [] if before is None else [to_ticks(decode_scalar(before.value, first))]
        distance = None if lateness is None else lateness_ticks(lateness, first)
        if distance is not None and values.highest is not None:
            ticks.append(max(values.highest - distance, _least(first)))
        if ticks:
            value = encode_scalar(from_ticks(max(ticks), first))
            result[group.id] = Promise(value=value, late=values.late + (0 if before is None else before.late))
    return result


def of_streams(
    schema: TableSchema, lanes: Mapping[LaneName, tuple[str, bool]], promises: Mapping[LaneName, Mapping[int, Promise]]
) -> Watermarks:
    """Watermarks of every stream and group.

    Args:
        schema: Schema of the snapshot.
        lanes: (stream, whether it is closed or finished) of each lane.
        promises: Promises of the last live commit of each lane, by group id; lanes without a commit may be left out.
    """
    return {
        str(stream.name): {
            name: _of_stream(stream.name, schema.group_by_name[name], schema, lanes, promises) for name in stream.groups
        }
        for stream in schema.streams
    }


def leading_lanes(
    schema: TableSchema, streams: Mapping[LaneName, str], promises: Mapping[LaneName, Mapping[int, Promise]]
) -> set[LaneName]:
    """Lanes with the largest promise: one for each stream and group that has a promise.

    Args:
        schema: Schema of the table.
        streams: The stream of each lane.
        promises: Promises of the last live commit of each lane, by group id.
    """
    highest: dict[tuple[str, int], tuple[int, LaneName]] = {}
    types = {group.id: watermark_type(group, schema) for group in schema.groups}
    for lane, lane_promises in promises.items():
        for group, promise in lane_promises.items():
            first = types.get(group)
            if first is not None:
                candidate = (to_ticks(decode_scalar(promise.value, first)), lane)
                highest[streams[lane], group] = max(candidate, highest.get((streams[lane], group), candidate))
    return {lane for _, lane in highest.values()}


def _of_stream(
    stream: str,
    group: Group,
    schema: TableSchema,
    lanes: Mapping[LaneName, tuple[str, bool]],
    promises: Mapping[LaneName, Mapping[int, Promise]],
) -> Watermark:
    first = watermark_type(group, schema)
    lane_promises: dict[LaneName, LanePromise] = {}
    for lane, (lane_stream, is_ended) in lanes.items():
        if lane_stream == stream:
            promise = promises.get(lane, {}).get(group.id)
            value = None if promise is None or first is None else decode_scalar(promise.value, first)
            lane_promises[lane] = LanePromise(value, 0 if promise is None else promise.late, is_ended)
    column = None if first is None else group.ordering[0]
    return Watermark(
        stream,
        group.name,
        column,
        _least_of(lane_promises.values()),
        sum(p.late for p in lane_promises.values()),
        lane_promises,
    )


def _least_of(lanes: Collection[LanePromise]) -> Value | None:
    """The smallest value of the lanes in use, None if a value is missing; without lanes in use, the largest value."""
    values = [lane.value for lane in lanes if not lane.ended]
    if not values:
        return max((lane.value for lane in lanes if lane.value is not None), key=to_ticks, default=None)
    valid_values = [value for value in values if value is not None]
    return min(valid_values, key=to_ticks) if len(valid_values) == len(values) else None


def to_ticks(value: Value) -> int:
    """Convert a value to ticks; naive datetimes count from 1970 without a zone."""
    if isinstance(value, dt.datetime):
        return (value - (_TIME_0 if value.tzinfo is None else _TIME_0.replace(tzinfo=dt.UTC))) // _MICROSECOND
    return (value - _DATE_0) // _DAY if isinstance(value, dt.date) else value


def from_ticks(ticks: int, arrow_type: pa.DataType) -> Value:
    """Convert ticks of a column to a value; inverse of `to_ticks`."""
    if pa.types.is_date32(arrow_type):
        return _DATE_0 + dt.timedelta(days=ticks)
    if pa.types.is_timestamp(arrow_type):
        moment = _TIME_0 + dt.timedelta(microseconds=ticks)
        return moment.replace(tzinfo=dt.UTC) if arrow_type.tz is not None else moment
    return ticks


def _least(arrow_type: pa.DataType) -> int:
    """The smallest ticks that a promise of this type can have."""
    if pa.types.is_integer(arrow_type):
        return _LEAST_INTEGER
    return to_ticks(dt.date.min) * (DAY_TICKS if pa.types.is_timestamp(arrow_type) else 1)


def watermark_type(group: Group, schema: TableSchema) -> pa.DataType | None:
    """Type of the first ordering column of a group; None if the group cannot have a watermark."""
    if not group.ordering:
        return None
    first = schema.column_by_name[group.ordering[0]].type
    carries = pa.types.is_integer(first) or pa.types.is_date32(first) or pa.types.is_timestamp(first)
    return first if carries else None
