"""Predicates: reads Arrow's serialised expressions; pruning by a predicate never drops a row of the result."""

from __future__ import annotations

import datetime as dt
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from weft.storage.core.predicate import (
    And,
    ColumnRange,
    Comparison,
    Condition,
    Constant,
    In,
    IsNull,
    Not,
    Or,
    Other,
    StartsWith,
    columns_of,
    may_hold,
    possible_values,
    to_arrow,
)
from weft.storage.read.request.arrow_expression import MAX_DEPTH, read_expression

A, B = pc.field("a"), pc.field("b")
NAMES = ["a", "a b", "it's", 'say "x"', "line\nbreak", "call", "é", "a.b", "x: 'y'", ""]


@pytest.mark.parametrize("name", NAMES)
def test_column_names_are_read_unchanged(name: str) -> None:
    assert read_expression((pc.field(name) == "it's\n'x'") & B.is_valid()) == And(
        (Comparison(name, "==", "it's\n'x'", pa.string()), Not(IsNull("b")))
    )


def test_columns_of_a_condition_are_all_that_it_uses() -> None:
    nested = pc.field("s", "x")
    found = read_expression((pc.add(A, B) > 3) | ~nested.is_null() | pc.starts_with(pc.field("t"), "x"))
    assert found is not None
    assert columns_of(found) == {"a", "b", "s", "t"}


def test_an_expression_in_another_form_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.storage.read.request.arrow_expression._metadata", lambda _: iter([("novelty", "1")]))
    assert read_expression(A == 1) is None


def test_long_chains_are_one_condition_of_many() -> None:
    ones = [pc.equal(A, number) for number in range(2000)]
    for chain in (reduce(or_, ones), reduce(lambda one, other: other | one, ones), ~~reduce(or_, ones)):
        node = read_expression(chain)
        assert node is not None
        assert columns_of(node) == {"a"}
        assert may_hold(node, {"a": INTS}.get)
    assert possible_values(read_expression(reduce(or_, ones)), "a", pa.int64()) == set(range(2000))  # type: ignore[arg-type]
    assert read_expression(reduce(and_, [A == 1, B == 2, A < 3])) == read_expression((A == 1) & ((B == 2) & (A < 3)))
    assert read_expression((A == 1) & ((B == 2) | (A < 3))) != read_expression((A == 1) & (B == 2) & (A < 3))


def test_only_the_columns_of_deep_trees_are_known() -> None:
    def sums(count: int) -> pc.Expression:
        return reduce(pc.add, [A] * count) == 1

    def alternating(depth: int) -> pc.Expression:
        return reduce(lambda found, level: found & (B == 2) if level % 2 else found | (B == 2), range(depth), A == 1)

    assert read_expression(sums(2000)) == Other(frozenset({"a"}))
    for depth in (10, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 300):
        found = read_expression(alternating(depth) & (pc.field("c") == 1))
        assert found is not None
        assert columns_of(found) == {"a", "b", "c"}
        assert possible_values(found, "c", pa.int64()) == {1}


@pytest.mark.parametrize(
    "far",
    [
        pa.scalar(2**62, pa.timestamp("us", "UTC")),
        pa.scalar(2**30, pa.date32()),
        pa.scalar(dt.datetime(9999, 12, 31, 23, 30, tzinfo=dt.UTC), pa.timestamp("us", "Europe/Berlin")),
    ],
    ids=["timestamp", "date", "zone"],
)
def test_times_outside_pythons_calendar_are_not_read(far: pa.Scalar) -> None:
    assert read_expression(pc.less(A, far)) is None
    assert read_expression(A.isin(pa.array([far]))) is None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (A == 1, {1}),
        (pc.scalar(1) == A, {1}),
        (A.isin([1, 2, None]), {1, 2}),
        ((A == 1) | (A == 2), {1, 2}),
        ((A == 1) | (B == 2), None),
        ((A == 1) & (B == 2), {1}),
        ((A == 1) & (A == 2), set()),
        (A == 2**40, set()),  # not an int32
        (A == 1.0, None),
        (A > 1, None),
        (~(A == 1), None),
        (pc.add(A, 1) == 2, None),
        (pc.scalar(pa.scalar(None, pa.int64())) == A, set()),
        (pc.if_else(A == 1, B == 1, B == 2), None),
        (pc.if_else(A == 1, B == 1, B == 2) & (A == 3), {3}),
        (pc.scalar(pa.scalar(value=False)), set()),
        (pc.scalar(pa.scalar(value=True)), None),
        (pc.field("s", "a") == 1, None),
    ],
    ids=str,
)
def test_values_that_a_column_can_have(expression: pc.Expression, expected: set[Any] | None) -> None:
    node = read_expression(expression)
    assert node is not None
    assert possible_values(node, "a", pa.int32()) == expected


INTS = ColumnRange(pa.int64(), 10, 20, nulls=0, rows=5)
SOME = ColumnRange(pa.int64(), 10, 20, nulls=2, rows=5)
ONE = ColumnRange(pa.int64(), 7, 7, nulls=0, rows=5)
NULLS = ColumnRange(pa.int64(), None, None, nulls=5, rows=5)
UNKNOWN = ColumnRange(pa.int64(), None, None, nulls=None, rows=5)
FLOATS = ColumnRange(pa.float64(), 1.0, 2.0, nulls=0, rows=5)  # values may include NaN
NULL = pc.scalar(pa.scalar(None, pa.int64()))


