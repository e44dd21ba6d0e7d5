"""The cost of a commit whose writer reads other lanes first (rule W7), by the number of lanes; on a local disk.

python -m tests.benchmarks.arrival
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from tests.faulty_store import FaultyStore, other_process
from weft import Table
from weft.storage.clock import SystemClock
from weft.storage.store.open_store import open_store

LANES = (1, 4, 16)
COMMITS = 100
WARM_UP = 5


def config(*, ordered: bool) -> dict[str, object]:
    """One group that several lanes write, in commit order or ordered by a column."""
    group = {"columns": ["value", "version"], **({"ordering": ["version"]} if ordered else {})}
    return {
        "key": ["id"],
        "buckets": 1,
        "columns": {"id": "bigint", "value": "string", "version": "bigint"},
        "groups": {"g": group},
        "streams": {"s": {"groups": ["g"]}},
    }


def measure(folder: Path, lanes: int, *, ordered: bool) -> tuple[float, float]:
    """Requests that read entries, and milliseconds (median) of one commit; another lane commits before each."""
    uri = str(folder / f"{lanes}-{ordered}")
    Table.create(uri, config(ordered=ordered))
    store = FaultyStore(open_store(uri))
    rows = pa.table({"id": [1, 2, 3], "value": ["a", "b", "c"], "version": [1, 2, 3]})
    seconds, requests = [], 0
    with ExitStack() as stack:
        others = [stack.enter_context(Table.open(uri).writer("s", lane=f"o{number}")) for number in range(lanes - 1)]
        writer = stack.enter_context(other_process(uri, SystemClock(), store).writer("s"))
        for number in range(COMMITS + WARM_UP):
            if others:
                others[number % len(others)].append(rows)
            store.calls.clear()
            started = time.perf_counter()
            writer.append(rows)
            seconds.append(time.perf_counter() - started)
            if number >= WARM_UP:
                requests += sum(call == "get" and "timeline/" in path for call, path in store.calls)
    return requests / COMMITS, 1000 * statistics.median(seconds[WARM_UP:])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for lanes in LANES:
            plain = measure(Path(folder), lanes, ordered=True)
            looked = measure(Path(folder), lanes, ordered=False)
            print(
                f"{lanes:3} lanes: {plain[0]:.1f} requests {plain[1]:.2f} ms with ordering columns, "
                f"{looked[0]:.1f} requests {looked[1]:.2f} ms in commit order"
            )


if __name__ == "__main__":
    main()
