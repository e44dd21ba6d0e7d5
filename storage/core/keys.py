"""Record keys: one sortable vector per batch, the bucket of every key, and search among sorted keys.

The keys of a batch are one vector: an ``int64`` numpy array (integers, dates, timestamps) or an Arrow binary array
(strings, binaries, and the hidden binary form of composite and decimal keys). Files are sorted in the order of this
vector. The binary form is memcomparable: comparing bytes compares keys (FORMAT.md, "Key order", with test vectors).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg_core import transform

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
KeyVector: TypeAlias = npt.NDArray[np.int64] | pa.Array
"""An int64 numpy array, or a pyarrow binary array without NULLs."""

_HASH_RANGE: Final = (1 << 31) - 1
_SIGN_BIT_64: Final = np.uint64(1 << 63)
_DECIMAL_WORDS: Final = 2
_POSITIVE_BITS: Final = 63  # of an int64


def key_vector(column: pa.Array | pa.ChunkedArray) -> KeyVector:
    """The sortable vector of a sort column without NULLs. Zero-copy except for types narrower than 64 bits."""
    array = one_array(column)
    if pa.types.is_string(array.type):
        return array.view(pa.binary())
    if pa.types.is_binary(array.type):
        return array
    if pa.types.is_date32(array.type) or pa.types.is_int32(array.type):
        return np.asarray(array.view(pa.int32())).astype(np.int64)
    return np.asarray(array.view(pa.int64()))


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        # combine_chunks() of no chunks is an empty array of the type.
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def encode_sort_key(columns: Sequence[pa.Array]) -> pa.Array:
    """Memcomparable binary form of a composite or decimal key, columns left to right.

    Integers, dates and timestamps are 8 bytes, big-endian, with the sign bit flipped; decimals 16 bytes likewise. In
    strings and binaries each 0x00 becomes 0x00 0xFF, and 0x00 0x00 ends the value.
    """
    parts = [_encode_component(one_array(column)) for column in columns]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")


def _encode_component(array: pa.Array) -> pa.Array:
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        escaped = pc.replace_substring(array.cast(pa.binary()), b"\x00", b"\x00\xff")
        return pc.binary_join_element_wise(escaped, b"\x00\x00", b"")
    if pa.types.is_decimal128(array.type):
        data = np.frombuffer(array.buffers()[1], np.uint64)
        words = data[_DECIMAL_WORDS * array.offset : _DECIMAL_WORDS * (array.offset + len(array))].reshape(-1, 2)
        encoded = np.empty(words.shape, ">u8")
        encoded[:, 0] = words[:, 1] ^ _SIGN_BIT_64
        encoded[:, 1] = words[:, 0]
        width = 16
    else:
        encoded = (np.asarray(key_vector(array)).view(np.uint64) ^ _SIGN_BIT_64).astype(">u8")
        width = 8
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(array), [None, pa.py_buffer(encoded)])
    return fixed.cast(pa.binary())


def buckets(columns: Sequence[pa.Array], bits: int) -> npt.NDArray[np.int32]:
    """Bucket of every key, 0 <= bucket < 2**bits.

    For one column it is Iceberg's ``bucket[N]``. For several, h = h * 31 + ``bucket[2**31 - 1]`` over the columns, from
    h = 0 and modulo 2**32; then (h ^ h >> 15) modulo N.
    """
    if len(columns) == 1:
        return np.asarray(transform.bucket(one_array(columns[0]), 1 << bits)).astype(np.int32)
    mixed = np.zeros(len(columns[0]), np.uint32)
    for column in columns:
        mixed = mixed * np.uint32(31) + np.asarray(transform.bucket(one_array(column), _HASH_RANGE)).astype(np.uint32)
    mixed ^= mixed >> np.uint32(15)
    return (mixed & np.uint32((1 << bits) - 1)).astype(np.int32)


def concat(vectors: Sequence[KeyVector]) -> KeyVector:
    """Concatenate at least one key vector; all have the same form (numbers or binary keys)."""
    if not isinstance(vectors[0], np.ndarray):
        return pa.concat_arrays([pa.array(vector, pa.binary()) for vector in vectors])
    return np.concatenate(vectors)


def take(keys: KeyVector, rows: Indices | Mask | slice) -> KeyVector:
    """Select keys by positions, by a mask, or by a range."""
    if isinstance(keys, np.ndarray):
        return keys[rows]
    if isinstance(rows, slice):
        return keys[rows]
    return keys.filter(pa.array(rows)) if rows.dtype == np.bool_ else keys.take(pa.array(rows))


def in_order(keys: KeyVector) -> tuple[Indices, KeyVector]:
    """Positions that sort the keys stably, and the sorted keys."""
    if isinstance(keys, np.ndarray):
        return _numbers_in_order(keys)
    order = np.asarray(pc.sort_indices(keys)).astype(np.int64)
    return order, take(keys, order)


def _numbers_in_order(keys: npt.NDArray[np.int64]) -> tuple[Indices, npt.NDArray[np.int64]]:
    """Sort by packing key and position into one number: sorting numbers is several times as fast as an argsort."""
    count = len(keys)
    if (keys[1:] >= keys[:-1]).all():
        return np.arange(count), keys
    bits = (count - 1).bit_length()
    least = int(keys.min())
    if (int(keys.max()) - least).bit_length() + bits <= _POSITIVE_BITS:
        order, distance = _sort_and_unpack((keys - least) << bits | np.arange(count), bits)
        return order, distance + least
    # Key and position together need more than 63 bits. So each distinct key gets a number, which is packed instead.
    order = np.argsort(keys)
    sorted_keys = keys[order]
    number = np.zeros(count, np.int64)
    np.cumsum(sorted_keys[1:] != sorted_keys[:-1], out=number[1:])
    return _sort_and_unpack(number << bits | order, bits)[0], sorted_keys


def _sort_and_unpack(words: npt.NDArray[np.int64], bits: int) -> tuple[Indices, npt.NDArray[np.int64]]:
    """Sort the numbers, and return their low ``bits`` and the bits above."""
    words.sort()
    return words & ((1 << bits) - 1), words >> bits


def stable_order(keys: KeyVector) -> Indices:
    """Positions that sort the keys stably."""
    return in_order(keys)[0]


def run_starts(sorted_keys: KeyVector) -> Indices:
    """First position of every run of equal keys."""
    if len(sorted_keys) == 0:
        return np.empty(0, np.int64)
    if isinstance(sorted_keys, np.ndarray):
        changes = sorted_keys[1:] != sorted_keys[:-1]
    else:
        changes = np.asarray(pc.not_equal(sorted_keys[1:], sorted_keys[:-1]))
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changes) + 1])


def lower_bound(sorted_keys: KeyVector, needles: KeyVector) -> Indices:
    """Number of smaller keys, for each needle."""
    if isinstance(sorted_keys, np.ndarray):
        return np.searchsorted(sorted_keys, needles)
    return np.asarray(pc.search_sorted(sorted_keys, needles)).astype(np.int64)


def upper_bound(sorted_keys: KeyVector, needle: Any) -> int:
    """Number of keys that are smaller than or equal to one key, which is an element of such a vector."""
    if isinstance(sorted_keys, np.ndarray):
        return int(np.searchsorted(sorted_keys, needle, side="right"))
    return int(pc.search_sorted(sorted_keys, needle, side="right").as_py())


def upper_bounds(sorted_keys: KeyVector, needles: KeyVector) -> Indices:
    """Number of smaller or equal keys, for each needle."""
    if isinstance(sorted_keys, np.ndarray):
        return np.searchsorted(sorted_keys, needles, side="right")
    return np.asarray(pc.search_sorted(sorted_keys, needles, side="right")).astype(np.int64)


def any_within(sorted_keys: KeyVector, bounds: KeyVector) -> bool:
    """Whether some key is between two bounds, inclusive."""
    return bool(lower_bound(sorted_keys, bounds[:1])[0] < upper_bounds(sorted_keys, bounds[1:])[0])


def positions(sorted_keys: KeyVector, needles: KeyVector) -> Indices:
    """Positions of the sorted keys, which may repeat, that are in ``needles`` (sorted, distinct); ascending."""
    start, stop = lower_bound(sorted_keys, needles), upper_bounds(sorted_keys, needles)
    counts = stop - start
    first = np.repeat(start - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) if len(counts) else start
    return first + np.arange(len(first))


def find(sorted_keys: KeyVector, needles: KeyVector) -> tuple[Indices, Mask]:
    """Position of each needle among sorted distinct keys, and whether it exists.

    The position of a missing needle is arbitrary.
    """
    if len(sorted_keys) == 0:
        return np.zeros(len(needles), np.int64), np.zeros(len(needles), np.bool_)
    position = np.minimum(lower_bound(sorted_keys, needles), len(sorted_keys) - 1)
    if isinstance(sorted_keys, np.ndarray):
        return position, sorted_keys[position] == needles
    return position, np.asarray(pc.equal(sorted_keys.take(pa.array(position)), needles))


def union(vectors: Sequence[KeyVector]) -> KeyVector:
    """The distinct keys of at least one vector, sorted."""
    _, sorted_keys = in_order(concat(vectors))
    return take(sorted_keys, run_starts(sorted_keys))
