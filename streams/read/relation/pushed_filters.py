"""Converts Spark's pushed predicates (JVM objects) to conditions of weft, if both give the same result for every value.

A predicate without a condition is evaluated by Spark, which is always correct. Comparisons, IN, null tests, prefixes
and their AND, OR, NOT over integers, strings, dates, timestamps, decimals, booleans and binaries are converted.
Predicates over float and double (NaN compares differently) or over fields of structs, and literals that the type of
their column cannot have, are not converted. Spark's Parquet reader may use these predicates nevertheless.

Literals have Catalyst's internal form (days, microseconds, unscaled decimals), so no calendar or time zone is involved.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from weft.storage.core.predicate import And, Comparison, Condition, In, IsNull, Not, Operator, Or, StartsWith

__all__ = ["PushedPredicate", "in_condition", "parse_predicate"]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

# Name in Spark's V2 expressions -> operator, and the name of the same comparison with its sides exchanged.
_COMPARISONS: Final[dict[str, tuple[Operator, str]]] = {
    "=": ("==", "="),
    "<=>": ("==", "<=>"),
    "<": ("<", ">"),
    "<=": ("<=", ">="),
    ">": (">", "<"),
    ">=": (">=", "<="),
    "<>": ("==", "<>"),
}
_STRINGS: Final = frozenset({"STARTS_WITH", "ENDS_WITH", "CONTAINS"})
_OVER_COLUMNS: Final = {"IS_NULL", "IS_NOT_NULL", "BOOLEAN_EXPRESSION", "IN", *_STRINGS, *_COMPARISONS}
_PLAIN_TYPES: Final = frozenset({"boolean", "byte", "short", "integer", "long", "float", "double", "binary"})


@dataclass(frozen=True, slots=True)
class PushedPredicate:
    """A predicate that Spark offers to a scan.

    Attributes:
        predicate: The JVM object.
        condition: The condition of weft; None if Spark has to evaluate the predicate.
        has_floats: Whether it has a literal of float or double.
        skips: Whether rows may be skipped by Parquet's statistics and dictionaries. In Spark NaN equals itself and is
            greater than every number, and -0.0 equals 0.0. Statistics ignore NaN, and dictionaries distinguish the
            zeros, so for some predicates Spark's Parquet reader would skip rows of the result.
    """

    predicate: Any
    condition: Condition | None
    has_floats: bool = False
    skips: bool = True


class _NoEquivalentError(Exception):
    pass


def parse_predicate(predicate: Any, schema: StructType, *, skip_nulls: bool = False) -> PushedPredicate | None:
    """Parse a `org.apache.spark.sql.connector.expressions.filter.Predicate`; None if only Spark can evaluate it.

    Args:
        predicate: The predicate.
        schema: The columns of the scan.
        skip_nulls: Whether to leave out nulls among the values of an IN; otherwise such a predicate has no condition.
    """
    try:
        return _parse(predicate, schema, skip_nulls=skip_nulls)
    except _NoEquivalentError:
        return None


def in_condition(column: str, values: Sequence[Any], kind: pa.DataType) -> Condition | None:
    """Return the condition that a column has one of some values; None if a value is null or does not fit the type."""
    try:
        array = pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
    return None if array.null_count else In.of(column, array)


def _parse(predicate: Any, schema: StructType, *, skip_nulls: bool = False) -> PushedPredicate:
    name = predicate.name()
    children = list(predicate.children())
    if name in {"AND", "OR"}:
        parts = [_parse(child, schema) for child in children]
        conditions = tuple(part.condition for part in parts if part.condition is not None)
        combined = (And if name == "AND" else Or)(conditions) if len(conditions) == len(parts) else None
        has_floats, skips = any(part.has_floats for part in parts), all(part.skips for part in parts)
        return PushedPredicate(predicate, combined, has_floats, skips)
    if name == "NOT":
        return _negated(_parse(children[0], schema), predicate)
    if name not in _OVER_COLUMNS:
        raise _NoEquivalentError
    if name in _COMPARISONS and _kind(children[0]) == "LiteralValue":
        name, children = _COMPARISONS[name][1], children[::-1]
    column, kind = _column(children[0], schema)
    values = [_literal(child) for child in children[1:]]
    if skip_nulls:
        values = [value for value in values if value is not None]
    condition = None if kind is None else _over_column(name, column, kind, values)
    floats = [value for value in values if isinstance(value, float)]
    are_plain = all(value == value and value != 0 for value in floats)  # noqa: PLR0124 - NaN differs from itself
    skips = not floats or (are_plain and name not in {">", ">="})
    parsed = PushedPredicate(predicate, condition, bool(floats), skips)
    return _negated(parsed, predicate) if name == "<>" else parsed


def _negated(parsed: PushedPredicate, predicate: Any) -> PushedPredicate:
    condition = None if parsed.condition is None else Not(parsed.condition)
    return replace(parsed, predicate=predicate, condition=condition, skips=parsed.skips and not parsed.has_floats)


def _over_column(name: str, column: str, kind: pa.DataType, values: Sequence[Any]) -> Condition | None:
    if name == "IN":
        return in_condition(column, values, kind)
    if name in {"IS_NULL", "IS_NOT_NULL"}:
        return IsNull(column) if name == "IS_NULL" else Not(IsNull(column))
    if name == "BOOLEAN_EXPRESSION":
        return Comparison(column, "==", value=True, type=kind)
    value = _value(values[0], kind)
    if value is None:
        return None
    if name in _STRINGS:
        return StartsWith(column, value) if name == "STARTS_WITH" and pa.types.is_string(kind) else None
    comparison = Comparison(column, _COMPARISONS[name][0], value, kind)
    return And((Not(IsNull(column)), comparison)) if name == "<=>" else comparison


def _value(value: Any, kind: pa.DataType) -> Any:
    """Convert a literal to the type of the column; None if it is null or does not fit exactly."""
    if value is None:
        return None
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _column(expression: Any, schema: StructType) -> tuple[str, pa.DataType | None]:
    """Return the column of a reference, and its type, or None as the type if no condition can use the column."""
    if _kind(expression) != "FieldReference":
        raise _NoEquivalentError
    name, *inner = expression.fieldNames()
    if inner or name not in schema.names:
        return name, None
    kind = to_arrow_type(schema[name].dataType, timezone="UTC")
    return name, None if pa.types.is_nested(kind) or pa.types.is_floating(kind) else kind


def _literal(expression: Any) -> Any:
    if _kind(expression) != "LiteralValue":
        raise _NoEquivalentError
    value, type_name = expression.value(), expression.dataType().typeName()
    if value is None or type_name in _PLAIN_TYPES:
        return value
    if type_name == "string":  # a string with a collation has another type name, and compares differently
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
    except OverflowError:  # Spark has years that Python's calendar lacks
        pass
    raise _NoEquivalentError
