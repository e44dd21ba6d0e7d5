"""Divides the keys of a large file group into ranges that can be read independently, or one after the other.

Every key is in exactly one range, and all events and rows of a key are read with its range. So the parts together have
all rows of the file group, in every merge mode. *Any* bounds lead to the right result; they only decide how the bytes
are distributed. They are chosen by statistics, which have the key range of each stored part:

    base       [a.....d][e.....h][i.....m]     row groups; their key ranges do not overlap
    logs       [.b..........................k] blocks; several may overlap
    bounds              ^e       ^i            first keys of row groups, so that no row group is read twice
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import Indices, KeyVector

MAX_REPEATED: Final = 2.0
"""Ranges that are read independently read at most this many times the bytes of the file group in total."""
UNEVEN: Final = 2.0
"""Bounds are uneven if the largest range has more than this many times the bytes of the average range."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys of one part of a file group.

    Attributes:
        least: Smallest key in the range, as a vector of one key; None for no limit.
        end: Exclusive upper bound, as a vector of one key; None for no limit.
        within_row_groups: Whether some row group of the base file has keys inside and outside of the range. If not, the
            base part of the slice has exactly the rows of the range.
    """

    least: KeyVector | None
    end: KeyVector | None
    within_row_groups: bool

    def positions(self, sorted_keys: KeyVector) -> tuple[int, int]:
        """First and end position of the keys of the range among sorted keys."""
        first = 0 if self.least is None else int(keys.lower_bound(sorted_keys, self.least)[0])
        end = len(sorted_keys) if self.end is None else int(keys.lower_bound(sorted_keys, self.end)[0])
        return first, end

    def rows(self, sorted_rows: Arrays, sort_column: str) -> dict[str, pa.Array]:
        """Select the rows with a key of the range; the input is sorted by key."""
        first, end = self.positions(keys.key_vector(sorted_rows[sort_column]))
        return {name: column.slice(first, end - first) for name, column in sorted_rows.items()}

    def may_contain(self, bounds: KeyVector) -> bool:
        """Whether the range can contain keys between two keys, inclusive."""
        least, largest = keys.take(bounds, slice(0, 1)), keys.take(bounds, slice(1, 2))
        after = self.least is not None and bool(_less(largest, self.least)[0])
        before = self.end is not None and not _less(least, self.end)[0]
        return not after and not before


@dataclass(frozen=True, slots=True)
class Extents:
    """Key ranges and sizes of stored parts of one file group, such as row groups or log ranges, in columns.

    Attributes:
        least, largest: A lower and an upper bound of the keys of each part.
        bytes: Stored bytes of each part.
    """

    least: KeyVector
    largest: KeyVector
    bytes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bytes)

    @classmethod
    def joined(cls, parts: Sequence[Extents]) -> Extents:
        """Concatenate extents."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            keys.concat([extents.least for extents in parts]),
            keys.concat([extents.largest for extents in parts]),
            np.concatenate([extents.bytes for extents in parts]),
        )

    def near(self, others: Extents) -> Extents:
        """The parts that may have keys in common with a part of ``others``."""
        _, starts = keys.in_order(others.least)
        _, ends = keys.in_order(others.largest)
        # A part overlaps others if more of them begin up to its end than end before its beginning.
        common = keys.upper_bounds(starts, self.largest) > keys.lower_bound(ends, self.least)
        return Extents(keys.take(self.least, common), keys.take(self.largest, common), self.bytes[common])


