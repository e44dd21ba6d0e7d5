"""Exact numbers of requests of each operation, and of their sequential rounds, so that an increase is noticed.

`tests/benchmarks/README.md` explains which of them are unavoidable.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.faulty_store import FakeClock
from tests.many_groups import CountingStore
from tests.storage.support.shop import new_uri
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.names import LaneName
from weft.storage.environment import DEFAULT_TUNING, Environment
from weft.storage.log.time_marks import MARK_EVERY_MS
from weft.storage.store.open_store import open_store
from weft.storage.write.observed_lanes import STAMP_REFRESH_MS
from weft.storage.write.writer import Writer

CONFIG = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "a": "string", "ats": "bigint", "b": "string", "bts": "bigint"},
    "groups": {
        "a": {"columns": ["a", "ats"], "ordering": ["ats"]},
        "b": {"columns": ["b", "bts"], "ordering": ["bts"]},
    },
    "streams": {"as": {"groups": ["a"]}, "bs": {"groups": ["b"]}},
}
FEW, MANY = 4, 20
"""Numbers of lanes: with few, archives are requested one by one; with many, the table lane is read again (rule A3)."""


def a_rows(ts: int = 1) -> pa.Table:
    return pa.table({"id": [1], "a": ["x"], "ats": [ts]})


def b_rows(ts: int = 1) -> pa.Table:
    return pa.table({"id": [1], "b": ["x"], "bts": [ts]})


@dataclass
class World:
    """A table with lanes of stream `as`, a commit in each, and a MARK after them. No background work changes it."""

    uri: str
    clock: FakeClock

    def process(self) -> tuple[Table, CountingStore]:
        """A new process, and the store that counts its requests."""
        store: Any = CountingStore(open_store(self.uri))
        return Table(Environment(store, self.clock), Stamps()), store

    def commit(self, *lanes: int) -> None:
        """One commit in each lane, by open writers, so without claims."""
        for lane in lanes:
            self.writers[lane].append(a_rows(self.clock.now_ms()))

    def open_writers(self, lanes: int) -> None:
        self.writers: list[Writer] = []
        for lane in range(lanes):
            writer = self.process()[0].writer("as", lane=LaneName(f"lane{lane}"))
            self.writers.append(writer.__enter__())


def world(lanes: int) -> World:
    made = World(new_uri(), FakeClock())
    Table.create_in(Environment(open_store(made.uri), made.clock), CONFIG)
    made.open_writers(lanes)
    made.commit(*range(lanes))
    made.process()[0].mark()
    return made


def asked(store: CountingStore, run: Callable[[], object]) -> tuple[dict[str, int], int]:
    """Requests by kind, and rounds."""
    store.requests, store.rounds = {}, 0
    run()
    found: dict[str, int] = {}
    kinds = {"get_many": "get", "put_if_absent": "put", "open_output": "put", "delete_many": "delete"}
    for name, count in store.requests.items():
        if name != "leftovers":  # a remote store has no leftovers
            kind = kinds.get(name, name)
            found[kind] = found.get(kind, 0) + count
    return found, store.rounds


def test_open_reads_the_checkpoints_and_a_part_of_the_table_lane_at_once() -> None:
    table, store = world(FEW).process()
    # The first slots of the lane (there is no checkpoint yet), and the archive of the first free slot.
    assert asked(store, table.state) == ({"list": 1, "get": DEFAULT_TUNING.first_table_window + 1}, 3)


@pytest.mark.parametrize(
    ("lanes", "gets", "rounds"),
    [
        # The slots after the table lane and after the lanes, and the archive of each.
        (FEW, 1 + FEW + FEW + 1, 3),
        # The same slots, then the slot after the table lane again and its archive, because archiving was announced.
        (MANY, 1 + MANY + 1 + 1, 4),
    ],
)
def test_a_snapshot_without_new_commits(lanes: int, gets: int, rounds: int) -> None:
    table, store = world(lanes).process()
    table.snapshot()
    assert asked(store, table.snapshot) == ({"get": gets}, rounds)


def test_a_snapshot_with_one_new_commit_reads_it_and_two_more_slots_and_the_ends_of_the_other_lanes_again() -> None:
    """In the round of the two slots: so it is one moment (R7) without a further round."""
    made = world(MANY)
    table, store = made.process()
    table.snapshot()
    made.commit(0)
    assert asked(store, table.snapshot) == ({"get": 1 + MANY + 2 + (MANY - 1) + 1 + 1}, 5)


@pytest.mark.parametrize("lanes", [FEW, MANY])
def test_the_first_snapshot_reads_up_to_the_last_mark_at_once(lanes: int) -> None:
    made = world(lanes)
    for _ in range(10):
        made.commit(*range(lanes))
    made.process()[0].mark()
    table, store = made.process()
    table.state()
    entries = 1 + 11  # claim and commits of each lane
    ends = lanes + 1 if lanes == FEW else 2
    assert asked(store, table.snapshot) == ({"get": 1 + lanes * (entries + 1) + ends}, 3 if lanes == FEW else 4)


def test_a_commit_makes_two_puts_and_four_gets() -> None:
    """The reads: the next slot of the table lane, its archive; then the archive of its slot, and the slot before."""
    made = world(MANY)
    table, store = made.process()
    with table.writer("bs") as writer:
        writer.append(b_rows())
        assert asked(store, lambda: writer.append(b_rows(2))) == ({"get": 4, "put": 2}, 5)


def test_a_writer_enters_without_reading_lanes_that_share_no_group() -> None:
    found = []
    for lanes in (FEW, MANY):
        table, store = world(lanes).process()
        table.state()
        writer = table.writer("bs")
        found.append(asked(store, writer.__enter__))
        writer.__exit__(None, None, None)
    assert found[0] == found[1]


def test_a_writer_that_enters_reads_the_ends_of_its_rivals() -> None:
    found = []
    for lanes in (MANY, 2 * MANY):
        made = world(lanes)
        table, store = made.process()
        table.state()
        writer = table.writer("as", lane="new")
        found.append(asked(store, writer.__enter__)[0]["get"])
        writer.__exit__(None, None, None)
    assert found[1] - found[0] == 2 * MANY  # the last entry of each lane, and the free slot after it


def test_a_writer_makes_no_requests_for_closed_lanes() -> None:
    found = []
    for closed in (0, FEW):
        made = world(FEW)
        table, store = made.process()
        for lane in range(closed):
            with made.process()[0].writer("as", lane=LaneName(f"old{lane}")) as writer:
                writer.append(a_rows())
            made.process()[0].close_lane(f"old{lane}")
        table.state()
        writer = table.writer("as", lane="new")
        found.append(asked(store, writer.__enter__)[0]["get"])
        writer.__exit__(None, None, None)
    assert found[0] == found[1]


def test_rivals_are_read_again_after_two_minutes_unless_there_is_a_new_mark() -> None:
    made = world(MANY)
    table, store = made.process()
    with table.writer("as", lane="new") as writer:
        writer.append(a_rows())
        most = 0
        for number in range(30):  # five minutes
            made.clock.sleep(MARK_EVERY_MS / 6000)
            if number % 6 == 0:
                made.process()[0].mark()
            gets = asked(store, partial(writer.append, a_rows(number)))[0]["get"]
            most = max(most, gets)
        assert most <= 8  # the usual 4, the MARK, and the slots after it
        made.clock.sleep(STAMP_REFRESH_MS / 1000)
        gets = asked(store, lambda: writer.append(a_rows(99)))[0]["get"]
        # The end of each lane twice: for the stamp of the commit, and for the mark that is then due.
        assert gets > 2 * 2 * MANY


def test_a_mark_reads_the_last_entry_of_each_lane_and_the_slot_after_it() -> None:
    found = []
    for lanes in (MANY, 2 * MANY):
        table, store = world(lanes).process()
        table.state()
        found.append(asked(store, table.mark)[0])
    assert found[1]["get"] - found[0]["get"] == 2 * MANY
    assert found[0]["put"] == found[1]["put"] == 1


def test_a_clean_makes_the_same_number_of_lists_for_any_number_of_lanes() -> None:
    found = []
    for lanes in (MANY, 2 * MANY):
        made = world(lanes)
        table, store = made.process()
        table.compact()
        made.clock.sleep(1)
        found.append(asked(store, lambda table=table: table.clean(dt.timedelta(0)))[0])  # type: ignore[misc]
    assert found[0]["list"] == found[1]["list"] == 16
    # The last entry of each lane, the free slot after it, and its LANE_ADD, because there is no checkpoint yet.
    assert found[1]["get"] - found[0]["get"] == 3 * MANY
