"""What a table costs after many batches without a query id: its lanes, MARKs, checkpoints, requests and time.

All are sent by one process, but those that are measured: each of these is a new process, which opens the table, appends
a row and ends. The table is compacted and cleaned all the time, as services do. Beside it, fewer batches as they were
before lanes were used again: each has a lane of its own, which is closed.

python -m tests.benchmarks.batches [BATCHES [BATCHES WITH OWN LANES]]
"""

from __future__ import annotations

import datetime as dt
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from storage import Table
from storage.clock import Stamps
from storage.core.names import checkpoint_folder
from storage.environment import Environment
from storage.log.time_marks import MARK_EVERY_MS
from storage.store.open_store import open_store
from tests.faulty_store import FakeClock
from tests.many_groups import CountingStore

CONFIG = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "value": "string", "version": "bigint"},
    "groups": {"g": {"columns": ["value", "version"], "ordering": ["version"]}},
    "streams": {"s": {"groups": ["g"]}},
}
SHOWN = (100, 500, 1_000, 2_000, 10_000, 30_000, 100_000)
CLEAN_EVERY = 500  # batches
WINDOW = 30  # batches of which requests and time are averaged


class World:
    """A table in memory, whose clock advances six seconds with each batch."""

    def __init__(self) -> None:
        self.uri, self.clock = f"memory://batches/{uuid.uuid4().hex}", FakeClock()
        self.store: Any = CountingStore(open_store(self.uri))
        Table.create_in(Environment(self.store, self.clock), CONFIG)
        self.service = self.process()

    def process(self) -> Table:
        return Table(Environment(self.store, self.clock), Stamps())

    def sizes(self) -> str:
        """Lanes, and the bytes of the newest MARK and of the newest checkpoint of the table lane."""
        state = self.process().state()
        marks = [self.store.get(f"_weft/timeline/table/{n:020}.json") for n in range(state.head, state.head - 20, -1)]
        mark = next(len(data) for data in marks if data and b'"kind":"MARK"' in data)
        folder = checkpoint_folder("")  # type: ignore[arg-type]
        listed = sorted(self.store.list(folder))
        slots = sum(1 for _ in self.store.list("_weft/timeline/lanes"))
        checkpoint = listed[-1][1] if listed else 0
        return f"{len(state.lanes):6,} lanes, MARK {mark:7,} B, checkpoint {checkpoint:9,} B, {slots:6,} slots"


def share(table: Table, rows: pa.Table, _number: int) -> None:
    with table.batch_writer("s") as writer:
        writer.append(rows)


def own(table: Table, rows: pa.Table, number: int) -> None:
    """As before: a lane for the batch, which is closed by a fencing barrier."""
    with table.writer("s", f"s-batch-{number}") as writer:
        writer.append(rows)
    table.close_lane(f"s-batch-{number}")


def run(batches: int, write: Callable[[Table, pa.Table, int], None]) -> None:
    world = World()
    for number in range(1, batches + 1):
        world.clock.time_ms += MARK_EVERY_MS // 10
        world.service.state()
        write(world.service, pa.table({"id": [number % 1000], "value": ["v"], "version": [number]}), number)
        if number % CLEAN_EVERY == 0:
            world.service.compact()
            world.service.clean(dt.timedelta(minutes=10))
        if number in SHOWN:
            print(f"{number:7,} batches: {world.sizes()}; a batch: {measure(world, write, number)}", flush=True)


def measure(world: World, write: Callable[[Table, pa.Table, int], None], number: int) -> str:
    """Requests and milliseconds of a batch that is a process of its own."""
    seconds, requests = 0.0, 0
    for more in range(WINDOW):
        rows = pa.table({"id": [1], "value": ["v"], "version": [number]})
        world.store.requests = {}
        started = time.perf_counter()
        write(world.process(), rows, number * 1000 + more)
        seconds += time.perf_counter() - started
        requests += sum(world.store.requests.values())
    return f"{requests / WINDOW:5.1f} requests, {1000 * seconds / WINDOW:6.2f} ms"


def main() -> None:
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    own_lanes = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000
    print("lanes that are used again:")
    run(batches, share)
    print("a lane for each batch:")
    run(own_lanes, own)


if __name__ == "__main__":
    main()