@pytest.mark.parametrize(
    ("expression", "known", "expected"),
    [
        (A == 10, INTS, True),
        (A == 9, INTS, False),
        (pc.scalar(9) == A, INTS, False),
        (A < 10, INTS, False),
        (A <= 10, INTS, True),
        (A > 20, INTS, False),
        (A >= 20, INTS, True),
        (pc.scalar(20) < A, INTS, False),
        (pc.scalar(20) <= A, INTS, True),
        (A != 7, ONE, False),
        (A != 7, INTS, True),
        (~(A == 7), ONE, False),
        (~(A >= 10), INTS, False),
        (~(A < 10), INTS, True),
        (A.is_null(), INTS, False),
        (A.is_null(), SOME, True),
        (~A.is_null(), NULLS, False),
        (A.is_valid(), NULLS, False),
        (A.is_valid(), SOME, True),
        (A == 1, NULLS, False),
        (A == NULL, INTS, False),
        (A == 1, UNKNOWN, True),
        (A == 1, None, True),
        (A.is_valid(), None, True),
        (A.isin([1, 2]), INTS, False),
        (A.isin([1, 15]), INTS, True),
        (A.isin([1, None]), INTS, False),
        (A.isin([1, None]), SOME, True),
        (A.isin([1, None]), NULLS, True),
        (A.isin([1]), NULLS, False),
        (A.isin([30, 1, 20]), INTS, True),
        (A.isin([30, 1, 10]), INTS, True),
        (A.isin([30, 1]), INTS, False),
        (A.isin(pa.array([], pa.int64())), INTS, False),
        ((A == 9) | (B == 1), INTS, True),
        ((A == 9) & (B == 1), INTS, False),
        (pc.if_else(A == 9, B == 1, pa.scalar(None, pa.bool_())), INTS, True),  # only its columns are known
        (pc.if_else(A == 9, B == 1, pa.scalar(None, pa.bool_())) & (A == 9), INTS, False),
        (A == 9.0, INTS, True),  # Arrow compares as doubles
        (A == 3.0, FLOATS, False),
        (A == 3, FLOATS, True),
        (~(A < 3.0), FLOATS, True),  # NaN is not less
        (A != 1.0, ColumnRange(pa.float64(), 1.0, 1.0, 0, 5), True),
        (A.is_null(), FLOATS, True),
        (A.isin([5.0]), FLOATS, True),
        (pc.add(A, 1) == 1, INTS, True),
        (~((A == 7) | (A < 10)), ONE, False),
        (~((A == 7) & (B == 1)), ONE, True),
        (~((A == 7) & (A < 10)), ONE, False),
        (~~(A == 9), INTS, False),
        (~A.isin([7]), ONE, True),
        (~(A == NULL), INTS, False),
        (~pc.scalar(pa.scalar(value=True)), INTS, False),
        (~pc.scalar(pa.scalar(None, pa.bool_())), INTS, False),
        (pc.scalar(pa.scalar(value=False)), INTS, False),
    ],
    ids=str,
)
def test_whether_a_condition_may_hold(expression: pc.Expression, known: ColumnRange | None, *, expected: bool) -> None:
    node = read_expression(expression)
    assert node is not None
    assert may_hold(node, {"a": known}.get) is expected


ROWS = pa.table(
    {
        "a": pa.array([None, 1, 2, 3, 7], pa.int64()),
        "b": pa.array([1.5, None, float("nan"), 3.0, -0.0]),
        "s": pa.array(["x", "xy", None, "", "y"]),
    }
)
LESS, VALID, NONE = Comparison("a", "<", 3, pa.int64()), Not(IsNull("a")), Constant(None)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (LESS, [None, True, True, False, False]),
        (Comparison("a", "==", None, pa.int64()), [None] * 5),
        (Comparison("b", "!=", 3.0, pa.float64()), [True, None, True, False, True]),
        (In("a", (1, 7), pa.int64()), [None, True, False, False, True]),
        (In("a", (1, 7), pa.int64(), of_null=False), [False, True, False, False, True]),
        (In("a", (1, 7), pa.int64(), of_null=True), [True, True, False, False, True]),
        (In("a", (), pa.int64()), [None, False, False, False, False]),
        (IsNull("a"), [True, False, False, False, False]),
        (VALID, [False, True, True, True, True]),
        (StartsWith("s", "x"), [True, True, None, False, False]),
        (Not(LESS), [None, False, False, True, True]),
        (And((LESS, VALID)), [False, True, True, False, False]),
        (Or((LESS, VALID)), [None, True, True, True, True]),
        (And((LESS, NONE)), [None, None, None, False, False]),
        (And(()), [True] * 5),
        (Or(()), [False] * 5),
    ],
    ids=str,
)
def test_conditions_are_three_valued_in_arrow(condition: Condition, expected: list[bool | None]) -> None:
    expression = to_arrow(condition)
    found = ds.dataset(ROWS).scanner(columns={"found": expression}).to_table()["found"].to_pylist()
    assert found == expected
    again = read_expression(expression)
    assert again is not None
    assert columns_of(again) == columns_of(condition)


def test_a_condition_that_only_arrow_knows_is_not_evaluated() -> None:
    with pytest.raises(TypeError, match="can only be evaluated by the expression"):
        to_arrow(And((LESS, Other(frozenset({"a"})))))