def choose_bounds(
    row_groups: Extents | None,
    logs: Extents | None,
    ranges: int,
    others: Sequence[Extents] = (),
    *,
    max_repeated: float = MAX_REPEATED,
) -> KeyVector | None:
    """Choose keys that divide a file group into about ``ranges`` ranges of about equal bytes.

    The keys are first keys of row groups if possible, otherwise also of log blocks. There are fewer ranges if more
    would read the same bytes too often, for example with many small commits that each have keys from the whole file
    group.

    Args:
        row_groups: The row groups of the base file, in file order; None without a base.
        logs: The log ranges; None without logs.
        ranges: Target number of ranges, at least 2.
        others: Stored parts of other states of the file group, which are divided at the same keys.
        max_repeated: Maximum bytes of all ranges together, as a multiple of the bytes of the file group. Infinite for
            a reader that reads the ranges one after the other, and keeps data for the next range.

    Returns:
        The lower bound of each range except the first, distinct and ascending; None if the file group cannot be
        divided.
    """
    parts = [part for part in (row_groups, logs, *others) if part is not None and len(part)]
    if not parts:
        return None
    ranges = min(ranges, sum(map(len, parts)) + 1)
    candidates = _between(row_groups) if row_groups is not None and len(row_groups) else None
    starts = [part.least for part in (logs, *others) if part is not None and len(part)]
    if starts and (candidates is None or _is_uneven(candidates, parts, ranges)):
        candidates = keys.union(starts if candidates is None else [candidates, *starts])
    while candidates is not None and ranges > 1:
        bounds = _quantiles(candidates, parts, ranges)
        # With two ranges each byte is read at most twice.
        if len(bounds) <= 1 or _bytes_read(bounds, parts) <= max_repeated * total_bytes(parts):
            return bounds if len(bounds) else None
        ranges = max(ranges // 2, 2)
    return None


def ranges_of(bounds: KeyVector, part: Extents) -> tuple[Indices, Indices]:
    """Numbers of the first and the last range that can have keys of each stored part; range 0 ends at bound 0."""
    return keys.upper_bounds(bounds, part.least), keys.upper_bounds(bounds, part.largest)


def _between(row_groups: Extents) -> KeyVector:
    """First keys of row groups that do not overlap with the previous row group.

    If statistics are truncated, neighbours may seem to overlap; then there is no bound between them.
    """
    is_apart = _less(row_groups.largest[:-1], row_groups.least[1:])
    return keys.take(row_groups.least, np.flatnonzero(is_apart) + 1)


def _is_uneven(candidates: KeyVector, parts: Sequence[Extents], ranges: int) -> bool:
    bounds = _quantiles(candidates, parts, ranges)
    return bool(_bytes_between(bounds, parts).max() > UNEVEN * total_bytes(parts) / ranges)


def _quantiles(candidates: KeyVector, parts: Sequence[Extents], ranges: int) -> KeyVector:
    """The distinct candidates that come closest to ranges of equal bytes."""
    if len(candidates) == 0:
        return candidates
    before = np.cumsum(_bytes_between(candidates, parts))  # the bytes before each candidate, then all bytes
    targets = before[-1] * np.arange(1, ranges) / ranges
    right = np.minimum(np.searchsorted(before[:-1], targets), len(candidates) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(targets - before[left] < np.abs(before[right] - targets), left, right)
    picks = np.unique(nearest)
    # Remove ranges without bytes.
    return keys.take(candidates, picks[(before[picks] > 0) & (before[picks] < before[-1])])


def _bytes_between(bounds: KeyVector, parts: Sequence[Extents]) -> npt.NDArray[np.float64]:
    """Bytes of each range, if each stored part distributes its bytes evenly over the ranges that it overlaps."""
    change = np.zeros(len(bounds) + 2)
    for part in parts:
        first, last = ranges_of(bounds, part)
        share = part.bytes / (last - first + 1)
        np.add.at(change, first, share)
        np.add.at(change, last + 1, -share)
    range_bytes: npt.NDArray[np.float64] = np.cumsum(change)[:-1]
    return np.where(range_bytes > 0.5, range_bytes, 0.0)  # a fraction of a byte is a rounding error


def _bytes_read(bounds: KeyVector, parts: Sequence[Extents]) -> float:
    """Total bytes that the ranges read."""
    total = 0.0
    for part in parts:
        first, last = ranges_of(bounds, part)
        total += float((part.bytes * (last - first + 1)).sum())
    return total


def total_bytes(parts: Iterable[Extents]) -> int:
    """Stored bytes of all parts."""
    return sum(int(part.bytes.sum()) for part in parts)


def _less(left: KeyVector, right: KeyVector) -> keys.Mask:
    if isinstance(left, np.ndarray):
        is_less: keys.Mask = left < right
        return is_less
    return np.asarray(pc.less(left, right))
