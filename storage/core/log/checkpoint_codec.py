"""Encodes checkpoints: states of lanes that save the replay of a long history (FORMAT.md, "Checkpoints").

A checkpoint only saves reading: replaying the log gives the same state, and a checkpoint that is damaged, of another
version or of another log is not used. Its content follows from the definition of `TableState` and `LaneState`, and it
lists their fields. A checkpoint with another list is not used, so a new field needs no new version; a field whose
meaning changes does. It also lists the features that its writer could read: a process that knows fewer replays the log,
and fails at the entry that it must not ignore.

The first line of a checkpoint of a writer's lane is the digest of the rest. One of the table lane ends with the digest
of its state, which has the digests of the parts of its slices: they are read and verified when they are needed, and
the state is known from the end of the object.

    [slices a .. f][slices g .. m][slices n .. z] LF {"version": 3, ..., "parts": [...]} LF digest length LF
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from weft.storage.core.log.cut import only
from weft.storage.core.log.features import readable_features
from weft.storage.core.log.file_refs import FileGroup, Seqs
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.sealed import digest, seal, unseal
from weft.storage.core.log.slice_parts import PartSource, Place, SlicePart, read_in_turn
from weft.storage.core.log.table_state import TableState
from weft.storage.errors import TableError

_NOT_STORED: Final = frozenset({"table_seen"})
"""Fields that other versions of the format do not know, and that are needed only for entries after a checkpoint."""

_OMITTED_IF_DEFAULT: Final = frozenset({"rewritten", "complete_from", "retired_id"})
"""Versions that do not know these fields have written checkpoints without them."""

_SEAL: Final = re.compile(rb"([0-9a-f]{64}) ([0-9]{12})\n")
_SEAL_BYTES: Final = 64 + 1 + 12 + 1
"""The last line of a checkpoint of the table lane: the digest of the line before it, and its length in bytes."""

_UNUSABLE: Final = (ValidationError, TableError, KeyError, TypeError, ValueError)
"""Errors of a checkpoint that a version with another definition of the state or the schema has written."""


class _Checkpoint(BaseModel):
    # A NaN in the state of a source is written as in Python's JSON, like in entries.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    version: int
    features: list[str]
    fields: list[str]


class _OfLane(_Checkpoint):
    version: Literal[2] = 2
    state: LaneState


class _Part(BaseModel):
    """A part of the slices of a checkpoint; all parts are before the state, one after the other."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: FileGroup
    last: FileGroup
    bits: list[int]
    slices: int
    packed: int
    size: int
    sha256: str


class _OfTable(_Checkpoint):
    version: Literal[3] = 3
    state: TableState
    reached: Seqs
    parts: list[_Part]


def encode_table(state: TableState) -> Iterator[bytes]:
    """A table state as the consecutive pieces of an object. Parts that are packed already are not packed again.

    Parts that are not in memory are read meanwhile, few at a time.

    Raises:
        CorruptData, StoreUnavailable: See `weft.storage.core.log.newest_slices.Slices.packed`.
    """
    slices = state.slices.packed()
    parts: list[_Part] = []
    for part in read_in_turn(slices.parts):
        assert part.packed is not None, "it was read"
        stored_part = _Part(
            first=part.first,
            last=part.last,
            bits=sorted(part.levels),
            slices=part.slices,
            packed=len(part.packed),
            size=part.size,
            sha256=digest(part.packed),
        )
        parts.append(stored_part)
        yield part.packed
    reached = only(slices.reached, state.lanes)
    head = _json(_OfTable, replace(state, slices=Slices()), reached=reached, parts=parts)
    yield b"\n%b\n%b %012d\n" % (head, digest(head).encode(), len(head))


def state_bytes(end: bytes, size: int) -> int:
    """How many bytes at its end `decode_table` needs of a checkpoint of the table lane; 0 if it cannot be decoded.

    Args:
        end: Its last bytes.
        size: Bytes of the object.
    """
    last_line = _SEAL.fullmatch(end[-_SEAL_BYTES:])
    return min(1 + int(last_line[2]) + 1 + _SEAL_BYTES, size) if last_line is not None else 0


def state_json(data: bytes) -> bytes | None:
    """The JSON object in a checkpoint of the table lane, or in its end; None if it is damaged, or not a checkpoint."""
    last_line = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    if last_line is None:
        return None
    length = int(last_line[2])
    line = data[-_SEAL_BYTES - length - 2 : -_SEAL_BYTES]
    head = line[1:-1]
    return head if line == b"\n%b\n" % head and digest(head).encode() == last_line[1] else None


def decode_table(end: bytes, size: int | None = None, source: PartSource | None = None) -> TableState | None:
    """The state that `encode_table` encoded; None if the bytes are damaged, or this version does not use them.

    Args:
        end: The object, or its last bytes: at least `state_bytes`.
        size: Bytes of the object; by default ``end`` is the object.
        source: Reads parts of the slices that are not in ``end``, when they are needed.
    """
    head = state_json(end)
    if head is None:
        return None
    try:
        packed = _OfTable.model_validate_json(head, context={})
    except _UNUSABLE:
        return None
    places = list(itertools.accumulate((part.packed for part in packed.parts), initial=0))
    size = len(end) if size is None else size
    if not _is_known(packed, TableState) or places[-1] + len(head) + 2 + _SEAL_BYTES != size:
        return None
    parts = []
    for part, (start, stop) in zip(packed.parts, itertools.pairwise(places), strict=True):
        offset = size - len(end)
        data = end[start - offset : stop - offset] if start >= offset else None
        if data is not None and digest(data) != part.sha256:
            return None
        if data is None and source is None:
            return None
        place = Place(source, start, stop - start, part.sha256) if source is not None and data is None else None
        parts.append(SlicePart(part.first, part.last, part.bits, part.slices, data, part.size, place))
    return replace(packed.state, slices=Slices(None, parts, packed.reached))


def encode_lane(state: LaneState) -> bytes:
    """Bytes of a lane state."""
    return seal(_json(_OfLane, state))


def decode_lane(data: bytes) -> LaneState | None:
    """The state that `encode_lane` encoded; None if the bytes are damaged, or this version does not use them."""
    try:
        checkpoint = _OfLane.model_validate_json(unseal(data) or b"", context={})
    except _UNUSABLE:
        return None
    return checkpoint.state if _is_known(checkpoint, LaneState) else None


def _json(model: Callable[..., _Checkpoint], state: TableState | LaneState, **others: Any) -> bytes:
    omitted = {field.name for field in dataclasses.fields(state) if _is_omitted(field, state)}
    fields = [name for name in _fields(type(state)) if name not in omitted]
    omitted |= _NOT_STORED
    checkpoint = model(features=sorted(readable_features()), fields=fields, state=state, **others)
    return checkpoint.model_dump_json(exclude={"state": omitted}).encode()


def _is_omitted(field: dataclasses.Field[object], state: TableState | LaneState) -> bool:
    return field.name in _OMITTED_IF_DEFAULT and getattr(state, field.name) == field.default


def _is_known(checkpoint: _Checkpoint, kind: type[TableState | LaneState]) -> bool:
    """Whether this version has the features and the fields of a checkpoint."""
    fields = [name for name in _fields(kind) if name not in _OMITTED_IF_DEFAULT or name in checkpoint.fields]
    return readable_features().issuperset(checkpoint.features) and checkpoint.fields == fields


def _fields(kind: type[TableState | LaneState]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.name not in _NOT_STORED]
