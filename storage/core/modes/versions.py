"""Sorts the events of many keys by version, and numbers versions; used by every mode except ``latest``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, ordering
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.modes.base import GroupEvents


@dataclass(frozen=True, slots=True)
class History:
    """Events sorted by (key, version).

    Attributes:
        keys: Distinct keys, sorted.
        order: The input position of the event at each position of the sorted sequence.
        starts: The first position of each key in the sorted sequence.
    """

    keys: KeyVector
    order: Indices
    starts: Indices

    @classmethod
    def of(cls, events: GroupEvents) -> History:
        order, sorted_keys = keys.in_order(events.keys)
        starts = keys.run_starts(sorted_keys)
        if events.ordering and len(starts) < len(order):
            run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
            rank = ordering.ranks([column.take(pa.array(order)) for column in events.ordering.values()])
            # Stable: equal ordering values stay in (arrival, position) order.
            order = order[np.lexsort((rank, run))]
        return cls(keys.take(sorted_keys, starts), order, starts)

    @property
    def runs(self) -> Indices:
        """The position in ``keys`` of the key at each position of the sorted sequence."""
        return np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.order))))

    def sort(self, column: pa.Array) -> pa.Array:
        """A column of the events in sorted order."""
        return column.take(pa.array(self.order))

    def last(self, mask: Mask) -> Indices:
        """The last position of each key where ``mask``, in sorted order, is true, or -1."""
        return np.maximum.reduceat(np.where(mask, np.arange(len(mask)), -1), self.starts)

    def first(self, mask: Mask) -> Indices:
        """The first position of each key where ``mask``, in sorted order, is true, or -1."""
        positions = np.minimum.reduceat(np.where(mask, np.arange(len(mask)), len(mask)), self.starts)
        return np.where(positions == len(mask), -1, positions)


def pick(column: pa.Array, positions: Indices) -> pa.Array:
    """Take the values at positions; NULL where a position is negative."""
    return column.take(pa.array(positions, mask=positions < 0))


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions by number: the larger number is the larger version.

    Attributes:
        ordering: The values of each ordering column, indexed by number.
        arrival: The arrival of each version, indexed by number.
    """

    ordering: Sequence[pa.Array]
    arrival: pa.Array

    def at(self, numbers: Indices) -> tuple[list[pa.Array], pa.Array]:
        """Ordering columns and arrival of versions by number, NULL where the number is negative."""
        return [pick(column, numbers) for column in self.ordering], pick(self.arrival, numbers)


def number_versions(parts: Sequence[tuple[Sequence[pa.Array], pa.Array]]) -> tuple[Versions, list[Indices]]:
    """Number the versions of several lists together.

    Args:
        parts: Lists of (ordering columns, arrival); a NULL arrival means a missing version.

    Returns:
        The versions, and for each list the number of each element, -1 for a missing version.
    """
    arrival = pa.concat_arrays([part for _, part in parts])
    columns = [pa.concat_arrays(list(column)) for column in zip(*(part for part, _ in parts), strict=True)]
    exists = np.flatnonzero(np.asarray(arrival.is_valid()))
    mask = pa.array(exists)
    arrival, columns = arrival.take(mask), [column.take(mask) for column in columns]
    stamp = np.asarray(arrival)
    rank = ordering.ranks(columns) if columns else np.zeros(len(stamp), np.int64)
    order = np.lexsort((stamp, rank))
    changes = (rank[order][1:] != rank[order][:-1]) | (stamp[order][1:] != stamp[order][:-1])
    dense = np.concatenate([np.zeros(min(len(order), 1), np.int64), np.cumsum(changes)])
    numbers = np.full(sum(len(part) for _, part in parts), -1, np.int64)
    numbers[exists[order]] = dense
    first = pa.array(order[np.concatenate([np.zeros(min(len(order), 1), np.int64), np.flatnonzero(changes) + 1])])
    versions = Versions([column.take(first) for column in columns], arrival.take(first))
    return versions, list(np.split(numbers, np.cumsum([len(part) for _, part in parts])[:-1]))


def newer(old: tuple[Sequence[pa.Array], pa.Array], new: tuple[Sequence[pa.Array], pa.Array]) -> Mask:
    """Mask of the rows whose new version is larger. A NULL arrival means no version, which is smaller than all."""
    old_ordering, old_arrival = list(old[0]), old[1]
    new_ordering, new_arrival = list(new[0]), new[1]
    all_columns = (*old_ordering, old_arrival, *new_ordering, new_arrival)
    if len(old_ordering) == 1 and not any(column.null_count for column in all_columns):
        # The usual case: the values are compared without copies.
        old_rank, new_rank = ordering.native(old_ordering[0]), ordering.native(new_ordering[0])
        if old_rank is not None and new_rank is not None:
            later = np.asarray(new_arrival) > np.asarray(old_arrival)
            return (new_rank > old_rank) | ((new_rank == old_rank) & later)
    later = np.asarray(pc.greater(pc.fill_null(new_arrival, -1), pc.fill_null(old_arrival, -1)))
    if old_ordering:
        if len(old_ordering) == 1:
            # The only ordering value of a version is never NULL. A missing version may have any value here, and a
            # column without NULLs is compared faster.
            old_ordering = [pc.coalesce(old_ordering[0], new_ordering[0])]
            new_ordering = [pc.coalesce(new_ordering[0], old_ordering[0])]
        rank = ordering.ranks([pa.concat_arrays(pair) for pair in zip(old_ordering, new_ordering, strict=True)])
        old_rank, new_rank = rank[: len(later)], rank[len(later) :]
        later = (new_rank > old_rank) | ((new_rank == old_rank) & later)
    later |= np.asarray(old_arrival.is_null())
    return later & np.asarray(new_arrival.is_valid())
