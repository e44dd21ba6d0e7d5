"""Mode ``latest_non_null`` (partial update): each column has its own version, above a delete floor.

A column shows the value of the newest upsert that supplies it, among the upserts above the largest delete. Because the
version is kept per column, and not per row, the result does not depend on how events were batched.

State of a group, besides its ordering columns and `arrival`, which are those of its newest upsert (the *top*):

- floor: the largest delete (arrival, kind, ordering values)
- suppliers: one number per value column, in the group's order: 0 if the top supplied the column, n > 0 if version
  number n of the list did, the largest number if no upsert did. NULL means that all numbers are 0. A number has one
  byte, or more if the group has more than 254 value columns, because the list may have one version per column.
- versions: the list of the other supplying versions (ordering values and arrival), ascending. NULL means an empty list.

In the usual case all columns of a row come from one event; it costs two NULLs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import names
from weft.storage.core.arrays import Arrays, list_lengths, take_rows
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.model import Column, Group, Op
from weft.storage.core.modes.base import GroupEvents, MergeMode, Registers
from weft.storage.core.modes.versions import History, Versions, number_versions, pick

_WIDE: Final = "wide-suppliers"
"""Reader feature of tables with a group whose supplier numbers have more than one byte."""
Numbers = npt.NDArray[np.int64]
"""Number of the supplying version or -1, of shape (keys, value columns)."""


class LatestNonNull(MergeMode):
    """Every column shows its newest supplied value."""

    name = "latest_non_null"
    chooses_values = True
    accepts_partial = True

    @property
    def known_features(self) -> frozenset[str]:
        return super().known_features | {_WIDE}

    def features(self, group: Group) -> frozenset[str]:
        is_wide = _number_type(len(group.values)).itemsize > 1
        return super().features(group) | ({_WIDE} if is_wide else frozenset())

    def state(self, group: Group, columns: Mapping[str, Column]) -> Mapping[str, pa.DataType]:
        floor = {names.floor_ordering(group.id, i): columns[name].type for i, name in enumerate(group.ordering)}
        version = pa.struct(
            [pa.field(f"o{i}", columns[name].type) for i, name in enumerate(group.ordering)]
            + [pa.field("arrival", pa.int64())]
        )
        return {
            names.arrival(group.id): pa.int64(),
            names.floor_arrival(group.id): pa.int64(),
            names.floor_kind(group.id): pa.int8(),
            **floor,
            names.suppliers(group.id): pa.binary(max(_suppliers_size(len(group.values)), 1)),
            names.versions(group.id): pa.list_(pa.field("element", version)),
        }

    def reads(self, group: Group, columns: Mapping[str, Column], values: Collection[str]) -> tuple[str, ...]:
        return (*group.ordering, *(name for name in group.values if name in values), *self.state(group, columns))

    def collapse(self, group: Group, columns: Mapping[str, Column], events: GroupEvents) -> Registers:
        history = History.of(events)
        op = np.asarray(history.sort(events.op))
        upsert = op == Op.UPSERT
        floor = history.last((op == Op.DELETE_GROUP) | (op == Op.DELETE_ROW))
        top = _above(history.last(upsert), floor)
        supply = np.full((len(history.starts), len(group.values)), -1, np.int64)
        values = {}
        for i, name in enumerate(group.values):
            if name not in events.values:
                continue
            column = history.sort(events.values[name])
            supplied = np.asarray(column.is_valid())
            if name in events.supplied:
                supplied = supplied | events.supplied[name][history.order]
            supply[:, i] = _above(history.last(upsert & supplied), floor)
            values[name] = pick(column, supply[:, i])
        versions = Versions([history.sort(column) for column in events.ordering.values()], history.sort(events.arrival))
        kind = pick(history.sort(events.op), floor)
        return Registers(history.keys, {**values, **_encode(group, columns, versions, supply, top, floor, kind)})

    def merge(
        self, group: Group, columns: Mapping[str, Column], new_keys: KeyVector, old: Arrays, new: Arrays
    ) -> tuple[Mask, Arrays]:
        versions, numbers = number_versions([part for side in (old, new) for part in _parts(group, side)])
        old_top, old_floor, old_list, new_top, new_floor, new_list = numbers
        old_supply = _decode(group, old, old_top, old_list)
        new_supply = _decode(group, new, new_top, new_list)
        floor = np.maximum(old_floor, new_floor)
        # The upserts of each register are newer than its floor, so only the floor of the other register can drop them.
        # An upsert and a delete of one commit may have equal numbers here: their positions, which are not stored, were
        # compared when the events of the commit were collapsed.
        top = np.maximum(_above(old_top, new_floor), _above(new_top, old_floor))
        old_versions, new_versions = _above(old_supply, new_floor[:, None]), _above(new_supply, old_floor[:, None])
        take_new = new_versions > old_versions
        supply = np.where(take_new, new_versions, old_versions)
        changed = (supply != old_supply).any(axis=1) | (top != old_top) | (floor != old_floor)
        values = {}
        for i, name in enumerate(group.values):
            if name in new:
                value = pc.if_else(pa.array(take_new[:, i]), new[name], old[name])
                values[name] = pick(value, np.where(supply[:, i] < 0, -1, np.arange(len(value))))
        kind = pc.if_else(
            pa.array(new_floor > old_floor), new[names.floor_kind(group.id)], old[names.floor_kind(group.id)]
        )
        merged = {**values, **_encode(group, columns, versions, supply, top, floor, kind)}
        return changed, take_rows(merged, changed)

    def renewal_reads(
        self, group: Group, columns: Mapping[str, Column], changed: Collection[str], requested: Collection[str]
    ) -> tuple[str, ...]:
        suppliers = names.suppliers(group.id)
        return (names.arrival(group.id), suppliers) if changed and suppliers in requested else ()

    def renew(self, group: Group, columns: Mapping[str, Column], added: Collection[str], rows: Arrays) -> Arrays:
        """Mark the added columns, which are the last ones, as not supplied; NULL would mean the newest upsert."""
        if not added:
            return {}
        supplier_bytes = rows[names.suppliers(group.id)]
        width = len(group.values)
        old_width = width - len(added)
        slots = np.full((len(supplier_bytes), width), -1)
        slots[:, :old_width] = 0
        explicit = np.asarray(supplier_bytes.is_valid())
        if old_width and explicit.any():
            slots[explicit, :old_width] = _decode_numbers(supplier_bytes, old_width)[explicit]
        present = np.asarray(rows[names.arrival(group.id)].is_valid())
        return {names.suppliers(group.id): _build_suppliers(slots, present)}


def supplier_numbers(group: Group, suppliers: pa.Scalar) -> list[int]:
    """The number of the supplying version of each value column, in the group's order; -1 if no upsert supplied it.

    Args:
        group: A group with this mode.
        suppliers: The value of the column ``suppliers`` in one register.
    """
    width = len(group.values)
    if not suppliers.is_valid or not width:
        return [0] * width
    numbers: list[int] = _decode_numbers(pa.array([suppliers.as_py()], suppliers.type), width)[0].tolist()
    return numbers


def _number_type(width: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Type of the supplier numbers of a group with ``width`` value columns; its largest number means no supplier."""
    return np.dtype(next(kind for kind in ("<u1", "<u2", "<u4") if width < np.iinfo(kind).max))


