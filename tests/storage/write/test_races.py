"""Races with real processes and threads: on one slot, of writers, compactors and readers, and on one table object."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path as LocalPath
from typing import Any

import pytest

from tests.faulty_store import other_process
from tests.storage.support.shop import SHOP, contents, new_uri, orders, payments, statuses
from weft import Table
from weft.storage.clock import SystemClock
from weft.storage.core.log.entries import Claim
from weft.storage.core.log.entry_codec import decode_entry
from weft.storage.core.names import LaneName, slot_path
from weft.storage.environment import Environment, RandomIds
from weft.storage.errors import Fenced
from weft.storage.log.commit_log import CommitLog
from weft.storage.store.open_store import open_store

pytestmark = pytest.mark.slow

PROCESSES = 4
SLOTS = 25
LANE = LaneName("orders")
SPAWN = multiprocessing.get_context("spawn")  # a forked process would share stamps, and lack threads
JOIN_SECONDS = 240  # processes first import modules, on a machine that may be busy
ROOT = LocalPath(__file__).parents[3]


@pytest.fixture(autouse=True)
def importable_in_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads switch every few instructions, so that code that is not thread-safe fails quickly."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def race_for_slots(uri: str, barrier: Barrier, owner: int, results: Any) -> None:
    """Publish into every slot at the same time as other processes; report the winner of each."""
    log = CommitLog(Environment(open_store(uri), SystemClock()))
    seen = []
    for seq in range(1, SLOTS + 1):
        entry = Claim(
            lane=LANE,
            seq=seq,
            epoch=seq,
            commit_id=f"{owner}-{RandomIds().new()}",
            prev_id="",
            table_rev=0,
            stamp=seq,
            committed_at_ms=seq,
            owner="x" * 20_000,  # large, so that a partial write would be noticed
            intent=0,
        )
        barrier.wait(JOIN_SECONDS)
        winner = log.publish(entry)
        seen.append((winner.commit_id, winner.commit_id == entry.commit_id))
    results.put(seen)


def watch_slots(uri: str, barrier: Barrier, results: Any) -> None:
    """Read slots while they are written: an entry is absent or complete, and never changes."""
    store = open_store(uri)
    for seq in range(1, SLOTS + 1):
        barrier.wait(JOIN_SECONDS)
        data = None
        while data is None:
            data = store.get(slot_path(LANE, seq))
        first = decode_entry(data, LANE, seq)
        assert store.get(slot_path(LANE, seq)) == data, first.commit_id
    results.put("whole")


def test_many_processes_on_one_slot_have_exactly_one_winner(tmp_path: LocalPath) -> None:
    uri = Table.create(str(tmp_path / "table"), SHOP).uri
    barrier, results = SPAWN.Barrier(PROCESSES + 1), SPAWN.Queue()
    racers = [SPAWN.Process(target=race_for_slots, args=(uri, barrier, i, results)) for i in range(PROCESSES)]
    watcher = SPAWN.Process(target=watch_slots, args=(uri, barrier, results))
    for process in (*racers, watcher):
        process.start()
    found = [results.get(timeout=JOIN_SECONDS) for _ in range(PROCESSES + 1)]
    for process in (*racers, watcher):
        process.join(JOIN_SECONDS)
        assert process.exitcode == 0
    assert found.count("whole") == 1
    seen = [item for item in found if item != "whole"]
    for slot in range(SLOTS):
        assert len({one[slot][0] for one in seen}) == 1, "all saw the same winner"
        assert sum(one[slot][1] for one in seen) == 1, "exactly one won"
    assert list((tmp_path / "table").rglob(".tmp-*")) == []


def write_and_compact(uri: str, lane: str, commits: int, barrier: Barrier) -> None:
    table = Table.open(uri)
    barrier.wait(JOIN_SECONDS)
    if lane == "compact":
        for _ in range(commits // 2):
            table.compact()
        return
    make = orders if lane.startswith("o") else payments
    with table.writer("orders" if make is orders else "payments", lane=lane) as writer:
        for number in range(commits):
            writer.append(make(*range(number % 7, 30), ts=number))


def test_processes_write_and_compact_one_table_at_once_and_nothing_is_lost(tmp_path: LocalPath) -> None:
    """L1 NonBlocking and S12: two writers of one group, one of another, and two compactors."""
    uri = str(tmp_path / "table")
    table = Table.create(uri, SHOP)
    lanes = ["orders", "o-backfill", "payments", "compact", "compact"]
    commits = 12
    barrier = SPAWN.Barrier(len(lanes))
    processes = [SPAWN.Process(target=write_and_compact, args=(uri, lane, commits, barrier)) for lane in lanes]
    for process in processes:
        process.start()
    for process in processes:
        process.join(JOIN_SECONDS)
        assert process.exitcode == 0
    last = {key: max(n for n in range(commits) if key >= n % 7) for key in range(30)}
    expected = [(key, "new", last[key], 1.0, last[key]) for key in range(30)]
    assert contents(table) == sorted(expected, key=repr)
    table.compact()
    assert contents(Table.open(uri)) == sorted(expected, key=repr)
    assert table.snapshot().cut.lanes == {"orders": commits + 1, "o-backfill": commits + 1, "payments": commits + 1}


@pytest.mark.usefixtures("eager_threads")
def test_one_table_object_serves_readers_compactors_and_writers_in_many_threads() -> None:
    """Every snapshot is atomic: a commit of all keys is visible for all keys or for none (S8)."""
    uri = new_uri()
    table = Table.create(uri, SHOP)
    keys, stop, compacted = range(40), threading.Event(), threading.Event()

    def write() -> int:
        commits = 0
        with table.writer("orders") as lane:
            while commits < 60 or not compacted.is_set():
                lane.append(orders(*keys, status=str(commits), ts=commits))
                commits += 1
        return commits

    def compact() -> int:
        done = 0
        while not stop.is_set():
            done += len(table.compact().done)
            if done:
                compacted.set()
        return done

    def read() -> int:
        newest = -1
        reads = 0
        while reads == 0 or not stop.is_set():
            found = statuses(table)
            if found:
                assert set(found) == set(keys)
                (number,) = set(found.values())
                assert int(number) >= newest, "snapshots of one reader never go back"
                newest = int(number)
            reads += 1
        return reads

    with ThreadPoolExecutor(6) as pool:
        compacting = [pool.submit(compact) for _ in range(2)]
        reading = [pool.submit(read) for _ in range(3)]
        try:
            commits = pool.submit(write).result()
        finally:
            stop.set()
        assert all(future.result() > 0 for future in reading)
        assert sum(future.result() for future in compacting) > 0
    assert statuses(table) == dict.fromkeys(keys, str(commits - 1))
    assert statuses(Table.open(uri)) == dict.fromkeys(keys, str(commits - 1))


def test_writers_that_compete_for_one_lane_lose_and_double_nothing() -> None:
    """S4 and S6: an acknowledged batch is found later; replays by the other writer are recognised."""
    uri = new_uri()
    table = Table.create(uri, SHOP)
    batches = 40
    committed: list[tuple[int, int]] = []

    def work() -> None:
        table = other_process(uri, SystemClock())
        for _ in range(5):
            with contextlib.suppress(Fenced), table.writer("orders") as lane:
                last = lane.last_batch("q")
                for number in range(0 if last is None else last, batches):
                    commit = lane.append(orders(number, status="x", ts=number), batch=("q", number))
                    committed.append((number, commit.seq))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: work(), range(3)))
    with other_process(uri, SystemClock()).writer("orders") as lane:
        for number in range((lane.last_batch("q") or 0) + 1, batches):
            lane.append(orders(number, status="x", ts=number), batch=("q", number))
        assert lane.last_batch("q") == batches - 1
    assert sorted(statuses(table)) == list(range(batches))
    seqs: dict[int, set[int]] = {}
    for number, seq in committed:
        seqs.setdefault(number, set()).add(seq)
    assert all(len(entries) == 1 for entries in seqs.values()), "one batch, one entry"


@pytest.mark.parametrize("threads", [8])
def test_one_of_many_threads_that_create_a_table_wins(threads: int) -> None:
    uri = new_uri()
    gate = threading.Barrier(threads)

    def create() -> str:
        gate.wait(JOIN_SECONDS)
        try:
            Table.create(uri, SHOP)
        except Exception as error:
            return type(error).__name__
        return "created"

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(lambda _: create(), range(threads)))
    assert sorted(results) == ["Conflict"] * (threads - 1) + ["created"]
