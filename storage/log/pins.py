"""Pins: long readers say which snapshot they need, so that cleaning leaves its files for a while.

A pin is for availability only. It expires by the clock, so that a reader that died does not keep files for ever; a
reader whose pin was overlooked, or whose files are gone, gets `SnapshotExpired`, never another answer (S16).
Compactions need none: their open PLAN is one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.clock import Clock
from storage.core.log.cut import Cut
from storage.core.log.file_refs import Seqs
from storage.core.names import PINS, Path, pin_path
from storage.environment import Environment
from storage.errors import InvalidInput, StoreUnavailable
from storage.store.object_store import ObjectStore, normalise_errors

DEFAULT_PIN: Final = dt.timedelta(hours=6)  # a long query; whoever needs more makes a savepoint


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot that somebody reads until ``expires_at_ms``."""

    path: Path
    at: Cut
    expires_at_ms: int
    owner: str


@dataclass(frozen=True, slots=True)
class ListedPin:
    """An object among the pins; ``pin`` is None for one that is none, or that a newer version made."""

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
    """Write a pin. It counts once the table lane, read again *afterwards*, still keeps the snapshot (rule R4).

    Raises:
        InvalidInput: It would expire at once.
        StoreUnavailable: It could not be written.
    """
    if keep <= dt.timedelta(0):
        raise InvalidInput(f"a pin for {keep} keeps nothing", hint="give a duration of more than 0")
    owner = f"{env.ids.host} pid {env.ids.pid}"
    expires_at_ms = env.clock.now_ms() + keep // dt.timedelta(milliseconds=1)
    made = _Pin(table=at.table, lanes=dict(at.lanes), expires_at_ms=expires_at_ms, owner=owner)
    path = pin_path(env.ids.new())
    with normalise_errors(path):
        env.store.put(path, made.model_dump_json().encode())
    return Pin(path, at, expires_at_ms, owner)


def unpin(store: ObjectStore, own: Pin) -> None:
    """Remove a pin, as far as the store lets us: it expires anyway."""
    with contextlib.suppress(OSError, StoreUnavailable):
        store.delete(own.path)


def unexpired(store: ObjectStore, clock: Clock) -> Iterator[Pin]:
    """Pins that still count."""
    now = clock.now_ms()
    return (own.pin for own in list_pins(store) if own.pin is not None and own.pin.expires_at_ms > now)


def list_pins(store: ObjectStore) -> Iterator[ListedPin]:
    """Every object among the pins, but those that go meanwhile.

    Raises:
        StoreUnavailable: The store does not answer; then nobody knows what is pinned.
    """
    for name, size in store.list(PINS):
        path = Path(f"{PINS}/{name}")
        with normalise_errors(path):
            data = store.get(path)
        if data is not None:
            yield ListedPin(path, size, _decoded(path, data))


def _decoded(path: Path, data: bytes) -> Pin | None:
    try:
        own = _Pin.model_validate_json(data)
    except ValidationError:
        return None
    return Pin(path, Cut(own.table, own.lanes), own.expires_at_ms, own.owner)
