"""Sidecars: parts of entries that are stored in an object beside them, as JSON.

A sidecar holds a list of slices, a list of folded file groups, or the index of a log file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from pydantic import TypeAdapter, ValidationError

from weft.storage.core.log.entries import Base, Fold, FoldedGroup, Intent, TableEntry
from weft.storage.core.log.entry_codec import Unresolved
from weft.storage.core.log.file_refs import LogIndex, Sidecar, SliceFile
from weft.storage.core.log.slice_list import SliceList, decode_list
from weft.storage.errors import UnsupportedFormat

_FOLDED: Final = TypeAdapter(list[FoldedGroup])


def encode_list(items: Sequence[SliceFile] | Sequence[FoldedGroup] | LogIndex) -> bytes:
    """Content of a sidecar."""
    value = items.model_dump() if isinstance(items, LogIndex) else [item.model_dump() for item in items]
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def resolve(entry: Unresolved, data: bytes, decode: Callable[[bytes], SliceList] = decode_list) -> TableEntry:
    """The whole entry, given the bytes of its sidecar.

    Args:
        entry: The entry.
        data: The sidecar's bytes.
        decode: Decodes a list of slices; a caller may remember those that it has decoded.

    Raises:
        UnsupportedFormat: A newer version wrote the sidecar.
    """
    try:
        return _resolve(entry.outline, data, decode)
    except ValidationError as error:
        raise _unknown_shape(entry.sidecar, f"list of entry {entry.seq} of the table lane", error) from None


def _resolve(outline: Base | Fold | Intent, data: bytes, decode: Callable[[bytes], SliceList]) -> TableEntry:
    if isinstance(outline, Fold):
        return outline.model_copy(update={"file_groups": _FOLDED.validate_json(data, context={})})
    slices = decode(data)
    if isinstance(outline, Base):
        return outline.model_copy(update={"slices": slices})
    assert outline.restore is not None, "only a restore has a list"
    return outline.model_copy(update={"restore": outline.restore.model_copy(update={"slices": slices})})


def decode_index(
    sidecar: Sidecar, data: bytes, decode: Callable[[bytes], LogIndex] = LogIndex.model_validate_json
) -> LogIndex:
    """The index of a log file, given the bytes of its sidecar.

    Args:
        sidecar: The sidecar.
        data: Its bytes.
        decode: Decodes an index; a caller may remember those that it has decoded.

    Raises:
        UnsupportedFormat: A newer version wrote the sidecar.
    """
    try:
        return decode(data)
    except ValidationError as error:
        raise _unknown_shape(sidecar, "index of a log file", error) from None


def _unknown_shape(sidecar: Sidecar, what: str, error: ValidationError) -> UnsupportedFormat:
    first = error.errors()[0]
    return UnsupportedFormat(
        f"{sidecar.path} ({what}) is not of a shape that this version knows: {first['loc']}: {first['msg']}",
        hint="upgrade weft to read this table",
    )
