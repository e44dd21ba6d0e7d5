"""A rewrite or an erase ends beside compactions that never pause: its second attempt reserves the table."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import LONGEST_RESERVATION_MS, Plan
from weft.storage.core.log.entry_codec import decode_entry, encode_entry
from weft.storage.core.log.table_state import OpenPlan
from weft.storage.core.names import TABLE_LANE
from weft.storage.core.plan.reservation import (
    RESERVATION_FACTOR,
    SHORTEST_RESERVATION_MS,
    is_reserved,
    next_reservation_ms,
)
from weft.storage.errors import TableError
from weft.storage.planned_work import plan_compaction
from weft.storage.services.compaction import compaction
from weft.storage.services.steps.service_plan import open_plan
from weft.storage.services.steps.steps import finish
from weft.storage.store.open_store import open_store

GROUPS = 4
CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {"id": "bigint", "v": "string", "ts": "bigint", "n": "bigint"},
    "groups": {
        "g": {"columns": ["v", "ts"], "ordering": ["ts"]},
        "sums": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
    },
    "streams": {"a": {"groups": ["g"], "on_delete": "row"}, "b": {"groups": ["sums"]}},
    "buckets": GROUPS,
}
IDS = range(40)
GONE = 7


class World:
    """A table, and processes that open it with one clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.uri = f"memory://reservation/{uuid.uuid4().hex}"
        Table.create(self.uri, CONFIG)
        self.table = self.process()
        self.rounds = 0
        self.published = 0
        with self.table.writer("a") as writer:
            writer.append(pa.table({"id": list(IDS), "v": [f"v{i}" for i in IDS], "ts": [10 * i for i in IDS]}))
        self.table.compact()

    def process(self, store: FaultyStore | None = None) -> Table:
        """Each file group has separate files, and is a task."""
        return tuned(other_process(self.uri, self.clock, store), small_group_bytes=0)

    def write(self) -> None:
        """Another process commits to all file groups."""
        self.rounds += 1
        with self.process().writer("b") as writer:
            writer.append(pa.table({"id": list(IDS), "n": [1] * len(IDS)}))

    def busy(self) -> None:
        """Other processes commit to all file groups, and compact all of them."""
        self.write()
        self.published += bool(self.process().compact().done)

    def beside_busy(self) -> Table:
        """A process beside which the others are busy whenever it begins to write a base file."""
        store = FaultyStore(open_store(self.uri))
        store.faults.append(Fault("open_output", "base/", times=1000, action=self.busy))
        return self.process(store)

    def values(self) -> dict[int, str | None]:
        return {row["id"]: row["v"] for row in self.table.snapshot().to_arrow(["id", "v"]).to_pylist()}

    def sums(self) -> set[int]:
        return set(self.table.snapshot().to_arrow(["n"]).column("n").to_pylist())

    def kinds(self) -> list[str]:
        entries = self.table.writable().commit_log.read_after(TABLE_LANE, 0)
        return [entry.kind for entry in entries]


@pytest.fixture
def world() -> World:
    return World()


