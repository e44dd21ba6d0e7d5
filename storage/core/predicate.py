"""Conditions on rows: what a filter says, as a tree that Arrow can evaluate and that can be used for pruning.

Conditions are three-valued, as in SQL: a comparison with null is null, and rows for which a condition is null are not
in the result. For pruning, `possible_values` and `may_hold` compute safe approximations: they may allow too much, never
too little.
"""

from __future__ import annotations

import operator as python
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Operator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]

MAX_LOOKED_UP: Final = 1_000  # values to look up in a Bloom filter; each takes some microseconds

NEGATED: Final[dict[Operator, Operator]] = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_COMPARE: Final[dict[Operator, Callable[[pc.Expression, pc.Expression], pc.Expression]]] = {
    "==": python.eq,
    "!=": python.ne,
    "<": python.lt,
    "<=": python.le,
    ">": python.gt,
    ">=": python.ge,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition that compares a column with a value.

    Attributes:
        column: Name of the column.
        operator: How the column, on the left, is compared with the value.
        value: The value (`pa.Scalar.as_py`); None for null.
        type: Type of the value.
    """

    column: str
    operator: Operator
    value: Any
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class In:
    """A condition that a column has one of some values.

    Attributes:
        column: Name of the column.
        values: The values, ascending and distinct, without null.
        type: Type of the values.
        of_null: Value of the condition if the column is null: null as in SQL, or true or false as in Arrow.
    """

    column: str
    values: tuple[Any, ...]
    type: pa.DataType
    of_null: bool | None = None

    @classmethod
    def of(cls, column: str, values: pa.Array, *, of_null: bool | None = None) -> In:
        """Build the condition for the distinct values of an array; nulls are left out."""
        return cls(column, tuple(sorted(set(values.drop_null().to_pylist()))), values.type, of_null)


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class StartsWith:
    """A condition that a string column begins with a prefix."""

    column: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A condition that is true, false or null (None) for every row."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Other:
    """A condition of which only the columns are known. Only its original expression can evaluate it."""

    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition


@dataclass(frozen=True, slots=True)
class And:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    conditions: tuple[Condition, ...]


Condition: TypeAlias = Comparison | In | IsNull | StartsWith | Constant | Other | Not | And | Or


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Statistics of a column in some rows, for pruning.

    Attributes:
        type: Type of the column.
        least, largest: Bounds of the values that are neither null nor NaN; None if unknown, or without such values.
        nulls: Number of nulls; None if unknown.
        rows: Number of rows.
        may_have: Returns whether any of some values can be in the rows; False is certain. None if unknown.
    """

    type: pa.DataType
    least: Any
    largest: Any
    nulls: int | None
    rows: int
    may_have: Callable[[Sequence[Any]], bool] | None = field(default=None, compare=False, repr=False)

    @property
    def all_null(self) -> bool:
        return self.nulls == self.rows


RangeLookup: TypeAlias = Callable[[str], ColumnRange | None]
"""A function that returns the statistics of a column by its name, or None."""


def to_arrow(condition: Condition) -> pc.Expression:
    """Convert a condition to an equivalent Arrow expression.

    Raises:
        TypeError: The condition contains an `Other`.
    """
    match condition:
        case Comparison(column, operator, value, arrow_type):
            return _COMPARE[operator](pc.field(column), pc.scalar(pa.scalar(value, arrow_type)))
        case In(column, values, arrow_type, of_null):
            field, nulls = pc.field(column), [None] if of_null else []
            among = field.isin(pa.array([*values, *nulls], arrow_type))
            return pc.if_else(field.is_valid(), among, pa.scalar(None, pa.bool_())) if of_null is None else among
        case IsNull(column):
            return pc.field(column).is_null()
        case StartsWith(column, prefix):
            return pc.starts_with(pc.field(column), prefix)
        case Constant(value):
            return pc.scalar(pa.scalar(value, pa.bool_()))
        case Not(IsNull(column)):
            return pc.field(column).is_valid()
        case Not(inner):
            return ~to_arrow(inner)
        case And(conditions):
            return reduce(python.and_, map(to_arrow, conditions), *_if_none(conditions, value=True))
        case Or(conditions):
            return reduce(python.or_, map(to_arrow, conditions), *_if_none(conditions, value=False))
    raise TypeError(f"{condition!r} can only be evaluated by the expression that it was read from")


def _if_none(conditions: tuple[Condition, ...], *, value: bool) -> list[pc.Expression]:
    return [] if conditions else [pc.scalar(pa.scalar(value))]


def columns_of(condition: Condition) -> frozenset[str]:
    """The columns of the table that a condition uses."""
    match condition:
        case Comparison(column) | In(column) | IsNull(column) | StartsWith(column):
            return frozenset({column})
        case Other(columns):
            return columns
        case Not(inner):
            return columns_of(inner)
        case And(conditions) | Or(conditions):
            return frozenset().union(*map(columns_of, conditions))
    return frozenset()


def possible_values(condition: Condition, column: str, arrow_type: pa.DataType) -> frozenset[Any] | None:
    """The values that a column can have in a row for which a condition is true.

    Args:
        condition: The condition.
        column: Name of the column.
        arrow_type: Type of the column.

    Returns:
        The values (`pa.Scalar.as_py`) without null; None for any value.
    """
    match condition:
        case Constant(value):
            return None if value else frozenset()
        case Comparison(name, "==", value, value_type) if name == column:
            return _exact([value], value_type, arrow_type)
        case In(name, values, value_type) if name == column:
            return _exact(values, value_type, arrow_type)
        case IsNull(name) if name == column:
            return frozenset()
        case And(conditions):
            return reduce(_intersect, (possible_values(part, column, arrow_type) for part in conditions), None)
        case Or(conditions):
            return _union(possible_values(part, column, arrow_type) for part in conditions)
    return None


def _intersect(left: frozenset[Any] | None, right: frozenset[Any] | None) -> frozenset[Any] | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


def _union(parts: Iterable[frozenset[Any] | None]) -> frozenset[Any] | None:
    union: set[Any] = set()
    for part in parts:
        if part is None:
            return None
        union |= part
    return frozenset(union)


def _exact(values: Iterable[Any], value_type: pa.DataType, column_type: pa.DataType) -> frozenset[Any] | None:
    """The values that a column of type ``column_type`` can have; None if the two types cannot be compared exactly."""
    if not _same_kind(value_type, column_type):
        return None
    if value_type == column_type:
        return frozenset(value for value in values if value is not None)
    exact_values = set()
    for value in values:
        try:
            if value is not None:
                exact_values.add(pa.scalar(value, column_type).as_py())
        except (pa.ArrowException, OverflowError):
            continue  # no column of this type can have it
    return frozenset(exact_values)


def _same_kind(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of these types compare in Arrow as they do in Python: no cast rounds."""
    return bool(left == right or any(is_kind(left) and is_kind(right) for is_kind in _KINDS))


_KINDS: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_integer,
    lambda kind: bool(pa.types.is_string(kind) or pa.types.is_large_string(kind)),
    lambda kind: bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind)),
)


def may_hold(condition: Condition, ranges: RangeLookup) -> bool:
    """Whether a condition can be true for at least one row with these ranges of columns."""
    match condition:
        case Constant(value):
            return value is True
        case Not(Constant(value)):
            return value is False
        case Comparison(column, operator, value, arrow_type):
            return _may_compare(ranges(column), operator, value, arrow_type)
        case Not(Comparison(column, operator, value, arrow_type)):
            # A comparison with NaN is false, and ranges leave NaN out.
            stats = ranges(column)
            return _is_floating(stats) or _may_compare(stats, NEGATED[operator], value, arrow_type)
        case In(column):
            return _may_be_in(ranges(column), condition)
        case IsNull(column):
            stats = ranges(column)
            # NaN may count as null.
            return stats is None or stats.nulls is None or stats.nulls > 0 or _is_floating(stats)
        case Not(IsNull(column)):
            stats = ranges(column)
            return stats is None or not stats.all_null
        case And(conditions):
            return all(may_hold(part, ranges) for part in conditions)
        case Or(conditions):
            return any(may_hold(part, ranges) for part in conditions)
        case Not(And(conditions)):
            return any(may_hold(Not(part), ranges) for part in conditions)
        case Not(Or(conditions)):
            return all(may_hold(Not(part), ranges) for part in conditions)
        case Not(Not(inner)):
            return may_hold(inner, ranges)
    return True


def _is_floating(stats: ColumnRange | None) -> bool:
    return stats is not None and bool(pa.types.is_floating(stats.type))


def _may_compare(stats: ColumnRange | None, operator: Operator, value: Any, arrow_type: pa.DataType) -> bool:
    if value is None or (stats is not None and stats.all_null):
        return False  # comparing with null is never true
    if stats is None or stats.least is None or not _same_kind(arrow_type, stats.type):
        return True
    match operator:
        case "==":
            return bool(stats.least <= value <= stats.largest) and _may_have(stats, (value,))
        case "!=":
            return bool(stats.least != value or stats.largest != value or _is_floating(stats))
        case "<":
            return bool(stats.least < value)
        case "<=":
            return bool(stats.least <= value)
        case ">":
            return bool(stats.largest > value)
        case ">=":
            return bool(stats.largest >= value)


def _may_be_in(stats: ColumnRange | None, condition: In) -> bool:
    if stats is None or _is_floating(stats) or not _same_kind(condition.type, stats.type):
        return True
    if condition.of_null and stats.nulls != 0:
        return True
    if stats.least is None:
        return not stats.all_null
    first = bisect_left(condition.values, stats.least)
    if first == len(condition.values) or not condition.values[first] <= stats.largest:
        return False
    if stats.may_have is None:
        return True
    return _may_have(stats, condition.values[first : bisect_right(condition.values, stats.largest)])


def _may_have(stats: ColumnRange, values: Sequence[Any]) -> bool:
    return stats.may_have is None or len(values) > MAX_LOOKED_UP or stats.may_have(values)
