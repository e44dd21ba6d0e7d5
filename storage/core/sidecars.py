"""What stands in an entry's sidecar, as JSON: a list of slices or folded file groups, or the index of a log file.

Of lists of slices the last few are kept: a sidecar never changes, and for whoever opens a table of a thousand file
groups again and again decoding them is most of the work. Large ones are not kept: so it is a few dozen MB at most.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter

from storage.core.entries import FoldedGroup
from storage.core.file_refs import LogIndex, SliceFile

_SLICES: Final = TypeAdapter(list[SliceFile])
_FOLDED: Final = TypeAdapter(list[FoldedGroup])

KEPT_LISTS: Final = 4  # those of one table that is compacted in a few parts
KEPT_BYTES: Final = 1024 * 1024  # about 2,000 slices; decoded up to ten times as much


def encode_list(items: Sequence[SliceFile] | Sequence[FoldedGroup] | LogIndex) -> bytes:
    """Bytes of a part of an entry, as they stand in a sidecar."""
    value = items.model_dump() if isinstance(items, LogIndex) else [item.model_dump() for item in items]
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_index(data: bytes) -> LogIndex:
    return LogIndex.model_validate_json(data)


def decode_slices(data: bytes) -> list[SliceFile]:
    return list(_kept_slices(data)) if len(data) <= KEPT_BYTES else _SLICES.validate_json(data)


@functools.lru_cache(KEPT_LISTS)
def _kept_slices(data: bytes) -> tuple[SliceFile, ...]:
    return tuple(_SLICES.validate_json(data))


def decode_folded(data: bytes) -> list[FoldedGroup]:
    return _FOLDED.validate_json(data)
