"""Opening a table with a long history: 100,000 commits in 8 lanes, and the cost of each first operation.

    python -m tests.benchmarks.timeline [--commits 100000] [--lanes 8] [--waiting 400] [--buckets 64] [--keep FOLDER]

`compacted`: slices reach up to the last few hundred commits. `folded`: nothing was ever compacted, folds reach that
far. Both with the checkpoints that writers and compactions write, and without any. Every line is measured in a separate
process; `calls` are calls of the store (each is a round trip if the store is remote; one `get_many` is one), `gets` the
requested objects. Memory is the peak above that of the process before it opened the table.

Entries are made by the real encoders from a few real commits, and written without `publish`: a hundred thousand durable
puts would take an hour, and measure the disk.
"""

from __future__ import annotations

import argparse
import datetime as dt
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.faulty_store import FakeClock
from weft.storage import Table, environment
from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.checkpoint_codec import encode_lane, encode_table
from weft.storage.core.log.entries import Base, Data, Entry, Fold, FoldedGroup, Plan
from weft.storage.core.log.entry_codec import encode_entry
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.names import TABLE_LANE, LaneName, checkpoint_path, slot_path
from weft.storage.core.plan.fold_plan import MAX_CHAIN
from weft.storage.environment import Tuning
from weft.storage.read.snapshot import Snapshot
from weft.storage.write.writer import Writer

COMPACT_EVERY = 1_000  # commits, of all lanes together
ROWS = 256
START_MS = 1_700_000_000_000
COMMIT_MS = 1_000


@dataclass(frozen=True)
class Shape:
    commits: int
    lanes: int
    waiting: int
    buckets: int


def config(buckets: int) -> dict[str, object]:
    return {
        "key": ["k"],
        "buckets": buckets,
        "columns": {"k": "bigint", "v": "bigint", "ts": "bigint"},
        "groups": {"g": {"columns": ["v", "ts"], "ordering": ["ts"]}},
        "streams": {"s": {"groups": ["g"]}},
    }


def build(folder: Path, shape: Shape, folded: bool) -> None:  # noqa: FBT001 - processes take positions
    """Create the table by copying real entries repeatedly with new numbers and ids."""
    table = Table.create(folder, config(shape.buckets), clock=FakeClock(START_MS))
    rows = pa.table({"k": np.arange(ROWS), "v": np.arange(ROWS), "ts": np.zeros(ROWS, np.int64)})
    lanes = [LaneName(f"lane{number}") for number in range(shape.lanes)]
    for lane in lanes:
        with table.writer("s", lane=lane) as writer:
            writer.append(rows, batch=("q", 0))
    if not folded:
        table.compact()
    history = _History(folder, table, folded=folded)
    for number in range(shape.commits):
        history.commit(lanes[number % len(lanes)])
        if number % COMPACT_EVERY == 0 and number < shape.commits - shape.waiting:
            history.compact()
        if number == shape.commits - shape.waiting:
            history.compact()
    if not shape.waiting:
        history.compact()


class _History:
    """Adds entries to the lanes of a table, and checkpoints as often as weft does."""

    def __init__(self, folder: Path, table: Table, *, folded: bool) -> None:
        self._folder, self._folded = folder, folded
        self._table = table.state()
        self._lanes: dict[LaneName, LaneState] = {}
        self._last: dict[LaneName, Data] = {}
        log = table._table_log.commit_log
        for lane in self._table.lanes:
            state = self._lanes[lane] = LaneState()
            for entry in log.read_after(lane, 0):
                state.add(entry)
                if isinstance(entry, Data):
                    self._last[lane] = entry
        self._log_file = next(iter(self._last.values())).files[0]
        self._slices = list(self._table.slices.values())
        self._saved = dict.fromkeys((TABLE_LANE, *self._lanes), 0)
        self._ids = 0

    def commit(self, lane: LaneName) -> None:
        state, last = self._lanes[lane], self._last[lane]
        entry = last.model_copy(
            update={
                "seq": state.head + 1,
                "prev_id": state.head_id,
                "commit_id": self._id(),
                "batch": last.batch + 1,
                "committed_at_ms": START_MS + COMMIT_MS * self._ids,
                "stamp": state.stamp + 1,
            }
        )
        self._last[lane] = entry
        self._write(entry)
        state.add(entry)
        if state.head - self._saved[lane] >= Tuning().lane_checkpoint_every:
            self._saved[lane] = state.head
            self._put(checkpoint_path(lane, state.head, self._id()), encode_lane(state))

    def compact(self) -> None:
        heads = {lane: state.head for lane, state in self._lanes.items()}
        plan_id = self._id()
        self._append(Plan(**self._header(), plan_id=plan_id, table=self._table.head, cut=heads, file_groups=1))
        if self._folded:
            self._append(self._fold(plan_id, heads))
        else:
            parents = [file.cut for file in self._slices]
            self._slices = [
                file.model_copy(update={"parent": parent, "cut": heads})
                for file, parent in zip(self._slices, parents, strict=True)
            ]
            self._append(Base(**self._header(), plan_id=plan_id, last=True, covered=heads, slices=self._slices))

    def _fold(self, plan_id: str, heads: dict[LaneName, int]) -> Fold:
        bits = self._log_file.bits
        start = {} if len(self._table.folds) >= MAX_CHAIN else dict(self._table.folded)
        groups = [
            FoldedGroup(partition="", bits=bits, bucket=bucket, parent={}, start=start) for bucket in range(1 << bits)
        ]
        file = self._log_file.model_copy(update={"form": "register"})
        return Fold(**self._header(), plan_id=plan_id, to=heads, covered=heads, files=[file], file_groups=groups)

    def _append(self, entry: Entry) -> None:
        self._write(entry)
        state = apply_entries(self._table, [entry])
        assert state is not None
        self._table = state
        if state.head - self._saved[TABLE_LANE] >= Tuning().table_checkpoint_every:
            self._saved[TABLE_LANE] = state.head
            self._put(checkpoint_path(TABLE_LANE, state.head, self._id()), b"".join(encode_table(state)))

    def _header(self) -> dict[str, Any]:
        return {
            "lane": TABLE_LANE,
            "seq": self._table.head + 1,
            "epoch": 0,
            "commit_id": self._id(),
            "prev_id": self._table.head_id,
            "table_rev": 0,
            "stamp": self._table.stamp + 1,
            "committed_at_ms": START_MS + COMMIT_MS * self._ids,
        }

    def _id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def _write(self, entry: Entry) -> None:
        self._put(slot_path(entry.lane, entry.seq), encode_entry(entry))

    def _put(self, path: str, data: bytes) -> None:
        target = self._folder / path
        try:
            target.write_bytes(data)
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


