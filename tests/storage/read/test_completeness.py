"""Completeness: promises of every type that has them, and the errors of readers that require completeness."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from tests.storage.read.test_watermarks import mark, put
from tests.storage.support.shop import SHOP, append, new_uri, orders, payments, statuses
from weft import Table
from weft.storage.errors import InvalidInput, NotComplete, NotFound


@pytest.fixture
def table() -> Table:
    return Table.create(new_uri(), SHOP)


def one_column(type_name: str, values: list[Any], arrow: pa.DataType) -> tuple[Table, pa.Table]:
    config = {
        "key": ["id"],
        "buckets": 1,
        "columns": {"id": "bigint", "v": "string", "o": type_name},
        "groups": {"g": {"columns": ["v", "o"], "ordering": ["o"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    count = len(values)
    rows = pa.table({"id": list(range(count)), "v": ["x"] * count, "o": pa.array(values, arrow)})
    return Table.create(new_uri(), config), rows


def wall(year: int, month: int, day: int, hour: int = 0) -> dt.datetime:
    """A time without a zone."""
    return dt.datetime(year, month, day, hour, tzinfo=dt.UTC).replace(tzinfo=None)


NOON = dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC)
EARLY = dt.datetime(1907, 5, 4, 3, 2, 1, 999_999, dt.UTC)
MINUTE = dt.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("type_name", "arrow", "values", "lateness", "promised"),
    [
        ("tinyint", pa.int8(), [-100, None, -120], 100, -200),
        ("smallint", pa.int16(), [7], 0, 7),
        ("int", pa.int32(), [-(2**31)], 2**40, -(2**31) - 2**40),
        ("bigint", pa.int64(), [2**62, None], 1, 2**62 - 1),
        ("bigint", pa.int64(), [-(2**63) + 5], 10, -(2**63)),
        ("bigint", pa.int64(), [5], 2**70, -(2**63)),
        ("date", pa.date32(), [dt.date(2024, 3, 1)], dt.timedelta(days=1), dt.date(2024, 2, 29)),
        ("date", pa.date32(), [dt.date(2024, 3, 1)], dt.timedelta(hours=25), dt.date(2024, 2, 28)),
        ("date", pa.date32(), [dt.date(1969, 12, 31)], dt.timedelta(hours=1), dt.date(1969, 12, 30)),
        ("date", pa.date32(), [dt.date(1, 1, 2)], dt.timedelta(days=9), dt.date(1, 1, 1)),
        ("timestamp", pa.timestamp("us", "UTC"), [NOON], MINUTE, NOON - MINUTE),
        ("timestamp", pa.timestamp("us", "UTC"), [EARLY, None], MINUTE, EARLY - MINUTE),
        ("timestamp", pa.timestamp("us", "UTC"), [EARLY], dt.timedelta.max, dt.datetime.min.replace(tzinfo=dt.UTC)),
        (
            "timestamp_ntz",
            pa.timestamp("us"),
            [NOON.replace(tzinfo=None)],
            MINUTE,
            (NOON - MINUTE).replace(tzinfo=None),
        ),
        ("timestamp_ntz", pa.timestamp("us"), [wall(1, 1, 1, 1)], dt.timedelta(1), wall(1, 1, 1)),
    ],
)
def test_every_type_that_has_watermarks(
    type_name: str, arrow: pa.DataType, values: list[Any], lateness: Any, promised: Any
) -> None:
    table, rows = one_column(type_name, values, arrow)
    for _ in range(2):  # the promise of the first commit applies to the second
        assert put(table, rows, stream="s", lateness=lateness) == 0
        assert mark(table, "s", "g").value == promised


@pytest.mark.parametrize(
    ("type_name", "arrow", "values", "lateness", "late"),
    [
        ("date", pa.date32(), [dt.date(1969, 12, 30), dt.date(1969, 12, 29)], dt.timedelta(days=1), 1),
        ("timestamp", pa.timestamp("us", "UTC"), [EARLY - MINUTE, EARLY - MINUTE - dt.timedelta.resolution], MINUTE, 1),
        ("tinyint", pa.int8(), [-128, -127], 0, 2),
    ],
)
def test_late_events_are_counted_for_every_type(
    type_name: str, arrow: pa.DataType, values: list[Any], lateness: Any, late: int
) -> None:
    first = {"date": dt.date(1969, 12, 31), "timestamp": EARLY, "tinyint": 5}[type_name]
    table, rows = one_column(type_name, values, arrow)
    _, before = one_column(type_name, [first], arrow)
    put(table, before, stream="s", lateness=lateness)
    assert put(table, rows, stream="s", lateness=lateness) == late


def test_a_promise_survives_the_widening_of_its_column() -> None:
    table, rows = one_column("tinyint", [-128], pa.int8())
    put(table, rows, stream="s", lateness=10)
    table.widen_column("o", "bigint")
    assert mark(table, "s", "g").value == -138
    _, wide = one_column("bigint", [-139, -138, 1 << 40], pa.int64())
    assert put(table, wide, stream="s", lateness=10) == 1
    assert mark(table, "s", "g").value == (1 << 40) - 10


# Completeness


def test_complete_through_includes_the_value_itself(table: Table) -> None:
    put(table, orders(1, ts=10), lateness=0)
    put(table, payments(1, ts=9), lateness=0, stream="payments")
    assert statuses(table, complete_through=8) == {1: "new"}
    assert statuses(table, complete_through=9, complete_groups=["order"]) == {1: "new"}
    # Another event with value 9 may still arrive.
    with pytest.raises(NotComplete) as raised:
        table.snapshot(complete_through=9)
    assert raised.value.code == "NOT_COMPLETE"
    assert "not complete through 9: stream 'payments' (group 'payment') has watermark 9" in raised.value.message
    assert "'orders'" not in raised.value.message
    assert "complete_groups (--complete-groups)" in raised.value.hint
    assert "require" not in raised.value.hint


def test_streams_without_commits_or_promises_are_not_complete(table: Table) -> None:
    append(table, orders(1, ts=10))
    with pytest.raises(NotComplete) as raised:
        table.snapshot(complete_through=-5)
    assert "stream 'orders' (group 'order') has no watermark in lane 'orders'" in raised.value.message
    assert "stream 'payments' (group 'payment') was never written" in raised.value.message
    assert "lateness" in raised.value.hint


def test_every_stream_that_feeds_a_group_counts() -> None:
    config = {**SHOP, "streams": {**SHOP["streams"], "fixes": {"groups": ["order"], "on_delete": "row"}}}
    table = Table.create(new_uri(), config)
    put(table, orders(1, ts=10))
    with pytest.raises(NotComplete, match=r"'fixes' .group 'order'. was never written"):
        table.snapshot(complete_through=6, complete_groups=["order"])
    put(table, orders(1, ts=10), stream="fixes")
    put(table, orders(1, ts=30), stream="fixes", lane="fast")
    table.snapshot(complete_through=6, complete_groups=["order"])
    with pytest.raises(NotComplete, match=r"'fixes' .group 'order'. has watermark 7 .lane 'fixes'."):
        table.snapshot(complete_through=7, complete_groups=["order"])


def test_an_older_snapshot_has_its_original_completeness(table: Table) -> None:
    put(table, orders(1, ts=10), lateness=0)
    old = str(table.snapshot().cut)
    put(table, orders(1, ts=20), lateness=0)
    table.snapshot(complete_through=15, complete_groups=["order"])
    with pytest.raises(NotComplete):
        table.snapshot(old, complete_through=15, complete_groups=["order"])


@pytest.mark.parametrize(
    ("type_name", "value", "good", "bad"),
    [
        ("timestamp", NOON, NOON - dt.timedelta.resolution, NOON),
        ("timestamp", NOON, "2024-01-31T12:59:59.999999+01:00", "2024-01-31T12:00:00Z"),
        ("timestamp", NOON, dt.date(2024, 1, 30), dt.date(2024, 1, 31)),
        ("timestamp", dt.datetime(2024, 2, 1, tzinfo=dt.UTC), "2024-01-31", "2024-02-01"),
        ("timestamp_ntz", wall(2024, 2, 1), dt.date(2024, 1, 31), wall(2024, 2, 1)),
        ("timestamp_ntz", EARLY.replace(tzinfo=None), "1907-05-04T03:02:01.999998", "1907-05-04T03:02:01.999999"),
        ("date", dt.date(2024, 2, 1), "2024-01-31", "2024-02-01"),
        ("date", dt.date(2024, 2, 1), "2024-01-31T23:59:59Z", "2024-02-01T00:00:00Z"),
        ("date", dt.date(2024, 2, 1), dt.datetime.min.replace(tzinfo=dt.UTC), wall(9999, 12, 31)),
        ("date", dt.date(1969, 12, 31), "1969-12-30T23:00:00", "1969-12-31T00:00:00"),
        ("bigint", 10, "9", " +10 "),
        ("int", -100, -101, 10**30),
    ],
)
def test_accepted_values_of_complete_through(type_name: str, value: Any, good: Any, bad: Any) -> None:
    arrow = {
        "int": pa.int32(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    table, rows = one_column(type_name, [value], arrow.get(type_name, pa.int64()))
    put(table, rows, stream="s", lateness=0 if isinstance(value, int) else dt.timedelta(0))
    table.snapshot(complete_through=good)
    with pytest.raises(NotComplete):
        table.snapshot(complete_through=bad)


@pytest.mark.parametrize(
    ("type_name", "through", "hint"),
    [
        ("timestamp", 5, "with a time zone"),
        ("timestamp", wall(2024, 1, 1), "with a time zone"),
        ("timestamp", "2024-01-01T00:00:00", "with a time zone"),
        ("timestamp_ntz", NOON, "without a time zone"),
        ("date", 5, "a date"),
        ("bigint", NOON, "an integer"),
        ("bigint", dt.date(2024, 1, 1), "an integer"),
        ("bigint", "soon", "an integer"),
        ("bigint", "", "an integer"),
        ("bigint", True, "an integer"),
        ("bigint", 1.5, "an integer"),
        ("string", 5, "complete_groups"),
    ],
)
def test_refused_values_of_complete_through(type_name: str, through: Any, hint: str) -> None:
    table, _ = one_column(type_name, [], pa.string())
    with pytest.raises(InvalidInput, match="complete_through") as raised:
        table.snapshot(complete_through=through)
    assert hint in raised.value.hint


def test_unknown_groups_are_refused(table: Table) -> None:
    with pytest.raises(NotFound, match="no group 'ordr'"):
        table.snapshot(complete_through=5, complete_groups=["ordr"])
    with pytest.raises(NotComplete):
        table.snapshot(complete_through=5, complete_groups=[])
    with pytest.raises(InvalidInput, match="needs complete_through"):
        table.snapshot(complete_groups=["order"])