def _suppliers_size(width: int) -> int:
    """Bytes of the column ``suppliers`` per register."""
    return width * _number_type(width).itemsize


def _decode_numbers(values: pa.Array, width: int) -> Numbers:
    """Decode supplier numbers, of shape (registers, ``width``): -1 without a supplier, arbitrary for NULL."""
    kind, size = _number_type(width), _suppliers_size(width)
    data = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * size :][: len(values) * size]
    numbers = data.view(kind).reshape(-1, width).astype(np.int64)
    numbers[numbers == np.iinfo(kind).max] = -1
    return numbers


def _above(numbers: Indices, floor: Indices) -> Indices:
    """Versions above the floor; -1 for all others."""
    return np.where(numbers > floor, numbers, -1)


def _parts(group: Group, side: Arrays) -> list[tuple[Sequence[pa.Array], pa.Array]]:
    """The three lists of versions in registers: tops, floors, and the other suppliers."""
    floor = [side[names.floor_ordering(group.id, i)] for i in range(len(group.ordering))]
    other_versions = side[names.versions(group.id)].flatten()
    return [
        ([side[name] for name in group.ordering], side[names.arrival(group.id)]),
        (floor, side[names.floor_arrival(group.id)]),
        ([other_versions.field(i) for i in range(len(group.ordering))], other_versions.field(len(group.ordering))),
    ]


