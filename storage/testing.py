"""For authors of custom mergers: searches for histories on which a merger breaks the rules (MERGE.md, "Custom").

Compactions merge any of the events of a key, and then merge the results. The final result must equal that of all events
at once. `check_merger` tries random histories, cut into random parts, with the code that reads and compacts tables. It
tries short histories first, and shows the first one on which the results differ.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.model import Column, Group, Op
from weft.storage.core.modes import GroupEvents, MergeMode, Merger, Registers, merging_mode
from weft.storage.core.types import parse_type

_NAME: Final = "weft.storage.testing:checked"
_KEY: Final = 0
_POOL_SIZE: Final = 5


class MergerError(AssertionError):
    """A merger gave different results for one history; the message shows the history and both results."""


def check_merger(
    merger: Merger,
    *,
    columns: Mapping[str, str],
    ordering: Sequence[str] = (),
    state: Mapping[str, str] | None = None,
    deletes: bool = True,
    tries: int = 500,
    max_events: int = 6,
    seed: int = 0,
) -> None:
    """Search for a history on which merging in parts differs from merging all events at once.

    A merger that passes may still be wrong: the search is random.

    Args:
        merger: The function.
        columns: The group's columns: name to Spark SQL type name.
        ordering: Names of the columns that order events.
        state: Declared state columns: name to Spark SQL type name.
        deletes: Whether histories have deletes.
        tries: Number of histories.
        max_events: Number of events in the longest history.
        seed: Seed of the random search; the same seed tries the same histories.

    Raises:
        MergerError: The search found such a history.
        InvalidInput: The merger raised, or returned wrong columns.
    """
    group = Group(
        id=1,
        name="checked",
        columns=tuple(columns),
        ordering=tuple(ordering),
        merge=_NAME,
        state=tuple((state or {}).items()),
    )
    mode = merging_mode(group, {_NAME: merger})
    schema = {name: Column(i, name, parse_type(type_name)) for i, (name, type_name) in enumerate(columns.items(), 1)}
    chance = random.Random(seed)  # noqa: S311 - a repeatable search
    for count in range(2, max_events + 1):
        for _ in range(max(tries // (max_events - 1), 1)):
            events = [_event(chance, schema, arrival, deletes=deletes) for arrival in range(1, count + 1)]
            whole = _fold(mode, group, schema, [events])
            parts = _cut(chance, events)
            folded = _fold(mode, group, schema, parts)
            if folded != whole:
                raise MergerError(_report(parts, whole, folded))


def _event(chance: random.Random, schema: Mapping[str, Column], arrival: int, *, deletes: bool) -> dict[str, Any]:
    op = Op.DELETE_GROUP if deletes and chance.random() < 1 / 4 else Op.UPSERT
    return {"arrival": arrival, "op": op, **{name: _value(chance, c.type) for name, c in schema.items()}}


def _value(chance: random.Random, arrow_type: pa.DataType) -> Any:
    """A value from a small pool, so that values repeat and ordering values tie; sometimes NULL."""
    number = chance.randrange(-1, _POOL_SIZE)
    if number < 0:
        return None
    if pa.types.is_boolean(arrow_type):
        return number % 2 == 0
    if pa.types.is_decimal(arrow_type):
        return decimal.Decimal(number)
    if pa.types.is_floating(arrow_type):
        return number / 2
    if pa.types.is_string(arrow_type):
        return "abcde"[number]
    if pa.types.is_binary(arrow_type):
        return b"abcde"[number : number + 1]
    if pa.types.is_date(arrow_type):
        return dt.date(2026, 1, 1 + number)
    if pa.types.is_timestamp(arrow_type):
        return dt.datetime(2026, 1, 1 + number, tzinfo=dt.UTC if arrow_type.tz else None)
    if pa.types.is_list(arrow_type):
        return [_value(chance, arrow_type.value_type) for _ in range(number)]
    if pa.types.is_struct(arrow_type):
        return {field.name: _value(chance, field.type) for field in arrow_type}
    if pa.types.is_map(arrow_type):
        return [("abcde"[i], _value(chance, arrow_type.item_type)) for i in range(number)]
    return number


def _cut(chance: random.Random, events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The history in consecutive parts, as compactions at random times would cut it."""
    cuts = sorted(chance.sample(range(1, len(events)), chance.randint(1, len(events) - 1)))
    return [events[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(events)], strict=True)]


def _fold(
    mode: MergeMode, group: Group, schema: Mapping[str, Column], parts: Sequence[list[dict[str, Any]]]
) -> dict[str, Any]:
    """The rows that a reader sees after merging each part, and then merging the results from left to right."""
    total: Arrays | None = None
    for part in parts:
        touching = [e for e in part if not group.ordering or any(e[name] is not None for name in group.ordering)]
        if not touching:
            continue
        collapsed = _collapse(mode, group, schema, touching)
        new = collapsed.columns
        if total is None:
            total = {field: pa.nulls(1, column.type) for field, column in new.items()}
        changed, merged = mode.merge(group, schema, collapsed.keys, total, new)
        total = merged if changed.all() else total
    if total is None:
        return {}
    present = total[names.arrival(group.id)][0].is_valid
    return {name: total[name][0].as_py() if present else None for name in group.columns} | {"present": present}


def _collapse(mode: MergeMode, group: Group, schema: Mapping[str, Column], part: list[dict[str, Any]]) -> Registers:
    def column(name: str) -> pa.Array:
        return pa.array([event[name] for event in part], schema[name].type)

    return mode.collapse(
        group,
        schema,
        GroupEvents(
            keys=pa.array([_KEY] * len(part), pa.int64()).to_numpy(),
            arrival=pa.array([event["arrival"] for event in part], pa.int64()),
            op=pa.array([int(event["op"]) for event in part], pa.int8()),
            ordering={name: column(name) for name in group.ordering},
            values={name: column(name) for name in group.values},
            supplied={},
        ),
    )


def _report(parts: Sequence[list[dict[str, Any]]], whole: dict[str, Any], folded: dict[str, Any]) -> str:
    lines = [f"  part {i}: {event}" for i, part in enumerate(parts, 1) for event in part]
    answers = [f"all at once: {whole}", f"in parts:    {folded}"]
    return "\n".join(["the result of the merger depends on how events are folded:", *lines, *answers])
