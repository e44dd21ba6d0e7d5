"""What stands in an entry's sidecar, as JSON: a list of slices or folded file groups, or the index of a log file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter

from storage.core.entries import FoldedGroup, LogIndex, SliceFile

_SLICES: Final = TypeAdapter(list[SliceFile])
_FOLDED: Final = TypeAdapter(list[FoldedGroup])


def encode_list(items: Sequence[SliceFile] | Sequence[FoldedGroup] | LogIndex) -> bytes:
    """Bytes of a part of an entry, as they stand in a sidecar."""
    value = items.model_dump() if isinstance(items, LogIndex) else [item.model_dump() for item in items]
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_index(data: bytes) -> LogIndex:
    return LogIndex.model_validate_json(data)


def decode_slices(data: bytes) -> list[SliceFile]:
    return _SLICES.validate_json(data)


def decode_folded(data: bytes) -> list[FoldedGroup]:
    return _FOLDED.validate_json(data)
