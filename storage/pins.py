"""Pins: long readers say which snapshot they need, so that cleaning leaves its files for a while.

A pin is for availability only. It expires by the clock, so that a reader that died does not keep files for ever; a
reader whose pin was overlooked, or whose files are gone, gets `SnapshotExpired`, never another answer (S16).
Compactions need none: their open PLAN is one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.clock import Clock
from storage.commit_log import new_id
from storage.core.cut import Cut
from storage.core.entries import Seqs
from storage.core.names import PINS, Path, pin_path
from storage.errors import StoreUnavailable
from storage.object_store import ObjectStore, answering

DEFAULT_PIN: Final = dt.timedelta(hours=6)  # a long query; whoever needs more makes a savepoint


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot that somebody reads until ``expires_at_ms``."""

    path: Path
    at: Cut
    expires_at_ms: int
    owner: str


class _Pin(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    table: int
    lanes: Seqs
    expires_at_ms: int
    owner: str


def pin(store: ObjectStore, clock: Clock, at: Cut, keep_ms: int) -> Pin:
    """Write a pin. It counts once the table lane, read again *afterwards*, still keeps the snapshot (rule R4).

    Raises:
        StoreUnavailable: It could not be written.
    """
    owner = f"{socket.gethostname()} pid {os.getpid()}"
    made = _Pin(table=at.table, lanes=dict(at.lanes), expires_at_ms=clock.now_ms() + keep_ms, owner=owner)
    path = pin_path(new_id())
    store.put(path, made.model_dump_json().encode())
    return Pin(path, at, made.expires_at_ms, owner)


def unpin(store: ObjectStore, own: Pin) -> None:
    """Remove a pin, as far as the store lets us: it expires anyway."""
    with contextlib.suppress(OSError, StoreUnavailable):
        store.delete(own.path)


def unexpired(store: ObjectStore, clock: Clock) -> Iterator[Pin]:
    """Pins that still count."""
    now = clock.now_ms()
    return (own for own in all_pins(store) if own.expires_at_ms > now)


def all_pins(store: ObjectStore) -> Iterator[Pin]:
    """Every pin there is. One that does not decode was never acknowledged to its reader."""
    with answering(PINS):
        names = [name for name, _ in store.list(PINS)]
    for name in names:
        path = Path(f"{PINS}/{name}")
        with answering(path):
            data = store.get(path)
        if data is None:
            continue
        try:
            own = _Pin.model_validate_json(data)
        except ValidationError:
            continue
        yield Pin(path, Cut(own.table, own.lanes), own.expires_at_ms, own.owner)
