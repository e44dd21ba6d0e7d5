"""Completeness: whether a snapshot has all events up to a value, according to the watermarks of its streams.

A snapshot is complete through a value X, inclusive, if every stream that feeds a group of the read has a watermark
above X: later events are above X, or late.

1. A stream without commits or without a watermark is not complete.
2. A request that can never be complete is invalid input: a group whose first ordering column cannot have watermarks, or
   an X of another type.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from weft.storage.core.model import Group
from weft.storage.core.plan.watermarks import CARRY, DAY_TICKS, Value, Watermark, Watermarks, to_ticks, watermark_type
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput, NotComplete

_INTEGER: Final = re.compile(r"[+-]?\d{1,19}")
_FORMS: Final = "use an integer, a date (2024-01-31) or a time (2024-01-31T10:00:00Z)"
_CHOOSE: Final = "name the groups that must be complete: complete_groups (--complete-groups)"


def check_complete(
    watermarks: Watermarks, schema: TableSchema, through: Value | str, complete_groups: Sequence[str] | None = None
) -> None:
    """Refuse a snapshot that may lack events up to a value, inclusive.

    Args:
        watermarks: Watermarks of the snapshot.
        schema: Schema of the snapshot.
        through: Integer, date or datetime of the type of the first ordering columns, or its text form. A date means the
            end of that day, in UTC if the column is an instant.
        complete_groups: Groups to check; empty or None for all groups.

    Raises:
        NotComplete: A stream that feeds one of these groups has no watermark above the value.
        NotFound: A group does not exist.
        InvalidInput: ``through`` is not a value of a group's first ordering column, or the column has no watermarks.
    """
    if isinstance(through, str):
        through = parse_through(through)
    if isinstance(through, bool) or not isinstance(through, int | dt.date):
        raise InvalidInput(f"complete_through: {through!r} is not an integer, a date or a time", hint=_FORMS)
    lagging: list[Watermark] = []
    for name in complete_groups or schema.group_by_name:
        limit = _limit(through, schema.group(name), schema)
        marks = [groups[name] for groups in watermarks.values() if name in groups]
        lagging.extend(mark for mark in marks if mark.value is None or to_ticks(mark.value) <= limit)
    if lagging:
        silent = any(mark.value is None and mark.lanes for mark in lagging)
        hint = f"read again later, without complete_through, or {_CHOOSE}"
        if silent:
            hint += "; set a lateness for writers of lanes without a watermark, or close lanes that get no more events"
        raise NotComplete(
            f"the snapshot is not complete through {_text(through)}: {'; '.join(map(_describe, lagging))}", hint=hint
        )


def _describe(mark: Watermark) -> str:
    stream = f"stream {mark.stream!r} (group {mark.group!r})"
    if not mark.lanes:
        return f"{stream} was never written"
    lanes = ", ".join(repr(str(lane)) for lane in mark.held_by)
    if mark.value is None:
        return f"{stream} has no watermark" + (f" in lane {lanes}" if lanes else "")
    return f"{stream} has watermark {_text(mark.value)}" + (f" (lane {lanes})" if len(mark.lanes) > 1 and lanes else "")


def _limit(through: Value, group: Group, schema: TableSchema) -> int:
    """The largest value within ``through``, in ticks of the group's first ordering column."""
    first = watermark_type(group, schema)
    if first is None:
        raise InvalidInput(
            f"complete_through: group {group.name!r} cannot have a watermark",
            hint=f"{CARRY}; {_CHOOSE}",
        )
    moment, whole_day = isinstance(through, dt.datetime), not isinstance(through, int | dt.datetime)
    if pa.types.is_integer(first) and isinstance(through, int):
        return through
    if pa.types.is_date32(first) and (moment or whole_day):
        return to_ticks(through) // DAY_TICKS if moment else to_ticks(through)
    if pa.types.is_timestamp(first) and whole_day:
        return (to_ticks(through) + 1) * DAY_TICKS - 1
    if isinstance(through, dt.datetime) and pa.types.is_timestamp(first) and (not through.tzinfo) == (not first.tz):
        return to_ticks(through)
    kind = "an integer"
    if not pa.types.is_integer(first):
        zone = "" if pa.types.is_date32(first) else " with a time zone" if first.tz else " without a time zone"
        kind = f"a date, or a time{zone}"
    raise InvalidInput(
        f"complete_through {_text(through)}: group {group.name!r} is ordered by {group.ordering[0]} "
        f"{format_type(first)}",
        hint=f"use {kind}; if the groups have different types, {_CHOOSE}",
    )


def parse_through(text: str) -> Value:
    """Parse a value: digits, or a date or time in ISO 8601.

    Raises:
        InvalidInput: The text has none of these forms.
    """
    plain = text.strip()
    if _INTEGER.fullmatch(plain):
        return int(plain)
    try:
        return dt.date.fromisoformat(plain) if len(plain) == len("2024-01-31") else dt.datetime.fromisoformat(plain)
    except ValueError:
        raise InvalidInput(
            f"complete_through: {text!r} is not an integer, a date or a time",
            hint=_FORMS,
        ) from None


def _text(value: Value) -> str:
    return value.isoformat() if isinstance(value, dt.date) else str(value)