class CountingStore:
    """Counts the calls and objects of a store, and delays each call."""

    def __init__(self, inner: Any, latency_ms: int) -> None:
        self._inner, self._latency_ms = inner, latency_ms
        self.calls = self.objects = 0

    def __getattr__(self, name: str) -> Any:
        known = getattr(self._inner, name)
        if not callable(known):
            return known

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            self.objects += len(arguments[0]) if name == "get_many" else 1
            time.sleep(self._latency_ms / 1000)
            return known(*arguments, **named)

        return counted


def steps(table: Table, commits: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """The measured operations, in the order in which a process would do them."""

    def enter(writer: Writer) -> None:
        with writer:
            pass

    snapshots: list[Snapshot] = []

    def plan() -> None:
        snapshots[0].scan()

    middle = dt.datetime.fromtimestamp((START_MS + COMMIT_MS * commits // 2) / 1000, dt.UTC)
    yield "snapshot", lambda: snapshots.append(table.snapshot())
    yield "plan a scan", plan
    yield "snapshot again", table.snapshot
    yield "as_of a time", lambda: table.snapshot(middle)
    yield "writer enters", lambda: enter(table.writer("s", lane="lane0"))


def measure(folder: Path, name: str, commits: int, latency_ms: int) -> None:
    """One process: open, then each step."""
    before = peak_mib()
    figures: list[tuple[str, float, int, int]] = []
    started = time.perf_counter()
    store: list[CountingStore] = []

    def counting(uri: str, options: object = None) -> Any:
        store.append(CountingStore(opened(uri, options), latency_ms))
        return store[0]

    opened, environment.open_store = environment.open_store, counting
    table = Table.open(folder)
    counted = store[0]
    figures.append(("open", time.perf_counter() - started, counted.calls, counted.objects))
    for step, run in steps(table, commits):
        calls, objects, started = counted.calls, counted.objects, time.perf_counter()
        run()
        seconds = time.perf_counter() - started
        figures.append((step, seconds, counted.calls - calls, counted.objects - objects))
        if step == "plan a scan":
            read_mib = peak_mib() - before
    mib = peak_mib() - before
    print(f"\n{name}")
    for step, seconds, calls, objects in figures:
        print(f"  {step:16} {seconds * 1000:9.1f} ms  {calls:6} calls  {objects:7} gets")
    print(f"  peak memory: {read_mib:.0f} MiB for planning a read, {mib:.0f} MiB in all")


def peak_mib() -> float:
    """Peak of this process's resident memory (`ru_maxrss` is inherited from the process that started this one)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--waiting", type=int, default=400)
    parser.add_argument("--buckets", type=int, default=64)
    parser.add_argument(
        "--latency-ms",
        type=int,
        default=0,
        help="latency that is added to every call of the store, to simulate a remote one",
    )
    parser.add_argument("--keep", type=Path, help="folder to keep the tables in; existing tables are reused")
    arguments = parser.parse_args()
    shape = Shape(arguments.commits, arguments.lanes, arguments.waiting, arguments.buckets)
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="weft-timeline-"))
    try:
        for folded in (False, True):
            folder = root / ("folded" if folded else "compacted")
            if not (folder / "_weft").exists():
                started = time.perf_counter()
                in_process(build, folder, shape, folded)
                print(f"built {folder.name}: {shape.commits:,} commits in {time.perf_counter() - started:.0f} s")
            in_process(measure, folder, f"{folder.name}, with checkpoints", shape.commits, arguments.latency_ms)
            checkpoints, hidden = folder / "_weft" / "checkpoints", folder / "_weft" / "hidden"
            if not checkpoints.exists():
                print(f"{folder.name}: {shape.commits:,} commits in {shape.lanes} lanes are too few for checkpoints")
                continue
            checkpoints.rename(hidden)
            try:
                in_process(measure, folder, f"{folder.name}, without checkpoints", shape.commits, arguments.latency_ms)
            finally:
                shutil.rmtree(checkpoints, ignore_errors=True)
                hidden.rename(checkpoints)
    finally:
        if arguments.keep is None:
            shutil.rmtree(root)


def in_process(run: Callable[..., None], *values: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=run, args=values)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
