"""Bloom filters of Parquet: which row groups of a base file cannot have a value of an indexed column.

They are written by pyarrow, into the tail of the file, and are those of Parquet: other engines use them too. pyarrow
has no function that reads them, so this module does: the split block Bloom filter of the Parquet format, with XXH64
of the plain encoding of a value. A filter has no false negatives: a value that is not in it is not in the row group.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]

FALSE_POSITIVES: Final = 0.05
"""Share of absent values that a filter does not exclude, at most: a filter then has about a byte for each value."""
_BLOCK_BYTES: Final = 32
_SALT: Final = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_NUM_BYTES_FIELD: Final = 0x15  # in Thrift's compact protocol: field 1, an i32


def writer_options(rows: pa.Table, columns: Collection[str]) -> dict[str, dict[str, Any]] | None:
    """``bloom_filter_options`` of a writer of files whose first row group is ``rows``; None without indexed columns."""
    return {
        name: {"ndv": max(pc.count_distinct(rows[name]).as_py(), 1), "fpp": FALSE_POSITIVES}
        for name in columns
        if name in rows.schema.names
    } or None


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """The values that a column may have in a row group.

    Attributes:
        blocks: The blocks of the filter, eight words each.
    """

    blocks: npt.NDArray[np.uint32]

    @classmethod
    def parse(cls, data: bytes) -> BloomFilter | None:
        """A filter as Parquet stores it, header first; None if it has an unknown form."""
        size, shift, position = 0, 0, 1
        if not data or data[0] != _NUM_BYTES_FIELD:
            return None
        while True:
            byte = data[position]
            size |= (byte & 0x7F) << shift
            shift, position = shift + 7, position + 1
            if byte < 0x80:
                break
        size >>= 1  # zigzag; the size is not negative
        if size == 0 or size % _BLOCK_BYTES or position + size > len(data):
            return None
        return cls(np.frombuffer(data, "<u4", offset=len(data) - size).reshape(-1, len(_SALT)))

    def may_contain(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Whether values with these hashes can be in the row group; false is certain."""
        high, low = hashes >> np.uint64(32), hashes.astype(np.uint32)
        block = (high * np.uint64(len(self.blocks))) >> np.uint64(32)
        bit = np.uint32(1) << ((low[:, None] * _SALT) >> np.uint32(27))
        return np.asarray(((self.blocks[block.astype(np.int64)] & bit) != 0).all(axis=1))


def hash_values(values: pa.Array) -> Hashes:
    """XXH64 of the plain encoding in Parquet of values that are not null, of a type that can be indexed."""
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        return _hash_texts(values.view(pa.binary()) if pa.types.is_string(values.type) else values)
    wide = pa.int64() if values.type.bit_width == 64 else pa.int32()
    numbers = values.view(pa.int32()) if pa.types.is_date32(values.type) else values
    plain = np.ascontiguousarray(np.asarray(numbers.cast(wide)))
    return xxh64(plain.view(np.uint8).reshape(len(plain), -1))


@functools.lru_cache(maxsize=1024)
def hash_value(value: Any, arrow_type: pa.DataType) -> int:
    """`hash_values` of one value; raises `pyarrow.ArrowException` if a column of this type cannot have it."""
    return int(hash_values(pa.array([value], arrow_type))[0])


def may_contain(content: pa.Buffer, values: Iterable[Any], arrow_type: pa.DataType) -> bool:
    """Whether a stored filter of a column of this type may contain one of some values; false is certain."""
    bloom_filter = BloomFilter.parse(content.to_pybytes())
    if bloom_filter is None:
        return True
    hashes = []
    for value in values:
        with contextlib.suppress(pa.ArrowException, OverflowError):  # no column of this type can have it
            hashes.append(hash_value(value, arrow_type))
    return bool(bloom_filter.may_contain(np.array(hashes, np.uint64)).any())


def _hash_texts(values: pa.Array) -> Hashes:
    """Hashes of binaries: those of one length at once."""
    if len(values) == 0:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.diff(offsets)
    buffer = values.buffers()[2]
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
    result = np.empty(len(values), np.uint64)
    for length in np.unique(lengths).tolist():
        positions = np.flatnonzero(lengths == length)
        result[positions] = xxh64(data[offsets[:-1][positions][:, None] + np.arange(length)])
    return result


def xxh64(rows: npt.NDArray[np.uint8]) -> Hashes:
    """XXH64 with seed 0 of each row of bytes; all rows have the same length."""
    count, length = rows.shape
    with np.errstate(over="ignore"):
        striped_bytes = length - length % 32
        if striped_bytes:
            lanes = [np.full(count, start, np.uint64) for start in (_P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1)]
            words = _words(rows[:, :striped_bytes], "<u8")
            for start in range(0, words.shape[1], 4):
                lanes = [_round(lane, words[:, start + number]) for number, lane in enumerate(lanes)]
            result = sum(
                (_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)),
                np.zeros(count, np.uint64),
            )
            for lane in lanes:
                result = (result ^ _round(np.zeros(count, np.uint64), lane)) * _P1 + _P4
        else:
            result = np.full(count, _P5, np.uint64)
        result = result + np.uint64(length)
        position = striped_bytes
        while position + 8 <= length:
            word = _words(rows[:, position : position + 8], "<u8")[:, 0]
            result = _rotate(result ^ _round(np.zeros(count, np.uint64), word), 27) * _P1 + _P4
            position += 8
        if position + 4 <= length:
            word = _words(rows[:, position : position + 4], "<u4")[:, 0].astype(np.uint64)
            result = _rotate(result ^ (word * _P1), 23) * _P2 + _P3
            position += 4
        for byte in range(position, length):
            result = _rotate(result ^ (rows[:, byte].astype(np.uint64) * _P5), 11) * _P1
        result = (result ^ (result >> np.uint64(33))) * _P2
        result = (result ^ (result >> np.uint64(29))) * _P3
        return np.asarray(result ^ (result >> np.uint64(32)))


def _words(rows: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(rows).view(kind)


def _rotate(values: Hashes, bits: int) -> Hashes:
    return np.asarray((values << np.uint64(bits)) | (values >> np.uint64(64 - bits)))


def _round(lane: Hashes, word: npt.NDArray[np.uint64]) -> Hashes:
    return _rotate(lane + word * _P2, 31) * _P1
