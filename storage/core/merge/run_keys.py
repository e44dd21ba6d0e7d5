"""Keys of several file groups as one sortable vector: by file group first, then by key.

Base files, shadow files and log blocks hold one file group after the other, each sorted by key. Ordered like this, what
they hold of a run of file groups is sorted as it stands, and is merged as if it were of one file group.

Numbers stay numbers: the number of the file group, then one of the key that is small enough to stand below it. That is
exact for the keys that the vector was made for, those of the logs; of the others only their order matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import keys
from storage.core.keys import Indices, KeyVector

_POSITIVE_BITS: Final = 63
_INT64: Final = np.iinfo(np.int64)
_ORDINAL_TYPE: Final = np.dtype(">u4")  # in front of a binary key, in the order of numbers


@dataclass(frozen=True, slots=True)
class RunKeys:
    """How the keys of a run of file groups are put in order.

    Attributes:
        bits: Of a key's number; above them stands the place of its file group in the run. 0 for binary keys.
        least, largest: What is beyond them counts as them.
        distinct: Keys that are too far apart for that, sorted: their number is a position among these.
    """

    bits: int = 0
    least: int = 0
    largest: int = 0
    distinct: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, vectors: Sequence[KeyVector], slice_ordinals: int) -> RunKeys:
        """For keys among which some are, of as many file groups as there are ``slice_ordinals``."""
        if not isinstance(vectors[0], np.ndarray):
            return cls()
        # One on either side is for all keys beyond.
        least = max(min(int(own.min()) for own in vectors) - 1, int(_INT64.min))
        largest = min(max(int(own.max()) for own in vectors) + 1, int(_INT64.max))
        bits = (largest - least).bit_length()
        if bits + slice_ordinals.bit_length() <= _POSITIVE_BITS:
            return cls(bits, least, largest)
        distinct = np.asarray(keys.union(vectors))
        return cls((2 * len(distinct)).bit_length(), distinct=distinct)

    def vector(self, natural: KeyVector, slice_ordinal: Indices) -> KeyVector:
        """The vector of rows, of which ``slice_ordinal`` says the file group.

        Sorted if the rows are sorted by file group, then by key. Equal to one of the keys that this was made for if it
        is that key of that file group; rows of other keys may be equal to one another.
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
            position, found = keys.find(self.distinct, natural)
            position += natural > self.distinct[position]
            number = 2 * position + found
        return slice_ordinal << self.bits | number
