"""Watermarks: promises of writers, and how restores, claims and cleaning affect them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.faulty_store import FakeClock
from tests.storage.support.shop import SHOP, append, new_uri, orders, payments, statuses
from tests.tuning import tuned
from weft import Table
from weft.storage.core.names import LaneName, slot_path
from weft.storage.core.plan.watermarks import Watermark
from weft.storage.errors import Fenced, InvalidInput, NotFound
from weft.storage.read import lane_watermarks
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import WriteTicket, write_rows


@pytest.fixture
def table() -> Table:
    return Table.create(new_uri(), SHOP)


def put(table: Table, rows: pa.Table, lateness: Any = 3, stream: str = "orders", lane: str | None = None) -> int:
    """Append with a new writer; returns how many events were late."""
    with table.writer(stream, lane, lateness=lateness) as writer:
        return writer.append(rows).late


def mark(table: Table, stream: str = "orders", group: str = "order", **snapshot: Any) -> Watermark:
    return table.snapshot(**snapshot).watermarks()[stream][group]


def entry(table: Table, seq: int, lane: str = "orders") -> dict[str, Any]:
    data = open_store(table.uri).get(slot_path(LaneName(lane), seq))
    assert data is not None
    found: dict[str, Any] = json.loads(data)
    return found


# Promises of a lane


def test_a_promise_is_the_largest_value_minus_the_lateness_and_never_decreases(table: Table) -> None:
    with table.writer("orders", lateness=3) as writer:
        for ts, value in ((10, 7), (8, 7), (12, 9)):
            assert writer.append(orders(ts, ts=ts)).late == 0
            assert mark(table).value == value


def test_events_that_break_the_promise_are_merged_and_counted(table: Table) -> None:
    with table.writer("orders", lateness=3) as writer:
        assert writer.append(orders(1, ts=10)).late == 0
        late = writer.append(pa.concat_tables([orders(2, 3, ts=6, status="late"), orders(4, ts=7)]))
        assert (late.rows, late.late) == (3, 2)
        assert writer.append(orders(5, ts=1)).late == 1
    assert statuses(table) == {1: "new", 2: "late", 3: "late", 4: "new", 5: "new"}
    assert (mark(table).value, mark(table).late) == (7, 3)


def test_rows_of_one_batch_are_not_late_for_each_other(table: Table) -> None:
    assert put(table, pa.concat_tables([orders(1, ts=100), orders(2, ts=1)])) == 0
    assert (mark(table).value, mark(table).late) == (97, 0)


def test_a_promise_covers_all_tasks_of_a_commit(table: Table) -> None:
    with table.writer("orders", lateness=3) as writer:
        writer.append(orders(1, ts=10))
        ticket = writer.begin()
        assert isinstance(ticket, WriteTicket)
        parts = [write_rows(ticket, orders(i, ts=ts), task=i) for i, ts in enumerate((5, 40, 6))]
        empty = write_rows(ticket, orders(), task=9)
        assert writer.commit(ticket, [*parts, empty]).late == 2
    assert (mark(table).value, mark(table).late) == (37, 2)


def test_a_replayed_batch_changes_nothing(table: Table) -> None:
    with table.writer("orders", lateness=3) as writer:
        writer.append(orders(1, ts=10), batch=("q", 1))
        writer.append(orders(2, ts=1), batch=("q", 2))
        again = writer.append(orders(3, ts=99), batch=("q", 2))
    assert (again.replayed, again.late) == (True, 0)
    assert (mark(table).value, mark(table).late) == (7, 1)


def test_an_empty_batch_repeats_the_promises(table: Table) -> None:
    with table.writer("orders", lateness=3) as writer:
        writer.append(orders(1, ts=10), batch=("q", 1))
        writer.append(orders(), batch=("q", 2))
    assert entry(table, 3)["kind"] == "DATA"
    assert mark(table).value == 7


@pytest.mark.parametrize(("lateness", "value"), [(1, 9), (100, 7), (None, 7)])
def test_the_next_writer_keeps_the_promise_with_any_lateness(table: Table, lateness: int | None, value: int) -> None:
    put(table, orders(1, ts=10))
    with table.writer("orders", lateness=lateness) as writer:
        assert writer.append(orders(2, ts=6)).late == 1
        writer.append(orders(3, ts=10))
    assert (mark(table).value, mark(table).late) == (value, 1)


def test_a_fenced_writer_promises_nothing(table: Table) -> None:
    with table.writer("orders", lateness=3) as first:
        first.append(orders(1, ts=10))
        with table.writer("orders", lateness=3) as second, pytest.raises(Fenced):
            first.append(orders(2, ts=50))
        with table.writer("orders", lateness=3) as second:
            assert second.append(orders(3, ts=6)).late == 1
            second.append(orders(3, ts=11))
    assert mark(table).value == 8


def test_a_takeover_keeps_the_promise(table: Table) -> None:
    with table.writer("orders", lateness=3) as writer:
        writer.append(orders(1, ts=10), batch=("a", 1))
    with table.writer("orders", lateness=0, takeover=True, query_id="b") as writer:
        assert writer.append(orders(2, ts=6), batch=("b", 1)).late == 1
    assert mark(table).value == 7


def test_a_writer_that_starts_from_a_checkpoint_knows_the_promise(table: Table) -> None:
    put(tuned(table, lane_checkpoint_every=1), orders(1, ts=10))
    names = [name for name, _ in open_store(table.uri).list("_weft/checkpoints/lanes/orders")]  # type: ignore[arg-type]
    assert names
    assert put(Table.open(table.uri), orders(2, ts=6)) == 1


def test_an_entry_without_a_promise_has_no_member_for_it(table: Table) -> None:
    append(table, orders(1, ts=10))
    assert "watermarks" not in entry(table, 2)
    put(table, orders(1, ts=10))
    assert entry(table, 4)["watermarks"] == {"1": {"value": 7, "late": 0}}


# Restores, claims, cleaning


def test_promises_of_rolled_back_commits_do_not_count(table: Table) -> None:
    put(table, orders(1, ts=10))
    table.savepoint("before")
    old = table.snapshot()
    put(table, orders(2, ts=50))
    late = table.snapshot()
    table.restore("before")
    assert mark(table).value == 7
    assert (old.watermarks()["orders"]["order"].value, late.watermarks()["orders"]["order"].value) == (7, 47)
    with table.writer("orders", lateness=3) as writer:
        assert writer.append(orders(3, ts=20)).late == 0
        assert writer.append(orders(3, ts=6)).late == 1
    assert (mark(table).value, mark(table).late) == (17, 1)


def test_a_lane_without_live_commits_promises_nothing(table: Table) -> None:
    append(table, payments(1), "payments")
    table.savepoint("before")
    put(table, orders(1, ts=10))
    put(table, orders(1, ts=11))
    table.restore("before")
    table.fence("orders")  # what is last is not rolled_back, what is behind it is
    assert (mark(table).value, mark(table).late) == (None, 0)
    assert put(table, orders(1, ts=1)) == 0
    assert mark(table).value == -2


def test_an_undo_rolls_back_promises_of_its_stream_only() -> None:
    clock = FakeClock()
    table = Table.create(new_uri(), SHOP, clock=clock)
    put(table, orders(1, ts=10))
    clock.time_ms += 1_000
    moment = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    clock.time_ms += 1_000
    put(table, orders(2, ts=50))
    put(table, payments(1, ts=50), stream="payments")
    table.undo("orders", moment)
    assert mark(table).value == 7
    assert mark(table, "payments", "payment").value == 47


def test_promises_are_found_before_many_claims_and_rolled_back_spans(table: Table) -> None:
    put(table, orders(1, ts=10))
    table.savepoint("before")
    for ts in range(20, 40):
        put(table, orders(2, ts=ts))
    table.restore("before")
    for _ in range(lane_watermarks.MAX_WINDOW + lane_watermarks.FIRST_WINDOW * 5):
        table.fence("orders")
    assert mark(table).value == 7
    assert Table.open(table.uri).watermarks()["orders"]["order"].value == 7


def test_a_promise_survives_compaction_and_cleaning(table: Table) -> None:
    put(table, orders(1, ts=10))
    table.compact()
    append(table, payments(1), "payments")
    table.compact()
    table.clean(dt.timedelta(0))
    assert Table.open(table.uri).watermarks()["orders"]["order"].value == 7


def test_an_older_snapshot_has_its_original_watermarks(table: Table) -> None:
    values = {}
    for ts in (10, 20, 30):
        put(table, orders(1, ts=ts))
        values[str(table.snapshot().cut)] = ts - 3
    table.compact()
    for cut, value in values.items():
        assert mark(Table.open(table.uri), as_of=cut).value == value


# Streams and lanes


def test_the_watermark_of_a_stream_is_the_smallest_of_its_open_lanes(table: Table) -> None:
    put(table, orders(1, ts=10), lane="a")
    put(table, orders(1, ts=20), lane="b")
    found = mark(table)
    assert (found.value, found.held_by) == (7, ("a",))
    assert {name: watermark.value for name, watermark in found.lanes.items()} == {"a": 7, "b": 17}
    append(table, orders(1, ts=99))
    found = mark(table)
    assert (found.value, found.held_by) == (None, ("orders",))


def test_closed_lanes_do_not_hold_back_the_watermark_and_the_largest_promise_remains(table: Table) -> None:
    put(table, orders(1, ts=10), lane="a")
    put(table, orders(1, ts=20), lane="b")
    with table.writer("orders", "c") as writer:
        writer.append(orders(1))
    before = table.snapshot()
    table.close_lane("c")
    assert mark(table).value == 7
    table.close_lane("a")
    assert mark(table).value == 17
    table.close_lane("b")
    found = mark(table)
    assert (found.value, found.held_by, [watermark.ended for watermark in found.lanes.values()]) == (
        17,
        (),
        [True] * 3,
    )
    assert before.watermarks()["orders"]["order"].value is None


def test_a_closed_lane_without_a_promise_does_not_count(table: Table) -> None:
    append(table, orders(1))
    table.close_lane("orders")
    assert mark(table).value is None


def test_a_claimed_lane_without_a_commit_holds_back_the_watermark(table: Table) -> None:
    put(table, orders(1, ts=10))
    with table.writer("orders", "more", lateness=3):
        assert mark(table).held_by == ("more",)
    assert mark(table, "payments", "payment").lanes == {}


# Groups and types

WIDE: Mapping[str, Any] = {
    "key": ["id"],
    "buckets": 2,
    "columns": {
        "id": "bigint",
        "a": "string",
        "t1": "bigint",
        "t2": "bigint",
        "n": "bigint",
        "d": "date",
        "x": "string",
        "s": "string",
        "f": "double",
        "m": "decimal(9,2)",
    },
    "groups": {
        "two": {"columns": ["a", "t1", "t2"], "ordering": ["t1", "t2"]},
        "sum": {"columns": ["n", "d"], "ordering": ["d"], "merge": "aggregate", "functions": {"n": "sum"}},
        "none": {"columns": ["x"]},
        "text": {"columns": ["s"], "ordering": ["s"]},
        "float": {"columns": ["f"], "ordering": ["f"]},
        "money": {"columns": ["m"], "ordering": ["m"]},
    },
    "streams": {
        "all": {"groups": ["two", "sum", "none", "text"]},
        "vague": {"groups": ["none", "text", "float", "money"], "on_delete": "ignore"},
    },
}


def test_the_first_of_several_ordering_columns_counts(table: Table) -> None:
    table = Table.create(new_uri(), WIDE)
    rows = pa.table({"id": [1, 2], "a": ["x", "y"], "t1": [10, 9], "t2": [1, 99]})
    put(table, rows, stream="all")
    assert mark(table, "all", "two").value == 7
    # The first ordering value is NULL: the event touches the group because of its second value, and is not late.
    put(table, pa.table({"id": [3], "a": ["z"], "t1": pa.array([None], pa.int64()), "t2": [500]}), stream="all")
    assert (mark(table, "all", "two").value, mark(table, "all", "two").late) == (7, 0)
    assert len(table.snapshot().to_arrow()) == 3


def test_one_stream_promises_for_each_of_its_groups_that_its_lateness_fits() -> None:
    table = Table.create(new_uri(), WIDE)
    rows = pa.table({"id": [1], "a": ["x"], "t1": [10], "t2": [1], "n": [1], "d": [dt.date(2024, 1, 31)], "x": ["x"]})
    put(table, rows, stream="all", lateness=3)
    found = {name: (watermark.column, watermark.value) for name, watermark in table.watermarks()["all"].items()}
    assert found == {"two": ("t1", 7), "sum": ("d", None), "none": (None, None), "text": (None, None)}
    put(table, rows, stream="all", lateness=dt.timedelta(days=1))
    assert mark(table, "all", "two").value == 7
    assert mark(table, "all", "sum").value == dt.date(2024, 1, 30)


def test_a_commit_without_a_group_keeps_the_promise_of_the_group() -> None:
    table = Table.create(new_uri(), WIDE)
    put(table, pa.table({"id": [1], "a": ["x"], "t1": [10], "t2": [1]}), stream="all")
    put(table, pa.table({"id": [1], "x": ["x"]}), stream="all")
    assert mark(table, "all", "two").value == 7


def test_a_retraction_counts_in_groups_that_use_it() -> None:
    table = Table.create(new_uri(), WIDE)

    def rows(t1: int, day: int, op: str) -> pa.Table:
        return pa.table(
            {"id": [1], "a": ["x"], "t1": [t1], "t2": [1], "n": [1], "d": [dt.date(2024, 1, day)], "_op": [op]}
        )

    put(table, rows(10, 10, "I"), stream="all", lateness=0)
    put(table, rows(10, 10, "I"), stream="all", lateness=dt.timedelta(0))
    put(table, rows(99, 3, "-U"), stream="all", lateness=0)
    assert (mark(table, "all", "two").value, mark(table, "all", "two").late) == (10, 0)
    put(table, rows(1, 3, "-U"), stream="all", lateness=0)
    assert (mark(table, "all", "two").late, mark(table, "all", "sum").late) == (0, 2)


def test_deletes_count_as_events_and_ignored_rows_do_not(table: Table) -> None:
    assert put(table, orders(1, ts=10, op="D")) == 0
    assert (mark(table).value, mark(table).late) == (7, 0)
    nothing = orders(1).set_column(2, "ots", pa.array([None], pa.int64()))
    assert put(table, nothing) == 0
    assert put(table, orders(2, ts=1, op="D")) == 1


def test_a_running_writer_promises_for_an_added_group(table: Table) -> None:
    with table.writer("orders", lateness=3) as writer:
        writer.append(orders(1, ts=10))
        table.add_group("more", {"extra": "string", "ets": "int"}, ordering=["ets"], streams=["orders"])
        assert mark(table, group="more").value is None
        more = orders(1, ts=10).append_column("extra", pa.array(["x"])).append_column("ets", pa.array([5], pa.int32()))
        writer.append(more)
    assert (mark(table).value, mark(table, group="more").value) == (7, 2)


# Refusals


@pytest.mark.parametrize(
    ("stream", "lateness", "message", "hint"),
    [
        (
            "orders",
            dt.timedelta(minutes=5),
            "0:05:00 is a duration, but stream 'orders' is ordered by ots bigint",
            "integer",
        ),
        ("orders", -1, "-1 is negative", "0"),
        ("orders", dt.timedelta(microseconds=-1), "is negative", "0"),
        ("orders", True, "True is not a timedelta or an integer", "timedelta"),
        ("orders", 1.5, "1.5 is not a timedelta or an integer", "timedelta"),
        ("orders", "5 minutes", "'5 minutes' is not a timedelta or an integer", "timedelta"),
        ("nobody", 5, "no stream 'nobody'", "orders"),
    ],
)
def test_a_lateness_that_fits_nothing_is_refused_before_the_lane_is_claimed(
    table: Table, stream: str, lateness: Any, message: str, hint: str
) -> None:
    with pytest.raises((InvalidInput, NotFound)) as raised, table.writer(stream, lateness=lateness):
        pass
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert table.state().lanes == {}


@pytest.mark.parametrize("lateness", [5, dt.timedelta(1)])
def test_strings_floats_and_decimals_have_no_watermark(lateness: Any) -> None:
    table = Table.create(new_uri(), WIDE)
    with (
        pytest.raises(InvalidInput, match="no group of stream 'vague' can have a watermark"),
        table.writer("vague", lateness=lateness),
    ):
        pass
    append(table, pa.table({"id": [1], "m": pa.array([Decimal("1.00")], pa.decimal128(9, 2))}), "vague")
    assert {watermark.column for watermark in table.watermarks()["vague"].values()} == {None}


def test_inspection_shows_watermarks_lag_and_late_events() -> None:
    clock = FakeClock()
    config = {**SHOP, "columns": {**SHOP["columns"], "pts": "timestamp"}}
    table = Table.create(new_uri(), config, clock=clock)
    put(table, orders(1, ts=10))
    put(table, orders(1, ts=5))
    now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    rows = pa.table({"id": [1], "paid": [1.0], "pts": pa.array([now], pa.timestamp("us", "UTC"))})
    put(table, rows, stream="payments", lateness=dt.timedelta(minutes=2))
    look = Inspection(table.uri, clock=clock)
    order, payment = look.overview().streams
    assert (order.column, order.watermark, order.lag_ms, order.late, order.held_by) == ("ots", 7, None, 1, ("orders",))
    assert (payment.watermark, payment.lag_ms) == ((now - dt.timedelta(minutes=2)).isoformat(), 120_000)
    lane = look.lanes()[0]
    assert (lane.lane, lane.watermarks, lane.late) == ("orders", {"order": 7}, 1)
