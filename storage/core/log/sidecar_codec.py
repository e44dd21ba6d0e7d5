"""Sidecars: parts of entries that are stored in an object beside them, as JSON.

A sidecar holds a list of slices, a list of folded file groups, or the index of a log file. The lists of slices that
were used last are cached: a sidecar never changes, and decoding it is most of the work of opening, cleaning or
restoring a table with thousands of file groups. The cache is bounded by the stored bytes of the lists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from storage.core.log.entries import Base, Fold, FoldedGroup, Intent, TableEntry, Unresolved
from storage.core.log.file_refs import LogIndex, SliceFile
from storage.core.log.slice_list import SliceList, decode_list
from storage.errors import UnsupportedFormat

_FOLDED: Final = TypeAdapter(list[FoldedGroup])

KEPT_BYTES: Final = 16 * 1024 * 1024  # about 33,000 slices with 8 lanes; five times as much memory when decoded


class _Kept(NamedTuple):
    """A list of slices, and its stored size in bytes."""

    size: int
    slices: SliceList


_kept: Final[dict[bytes, _Kept]] = {}  # by digest; the last used is the last


def encode_list(items: Sequence[SliceFile] | Sequence[FoldedGroup] | LogIndex) -> bytes:
    """Content of a sidecar."""
    value = items.model_dump() if isinstance(items, LogIndex) else [item.model_dump() for item in items]
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def resolve(entry: Unresolved, data: bytes) -> TableEntry:
    """The whole entry, given the bytes of its sidecar.

    Raises:
        UnsupportedFormat: A newer version wrote the sidecar.
    """
    try:
        return _resolve(entry.outline, data)
    except ValidationError as error:
        first = error.errors()[0]
        raise UnsupportedFormat(
            f"{entry.sidecar.path} (list of entry {entry.seq} of the table lane) is not of a shape that this version "
            f"knows: {first['loc']}: {first['msg']}",
            hint="upgrade weft to read this table",
        ) from None


def _resolve(outline: Base | Fold | Intent, data: bytes) -> TableEntry:
    if isinstance(outline, Fold):
        return outline.model_copy(update={"file_groups": _FOLDED.validate_json(data)})
    slices = decode_slices(data)
    if isinstance(outline, Base):
        return outline.model_copy(update={"slices": slices})
    assert outline.restore is not None, "only a restore has a list"
    return outline.model_copy(update={"restore": outline.restore.model_copy(update={"slices": slices})})


def decode_index(data: bytes) -> LogIndex:
    return LogIndex.model_validate_json(data)


def decode_slices(data: bytes) -> SliceList:
    if len(data) > KEPT_BYTES:
        return decode_list(data)
    digest = hashlib.sha256(data).digest()
    # Several threads may be here at once: at worst a list is decoded twice.
    found = _kept.pop(digest, None) or _Kept(len(data), decode_list(data))
    _kept[digest] = found
    total = sum(kept.size for kept in list(_kept.values()))
    for oldest in list(_kept):
        if total <= KEPT_BYTES:
            break
        dropped = _kept.pop(oldest, None)
        total -= dropped.size if dropped is not None else 0
    return found.slices
