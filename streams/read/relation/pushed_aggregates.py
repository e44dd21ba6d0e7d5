"""Converts aggregates that Spark pushes down (JVM objects) to
`weft.storage.read.pushed.partial_aggregates.Aggregation`.

Spark offers an aggregate if it is directly above the scan: Spark evaluates no filter below it, and no aggregate has a
FILTER clause. Spark then combines the partial aggregates that the scan returns. It offers an average twice: first as an
average, and then as a sum and a count, which it divides. For bigints, Spark sums doubles for an average, but bigints
for such a quotient, which may overflow; and `try_avg` of long decimals would fail instead of giving NULL. These
averages are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.types import DecimalType, LongType, StructType

from weft.storage.core.predicate import Condition, In
from weft.storage.read.pushed.partial_aggregates import Aggregate, AggregateKind, Aggregation

__all__ = ["column_name", "filters_of_groups", "has_inexact_average", "parse_aggregation"]

_KINDS: Final = {
    "Count": AggregateKind.COUNT,
    "Sum": AggregateKind.SUM,
    "Min": AggregateKind.MIN,
    "Max": AggregateKind.MAX,
}
_LONGEST_DECIMAL: Final = 28
"""Spark sums decimals with 10 more digits, and has no more than 38."""


def parse_aggregation(aggregation: Any) -> Aggregation | None:
    """Convert an `org.apache.spark.sql.connector.expressions.aggregate.Aggregation`; None unless over plain columns."""
    groups = [column_name(expression) for expression in aggregation.groupByExpressions()]
    aggregates = [_aggregate(expression) for expression in aggregation.aggregateExpressions()]
    if None in groups or None in aggregates:
        return None
    return Aggregation(tuple(name for name in groups if name), tuple(item for item in aggregates if item))


def filters_of_groups(filters: Iterable[Condition], aggregation: Aggregation) -> list[Condition]:
    """Convert filters on the output of a scan of aggregates to filters on the rows that are aggregated.

    Only filters on columns of GROUP BY are converted: all rows of a group pass them, or none.
    """
    columns = dict(zip(aggregation.group_names, aggregation.groups, strict=True))
    return [
        replace(item, column=columns[item.column])
        for item in filters
        if isinstance(item, In) and item.column in columns
    ]


def has_inexact_average(aggregation: Any, schema: StructType) -> bool:
    """Whether an average in an `Aggregation` is not the quotient of the sum and the count of its column."""
    return any(
        _kind(expression) == "Avg" and not _is_exact_average(column_name(expression.column()), schema)
        for expression in aggregation.aggregateExpressions()
    )


def _is_exact_average(column: str | None, schema: StructType) -> bool:
    if column is None:
        return False
    of_column = schema[column].dataType
    if isinstance(of_column, DecimalType):
        return of_column.precision <= _LONGEST_DECIMAL
    return not isinstance(of_column, LongType)


def _aggregate(expression: Any) -> Aggregate | None:
    kind = _kind(expression)
    if kind == "CountStar":
        return Aggregate(AggregateKind.COUNT_ROWS)
    if kind not in _KINDS or (kind in {"Count", "Sum"} and expression.isDistinct()):
        return None
    column = column_name(expression.column())
    return None if column is None else Aggregate(_KINDS[kind], column)


def column_name(expression: Any) -> str | None:
    """Return the name of a column; None for a field of a struct and for other expressions."""
    if _kind(expression) != "FieldReference":
        return None
    names = list(expression.fieldNames())
    return names[0] if len(names) == 1 else None


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())
