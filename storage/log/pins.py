"""Pins: a long reader pins its snapshot, so that cleaning keeps the files for a while.

Pins only affect availability. A pin expires by the clock, so a reader that died does not keep files without a limit. A
reader whose pin cleaning did not see, or whose files were deleted, gets `SnapshotExpired`, never wrong rows
(PROTOCOL.md, S16).
Compactions need no pin: their open PLAN keeps the files.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weft.storage.clock import Clock
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.file_refs import Seqs
from weft.storage.core.names import PINS, Path, pin_path
from weft.storage.environment import Environment
from weft.storage.errors import InvalidInput, StoreUnavailable
from weft.storage.store.object_store import ObjectStore, normalise_errors
from weft.storage.times import MILLISECOND

DEFAULT_PIN: Final = dt.timedelta(hours=6)  # enough for a long query; use savepoints to keep a snapshot longer


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned snapshot.

    Attributes:
        path: The object of the pin.
        at: Cut of the snapshot.
        expires_at_ms: Milliseconds since 1970 UTC.
        owner: Host and process of the reader.
    """

    path: Path
    at: Cut
    expires_at_ms: int
    owner: str


@dataclass(frozen=True, slots=True)
class ListedPin:
    """An object in the folder of pins; ``pin`` is None if this version cannot decode it."""

    path: Path
    size: int
    pin: Pin | None


class _Pin(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    table: int = Field(ge=1)
    lanes: Seqs
    expires_at_ms: int
    owner: str


def pin(env: Environment, at: Cut, keep: dt.timedelta) -> Pin:
    """Write a pin. It is valid if the table lane, read again *afterwards*, still keeps the snapshot (rule R4).

    Raises:
        InvalidInput: ``keep`` is not positive.
        StoreUnavailable: The pin could not be written.
    """
    if keep <= dt.timedelta(0):
        raise InvalidInput(f"pin: expected a duration of more than 0, got {keep}", hint="for example 6 hours")
    owner = f"{env.ids.host} pid {env.ids.pid}"
    expires_at_ms = env.clock.now_ms() + keep // MILLISECOND
    pin_record = _Pin(table=at.table, lanes=dict(at.lanes), expires_at_ms=expires_at_ms, owner=owner)
    path = pin_path(env.ids.new())
    with normalise_errors(path):
        env.store.put(path, pin_record.model_dump_json().encode())
    return Pin(path, at, expires_at_ms, owner)


def unpin(store: ObjectStore, expired: Pin) -> None:
    """Remove a pin. Nothing is raised if that fails: it expires anyway."""
    with contextlib.suppress(OSError, StoreUnavailable):
        store.delete(expired.path)


def unexpired(store: ObjectStore, clock: Clock) -> Iterator[Pin]:
    """Pins that have not expired."""
    now = clock.now_ms()
    return (item.pin for item in list_pins(store) if item.pin is not None and item.pin.expires_at_ms > now)


def list_pins(store: ObjectStore) -> Iterator[ListedPin]:
    """Every object in the folder of pins, except objects that are removed meanwhile.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    for name, size in store.list(PINS):
        path = Path(f"{PINS}/{name}")
        with normalise_errors(path):
            data = store.get(path)
        if data is not None:
            yield ListedPin(path, size, _decode(path, data))


def _decode(path: Path, data: bytes) -> Pin | None:
    try:
        record = _Pin.model_validate_json(data)
    except ValidationError:
        return None
    return Pin(path, Cut(record.table, record.lanes), record.expires_at_ms, record.owner)
