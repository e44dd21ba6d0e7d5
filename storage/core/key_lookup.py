"""Finds keys among the sorted keys of a batch: by a table for dense integers, by binary search for everything else.

A stitch searches each base batch for all keys of the logs, and again for the registers of every column group. Integer
keys of one file group are often dense: if consecutive numbers are in eight buckets, each bucket has about every eighth
number. For such keys, a table with the position of every number between the smallest and the largest key is about ten
times as fast as a binary search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weft.storage.core import keys
from weft.storage.core.keys import Indices, KeyVector, Mask

LARGEST_SPAN: Final = 16  # numbers of the table per key: 64 bytes
FEWEST_SEARCHES: Final = 0.25  # per key; below it, filling the table costs more than it saves


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """Finds keys among sorted keys. Keys that are searched for occur at most once among them.

    Attributes:
        keys: The sorted keys.
        table: Position of a key, by its distance from the first key; 0 for numbers that are not keys. None for binary
            search.
    """

    keys: KeyVector
    table: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, sorted_keys: KeyVector, searches: int) -> KeyLookup:
        """Prepare to search sorted keys.

        Args:
            sorted_keys: The keys.
            searches: Approximate number of keys to be searched in all calls of `find`.
        """
        count = len(sorted_keys)
        if not isinstance(sorted_keys, np.ndarray) or searches < FEWEST_SEARCHES * count or count == 0:
            return cls(sorted_keys)
        span = int(sorted_keys[-1]) - int(sorted_keys[0]) + 1
        if span > LARGEST_SPAN * count or count > np.iinfo(np.int32).max:
            return cls(sorted_keys)
        table = np.zeros(span, np.int32)
        table[sorted_keys - sorted_keys[0]] = np.arange(count, dtype=np.int32)
        return cls(sorted_keys, table)

    def find(self, needles: KeyVector) -> tuple[Indices, Mask]:
        """Position of each needle, int64, and whether it exists; see `weft.storage.core.keys.find`."""
        if self.table is None:
            return keys.find(self.keys, needles)
        sorted_keys = np.asarray(self.keys)
        inside = np.clip(needles, sorted_keys[0], sorted_keys[-1])
        position = self.table[inside - sorted_keys[0]].astype(np.int64)
        return position, sorted_keys[position] == needles
