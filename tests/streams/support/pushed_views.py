"""A table with a column of every type and random extremes, and two views of it: one pushes down, the other does not."""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import weft
from weft import Table

TYPES = {
    "whole": "int",
    "long": "bigint",
    "tiny": "tinyint",
    "real": "float",
    "double": "double",
    "price": "decimal(7,2)",
    "huge": "decimal(38,10)",
    "flag": "boolean",
    "text": "string",
    "bytes": "binary",
    "day": "date",
    "instant": "timestamp",
    "local": "timestamp_ntz",
    "kind": "string",
    "at": "bigint",
}
CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 4,
    "columns": {"id": "bigint", **TYPES},
    "groups": {"g": {"columns": list(TYPES), "ordering": ["at"]}},
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}},
}
FLOATS = [math.nan, -math.nan, math.inf, 0.0, -0.0, 1.5, -2.25, None]
# Sums of these are exact in a double, in any order.
VALUES: dict[str, list[Any]] = {
    "whole": [2**31 - 1, -(2**31), 0, 7, None],
    "long": [2**40, -(2**40), 1, 0, None],
    "tiny": [127, -128, 3, None],
    "real": FLOATS,
    "double": FLOATS,
    "price": [decimal.Decimal(text) for text in ("99999.99", "-99999.99", "0.01")] + [None],
    "huge": [decimal.Decimal("1e26"), decimal.Decimal("-3.0000000001"), None],
    "flag": [True, False, None],
    "text": ["", "z", "Z", "é", "\U0001f600", "￿", None],
    "bytes": [b"", b"\x00", b"\xff", None],
    "day": [-700_000, 0, 20_000, None],
    "instant": [-60_000_000_000_000_000, 0, 1, None],
    "local": [-60_000_000_000_000_000, 0, 1, None],
    "kind": ["a", "b", "", None],
}


def create_views(spark: SparkSession, table: Table) -> None:
    """The views ``pushed`` and ``by_spark``."""
    weft.create_view(spark, table.uri, "pushed")
    weft.create_view(spark, table.uri, "by_spark", push_aggregates=False)


def drop_views(spark: SparkSession) -> None:
    for name in ("pushed", "by_spark"):
        spark.catalog.dropTempView(name)


def append(table: Table, seed: int, time: int) -> None:
    """Random upserts and deletes."""
    source = random.Random(f"{seed} {time}")
    ids = source.sample(range(60), 40)
    rows = {name: [source.choice(values) for _ in ids] for name, values in VALUES.items()}
    schema = pa.schema([field.remove_metadata() for field in table.snapshot().schema])
    columns = {name: pa.array(values, schema.field(name).type) for name, values in rows.items()}
    ops = pa.array([source.choice("IIIID") for _ in ids])
    with table.writer("s") as writer:
        writer.append(pa.table({"id": ids, **columns, "at": [time] * len(ids), "_op": ops}))


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def answer(frame: DataFrame) -> list[str]:
    """The rows, sorted. Of 0.0 and -0.0, which are equal, Spark's minimum is the one that comes first: any."""
    return sorted(str([value + 0.0 if isinstance(value, float) else value for value in row]) for row in frame.collect())


def differing(
    spark: SparkSession, queries: Sequence[str], *, pushed: bool, shown: str = "PushedAggregates"
) -> list[Any]:
    """Queries with another answer than that of Spark, or that are pushed down although they should not, or not."""
    found: list[Any] = []
    spark.conf.set("spark.sql.codegen.wholeStage", "false")  # compiling these queries would take most of their time
    for query in queries:
        frame, right = spark.sql(query.replace("{}", "pushed")), spark.sql(query.replace("{}", "by_spark"))
        if (shown in plan(frame)) is not pushed or "Pushed" in plan(right).replace("PushedFilters", ""):
            found.append((query, plan(frame)))
        elif answer(frame) != answer(right):
            found.append((query, sorted(set(answer(frame)) ^ set(answer(right)))))
    spark.conf.unset("spark.sql.codegen.wholeStage")
    return found
