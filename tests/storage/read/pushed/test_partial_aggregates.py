"""Partial aggregates, united by Python, are the aggregates of all rows; with numbers as large as their types allow."""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft import Table
from weft.storage.read.pushed import partial_aggregates
from weft.storage.read.pushed.aggregated_scan import AggregatedScan
from weft.storage.read.pushed.partial_aggregates import Aggregate, AggregateKind, Aggregation, aggregate_batches

MAX = 2**63 - 1

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("real_key", pa.float64()),
        ("long", pa.int64()),
        ("small", pa.int8()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("price", pa.decimal128(4, 2)),
        ("huge", pa.decimal128(38, 3)),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("pair", pa.struct([("x", pa.int64())])),
    ]
)
FLOATS = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.25, 3e38]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "key": st.sampled_from(["", "a", "b", "ä", None]),
    "real_key": st.sampled_from([*FLOATS, None]),
    "long": st.sampled_from([MAX, -MAX - 1, MAX // 3, 1, 0, -1, None]),
    "small": st.sampled_from([127, -128, 0, 5, None]),
    "double": st.sampled_from([*FLOATS, None]),
    "float": st.sampled_from([*FLOATS, None]),
    "price": st.sampled_from([decimal.Decimal(text) for text in ("99.99", "-99.99", "0.01", "0")] + [None]),
    "huge": st.sampled_from([decimal.Decimal(text) for text in ("9" * 35 + ".999", "-1.001", "0")] + [None]),
    "flag": st.sampled_from([True, False, None]),
    "text": st.sampled_from(["", "z", "Z", "é", "\U0001f600", "￿", None]),
    "bytes": st.sampled_from([b"", b"\x00", b"\xff", b"\x7f", None]),
    "day": st.sampled_from([-719162, 0, 20_000, None]),
    "at": st.sampled_from([-62_135_596_800_000_000, 0, 1, None]),
    "pair": st.none(),
}
ROWS = st.lists(st.fixed_dictionaries(VALUES), max_size=12)
BATCHES = st.lists(ROWS, max_size=4)
EVERY = [
    Aggregate(AggregateKind.COUNT_ROWS),
    *(Aggregate(AggregateKind.COUNT, name) for name in SCHEMA.names[:-1]),
    *(Aggregate(AggregateKind.SUM, name) for name in ("long", "small", "price", "huge")),
    *(Aggregate(kind, name) for kind in (AggregateKind.MIN, AggregateKind.MAX) for name in SCHEMA.names[1:-1]),
]
# A sum of large numbers divides all rows into parts, so a few aggregates are chosen.
AGGREGATES = st.lists(st.sampled_from(EVERY), max_size=4, unique=True)
GROUPS = st.sampled_from([(), ("key",), ("real_key",), ("key", "flag"), ("price", "at")])


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def order(value: Any) -> Any:
    """A key by which Python orders values as Spark does."""
    if isinstance(value, float):
        return (value != value, value + 0.0 if value == value else 0.0)  # noqa: PLR0124 - NaN differs from itself
    return value.encode() if isinstance(value, str) else value


def identity(value: Any) -> Any:
    """A value that is the same for values that Spark takes as equal."""
    return order(value) if isinstance(value, float) else value


def of_values(kind: AggregateKind, values: Sequence[Any], *, partial: bool) -> Any:
    """An aggregate of values, or of partial results, some of which are null."""
    found = [value for value in values if value is not None]
    if kind is AggregateKind.COUNT_ROWS:
        return sum(found) if partial else len(values)
    if kind is AggregateKind.COUNT:
        return sum(found) if partial else len(found)
    if not found:
        return None
    if kind is AggregateKind.SUM:
        with decimal.localcontext(prec=100):
            return sum(found)
    return identity((min if kind is AggregateKind.MIN else max)(found, key=order))


def expected(rows: Sequence[dict[str, Any]], aggregation: Aggregation) -> dict[Any, list[Any]]:
    groups: dict[Any, list[dict[str, Any]]] = {} if aggregation.groups else {(): []}
    for row in rows:
        groups.setdefault(tuple(identity(row[name]) for name in aggregation.groups), []).append(row)
    return {
        key: [
            of_values(each.kind, [row[each.column] if each.column else 1 for row in of_group], partial=False)
            for each in aggregation.aggregates
        ]
        for key, of_group in groups.items()
    }


def united(partials: Sequence[pa.RecordBatch], aggregation: Aggregation) -> dict[Any, list[Any]]:
    """What an engine makes of partial results."""
    groups: dict[Any, list[list[Any]]] = {}
    count = len(aggregation.groups)
    for partial in partials:
        for row in zip(*(column.to_pylist() for column in partial.columns), strict=True):
            groups.setdefault(tuple(map(identity, row[:count])), []).append(list(row[count:]))
    return {
        key: [
            of_values(each.kind, [row[number] for row in rows], partial=True)
            for number, each in enumerate(aggregation.aggregates)
        ]
        for key, rows in groups.items()
    }


def as_read(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows as Arrow gives them back: floats are rounded, times are Python's."""
    return [row for batch in batches for row in batch.to_pylist()]


@settings(max_examples=settings().max_examples * 4)
@given(BATCHES, GROUPS, AGGREGATES, st.sampled_from([2, 1 << 16]))
def test_united_partial_results_are_the_result(
    rows: list[list[dict[str, Any]]], groups: tuple[str, ...], aggregates: list[Aggregate], most_groups: int
) -> None:
    assume(groups or aggregates)
    aggregation = Aggregation(groups, tuple(aggregates))
    batches = [batch_of(part) for part in rows]
    with mock.patch.object(partial_aggregates, "MOST_GROUPS", most_groups):
        found = list(aggregate_batches(batches, aggregation, SCHEMA))
    assert all(batch.schema == aggregation.result(SCHEMA) for batch in found)
    assert united(found, aggregation) == expected(as_read(batches), aggregation)


@given(BATCHES)
def test_no_partial_sum_leaves_the_type_of_its_column(rows: list[list[dict[str, Any]]]) -> None:
    aggregation = Aggregation((), tuple(each for each in EVERY if each.kind is AggregateKind.SUM))
    batches = [batch_of(part) for part in rows]
    for found in aggregate_batches(batches, aggregation, SCHEMA):
        found.validate(full=True)  # that decimals have no more digits than their type
    total = Aggregation(("key",), aggregation.aggregates)
    for found in aggregate_batches(batches, total, SCHEMA):
        found.validate(full=True)


@pytest.mark.parametrize("groups", [(), ("key",)])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("long", [MAX, MAX]),
        ("long", [-MAX - 1] * 3),
        ("long", [2**61] * 9),
        ("price", [decimal.Decimal("60.00")] * 3),
        ("price", [decimal.Decimal("-1.00")] * 250),
        ("huge", [decimal.Decimal("9" * 35)] * 4),
    ],
)
def test_a_sum_that_is_too_large_comes_in_parts(groups: tuple[str, ...], column: str, values: list[Any]) -> None:
    aggregation = Aggregation(groups, (Aggregate(AggregateKind.SUM, column), Aggregate(AggregateKind.COUNT, column)))
    rows = [dict.fromkeys(SCHEMA.names) | {"key": "a", column: value} for value in values]
    for size in (1, len(rows)):
        batches = [batch_of(rows[start : start + size]) for start in range(0, len(rows), size)]
        found = list(aggregate_batches(batches, aggregation, SCHEMA))
        for batch in found:
            batch.validate(full=True)
        assert united(found, aggregation) == expected(rows, aggregation)
        assert (
            2 <= sum(batch.num_rows for batch in found) <= len(values) + 1
        )  # without GROUP BY a row of no values, too


