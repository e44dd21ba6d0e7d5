"""Converts what Spark offers to `SupportsPushDownTopN` (JVM objects) to the order of
`weft.storage.read.pushed.first_rows.FirstRows`.

Spark sorts and limits the rows of all tasks again, so a task may hand over more rows than it was asked for, but must
hand over those that come first. So an order is taken only if it is one of plain columns: expressions, fields of structs
and other collations than that of the column are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.storage.read.pushed.first_rows import SortKey
from weft.streams.read.relation.pushed_aggregates import column_name

__all__ = ["parse_order"]


def parse_order(orders: Iterable[Any]) -> tuple[SortKey, ...] | None:
    """`org.apache.spark.sql.connector.expressions.SortOrder`s as an order; None if it is not one of plain columns."""
    sort_keys = []
    for order in orders:
        name = column_name(order.expression())
        if name is None:
            return None
        descending = str(order.direction().name()) == "DESCENDING"
        nulls_first = str(order.nullOrdering().name()) == "NULLS_FIRST"
        sort_keys.append(SortKey(name, descending=descending, nulls_first=nulls_first))
    return tuple(sort_keys)
