"""Lists of file groups as compressed JSON: they need little memory, and few of them are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa

from weft.storage.errors import CorruptData

_CODEC: Final = "zstd"

T = TypeVar("T")


def pack(text: bytes) -> bytes:
    """Compress a list."""
    packed: bytes = pa.compress(text, codec=_CODEC, asbytes=True)
    return packed


def unpack(packed: bytes, size: int, decode: Callable[[bytes], T], what: str) -> T:
    """Uncompress and decode a list of ``size`` bytes; ``what`` describes it in an error.

    Raises:
        CorruptData: It is not such a list, although the digest of the checkpoint is right.
    """
    try:
        return decode(pa.decompress(packed, size, codec=_CODEC, asbytes=True))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptData(
            f"{what} of a checkpoint do not unpack: {error}",
            hint="delete the checkpoints of the table lane: they only save reading",
        ) from error
