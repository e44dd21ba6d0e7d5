"""Encodes row numbers as an inline deletion vector of Delta, which is part of the log entry.

Source: Delta transaction log protocol, "Deletion Vector Format"; Roaring bitmap format specification,
"RoaringFormatSpec", with run containers, because the rows are few long spans.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

_MAGIC: Final = 1681511377
_COOKIE: Final = 12347  # of a bitmap with run containers
_WITHOUT_OFFSETS: Final = 4  # a bitmap of fewer containers has no offsets
_CONTAINER: Final = 1 << 16
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def inline_deletion_vector(spans: Iterable[tuple[int, int]]) -> dict[str, Any] | None:
    """Descriptor of a deletion vector; None if there are no rows.

    Args:
        spans: Spans [first, end) of row numbers below 2**32, ascending and neither overlapping nor adjacent.
    """
    containers: dict[int, list[tuple[int, int]]] = {}  # (first, length - 1) of each run, by container
    rows = 0
    for first, end in spans:
        rows += end - first
        for number in range(first // _CONTAINER, (end - 1) // _CONTAINER + 1):
            start = max(first, number * _CONTAINER)
            stop = min(end, (number + 1) * _CONTAINER)
            containers.setdefault(number, []).append((start % _CONTAINER, stop - start - 1))
    if not containers:
        return None
    # An array of 64-bit numbers: one bitmap, for the numbers whose upper 32 bits are 0.
    data = struct.pack("<IQI", _MAGIC, 1, 0) + _bitmap(containers)
    return {
        "storageType": "i",
        "pathOrInlineDv": _encode_z85(data),
        "sizeInBytes": len(data),
        "cardinality": rows,
    }


def _bitmap(containers: dict[int, list[tuple[int, int]]]) -> bytes:
    count = len(containers)
    bitmap = bytearray(struct.pack("<HH", _COOKIE, count - 1))
    bitmap += ((1 << count) - 1).to_bytes((count + 7) // 8, "little")  # each is a run container
    for number, runs in containers.items():
        bitmap += struct.pack("<HH", number, sum(length + 1 for _, length in runs) - 1)
    encoded_runs = [struct.pack(f"<{1 + 2 * len(runs)}H", len(runs), *sum(runs, ())) for runs in containers.values()]
    if count >= _WITHOUT_OFFSETS:
        offset = len(bitmap) + 4 * count
        for content in encoded_runs:
            bitmap += struct.pack("<I", offset)
            offset += len(content)
    return bytes(bitmap) + b"".join(encoded_runs)


def _encode_z85(data: bytes) -> str:
    """Base 85 in the alphabet of ZeroMQ, padded with zeros to a multiple of 4 bytes."""
    text = []
    for start in range(0, len(data), 4):
        number = int.from_bytes(data[start : start + 4].ljust(4, b"\0"), "big")
        text += [_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(text)
