"""Locations for the objects of the conformance suite, and the test that objects are created exclusively.

A `Place` is an empty prefix of a store. Everything here can be pickled, because racing processes open it too.
"""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from weft.storage.core.names import Path
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

RACERS: Final = 4
JOIN_SECONDS: Final = 240  # racers first import modules, on a machine that may be busy
BLOCK_BYTES: Final = 5 * 2**20  # the smallest part of S3: larger uploads have several parts
SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Place:
    """A store's URL and options.

    Attributes:
        rounds: Number of races for a name; fewer for servers that let the losers wait a second.
    """

    uri: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 20

    def open(self) -> ObjectStore:
        return open_store(self.uri, self.options)


@dataclass(frozen=True, slots=True)
class Backend:
    """A running store. ``base`` is a URL that ends with a slash."""

    base: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 20

    def new_place(self) -> Place:
        return Place(f"{self.base}{uuid.uuid4().hex}", self.options, self.rounds)


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one racer in one round."""

    racer: int
    won: bool
    content: bytes | None


def _race(store: ObjectStore, racer: int, rounds: int, barrier: Barrier, results: Any) -> None:
    seen = []
    try:
        for number in range(rounds):
            path = Path(f"race/{number:03d}")
            mine = b"%d " % racer * 2_000  # long, so that a partial write would be noticed
            barrier.wait(JOIN_SECONDS)
            won = store.put_if_absent(path, mine)
            seen.append(Seen(racer, won, store.get(path)))
    except Exception as error:
        barrier.abort()  # others must not wait for this racer
        results.put(f"racer {racer}: {error!r}")
    else:
        results.put(seen)


def race(place: Place) -> list[list[Seen]]:
    """Let processes create the same names at the same times; returns the result of each, by round."""
    barrier, results = SPAWN.Barrier(RACERS), SPAWN.Queue()
    store = place.open()  # pickled for the processes, as for tasks of a cluster
    racers = [SPAWN.Process(target=_race, args=(store, i, place.rounds, barrier, results)) for i in range(RACERS)]
    for process in racers:
        process.start()
    try:
        found = [results.get(timeout=JOIN_SECONDS) for _ in racers]
        for process in racers:
            process.join(JOIN_SECONDS)
    finally:
        for process in racers:
            process.kill()
    assert [one for one in found if isinstance(one, str)] == []
    return [list(one) for one in zip(*found, strict=True)]


def winners(rounds: list[list[Seen]]) -> list[int]:
    """The number of winners of each round; every racer must have read the bytes of the winner, if there is one."""
    for seen in rounds:
        won = [one.racer for one in seen if one.won]
        if len(won) == 1:
            assert {one.content for one in seen} == {b"%d " % won[0] * 2_000}
    return [sum(one.won for one in seen) for seen in rounds]
