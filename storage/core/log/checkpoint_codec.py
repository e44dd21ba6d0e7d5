"""Encodes checkpoints: states of lanes that save the replay of a long history (FORMAT.md, "Checkpoints").

A checkpoint only saves reading: replaying the log gives the same state, and a checkpoint that is damaged, of another
version or of another log is not used. Its content follows from the definition of `TableState` and `LaneState`, and it
lists their fields. A checkpoint with another list is not used, so a new field needs no new version; a field whose
meaning changes does. It also lists the features that its writer could read: a process that knows fewer replays the log,
and fails at the entry that it must not ignore. The first line is the digest of the rest.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.core.log.cut import only
from storage.core.log.features import readable_features
from storage.core.log.file_refs import FileGroup, Seqs
from storage.core.log.lane_state import LaneState
from storage.core.log.newest_slices import SlicePart, Slices
from storage.core.log.sealed import seal, unseal
from storage.core.log.slice_list import taken_out
from storage.core.log.table_state import TableState
from storage.errors import TableError

S = TypeVar("S", TableState, LaneState)

VERSION: Final = 2
PACKED_VERSION: Final = 3
"""Version of a checkpoint of the table lane whose slices are packed. Version 2 had them in its state."""

_LEFT_OUT: Final = frozenset({"rewritten", "complete_from", "retired_id"})
"""Fields that are not written if they have their default. A version that does not know them has written none."""


_UNUSABLE: Final = (ValidationError, TableError, KeyError, TypeError, ValueError)
"""Errors of a checkpoint that a version with another definition of the state or the schema has written."""


class _Checkpoint(BaseModel, Generic[S]):
    # A NaN in the state of a source is written as in Python's JSON, like in entries.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    version: Literal[2] = VERSION
    features: list[str]
    fields: list[str]
    state: S


class _Part(BaseModel):
    """A part of the slices of a checkpoint; all parts follow the object, one after the other."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: FileGroup
    last: FileGroup
    bits: list[int]
    slices: int
    packed: int
    size: int


class _Packed(_Checkpoint[S], Generic[S]):
    version: Literal[3] = PACKED_VERSION  # type: ignore[assignment]
    reached: Seqs
    parts: list[_Part]


# Pydantic keeps models of generics by weak references: without these names they would be rebuilt for every use.
_OfTable: Final = _Checkpoint[TableState]
_OfLane: Final = _Checkpoint[LaneState]
_PackedOfTable: Final = _Packed[TableState]


def encode_table(state: TableState) -> bytes:
    """Bytes of a table state. Parts of its slices that are packed already are not packed again.

    Raises:
        CorruptData: See `storage.core.log.newest_slices.Slices.packed`.
    """
    slices = state.slices.packed()
    parts = [
        _Part(
            first=part.first,
            last=part.last,
            bits=sorted(part.levels),
            slices=part.slices,
            packed=len(part.packed),
            size=part.size,
        )
        for part in slices.parts
    ]
    reached = only(slices.reached, state.lanes)
    head = _json(_PackedOfTable, replace(state, slices=Slices()), reached=reached, parts=parts)
    return seal(b"\n".join([head, b"".join(part.packed for part in slices.parts)]))


def decode_table(data: bytes) -> TableState | None:
    """The state that `encode_table` was given; None if the bytes are damaged, or this version does not use them."""
    head, separator, body = _body(data).partition(b"\n")
    if not separator:
        # Version 2: slices are most of a checkpoint, and few of them are used, so they are decoded lazily.
        listed, rest = taken_out(head)
        state = _decode(_OfTable, TableState, rest)
        return replace(state, slices=Slices.of(listed)) if state is not None and listed else state
    try:
        packed = _PackedOfTable.model_validate_json(head, context={})
    except _UNUSABLE:
        return None
    if not _is_known(packed, TableState):
        return None
    ends = list(itertools.accumulate((part.packed for part in packed.parts), initial=0))
    parts = [
        SlicePart(part.first, part.last, part.bits, part.slices, body[begin:end], part.size)
        for part, (begin, end) in zip(packed.parts, itertools.pairwise(ends), strict=True)
    ]
    return replace(packed.state, slices=Slices(None, parts, packed.reached))


def encode_lane(state: LaneState) -> bytes:
    """Bytes of a lane state."""
    return seal(_json(_OfLane, state))


def decode_lane(data: bytes) -> LaneState | None:
    """The state that `encode_lane` was given; None if the bytes are damaged, or this version does not use them."""
    return _decode(_OfLane, LaneState, _body(data))


def _json(model: type[_Checkpoint[S]], state: S, **others: Any) -> bytes:
    left_out = {field.name for field in dataclasses.fields(state) if _is_left_out(field, state)}
    fields = [name for name in _fields(type(state)) if name not in left_out]
    checkpoint = model(features=sorted(readable_features()), fields=fields, state=state, **others)
    return checkpoint.model_dump_json(exclude={"state": left_out}).encode()


def _is_left_out(field: dataclasses.Field[object], state: TableState | LaneState) -> bool:
    return field.name in _LEFT_OUT and getattr(state, field.name) == field.default


def _body(data: bytes) -> bytes:
    """The object that is stored; empty if it is damaged."""
    return unseal(data) or b""


def _decode(model: type[_Checkpoint[S]], kind: type[S], body: bytes) -> S | None:
    try:
        checkpoint = model.model_validate_json(body, context={})
    except _UNUSABLE:
        return None
    return checkpoint.state if _is_known(checkpoint, kind) else None


def _is_known(checkpoint: _Checkpoint[S], kind: type[S]) -> bool:
    """Whether this version has the features and the fields of a checkpoint."""
    fields = [name for name in _fields(kind) if name not in _LEFT_OUT or name in checkpoint.fields]
    return readable_features().issuperset(checkpoint.features) and checkpoint.fields == fields


def _fields(kind: type[TableState | LaneState]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]
