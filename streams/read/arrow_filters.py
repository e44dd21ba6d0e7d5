"""Spark's pushed filters as conditions of weft, if both give the same result for every value, null included.

Translated: comparisons, IN, null tests, prefixes and their AND, OR, NOT, over integers, strings, dates, timestamps,
decimals, booleans and binaries. Not translated: anything over float and double (NaN compares differently) and nested
fields. Spark evaluates the filters that are not translated.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as spark

from weft.storage.core.predicate import And, Comparison, Condition, In, IsNull, Not, Operator, Or, StartsWith
from weft.streams.read.relation import pushed_filters

_COMPARISONS: Final[dict[type[spark.Filter], Operator]] = {
    spark.EqualTo: "==",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}


def translate(item: spark.Filter, schema: pa.Schema) -> Condition | None:
    """The filter as a condition on the columns of the table; None if Spark has to evaluate it.

    Both are three-valued, so NOT, AND and OR of translations are translations.
    """
    if isinstance(item, spark.Not):
        inner = translate(item.child, schema)
        return None if inner is None else Not(inner)
    if isinstance(item, pushed_filters.And | pushed_filters.Or):
        left, right = translate(item.left, schema), translate(item.right, schema)
        if left is None or right is None:
            return None
        return And((left, right)) if isinstance(item, pushed_filters.And) else Or((left, right))
    path: tuple[str, ...] = getattr(item, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    arrow_type = schema.field(path[0]).type
    if pa.types.is_nested(arrow_type) or pa.types.is_floating(arrow_type):
        return None
    return _over_column(item, path[0], arrow_type)


def _over_column(item: spark.Filter, column: str, arrow_type: pa.DataType) -> Condition | None:
    if isinstance(item, spark.IsNull):
        return IsNull(column)
    if isinstance(item, spark.IsNotNull):
        return Not(IsNull(column))
    if isinstance(item, spark.In):
        values = [_value(value, arrow_type) for value in item.value]
        return None if any(value is None for value in values) else In.of(column, pa.array(values, arrow_type))
    value = _value(getattr(item, "value", None), arrow_type)
    if value is None:
        return None
    if isinstance(item, spark.EqualNullSafe):
        return And((Not(IsNull(column)), Comparison(column, "==", value, arrow_type)))
    if isinstance(item, spark.StringStartsWith) and pa.types.is_string(arrow_type):
        return StartsWith(column, value)
    compare = _COMPARISONS.get(type(item))
    return None if compare is None else Comparison(column, compare, value, arrow_type)


def _value(value: Any, arrow_type: pa.DataType) -> Any:
    """The literal as a value of the type of the column; None if it is null or does not fit exactly."""
    if value is None:
        return None
    try:
        return pa.scalar(value, arrow_type).as_py()
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
