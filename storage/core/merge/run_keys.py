"""Keys of several file groups as one sortable vector: by file group first, then by key.

Base files, shadow files and log blocks hold one file group after the other, and each is sorted by key. So in this order
the stored rows of a run of neighbouring file groups are sorted, and are merged as if they belonged to one file group.

Integer keys become integers: the number of the file group in the high bits, and a number for the key in the low bits.
The vector is exact for the keys that it was built for, which are those of the logs; for other keys only the order
matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys
from weft.storage.core.keys import Indices, KeyVector

_POSITIVE_BITS: Final = 63
_INT64: Final = np.iinfo(np.int64)
_ORDINAL_TYPE: Final = np.dtype(">u4")  # in front of a binary key, in the order of numbers


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Maps the keys of a run of file groups to one sortable vector.

    Attributes:
        bits: Low bits that hold the number of a key; the ordinal of the file group is above. 0 for binary keys.
        least, largest: The number of a key is its distance from ``least``; keys outside of the range get the numbers
            of its ends.
        distinct: The sorted keys, if they are too far apart for that; the number of a key is then its position among
            them.
    """

    bits: int = 0
    least: int = 0
    largest: int = 0
    distinct: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, vectors: Sequence[KeyVector], slice_ordinals: int) -> RunKeys:
        """Build the mapping for the keys of a run of file groups.

        Args:
            vectors: All keys for which the result must be exact; at least one.
            slice_ordinals: Number of file groups.
        """
        if not isinstance(vectors[0], np.ndarray):
            return cls()
        # One number more on either side stands for all keys outside.
        least = max(min(int(vector.min()) for vector in vectors) - 1, int(_INT64.min))
        largest = min(max(int(vector.max()) for vector in vectors) + 1, int(_INT64.max))
        bits = (largest - least).bit_length()
        if bits + slice_ordinals.bit_length() <= _POSITIVE_BITS:
            return cls(bits, least, largest)
        distinct = np.asarray(keys.union(vectors))
        return cls((2 * len(distinct)).bit_length(), distinct=distinct)

    def vector(self, natural: KeyVector, slice_ordinal: Indices) -> KeyVector:
        """Map the keys of rows to the sortable vector.

        Args:
            natural: The keys of the rows.
            slice_ordinal: The file group of each row, by its ordinal in the run.

        Returns:
            One element per row, sorted if the rows are sorted by file group, then by key. An element equals that of a
            key of ``of`` only if both key and file group are equal. Elements of other keys may equal each other.
        """
        if not isinstance(natural, np.ndarray):
            prefix = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(_ORDINAL_TYPE.itemsize),
                len(slice_ordinal),
                [None, pa.py_buffer(slice_ordinal.astype(_ORDINAL_TYPE))],
            )
            return pc.binary_join_element_wise(prefix.cast(pa.binary()), natural, b"")
        if self.distinct is None:
            number = np.clip(natural, self.least, self.largest) - self.least
        else:
            position, is_match = keys.find(self.distinct, natural)
            position += natural > self.distinct[position]
            number = 2 * position + is_match
        return slice_ordinal << self.bits | number
