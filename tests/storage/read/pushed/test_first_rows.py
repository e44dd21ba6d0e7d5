"""The first rows of batches are those that Python finds by sorting all rows as Spark does."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import Table
from weft.storage.read.pushed import first_rows as module
from weft.storage.read.pushed.first_rows import FirstRows, FirstRowsScan, SortKey, first_rows, in_one_task
from weft.storage.read.request.filter_input import parse_filter
from weft.storage.read.request.scan_request import ScanRequest

FLOATS = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.25, None]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [2**63 - 1, -(2**63), 0, 1, None]),
    "tiny": (pa.int8(), [127, -128, None]),
    "double": (pa.float64(), FLOATS),
    "real": (pa.float32(), FLOATS),
    "price": (pa.decimal128(5, 2), [decimal.Decimal("-9.99"), decimal.Decimal(100), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), ["", "a", "B", "é", "\U0001f600", "￿", None]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\x7f", b"\xff", None]),
    "day": (pa.date32(), [dt.date(1066, 1, 1), dt.date(2026, 1, 1), None]),
    "at": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None],
    ),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
ROWS = st.lists(
    st.fixed_dictionaries({name: st.sampled_from(values) for name, (_, values) in VALUES.items()}), max_size=9
)
KEYS = st.lists(
    st.builds(SortKey, st.sampled_from(list(VALUES)), descending=st.booleans(), nulls_first=st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda key: key.column,
)


def batches_of(parts: list[list[dict[str, Any]]]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows, SCHEMA) for rows in parts]


def rank(value: Any) -> Any:
    """A key by which Python orders values as Spark does; values that are equal for Spark have the same."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value + 0.0)
    return value.encode() if isinstance(value, str) else value


def compare(order: tuple[SortKey, ...], left: dict[str, Any], right: dict[str, Any]) -> int:
    for key in order:
        one, other = left[key.column], right[key.column]
        if one is None or other is None:
            if one is not other:
                return -1 if (one is None) is key.nulls_first else 1
            continue
        first, second = rank(one), rank(other)
        if first != second:
            return -1 if (first < second) is not key.descending else 1
    return 0


def ranked(order: tuple[SortKey, ...], rows: list[dict[str, Any]]) -> list[list[Any]]:
    """The values of the order of rows, in order."""
    in_order = sorted(rows, key=functools.cmp_to_key(functools.partial(compare, order)))
    return [[None if row[key.column] is None else (rank(row[key.column]),) for key in order] for row in in_order]


@settings(max_examples=300, deadline=None)
@given(st.lists(ROWS, max_size=4), KEYS, st.integers(0, 8))
def test_the_first_rows_of_an_order_are_those_of_a_sort(
    parts: list[list[dict[str, Any]]], keys: list[SortKey], count: int
) -> None:
    order = tuple(keys)
    batches = batches_of(parts)
    every = [row for batch in batches for row in batch.to_pylist()]
    found = [row for batch in first_rows(batches, FirstRows(count, order)) for row in batch.to_pylist()]
    assert ranked(order, found) == ranked(order, every)[:count]
    left = list(map(str, every))
    for row in found:
        left.remove(str(row))  # each row once, with all of its columns


@given(st.lists(ROWS, max_size=4), st.integers(0, 12))
def test_a_limit_gives_so_many_rows_and_reads_no_more_batches(parts: list[list[dict[str, Any]]], count: int) -> None:
    read = 0

    def reading() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in batches_of(parts):
            read += batch.num_rows
            yield batch

    found = [row for batch in first_rows(reading(), FirstRows(count)) for row in batch.to_pylist()]
    every = [row for batch in batches_of(parts) for row in batch.to_pylist()]
    assert list(map(str, found)) == list(map(str, every[:count]))
    before = [sum(map(len, parts[:number])) for number in range(len(parts) + 1)]
    assert read <= min((rows for rows in before if rows >= count), default=before[-1])


@pytest.mark.parametrize("column", ["double", "real"])
@pytest.mark.parametrize("descending", [False, True])
def test_the_next_column_decides_between_the_two_zeros(column: str, *, descending: bool) -> None:
    rows = [dict.fromkeys(VALUES) | {column: zero, "long": number} for zero, number in ((0.0, 2), (-0.0, 1), (0.0, 0))]
    order = (SortKey(column, descending=descending), SortKey("long", descending=descending))
    for parts in ([rows], [[row] for row in rows]):
        (found,) = first_rows(batches_of(parts), FirstRows(2, order))
        assert found.column("long").to_pylist() == ([2, 1] if descending else [0, 1])


def test_a_limit_counts_rows_without_columns() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.nulls(5, pa.struct([])))
    assert [found.num_rows for found in first_rows([batch, batch, batch], FirstRows(7))] == [5, 2]


