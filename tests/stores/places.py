"""Where the conformance suite puts its objects, and the check that they are created exclusively.

A `Place` is an empty prefix of some store. Everything in here can be pickled, for racing processes open it too.
"""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from storage.core.names import Path
from storage.store.object_store import ObjectStore
from storage.store.open_store import open_store

RACERS: Final = 4
JOIN_SECONDS: Final = 120  # racers import what they need first, on a machine that may be busy
BLOCK_BYTES: Final = 5 * 2**20  # the smallest part that S3 takes: uploads of more are uploads in parts
SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Place:
    """A store's URL and options.

    Attributes:
        rounds: How often processes race for a name: servers that let the losers wait a second get fewer.
    """

    uri: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 20

    def open(self) -> ObjectStore:
        return open_store(self.uri, self.options)


@dataclass(frozen=True, slots=True)
class Backend:
    """A store that is running. ``base`` is a URL that ends with a slash."""

    base: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 20

    def new_place(self) -> Place:
        return Place(f"{self.base}{uuid.uuid4().hex}", self.options, self.rounds)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one racer saw in one round."""

    racer: int
    won: bool
    content: bytes | None


def _race(store: ObjectStore, racer: int, rounds: int, barrier: Barrier, results: Any) -> None:
    seen = []
    try:
        for number in range(rounds):
            path = Path(f"race/{number:03d}")
            mine = b"%d " % racer * 2_000  # long enough to be seen half-written, were that possible
            barrier.wait(JOIN_SECONDS)
            won = store.put_if_absent(path, mine)
            seen.append(Seen(racer, won, store.get(path)))
    except Exception as error:
        barrier.abort()  # nobody shall wait for this one
        results.put(f"racer {racer}: {error!r}")
    else:
        results.put(seen)


def race(place: Place) -> list[list[Seen]]:
    """Let processes create the same names at the same moments; what each saw, by round."""
    barrier, results = SPAWN.Barrier(RACERS), SPAWN.Queue()
    store = place.open()  # pickled into the processes, as into the tasks of a cluster
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
    """How many won each round; every racer must have read the bytes of the winner, if there is one."""
    for seen in rounds:
        won = [one.racer for one in seen if one.won]
        if len(won) == 1:
            assert {one.content for one in seen} == {b"%d " % won[0] * 2_000}
    return [sum(one.won for one in seen) for seen in rounds]