def test_a_sum_of_doubles_may_differ_in_the_order_of_its_additions_only() -> None:
    values = [0.1 * number for number in range(10_000)]
    batch = pa.record_batch({"x": values})
    sums = Aggregation((), (Aggregate(AggregateKind.SUM, "x"),))
    (found,) = aggregate_batches([batch] * 3, sums, batch.schema)
    assert found.column(0)[0].as_py() == pytest.approx(3 * math.fsum(values), rel=1e-12)


def test_there_is_no_result_of_nothing_of_nested_columns_and_of_other_sums() -> None:
    for aggregation in (
        Aggregation((), ()),
        Aggregation(("pair",), ()),
        *(
            Aggregation((), (Aggregate(kind, "pair"),))
            for kind in AggregateKind
            if kind is not AggregateKind.COUNT_ROWS
        ),
        *(Aggregation((), (Aggregate(AggregateKind.SUM, name),)) for name in ("text", "flag", "day", "at", "bytes")),
    ):
        assert aggregation.result(SCHEMA) is None


def test_memory_has_a_bound_however_many_groups_there_are() -> None:
    largest = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal largest
        for number in range(40):
            keys = [f"key {number // 2} {row}" for row in range(5_000)] * 2
            yield pa.record_batch({"key": keys, "n": [1] * len(keys)})
            largest = max(largest, pa.total_allocated_bytes())

    aggregation = Aggregation(("key",), (Aggregate(AggregateKind.SUM, "n"),))
    before = pa.total_allocated_bytes()
    schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
    batch_bytes = 30 * 10_000
    with mock.patch.object(partial_aggregates, "MOST_GROUPS", 12_000):
        groups = sum(found.num_rows for found in aggregate_batches(batches(), aggregation, schema))
    assert 20 * 5_000 <= groups <= 40 * 5_000
    assert largest - before < 10 * batch_bytes
    # Groups that hardly occur twice in a batch are not kept at all.
    distinct = (pa.record_batch({"key": [f"{n} {row}" for row in range(1_000)], "n": [1] * 1_000}) for n in range(3))
    assert [found.num_rows for found in aggregate_batches(distinct, aggregation, schema)] == [1_000] * 3


def test_tasks_aggregate_what_they_read(tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "t",
        {
            "key": ["id"],
            "buckets": 4,
            "columns": {"id": "bigint", "kind": "string", "n": "bigint"},
            "groups": {"g": {"columns": ["kind", "n"]}},
            "streams": {"s": {"groups": ["g"]}},
        },
    )
    aggregation = Aggregation((), (Aggregate(AggregateKind.COUNT_ROWS), Aggregate(AggregateKind.SUM, "n")))

    def result(*filters: Any) -> list[Any]:
        scan = AggregatedScan(table.snapshot().scan(["n"], filter=filters[0] if filters else None), aggregation)
        tasks = scan.without_tasks()
        return united([batch for task in scan.tasks for batch in tasks.read(task)], aggregation)[()]

    assert result() == [0, None]
    with table.writer("s") as writer:
        writer.append(pa.table({"id": range(100), "kind": ["a"] * 100, "n": range(100)}))
        table.compact()
        writer.append(pa.table({"id": range(50, 150), "kind": ["b"] * 100, "n": range(100)}))
    assert result() == [150, sum(range(50)) + sum(range(100))]
    assert result([("id", "=", 1_000)]) == [0, None]
    assert result([("kind", "=", "b"), ("n", "<", 3)]) == [3, 3]
