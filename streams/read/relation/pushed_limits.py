"""Converts what Spark offers to `SupportsPushDownTopN` (JVM objects) to the order of
`weft.storage.read.pushed.first_rows.FirstRows`.

Spark sorts and limits the rows of all tasks again, so a task may return more rows than the limit, but must return those
that come first. So an order is accepted only if it is over plain columns. Expressions, fields of structs and collations
other than that of the column are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.storage.read.pushed.first_rows import SortKey
from weft.streams.read.relation.pushed_aggregates import column_name

__all__ = ["parse_order"]


def parse_order(orders: Iterable[Any]) -> tuple[SortKey, ...] | None:
    """Convert `org.apache.spark.sql.connector.expressions.SortOrder` objects; None unless all use plain columns."""
    sort_keys = []
    for order in orders:
        name = column_name(order.expression())
        if name is None:
            return None
        descending = str(order.direction().name()) == "DESCENDING"
        nulls_first = str(order.nullOrdering().name()) == "NULLS_FIRST"
        sort_keys.append(SortKey(name, descending=descending, nulls_first=nulls_first))
    return tuple(sort_keys)