def marked(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("#", values, "")


def check_others(world: World) -> None:
    """What others have committed is there, and compactions go on."""
    assert world.sums() == {world.rounds}
    assert world.table.state().plans == {}
    before = world.published
    world.busy()
    assert world.published == before + 1
    assert world.table.verify().ok


class TestBesideBusyCompactions:
    def test_a_rewrite_calls_its_function_at_most_twice_for_a_value(self, world: World) -> None:
        seen = []

        def busy(values: pa.Array) -> pa.Array:
            world.busy()
            seen.extend(values.to_pylist())
            return marked(values)

        world.process().rewrite("v", busy)
        assert world.values() == {i: f"#v{i}" for i in IDS}
        assert sorted(seen) == sorted(2 * [f"v{i}" for i in IDS])
        assert world.published > 0
        check_others(world)

    def test_an_expiry_of_rows(self, world: World) -> None:
        world.beside_busy().expire_rows("ts", 100)
        assert set(world.values()) == set(IDS), "the sums of later commits are new data"
        assert {key for key, value in world.values().items() if value is not None} == set(IDS[10:])
        assert world.table.verify().ok

    def test_deletes_are_forgotten(self, world: World) -> None:
        with world.table.writer("a") as writer:
            writer.append(pa.table({"id": [1, 1000], "v": ["", ""], "ts": [50, 50], "_op": ["delete"] * 2}))
        world.beside_busy().forget_deletes("g", 100)
        assert world.values() == {i: f"v{i}" for i in IDS if i != 1}
        check_others(world)
        with world.table.writer("a") as writer:
            writer.append(pa.table({"id": [1000], "v": ["back"], "ts": [20]}))
        assert world.values()[1000] == "back"

    def test_an_erase(self, world: World) -> None:
        result = world.beside_busy().erase([GONE], expire_snapshots=True)
        assert result.complete
        assert {key: value for key, value in world.values().items() if value} == {i: f"v{i}" for i in IDS if i != GONE}
        assert world.table.verify().ok

    def test_a_compaction_that_ends_late_publishes_nothing(self, world: World) -> None:
        """A compaction that began before the rewrite, and ends after it, does not fail."""
        store = FaultyStore(open_store(world.uri))
        done = []

        def rewrite() -> None:
            done.append(world.beside_busy().rewrite("v", marked))

        store.faults.append(Fault("open_output", "base/", action=rewrite))
        world.write()
        result = world.process(store).compact()
        assert done
        assert result.done == ()
        assert world.values() == {i: f"#v{i}" for i in IDS}
        check_others(world)


class TestReservations:
    def test_the_first_attempt_reserves_nothing(self, world: World) -> None:
        seen: list[int] = []

        def look(values: pa.Array) -> pa.Array:
            seen.extend(plan.reserves_ms for plan in world.process().state().plans.values())
            return values

        world.process().rewrite("v", look)
        assert set(seen) == {0}

    def test_a_reservation_lasts_for_several_times_the_longest_attempt(self, world: World) -> None:
        durations = []

        def slow(values: pa.Array) -> pa.Array:
            world.clock.time_ms += 600_000
            durations.append(max(plan.reserves_ms for plan in world.process().state().plans.values()))
            world.busy()
            return values

        world.process().rewrite("v", slow)
        assert durations[0] == 0
        assert set(durations[1:]) - {0} == {RESERVATION_FACTOR * durations.count(0) * 600_000}

    def test_compactions_of_a_reserved_table_publish_nothing_until_it_ends(self, world: World) -> None:
        world.write()
        dead = reserve(world)
        before = world.kinds()
        result = world.process().compact()
        assert (result.done, set(result.skipped.values())) == ((), {compaction.RESERVED})
        assert len(result.skipped) == GROUPS
        assert world.kinds() == before, "not even a PLAN"
        assert world.process().fold().done, "folds go on"
        world.clock.time_ms += SHORTEST_RESERVATION_MS
        assert len(world.process().compact().done) == GROUPS
        del dead

    @pytest.mark.parametrize("steps_before", range(GROUPS))
    def test_a_compaction_in_progress_stops_when_a_reservation_begins(self, world: World, steps_before: int) -> None:
        world.write()
        steps = plan_compaction(world.process(), None).steps
        read = sum(next(steps) for _ in range(steps_before))
        dead = reserve(world)
        result = finish(steps)
        assert result.bytes_read == read, "no other task begins"
        assert (result.done, set(result.skipped.values())) == ((), {compaction.RESERVED})
        assert len(result.skipped) == GROUPS
        assert len(world.table.state().plans) == 1
        assert world.table.verify().ok, "its files are deleted"
        del dead

    def test_an_attempt_that_fails_ends_its_reservation(self, world: World) -> None:
        at = world.table.snapshot().cut
        with pytest.raises(TableError), open_plan(world.table.writable(), at, GROUPS, SHORTEST_RESERVATION_MS):
            raise TableError("the work fails")
        world.busy()
        assert world.published == 1

    def test_a_rewrite_beside_one_that_has_reserved_and_died(self, world: World) -> None:
        """The first attempt yields; the second has a reservation, too, and its BASE ends the plan of the dead one."""
        dead = reserve(world)
        world.process().rewrite("v", marked)
        assert world.values() == {i: f"#v{i}" for i in IDS}
        assert (world.kinds().count("PLAN"), world.kinds().count("BASE")) == (4, 2)
        assert world.table.state().plans == {}
        del dead


ACTIONS = ["write", "compact", "fold", "clean", "mark deletes", "die", "wait"]


@settings(max_examples=20)
@given(st.lists(st.sampled_from(ACTIONS), max_size=12))
def test_the_result_does_not_depend_on_what_else_runs(actions: list[str]) -> None:
    """M8, X6: each value changes once, whatever other services publish while the rewrite writes files."""
    world, waiting, dead = World(), iter(actions), []

    def act() -> None:
        match next(waiting, None):
            case "write":
                world.write()
            case "compact":
                world.process().compact()
            case "fold":
                world.process().fold()
            case "clean":
                world.process().clean(retain=dt.timedelta(0))
            case "mark deletes":
                world.process().forget_deletes("g", 100)
            case "die":
                dead.append(reserve(world))
            case "wait":
                world.clock.time_ms += SHORTEST_RESERVATION_MS

    store = FaultyStore(open_store(world.uri))
    store.faults.append(Fault("open_output", "base/", times=len(actions), action=act))
    world.process(store).rewrite("v", marked)
    assert world.values() == {i: f"#v{i}" for i in IDS}
    assert world.sums() == {world.rounds or None}
    assert world.table.verify().ok


def reserve(world: World) -> Any:
    """A process that has reserved the table and never continues; keep the result, or it ends."""
    at = world.table.snapshot().cut
    dead = open_plan(world.process().writable(), at, GROUPS, SHORTEST_RESERVATION_MS)
    dead.__enter__()
    return dead


@pytest.mark.parametrize(
    ("now", "holds"), [(1_000, True), (5_999, True), (6_000, False), (-3_999, True), (-4_000, False)]
)
def test_a_reservation_is_bounded_whatever_the_clocks_say(now: int, *, holds: bool) -> None:
    other = OpenPlan(2, Cut(1, {}), committed_at_ms=now)
    assert (
        is_reserved({"0": other, "1": OpenPlan(3, Cut(1, {}), committed_at_ms=1_000, reserves_ms=5_000)}, now) is holds
    )
    assert not is_reserved({"0": other}, now)


def test_reservations_grow_to_a_limit() -> None:
    assert next_reservation_ms(0, 10**9) == 0
    assert next_reservation_ms(1, 0) == SHORTEST_RESERVATION_MS
    assert next_reservation_ms(1, 10**9) == LONGEST_RESERVATION_MS
    assert next_reservation_ms(5, 100_000) == 100_000 * RESERVATION_FACTOR


def plan(reserves_ms: int) -> Plan:
    header = {"lane": TABLE_LANE, "seq": 2, "epoch": 0, "commit_id": "b", "prev_id": "a", "table_rev": 0}
    times = {"stamp": 5, "committed_at_ms": 5}
    return Plan(**header, **times, plan_id="p", table=1, cut={}, file_groups=1, reserves_ms=reserves_ms)


def test_a_plan_names_its_reservation_and_nothing_if_it_has_none() -> None:
    for entry in (plan(0), plan(1), plan(LONGEST_RESERVATION_MS)):
        data = encode_entry(entry)
        assert decode_entry(data, TABLE_LANE, 2) == entry
        assert (b"reserves_ms" in data) is (entry.reserves_ms > 0)


@pytest.mark.parametrize("reserves_ms", [-1, LONGEST_RESERVATION_MS + 1])
def test_a_reservation_that_could_stop_compactions_for_ever_is_damage(reserves_ms: int) -> None:
    with pytest.raises(ValidationError, match="reserves_ms"):
        plan(reserves_ms)
