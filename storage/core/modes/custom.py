"""Custom mergers: a function of the user merges the events of a key (MERGE.md, "Custom").

The function gets rows sorted by (key, version) and returns one row per key. A row is an event, or the result of an
earlier call. Calls are nested in any way, as logs and compactions require, so the function must be associative:
``m(a + b + c) == m(m(a + b) + c) == m(a + m(b + c))``. `weft.storage.testing.check_merger` searches for
counter-examples.

Rows have the group's columns, ``_op`` (upsert, delete, or merged for an earlier result), and the group's declared state
columns (NULL in events). The result has the group's value columns and its state columns, and optionally the boolean
``_present``; without it, a group is present once there was an upsert.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays, take_rows
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.model import Column, Group, Op
from weft.storage.core.modes.base import GroupEvents, MergeMode, Merger, Registers
from weft.storage.core.modes.versions import History, newer, number_versions, pick
from weft.storage.core.types import parse_type
from weft.storage.errors import InvalidInput

OP: Final = "_op"
PRESENT: Final = "_present"
_WORDS: Final = pa.array(["upsert", "delete", "merged"])
_MERGED: Final = 2
_LISTED_KEYS: Final = 3
_TRIED_KEYS: Final = 1000  # to find the keys that fail, in bounded time
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Custom(MergeMode):
    """A user's function merges events and its own earlier results.

    Attributes:
        merger: The function; None where only the mode's properties are asked for, or the process has not loaded it.
    """

    merger: Merger | None = None

    name = "custom"
    may_hide_upsert = True
    runs_merger = True
    takes_state = True
    frozen_columns = True

    def matches(self, merge: str) -> bool:
        return _NAME.fullmatch(merge) is not None

    @property
    def spelling(self) -> str:
        return "module:function"

    def with_merger(self, merger: Merger | None) -> MergeMode:
        return Custom(merger)

    def state(self, group: Group, columns: Mapping[str, Column]) -> Mapping[str, pa.DataType]:
        version = {names.top_arrival(group.id): pa.int64()} | {
            names.top_ordering(group.id, i): columns[name].type for i, name in enumerate(group.ordering)
        }
        group_state = {names.group_state(group.id, name): parse_type(type_name) for name, type_name in group.state}
        return {names.arrival(group.id): pa.int64(), **version, **group_state}

    def reads(self, group: Group, columns: Mapping[str, Column], values: Collection[str]) -> tuple[str, ...]:
        return (*group.columns, *self.state(group, columns))

    def collapse(self, group: Group, columns: Mapping[str, Column], events: GroupEvents) -> Registers:
        history = History.of(events)
        op = np.asarray(history.sort(events.op))
        rows = {name: history.sort(column) for name, column in {**events.values, **events.ordering}.items()}
        rows[OP] = _WORDS.take(pa.array(np.where(op == Op.UPSERT, 0, 1)))
        for name, type_name in group.state:
            rows[name] = pa.nulls(len(op), parse_type(type_name))
        top = history.last(op == Op.UPSERT)
        version = [pick(history.sort(column), top) for column in events.ordering.values()]
        offsets = np.append(history.starts, len(op))
        merged = _call(self.merger, group, columns, rows, offsets, history.keys)
        return Registers(history.keys, _register(group, merged, version, pick(history.sort(events.arrival), top)))

    def merge(
        self, group: Group, columns: Mapping[str, Column], new_keys: KeyVector, old: Arrays, new: Arrays
    ) -> tuple[Mask, Arrays]:
        exists = [~np.asarray(_is_missing(group, columns, side)) for side in (old, new)]
        # A merger may keep nothing of a key's deletes. It never gets a key without rows.
        has_rows = exists[0] | exists[1]
        if not has_rows.all():
            old, new, new_keys = take_rows(old, has_rows), take_rows(new, has_rows), keys.take(new_keys, has_rows)
            exists = [mask[has_rows] for mask in exists]
        versions = [_version(group, old), _version(group, new)]
        count = len(versions[0][1])
        # Two results of one key are sorted by their newest upserts, as events would be.
        _, (old_number, new_number) = number_versions(versions)
        row_of = np.concatenate([np.arange(count)[exists[0]], np.arange(count)[exists[1]]])
        order = np.lexsort((np.concatenate([old_number[exists[0]], new_number[exists[1]]]), row_of))
        rows = {}
        merger_columns = [*group.columns, *(names.group_state(group.id, name) for name, _ in group.state)]
        # An absent group shows defaults: they do not come from the merger.
        old = {
            n: pc.if_else(old[names.arrival(group.id)].is_valid(), c, None) if n in group.columns else c
            for n, c in old.items()
        }
        for name in merger_columns:
            sides = [side[name].filter(pa.array(keep)) for side, keep in zip((old, new), exists, strict=True)]
            rows[name] = pa.concat_arrays(sides).take(pa.array(order))
        for name, _ in group.state:
            rows[name] = rows.pop(names.group_state(group.id, name))
        rows[OP] = _WORDS.take(pa.array(np.full(len(order), _MERGED)))
        offsets = np.searchsorted(row_of[order], np.arange(count + 1))
        merged = _call(self.merger, group, columns, rows, offsets, new_keys)
        later = pa.array(newer(*versions))
        version = [pc.if_else(later, b, a) for a, b in zip(versions[0][0], versions[1][0], strict=True)]
        arrival = pc.if_else(later, versions[1][1], versions[0][1])
        return has_rows, _register(group, merged, version, arrival)


def _version(group: Group, side: Arrays) -> tuple[list[pa.Array], pa.Array]:
    ordering = [side[names.top_ordering(group.id, i)] for i in range(len(group.ordering))]
    return ordering, side[names.top_arrival(group.id)]


def _is_missing(group: Group, columns: Mapping[str, Column], side: Arrays) -> pa.Array:
    """Rows without a register: every hidden column is NULL."""
    mask = side[names.arrival(group.id)].is_null()
    for name in Custom().state(group, columns):
        mask = pc.and_(mask, side[name].is_null())
    return mask


def _call(
    merger: Merger | None,
    group: Group,
    columns: Mapping[str, Column],
    rows: Arrays,
    offsets: Indices,
    key_vector: KeyVector,
) -> pa.Table:
    """Run the merger, and check what it returns.

    Raises:
        InvalidInput: It raised, or returned something else; names the merger and the keys.
        MemoryError, OSError: The merger raised it.
    """
    where = f"merger {group.merge!r} of group {group.name!r}"
    if merger is None:
        raise InvalidInput(f"{where} is not loaded", hint="allow its module with weft.storage.mergers.allow")
    table = pa.table(dict(rows))
    try:
        result = merger(table, offsets)
    except (MemoryError, OSError):
        raise  # not the fault of the merger or the rows: another attempt may succeed
    except Exception as error:
        failing_keys = _find_failing_keys(merger, table, offsets, key_vector)
        raise InvalidInput(
            f"{where} failed for {failing_keys}: {type(error).__name__}: {error}",
            hint="correct the merger; nothing was changed",
        ) from error
    if not isinstance(result, pa.Table) or len(result) != len(offsets) - 1:
        raise InvalidInput(
            f"{where} did not return one row for each of {len(offsets) - 1} keys", hint="correct the merger"
        )
    types = {name: columns[name].type for name in group.values} | {n: parse_type(t) for n, t in group.state}
    try:
        fields = {name: keys.one_array(result.column(name).cast(arrow_type)) for name, arrow_type in types.items()}
    except (KeyError, pa.ArrowException) as error:
        raise InvalidInput(
            f"{where} returned wrong columns: {error}", hint=f"return the columns {', '.join(types)}"
        ) from error
    if PRESENT in result.schema.names:
        fields[PRESENT] = keys.one_array(pc.coalesce(result.column(PRESENT).cast(pa.bool_()), pa.scalar(False)))
    return pa.table(fields)


def _find_failing_keys(merger: Merger, table: pa.Table, offsets: Indices, key_vector: KeyVector) -> str:
    """The first keys for which the merger fails alone, or all keys if it only fails for several together."""
    failing_keys = []
    for i in range(min(len(key_vector), _TRIED_KEYS)):
        try:
            merger(table.slice(offsets[i], offsets[i + 1] - offsets[i]), np.array([0, offsets[i + 1] - offsets[i]]))
        except Exception:
            failing_keys.append(str(key_vector[i]))
        if len(failing_keys) == _LISTED_KEYS:
            break
    return (
        f"key {', '.join(failing_keys)}" if failing_keys else f"{len(key_vector)} keys together, from {key_vector[0]}"
    )


def _register(group: Group, merged: pa.Table, version: list[pa.Array], arrival: pa.Array) -> dict[str, pa.Array]:
    present = arrival.is_valid()
    if PRESENT in merged.schema.names:
        present = pc.and_(present, keys.one_array(merged.column(PRESENT)))
    # An absent group shows nothing: what a merger must remember belongs in its state columns.
    values = dict(zip(group.ordering, version, strict=True)) | {
        n: keys.one_array(merged.column(n)) for n in group.values
    }
    result = {name: pc.if_else(present, column, pa.scalar(None, column.type)) for name, column in values.items()}
    result[names.arrival(group.id)] = pc.if_else(present, arrival, None)
    result[names.top_arrival(group.id)] = arrival
    result |= {names.top_ordering(group.id, i): column for i, column in enumerate(version)}
    for name, _ in group.state:
        result[names.group_state(group.id, name)] = keys.one_array(merged.column(name))
    return result
