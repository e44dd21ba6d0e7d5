"""Converts Spark's pushed predicates (JVM objects) to `pyspark.sql.datasource` filters, without a Python worker.

A predicate without an exact equivalent becomes None, which is always correct, because Spark evaluates it anyway.
Literals have Catalyst's internal form (days, microseconds, unscaled decimals), so no calendar or time zone is involved.
`And` and `Or` are defined here because PySpark has none; a planner that does not know them ignores them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

__all__ = ["And", "Or", "columns_of", "parse_predicate", "safe_for_statistics"]

ColumnPath = tuple[str, ...]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

# Name in Spark's V2 expressions -> filter, and the name of the same comparison with its sides exchanged.
_COMPARISONS: dict[str, tuple[Callable[[ColumnPath, Any], Filter], str]] = {
    "=": (EqualTo, "="),
    "<=>": (EqualNullSafe, "<=>"),
    "<": (LessThan, ">"),
    "<=": (LessThanOrEqual, ">="),
    ">": (GreaterThan, "<"),
    ">=": (GreaterThanOrEqual, "<="),
    "<>": (lambda column, value: Not(EqualTo(column, value)), "<>"),
}
_STRINGS: dict[str, Callable[[ColumnPath, Any], Filter]] = {
    "STARTS_WITH": StringStartsWith,
    "ENDS_WITH": StringEndsWith,
    "CONTAINS": StringContains,
}
_PLAIN_TYPES = frozenset({"boolean", "byte", "short", "integer", "long", "float", "double", "binary"})


@dataclass(frozen=True)
class And(Filter):
    """Both hold (three-valued, as in SQL)."""

    left: Filter
    right: Filter


@dataclass(frozen=True)
class Or(Filter):
    """At least one holds (three-valued, as in SQL)."""

    left: Filter
    right: Filter


def columns_of(pushed: Filter) -> set[str]:
    """The top-level columns that a filter uses."""
    if isinstance(pushed, (And, Or)):
        return columns_of(pushed.left) | columns_of(pushed.right)
    if isinstance(pushed, Not):
        return columns_of(pushed.child)
    path: ColumnPath = getattr(pushed, "attribute")  # noqa: B009 - the base class does not declare it
    return {path[0]}


def safe_for_statistics(pushed: Filter) -> bool:
    """Whether skipping rows by Parquet's statistics and dictionaries gives the right answer for this filter.

    In Spark NaN equals itself and is greater than every number, and -0.0 equals 0.0. Statistics ignore NaN, and
    dictionaries distinguish the zeros, so Spark's Parquet reader would drop rows of the answer for such a filter.
    """
    if isinstance(pushed, (And, Or)):
        return safe_for_statistics(pushed.left) and safe_for_statistics(pushed.right)
    if isinstance(pushed, Not):
        return not _has_floats(pushed.child) and safe_for_statistics(pushed.child)
    if isinstance(pushed, (GreaterThan, GreaterThanOrEqual)):
        return not _has_floats(pushed)
    return all(number == number and number != 0 for number in _floats(pushed))  # noqa: PLR0124 - NaN differs from itself


def _has_floats(pushed: Filter) -> bool:
    return any(True for _ in _floats(pushed))


def _floats(pushed: Filter) -> Iterator[float]:
    if isinstance(pushed, (And, Or)):
        yield from _floats(pushed.left)
        yield from _floats(pushed.right)
    elif isinstance(pushed, Not):
        yield from _floats(pushed.child)
    else:
        value: Any = getattr(pushed, "value", None)
        values: tuple[Any, ...] = value if isinstance(pushed, In) else (value,)
        yield from (number for number in values if isinstance(number, float))


class _NoEquivalentError(Exception):
    pass


def parse_predicate(predicate: Any) -> Filter | None:
    """A `org.apache.spark.sql.connector.expressions.filter.Predicate` as a filter; None if it has no equivalent."""
    try:
        return _parse(predicate)
    except _NoEquivalentError:
        return None


def _parse(predicate: Any) -> Filter:
    name = predicate.name()
    children = list(predicate.children())
    if name in {"AND", "OR"}:
        kind = And if name == "AND" else Or
        return kind(_parse(children[0]), _parse(children[1]))
    if name == "NOT":
        return Not(_parse(children[0]))
    if name in {"IS_NULL", "IS_NOT_NULL"}:
        return (IsNull if name == "IS_NULL" else IsNotNull)(_column(children[0]))
    if name == "BOOLEAN_EXPRESSION":
        return EqualTo(_column(children[0]), value=True)
    if name == "IN":
        return In(_column(children[0]), tuple(_literal(child) for child in children[1:]))
    if name in _STRINGS:
        return _STRINGS[name](_column(children[0]), _literal(children[1]))
    if name in _COMPARISONS:
        left, right = children
        make, exchanged = _COMPARISONS[name]
        if _kind(left) == "LiteralValue":
            left, right, make = right, left, _COMPARISONS[exchanged][0]
        return make(_column(left), _literal(right))
    raise _NoEquivalentError


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _column(expression: Any) -> ColumnPath:
    if _kind(expression) != "FieldReference":
        raise _NoEquivalentError
    return tuple(expression.fieldNames())


def _literal(expression: Any) -> Any:
    if _kind(expression) != "LiteralValue":
        raise _NoEquivalentError
    value, type_name = expression.value(), expression.dataType().typeName()
    if value is None or type_name in _PLAIN_TYPES:
        return value
    if type_name == "string":  # a string with a collation has another name and another equality
        return value.toString()
    if type_name.startswith("decimal"):
        return value.toJavaBigDecimal()
    try:
        if type_name == "date":
            return _EPOCH.date() + dt.timedelta(days=value)
        if type_name == "timestamp":
            return _EPOCH + dt.timedelta(microseconds=value)
        if type_name == "timestamp_ntz":
            return _EPOCH.replace(tzinfo=None) + dt.timedelta(microseconds=value)
    except OverflowError:  # Spark has years that Python's calendar has not
        pass
    raise _NoEquivalentError