def _decode(group: Group, side: Arrays, top: Indices, listed_versions: Indices) -> Numbers:
    """Number of the supplying version, per register and value column."""
    width = len(group.values)
    suppliers = side[names.suppliers(group.id)]
    rows = len(suppliers)
    result = np.repeat(top[:, None], width, axis=1)
    explicit = np.flatnonzero(np.asarray(suppliers.is_valid()))
    if width and len(explicit):
        slots = _decode_numbers(suppliers.take(pa.array(explicit)), width)
        lengths = list_lengths(side[names.versions(group.id)])
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[:rows][explicit]
        other_numbers = np.append(listed_versions, -1)[
            np.minimum(offsets[:, None] + np.maximum(slots - 1, 0), len(listed_versions))
        ]
        result[explicit] = np.where(slots < 0, -1, np.where(slots == 0, result[explicit], other_numbers))
    return result


def _encode(
    group: Group,
    columns: Mapping[str, Column],
    versions: Versions,
    supply: Numbers,
    top: Indices,
    floor: Indices,
    kind: pa.Array,
) -> dict[str, pa.Array]:
    """Build registers from numbered versions."""
    top_ordering, top_arrival = versions.at(top)
    floor_ordering, floor_arrival = versions.at(floor)
    suppliers, version_lists = _suppliers(group, columns, versions, supply, top)
    return {
        **dict(zip(group.ordering, top_ordering, strict=True)),
        names.arrival(group.id): top_arrival,
        names.floor_arrival(group.id): floor_arrival,
        names.floor_kind(group.id): kind,
        **{names.floor_ordering(group.id, i): column for i, column in enumerate(floor_ordering)},
        names.suppliers(group.id): suppliers,
        names.versions(group.id): version_lists,
    }


def _suppliers(
    group: Group, columns: Mapping[str, Column], versions: Versions, supply: Numbers, top: Indices
) -> tuple[pa.Array, pa.Array]:
    """The columns ``suppliers`` and ``versions`` for the versions in ``supply``."""
    state = LatestNonNull().state(group, columns)
    list_type = state[names.versions(group.id)]
    rows, width = supply.shape
    is_top = supply == top[:, None]
    other = ~is_top & (supply >= 0)
    slots = np.where(is_top, 0, -1)
    # Sort the other versions of each row; equal versions share an entry of the list.
    other_supply = np.where(other, supply, -1)
    by_version = np.argsort(other_supply, axis=1, kind="stable")
    in_order = np.take_along_axis(other_supply, by_version, axis=1)
    fresh = in_order >= 0
    fresh[:, 1:] &= in_order[:, 1:] != in_order[:, :-1]
    np.put_along_axis(other_supply, by_version, np.cumsum(fresh, axis=1), axis=1)
    slots = np.where(other, other_supply, slots)
    counts = fresh.sum(axis=1)
    ordering, arrival = versions.at(in_order[fresh])
    elements = pa.StructArray.from_arrays([*ordering, arrival], fields=list(list_type.value_type))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
    version_lists = pa.ListArray.from_arrays(pa.array(offsets), elements, type=list_type, mask=pa.array(counts == 0))
    plain = (slots == 0).all(axis=1) if width else np.ones(rows, np.bool_)
    return _build_suppliers(slots if width else np.zeros((rows, 1), np.int64), ~plain), version_lists


def _build_suppliers(numbers: Numbers, valid: Mask) -> pa.Array:
    """Build the column ``suppliers`` from its numbers, with -1 for no supplier; NULL where not ``valid``."""
    rows, width = numbers.shape
    validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(numbers.astype(_number_type(width))))  # -1 becomes the largest number
    return pa.Array.from_buffers(pa.binary(_suppliers_size(width)), rows, [validity, data])
