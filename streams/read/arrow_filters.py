"""Spark's pushed filters as Arrow expressions, where both give the same answer for every value, NULL included.

Translated: comparisons, IN, null tests, prefixes and their AND, OR, NOT, over integers, strings, dates, timestamps,
decimals, booleans and binaries. Not translated: anything over float and double (NaN compares differently) and nested
fields. What is not translated stays with Spark.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark

from streams.read.relation.pushed_filters import And, Or

_COMPARISONS: Final = {
    spark.EqualTo: pc.equal,
    spark.GreaterThan: pc.greater,
    spark.GreaterThanOrEqual: pc.greater_equal,
    spark.LessThan: pc.less,
    spark.LessThanOrEqual: pc.less_equal,
}


def translate(item: spark.Filter, schema: pa.Schema) -> pc.Expression | None:
    """The filter as an expression over the table's columns; None where it is to be left to Spark.

    The expression is three-valued like the filter, so NOT, AND and OR of translations are translations.
    """
    if isinstance(item, spark.Not):
        inner = translate(item.child, schema)
        return None if inner is None else ~inner
    if isinstance(item, And | Or):
        left, right = translate(item.left, schema), translate(item.right, schema)
        if left is None or right is None:
            return None
        return left & right if isinstance(item, And) else left | right
    path: tuple[str, ...] = getattr(item, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    arrow_type = schema.field(path[0]).type
    if pa.types.is_nested(arrow_type) or pa.types.is_floating(arrow_type):
        return None
    return _over_column(item, pc.field(path[0]), arrow_type)


def _over_column(item: spark.Filter, field: pc.Expression, arrow_type: pa.DataType) -> pc.Expression | None:
    if isinstance(item, spark.IsNull):
        return field.is_null()
    if isinstance(item, spark.IsNotNull):
        return field.is_valid()
    if isinstance(item, spark.In):
        literals = [_scalar(value, arrow_type) for value in item.value]
        if any(literal is None for literal in literals):
            return None
        values = pa.array([literal.as_py() for literal in literals if literal is not None], arrow_type)
        # Arrow answers false for NULL IN (...), SQL answers NULL.
        return pc.if_else(field.is_valid(), field.isin(values), pa.scalar(None, pa.bool_()))
    literal = _scalar(getattr(item, "value", None), arrow_type)
    if literal is None:
        return None
    if isinstance(item, spark.EqualNullSafe):
        return pc.if_else(field.is_valid(), field == literal, pa.scalar(value=False))
    if isinstance(item, spark.StringStartsWith) and pa.types.is_string(arrow_type):
        return pc.starts_with(field, literal.as_py())
    compare = _COMPARISONS.get(type(item))
    return None if compare is None else compare(field, pc.scalar(literal))


def _scalar(value: Any, arrow_type: pa.DataType) -> pa.Scalar | None:
    """The literal as a value of the column's type; None where it is NULL or does not fit exactly."""
    if value is None:
        return None
    try:
        return pa.scalar(value, arrow_type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
