"""Encodes checkpoints: states of lanes that save the replay of a long history (FORMAT.md, "Checkpoints").

A checkpoint only saves reading: replaying the log gives the same state, and a checkpoint that is damaged, of another
version or of another log is not used. Its content follows from the definition of `TableState` and `LaneState`, and it
lists their fields. A checkpoint with another list is not used, so a new field needs no new version; a field whose
meaning changes does. It also lists the features that its writer could read: a process that knows fewer replays the log,
and fails at the entry that it must not ignore. The first line is the digest of the rest.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.core.log.features import readable_features
from storage.core.log.lane_state import LaneState
from storage.core.log.sealed import seal, unseal
from storage.core.log.slice_list import Slices, taken_out
from storage.core.log.table_state import TableState
from storage.errors import TableError

S = TypeVar("S", TableState, LaneState)

VERSION: Final = 2

_LEFT_OUT: Final = frozenset({"rewritten"})
"""Fields that are not written if they have their default. A version that does not know them has written none."""


class _Checkpoint(BaseModel, Generic[S]):
    # A NaN in the state of a source is written as in Python's JSON, like in entries.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    version: Literal[2] = VERSION
    features: list[str]
    fields: list[str]
    state: S


# Pydantic keeps models of generics by weak references: without these names they would be rebuilt for every use.
_OfTable: Final = _Checkpoint[TableState]
_OfLane: Final = _Checkpoint[LaneState]


def encode_table(state: TableState) -> bytes:
    """Bytes of a table state."""
    return _encode(_OfTable, state)


def decode_table(data: bytes) -> TableState | None:
    """The state that `encode_table` was given; None if the bytes are damaged, or this version does not use them."""
    # Slices are most of a checkpoint, and few of them are used, so they are decoded lazily.
    slices, rest = taken_out(_body(data))
    state = _decode(_OfTable, TableState, rest)
    return replace(state, slices=Slices.of(slices)) if state is not None and slices else state


def encode_lane(state: LaneState) -> bytes:
    """Bytes of a lane state."""
    return _encode(_OfLane, state)


def decode_lane(data: bytes) -> LaneState | None:
    """The state that `encode_lane` was given; None if the bytes are damaged, or this version does not use them."""
    return _decode(_OfLane, LaneState, _body(data))


def _encode(model: type[_Checkpoint[S]], state: S) -> bytes:
    left_out = {field.name for field in dataclasses.fields(state) if _is_left_out(field, state)}
    fields = [name for name in _fields(type(state)) if name not in left_out]
    checkpoint = model(features=sorted(readable_features()), fields=fields, state=state)
    return seal(checkpoint.model_dump_json(exclude={"state": left_out}).encode())


def _is_left_out(field: dataclasses.Field[object], state: TableState | LaneState) -> bool:
    return field.name in _LEFT_OUT and getattr(state, field.name) == field.default


def _body(data: bytes) -> bytes:
    """The object that is stored; empty if it is damaged."""
    return unseal(data) or b""


def _decode(model: type[_Checkpoint[S]], kind: type[S], body: bytes) -> S | None:
    try:
        checkpoint = model.model_validate_json(body, context={})
    except (ValidationError, TableError, KeyError, TypeError, ValueError):
        return None  # written by a version with another definition of the state or the schema
    fields = [name for name in _fields(kind) if name not in _LEFT_OUT or name in checkpoint.fields]
    known = readable_features().issuperset(checkpoint.features) and checkpoint.fields == fields
    return checkpoint.state if known else None


def _fields(kind: type[TableState | LaneState]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]
