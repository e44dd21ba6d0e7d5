"""Groups in commit order: a commit made after another one is visible wins, whatever the clocks say (W7, S25)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import new_uri
from weft import Table
from weft.storage.store.open_store import open_store

NOW_MS = 1_900_000_000_000


def config(**group: Any) -> Mapping[str, Any]:
    """One group in commit order that two streams write, and one that is ordered by a column."""
    return {
        "key": ["id"],
        "buckets": 1,
        "columns": {"id": "bigint", "state": "string", "note": "string", "ts": "bigint"},
        "groups": {"free": {"columns": ["state"], **group}, "ordered": {"columns": ["note", "ts"], "ordering": ["ts"]}},
        "streams": {
            "x": {"groups": ["free"], "on_delete": "row"},
            "y": {"groups": ["free"], "on_delete": "row"},
            "z": {"groups": ["ordered"]},
        },
    }


def states(*ids: int, state: str = "", op: str = "U") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "state": [state] * len(ids), "_op": [op] * len(ids)})


def notes(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "note": [""] * len(ids), "ts": [1] * len(ids)})


def shown(table: Table) -> dict[int, str]:
    return {row["id"]: row["state"] for row in table.snapshot().to_arrow(["id", "state"]).to_pylist()}


@pytest.fixture
def uri() -> str:
    uri = new_uri()
    Table.create(uri, config(), clock=FakeClock(NOW_MS))
    return uri


def test_a_commit_after_a_visible_one_wins_even_if_its_clock_is_behind(uri: str) -> None:
    ahead, clock = FakeClock(NOW_MS + 10_000), FakeClock(NOW_MS + 5_000)
    x_table, y_table = other_process(uri, ahead), other_process(uri, clock)
    with y_table.writer("y") as y, x_table.writer("x") as x:
        x.append(states(1, 2, 3, state="x"))
        clock.time_ms += 1_000
        y.append(states(1, state="y"))
        y.append(states(2, op="D"))
        assert shown(x_table) == {1: "y", 3: "x"}
        x.append(states(2, state="x again"))
        y.append(states(3, state="y"))
    assert shown(y_table) == {1: "y", 2: "x again", 3: "y"}
    y_table.compact()
    assert shown(x_table) == {1: "y", 2: "x again", 3: "y"}


def test_a_commit_in_a_lane_added_while_files_were_written_is_seen(uri: str) -> None:
    clock = FakeClock(NOW_MS + 5_000)
    store = FaultyStore(open_store(uri))
    y_table, x_table = other_process(uri, clock, store), other_process(uri, FakeClock(NOW_MS + 10_000))

    def commit() -> None:
        with x_table.writer("x", lane="x-fix") as x:
            x.append(states(1, state="x"))

    with y_table.writer("y") as y:
        store.faults.append(Fault("put", "log/y/", action=commit))
        y.append(states(1, state="y"))
    assert shown(x_table) == {1: "y"}


def test_a_commit_in_a_lane_closed_meanwhile_is_seen(uri: str) -> None:
    y_table, x_table = other_process(uri, FakeClock(NOW_MS + 5_000)), other_process(uri, FakeClock(NOW_MS + 10_000))
    with x_table.writer("x") as x, y_table.writer("y") as y:
        x.append(states(1, state="x"))
        x_table.close_lane("x")
        y.append(states(1, state="y"))
    assert shown(x_table) == {1: "y"}


def _gets(uri: str, stream: str, rows: Callable[[], pa.Table], lanes: int) -> int:
    """Requests that read entries during one append, with ``lanes`` open lanes of stream x."""
    clock = FakeClock(NOW_MS)
    store = FaultyStore(open_store(uri))
    for number in range(lanes):
        with other_process(uri, clock).writer("x", lane=f"x{number}") as other:
            other.append(states(number))
    with other_process(uri, clock, store).writer(stream) as writer:
        writer.append(rows())
        store.calls.clear()
        writer.append(rows())
    return sum(call == "get" and "timeline/" in path for call, path in store.calls)


def test_only_lanes_that_share_a_group_in_commit_order_are_read(uri: str) -> None:
    """One request for each lane, and one for the table lane, which declares new lanes."""
    assert _gets(uri, "y", lambda: states(1), lanes=4) - _gets(uri, "z", lambda: notes(1), lanes=0) == 4 + 1


@pytest.mark.parametrize("functions", [{"state": "max"}, {"state": "min"}])
def test_groups_whose_result_does_not_depend_on_order_cause_no_requests(functions: dict[str, str]) -> None:
    uri = new_uri()
    given = dict(config(merge="aggregate", functions=functions))
    given["streams"] = {
        name: {"groups": stream["groups"], "on_delete": "ignore"} for name, stream in given["streams"].items()
    }
    Table.create(uri, given, clock=FakeClock(NOW_MS))
    assert _gets(uri, "y", lambda: states(1), lanes=4) == _gets(uri, "z", lambda: notes(1), lanes=0)


@pytest.mark.parametrize("op", ["U", "D"])
def test_of_equal_ordering_values_the_later_commit_wins_even_if_its_clock_is_behind(uri: str, op: str) -> None:
    """S25. Two lanes of one stream; the clocks differ by half a minute, and the lanes take turns."""
    first, second = other_process(uri, FakeClock(NOW_MS + 30_000)), other_process(uri, FakeClock(NOW_MS))
    with first.writer("z", lane="z1") as z1, second.writer("z", lane="z2") as z2:
        for turn, writer in enumerate([z1, z2, z2, z1, z2] * 2):
            rows = pa.table({"id": [1], "note": [str(turn)], "ts": [7], "_op": [op if writer is z2 else "U"]})
            writer.append(rows)
            shown = first.snapshot().to_arrow(["note"]).column("note").to_pylist()
            assert shown == ([] if op == "D" and writer is z2 else [str(turn)])


def test_with_many_rivals_their_lanes_are_not_read_at_each_commit(uri: str) -> None:
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(other_process(uri, FakeClock(NOW_MS)).writer("z", lane=f"z{i}")) for i in range(9)
        ]
        store = FaultyStore(open_store(uri))
        last = stack.enter_context(other_process(uri, FakeClock(NOW_MS), store).writer("z"))
        last.append(notes(1))
        for writer in writers:
            writer.append(notes(1))
        store.calls.clear()
        last.append(notes(2))
        assert not [path for call, path in store.calls if call == "get" and "lanes/z0" in path]


@pytest.mark.parametrize("rival_is_known", [False, True])
def test_a_commit_wins_against_one_in_a_lane_that_was_just_added(uri: str, *, rival_is_known: bool) -> None:
    first, second = other_process(uri, FakeClock(NOW_MS)), other_process(uri, FakeClock(NOW_MS + 30_000))

    def noted(text: str) -> pa.Table:
        return pa.table({"id": [1], "note": [text], "ts": [7]})

    with contextlib.ExitStack() as stack:
        if rival_is_known:
            stack.enter_context(second.writer("z", lane="z0")).append(noted("known"))
        z1 = stack.enter_context(first.writer("z", lane="z1"))
        z1.append(noted("before"))
        stack.enter_context(second.writer("z", lane="z2")).append(noted("other"))
        z1.append(noted("mine"))
    assert first.snapshot().to_arrow(["note"]).column("note").to_pylist() == ["mine"]
