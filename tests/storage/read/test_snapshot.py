"""Snapshots by example: difficult cases of merged reads, and the forms of as_of."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.faulty_store import FakeClock
from weft import Table
from weft.storage.errors import InvalidInput, NotFound

TWO_GROUPS = {
    "key": ["k"],
    "buckets": 1,
    "columns": {"k": "bigint", "a": "bigint", "sa": "bigint", "b": "bigint", "sb": "bigint"},
    "groups": {"g1": {"columns": ["a", "sa"], "ordering": ["sa"]}, "g2": {"columns": ["b", "sb"], "ordering": ["sb"]}},
    "streams": {"own": {"groups": ["g1"], "on_delete": "row"}, "other": {"groups": ["g2"]}},
}


@pytest.fixture
def table() -> Table:
    return Table.create(f"memory://snapshot/{uuid.uuid4().hex}", TWO_GROUPS)


def append(table: Table, stream: str, rows: Sequence[Mapping[str, Any]]) -> None:
    with table.writer(stream) as writer:
        writer.append(pa.Table.from_pylist(list(rows)))


def rows_of(table: Table, **arguments: Any) -> list[dict[str, Any]]:
    return sorted(table.snapshot().to_arrow(**arguments).to_pylist(), key=repr)


@pytest.mark.usefixtures("small_files")
def test_a_slice_without_logs_is_read_without_its_keys(table: Table) -> None:
    append(table, "own", [{"k": k, "a": k * 10, "sa": 1} for k in range(5)])
    table.compact()
    assert rows_of(table, columns=["a"]) == [{"a": a} for a in (0, 10, 20, 30, 40)]
    assert table.snapshot().to_arrow(columns=[]).num_rows == 5


def test_one_column_shows_the_rows_that_other_groups_make_visible_or_hide(table: Table) -> None:
    append(table, "own", [{"k": 1, "a": 1, "sa": 1}, {"k": 2, "a": 2, "sa": 1}])
    append(table, "other", [{"k": 2, "b": 20, "sb": 1}, {"k": 3, "b": 30, "sb": 1}])
    assert rows_of(table, columns=["b"]) == [{"b": 20}, {"b": 30}, {"b": None}]
    assert rows_of(table, columns=["k"]) == [{"k": 1}, {"k": 2}, {"k": 3}]
    append(table, "own", [{"k": 2, "a": None, "sa": 2, "_op": "D"}])
    for _ in range(2):
        assert rows_of(table, columns=["b"]) == [{"b": 30}, {"b": None}]
        assert rows_of(table, columns=["b"], filter=pc.field("b") > 0) == [{"b": 30}]
        table.compact()


def test_a_filter_sees_only_merged_rows(table: Table) -> None:
    append(table, "own", [{"k": 1, "a": 1, "sa": 1}])
    table.compact()
    append(table, "own", [{"k": 1, "a": 2, "sa": 2}])
    assert rows_of(table, filter=pc.field("a") == 1) == []
    assert rows_of(table, columns=["k"], filter=pc.field("a") == 2) == [{"k": 1}]


def test_columns_are_in_the_requested_order(table: Table) -> None:
    append(table, "own", [{"k": 1, "a": 1, "sa": 7}])
    for _ in range(2):
        assert table.snapshot().to_arrow(["sa", "k"]).to_pydict() == {"sa": [7], "k": [1]}
        assert table.snapshot().to_reader(["sa", "k"]).schema.names == ["sa", "k"]
        table.compact()


def test_an_empty_table_returns_its_schema(table: Table) -> None:
    answer = table.snapshot().to_arrow()
    assert answer.num_rows == 0
    assert answer.schema.names == list(TWO_GROUPS["columns"])
    assert not answer.schema.field("k").nullable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["nope"]}, "no column 'nope'"),
        ({"require": ["nope"]}, "no group 'nope'"),
        ({"filter": pc.field("nope") > 1}, "filter does not fit"),
        ({"filter": pc.field("a") > "text"}, "filter does not fit"),
    ],
)
def test_unknown_columns_and_groups_are_named(table: Table, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(NotFound, match=message) as error:
        table.snapshot().to_arrow(**arguments)
    assert error.value.hint


@pytest.mark.parametrize("value", [pc.field("a"), pc.scalar(0), pc.add(pc.field("a"), 1)], ids=str)
def test_a_filter_that_is_not_a_condition_is_refused(table: Table, value: pc.Expression) -> None:
    with pytest.raises(InvalidInput, match="not a condition, its values are int"):
        table.snapshot().to_arrow(filter=value)


def test_the_cut_identifies_the_snapshot_permanently(table: Table) -> None:
    append(table, "own", [{"k": 1, "a": 1, "sa": 1}])
    snapshot = table.snapshot()
    text = str(snapshot.cut)
    assert text == "cut:1:2:own=2"
    append(table, "own", [{"k": 1, "a": 2, "sa": 2}])
    table.compact()
    again = Table.open(table.uri).snapshot(text)
    assert again.cut == snapshot.cut
    assert str(again.cut) == text
    assert again.to_arrow().to_pylist() == [{"k": 1, "a": 1, "sa": 1, "b": None, "sb": None}]


@pytest.mark.parametrize(
    ("as_of", "error", "message"),
    [
        ("cut:1:x", InvalidInput, "not a cut"),
        ("cut:1:2:own=", InvalidInput, "not a cut"),
        ("cut:1:2:own=1,", InvalidInput, "not a cut"),
        ("cut:1:2:../x=1", InvalidInput, "lane"),
        ("cut:1:99:", NotFound, "99"),
        ("cut:1:0:", NotFound, "0"),
        ("cut:1:2:own=99", NotFound, "no entry 99"),
        ("cut:1:2:nobody=1", NotFound, "nobody"),
        ("cut:2:2:own=1", NotFound, "savepoint"),
        ("yesterday", NotFound, "no savepoint 'yesterday'"),
        ("2026-01-01T10:00:00Z", InvalidInput, "is a text, not a time"),
        (dt.datetime(2026, 1, 1), InvalidInput, "no time zone"),  # noqa: DTZ001
        (dt.datetime(1999, 1, 1, tzinfo=dt.UTC), InvalidInput, "did not exist yet"),
        (dt.date(2026, 1, 1), InvalidInput, "is not a time, cut or savepoint"),
        (2, InvalidInput, "is not a time, cut or savepoint"),
    ],
)
def test_invalid_values_of_as_of_are_refused(table: Table, as_of: Any, error: type[Exception], message: str) -> None:
    append(table, "own", [{"k": 1, "a": 1, "sa": 1}])
    with pytest.raises(error, match=message) as raised:
        table.snapshot(as_of)
    assert raised.value.hint


def test_as_of_a_time_is_exact_to_the_millisecond() -> None:
    clock = FakeClock(1_700_000_000_000)
    table = Table.create(f"memory://snapshot/{uuid.uuid4().hex}", TWO_GROUPS, clock=clock)
    times = []
    with table.writer("own") as writer:
        for value in range(40):
            clock.time_ms += 997
            writer.append(pa.table({"k": [1], "a": [value], "sa": [value]}))
            times.append(clock.time_ms)
            if value % 10 == 9:
                table.compact()
    for value, time_ms in enumerate(times):
        exact = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=time_ms)
        for moment in (
            exact,
            exact + dt.timedelta(microseconds=999),
            exact.astimezone(dt.timezone(dt.timedelta(hours=5))),
        ):
            assert table.snapshot(moment).to_arrow(["a"]).to_pylist() == [{"a": value}], (moment, time_ms)
    first = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=times[0])
    assert table.snapshot(first - dt.timedelta(microseconds=1)).to_arrow().num_rows == 0


def test_commit_times_never_decrease_within_a_lane() -> None:
    """as_of uses bisection; a clock that was set back must not hide commits."""
    clock = FakeClock(1_700_000_000_000)
    table = Table.create(f"memory://snapshot/{uuid.uuid4().hex}", TWO_GROUPS, clock=clock)
    with table.writer("own") as writer:
        writer.append(pa.table({"k": [1], "a": [1], "sa": [1]}))
        clock.time_ms -= 50_000
        writer.append(pa.table({"k": [2], "a": [2], "sa": [1]}))
    moment = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert table.snapshot(moment).to_arrow(["k"]).num_rows == 2


def test_to_reader_streams_the_rows_of_to_arrow(table: Table) -> None:
    append(table, "own", [{"k": k, "a": k, "sa": 1} for k in range(50)])
    table.compact()
    append(table, "own", [{"k": k, "a": -k, "sa": 2} for k in range(40, 60)])
    whole = table.snapshot().to_arrow().sort_by("k")
    assert table.snapshot().to_reader().read_all().sort_by("k") == whole
    assert whole.num_rows == 60