def test_what_tasks_cannot_order_does_not_fit() -> None:
    schema = pa.schema([("pair", pa.struct([("x", pa.int64())])), ("x", pa.int64())])
    assert FirstRows(10, (SortKey("x"),)).fits(schema)
    assert not FirstRows(10, (SortKey("x"), SortKey("pair"))).fits(schema)
    assert not FirstRows(module.MOST_ORDERED + 1, (SortKey("x"),)).fits(schema)
    assert FirstRows(module.MOST_ORDERED + 1).fits(schema)


def test_every_task_returns_the_first_of_its_rows(tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "t",
        {
            "key": ["id"],
            "buckets": 4,
            "columns": {"id": "bigint", "n": "int"},
            "groups": {"g": {"columns": ["n"]}},
            "streams": {"s": {"groups": ["g"]}},
        },
    )
    with table.writer("s") as writer:
        writer.append(pa.table({"id": range(100), "n": pa.array(range(100, 200), pa.int32())}))
    scan = table.snapshot().scan(["n"], parallelism=4)
    top = FirstRowsScan(scan, FirstRows(3, (SortKey("n", descending=True),)))
    found = [batch.column("n").to_pylist() for task in top.tasks for batch in top.without_tasks().read(task)]
    assert len(found) == len(scan.tasks) > 0
    assert sorted(value for values in found for value in values)[-3:] == [197, 198, 199]
    assert all(len(values) == 3 for values in found)
    some = FirstRowsScan(scan, FirstRows(3))
    assert [sum(batch.num_rows for batch in some.read(task)) for task in some.tasks] == [3] * len(scan.tasks)


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (FirstRows(5), "PushedLimit: LIMIT 5"),
        (
            FirstRows(2, (SortKey("a"), SortKey("b", descending=True, nulls_first=False))),
            "PushedTopN: ORDER BY [a ASC NULLS FIRST, b DESC NULLS LAST] LIMIT 2",
        ),
    ],
)
def test_its_text_is_that_of_sources_of_spark(first: FirstRows, text: str) -> None:
    assert str(first) == text


CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 4,
    "columns": {"id": "bigint", "n": "int", "at": "bigint", "m": "int"},
    "groups": {"g": {"columns": ["n", "at"], "ordering": ["at"]}, "h": {"columns": ["m"]}},
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}, "t": {"groups": ["h"], "on_delete": "group"}},
}
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from("UUID"),
            st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True),
            st.one_of(st.none(), st.integers(0, 9)),
        ),
        st.sampled_from(["compact", "compact some", "fold"]),
    ),
    min_size=2,
    max_size=8,
)


@given(events=EVENTS, columns=st.sampled_from([[], ["n"]]))
@settings(max_examples=60)
def test_one_task_that_surely_has_enough_rows_has_them(events: list[Any], columns: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table.create(f"{folder}/t", CONFIG)
        for event in events:
            if event == "compact":
                table.compact()
            elif event == "compact some":
                table.compact(lambda part: part.group.bucket < 2)
            elif event == "fold":
                table.fold()
            else:
                op, ids, at = event
                values = (
                    {"n": pa.array(ids, pa.int32()), "at": [at] * len(ids)}
                    if at is not None
                    else {"m": pa.array(ids, pa.int32())}
                )
                with table.writer("s" if at is not None else "t") as writer:
                    writer.append(pa.table({"id": ids, "_op": [op] * len(ids), **values}))
        snapshot = table.snapshot()
        visible = snapshot.to_arrow()
        scan = snapshot.choose_slices(ScanRequest(columns))
        for count in range(-1, 33):
            found = in_one_task(scan, count, snapshot.files)
            if found is None:
                continue
            assert 0 < count <= len(visible)
            (task,) = found.tasks
            rows = list(FirstRowsScan(found, FirstRows(count)).read(task))
            assert sum(map(len, rows)) == count
            for batch in rows if columns else ():
                assert set(batch.column("n").to_pylist()) <= set(visible.column("n").to_pylist())


def test_file_groups_without_logs_are_read_for_a_limit(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", CONFIG)
    with table.writer("s") as writer:
        rows = pa.table({"id": range(100), "n": pa.array(range(100), pa.int32()), "at": [1] * 100})
        writer.append(rows)
        table.compact()
        writer.append(rows)
    table.compact(lambda part: part.group.bucket == 2)
    snapshot = table.snapshot()
    scan = snapshot.choose_slices(ScanRequest(["n"]))
    (here,) = (part.slice.base_rows for part in scan.slices if part.slice is not None and part.group.bucket == 2)
    one = in_one_task(scan, here, snapshot.files)
    assert one is not None
    assert [part.group.bucket for part in one.slices] == [2]
    two = in_one_task(scan, here + 1, snapshot.files)
    assert two is not None
    assert len(two.slices) == 2
    assert in_one_task(scan, 101, snapshot.files) is None
    filtered = snapshot.choose_slices(ScanRequest(["n"], parse_filter(pc.field("n") > 3)))
    assert in_one_task(filtered, 1, snapshot.files) is None
    assert in_one_task(snapshot.choose_slices(ScanRequest(["n"], require=["g"])), 1, snapshot.files) is None
