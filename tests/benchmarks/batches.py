"""What a table costs after many batches: its lanes, MARKs, checkpoints, requests and time.

All are sent by one process, but those that are measured: each of these is a new process, which opens the table, appends
a row and ends. The table is compacted and cleaned all the time, as services do. Three kinds of batches:

    no query id    they use the same lanes one after the other
    query id       each has a lane of its own, which a clean closes after ten minutes, and retires
    closed         each has a lane of its own, which is closed at once; cleans do not retire it, as before

python -m tests.benchmarks.batches [BATCHES [BATCHES WITH A QUERY ID [BATCHES THAT ARE CLOSED]]]
"""

from __future__ import annotations

import datetime as dt
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

import pyarrow as pa

from tests.faulty_store import FakeClock
from tests.many_groups import CountingStore
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.names import checkpoint_folder
from weft.storage.environment import Environment
from weft.storage.log.time_marks import MARK_EVERY_MS
from weft.storage.services.clean import clean
from weft.storage.store.open_store import open_store

CONFIG = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "value": "string", "version": "bigint"},
    "groups": {"g": {"columns": ["value", "version"], "ordering": ["version"]}},
    "streams": {"s": {"groups": ["g"]}},
}
SHOWN = (100, 500, 1_000, 2_000, 10_000, 30_000, 100_000)
CLEAN_EVERY = 100  # batches: ten minutes
RETAIN = dt.timedelta(minutes=10)
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


def query(table: Table, rows: pa.Table, number: int) -> None:
    name = f"s-query-{number:016x}"
    with table.writer("s", name, query_id=name) as writer:
        writer.append(rows, batch=(name, 0))


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
            world.service.clean(RETAIN, close_after=RETAIN)
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
    batches, queries, closed = [int(given) for given in sys.argv[1:]] + [100_000, 10_000, 2_000][len(sys.argv) - 1 :]
    print("no query id:")
    run(batches, share)
    print("query id:")
    run(queries, query)
    print("closed, and not retired:")
    with mock.patch.object(clean, "retire_lanes", return_value=()):
        run(closed, own)


if __name__ == "__main__":
    main()
