"""The cost of snapshots that are the table at one moment: requests and milliseconds.

    python -m tests.benchmarks.moments [--lanes 8 60 500] [--snapshots 40] [--every 5]

Programs write two lanes each: they commit an order in one and then its payment in the other, which they begin when the
order is visible. In the *busy* table each program does so every 5 s on average, at random; the table *at rest* has no
commits. A reader takes snapshots one after the other, 1 s apart. Times are simulated, so the load of this machine does
not matter: a GET takes 5 to 120 ms, half of them at most 20, its object is read at a random time in between, and 64 run
at once. A commit becomes visible 30 to 200 ms after it has begun.

    once      lanes are read once, as before rule R7
    rounds    `Table.snapshot()`: lanes are read again in at most two rounds
    insist    `Table.snapshot(moment=True)`
    moments   share of the snapshots that say that they are one moment
    broken    share of the snapshots that have a payment without its order
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import pyarrow as pa

from tests.faulty_store import FakeClock
from tests.storage.support.shop import SHOP, new_uri, orders, payments
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.names import LaneName, Path
from weft.storage.environment import Environment
from weft.storage.log.one_moment import OneMoment
from weft.storage.store.open_store import open_store
from weft.storage.store.remote_store import MAX_PARALLEL_REQUESTS
from weft.storage.write.write_task import write_rows
from weft.storage.write.writer import Writer

FIRST_MS: Final = 1_800_000_000_000
MODES: Final = ("once", "rounds", "insist")


@dataclass
class World:
    """Simulated time, and what happens in it.

    Attributes:
        clock: The clock of all processes.
        chance: Random numbers.
        events: Time in milliseconds, a number, and what happens then.
    """

    clock: FakeClock
    chance: random.Random
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    now_ms: float = FIRST_MS
    _count: int = 0

    def at(self, time_ms: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self.events, (time_ms, self._count, action))

    def advance(self, time_ms: float) -> None:
        """Let everything happen up to a time."""
        while self.events and self.events[0][0] <= time_ms:
            self.now_ms, _, action = heapq.heappop(self.events)
            self.clock.time_ms = int(self.now_ms)
            action()
        self.now_ms = max(self.now_ms, time_ms)
        self.clock.time_ms = int(self.now_ms)


class SlowStore:
    """The reader's store: every request takes time, in which others go on."""

    def __init__(self, inner: Any, world: World) -> None:
        self._inner, self._world = inner, world
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, path: Path) -> bytes | None:
        return self.get_many([path])[0]

    def get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        world, found = self._world, dict[int, bytes | None]()
        self.requests += len(paths)
        free = [world.now_ms] * min(MAX_PARALLEL_REQUESTS, len(paths))
        reads: list[tuple[float, int]] = []
        for number in range(len(paths)):
            begun = heapq.heappop(free)
            latency = min(5 + world.chance.lognormvariate(2.7, 0.9), 120)
            reads.append((begun + latency * world.chance.random(), number))
            heapq.heappush(free, begun + latency)
        for time_ms, number in sorted(reads):
            world.advance(time_ms)
            found[number] = self._inner.get(paths[number])
        world.advance(max(free))
        return [found[number] for number in range(len(paths))]


def start_program(world: World, first: Writer, second: Writer, number: int, every_ms: float) -> None:
    """A program that commits an order and then its payment, again and again."""

    def begin(writer: Writer, rows: pa.Table, then: Callable[[], None]) -> None:
        ticket = writer.begin()
        visible = world.now_ms + world.chance.uniform(30, 200)

        def commit() -> None:
            writer.commit(ticket, [write_rows(ticket, rows)])
            then()

        world.at(visible, commit)

    def wait() -> None:
        world.at(world.now_ms + world.chance.expovariate(1 / every_ms), order)

    def order() -> None:
        begin(first, orders(number), lambda: begin(second, payments(number), wait))

    wait()


@dataclass
class Taken:
    """The snapshots of one mode."""

    requests: list[int] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    moments: int = 0
    broken: int = 0

    def line(self, name: str, count: int) -> str:
        return (
            f"{name:8} {statistics.median(self.requests):8.0f} {statistics.median(self.took_ms):8.0f} "
            f"{max(self.took_ms):8.0f} {self.moments / count:9.0%} {self.broken / count:8.0%}"
        )


def measure(lanes: int, mode: str, count: int, every_ms: float | None) -> Taken:
    """Take snapshots of a table in one mode; ``every_ms``: mean time between commits of a program, None at rest."""
    clock = FakeClock(FIRST_MS)
    world = World(clock, random.Random(lanes))
    uri, taken = new_uri(), Taken()
    Table.create_in(Environment(open_store(uri), clock), SHOP)
    with ExitStack() as stack:
        writers = []
        for number in range(lanes):
            stream = "payments" if number % 2 else "orders"
            writer = Table(Environment(open_store(uri), clock), Stamps()).writer(stream, lane=f"lane{number}")
            writers.append(stack.enter_context(writer))
            writers[-1].append(payments(number) if number % 2 else orders(number))
        Table(Environment(open_store(uri), clock), Stamps()).mark()
        if every_ms is not None:
            for number in range(0, lanes - 1, 2):
                start_program(world, writers[number], writers[number + 1], number, every_ms)
        store: Any = SlowStore(open_store(uri), world)
        reader = Table(Environment(store, clock), Stamps())
        once = mock.patch.object(OneMoment, "look_again", return_value=None) if mode == "once" else nullcontext()
        with once:
            reader.snapshot()
            for _ in range(count):
                world.advance(world.now_ms + 1_000)
                begun, before = world.now_ms, store.requests
                found = reader.snapshot(moment=mode == "insist")
                taken.took_ms.append(world.now_ms - begun)
                taken.requests.append(store.requests - before)
                taken.moments += found.is_moment
                ends = [found.cut.lanes[LaneName(f"lane{number}")] for number in range(lanes)]
                taken.broken += any(paid > ordered for ordered, paid in zip(ends[::2], ends[1::2], strict=True))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="+", default=[8, 60, 500])
    parser.add_argument("--snapshots", type=int, default=40)
    parser.add_argument("--every", type=float, default=5, help="seconds between two commits of a program, on average")
    arguments = parser.parse_args()
    print(f"{'':24} requests  ms, median  longest   moments   broken")
    for lanes in arguments.lanes:
        for name, every_ms in (("at rest", None), ("busy", arguments.every * 1_000)):
            for mode in MODES:
                taken = measure(lanes, mode, arguments.snapshots, every_ms)
                print(f"{lanes:4} lanes {name:8} {taken.line(mode, arguments.snapshots)}", flush=True)


if __name__ == "__main__":
    main()
