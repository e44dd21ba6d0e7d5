"""Aggregates that tasks compute give the answers that Spark gives for the same rows, extremes included.

Two views of one table are compared: one pushes aggregates down, the other does not (``push_aggregates=False``).
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import weft
from tests.streams.support.pushed_views import CONFIG, TYPES, VALUES, append, create_views, differing, drop_views, plan
from tests.streams.support.seeds import seeds
from weft import Table
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.view import planner_of

AGGREGATES = ", ".join(
    [
        "count(*)",
        *(f"{kind}({name})" for name in VALUES for kind in ("min", "max")),
        *(f"count({name})" for name in ("real", "huge", "text")),
        *(f"sum({name})" for name in ("whole", "long", "tiny", "real", "double", "price", "huge")),
        *(f"avg({name})" for name in ("whole", "tiny", "real", "double", "price")),
        "try_sum(long)",
        "try_avg(price)",
        "sum(price) / count(*) + max(tiny)",
    ]
)
CONDITION = "(whole > 0 OR kind = 'a') AND text IS NOT NULL AND day <= DATE'2020-01-01'"
PUSHED = [
    f"SELECT {AGGREGATES} FROM {{}}",
    f"SELECT {AGGREGATES} FROM {{}} WHERE id = -1",
    f"SELECT kind, {AGGREGATES} FROM {{}} GROUP BY kind",
    f"SELECT flag, day, {AGGREGATES} FROM {{}} WHERE {CONDITION} GROUP BY day, flag",
    " UNION ALL ".join(f"SELECT hash({name}), count(*), sum(long) FROM {{}} GROUP BY {name}" for name in VALUES),
    "SELECT DISTINCT kind, real FROM {}",
    "SELECT kind k, count(*) + 1 n FROM {} GROUP BY kind HAVING sum(whole) > 0 ORDER BY k LIMIT 3",
    "SELECT sum(n), max(m) FROM (SELECT kind, count(*) n, max(text) m FROM {} GROUP BY kind)",
    (
        "SELECT a.kind, n, m FROM (SELECT kind, count(*) n FROM {} GROUP BY kind) a "
        "JOIN (SELECT kind, max(day) m FROM {} GROUP BY kind) b ON a.kind <=> b.kind"
    ),
    "SELECT id FROM {} WHERE long >= (SELECT max(long) FROM {}) AND whole < (SELECT count(*) FROM {})",
]
KNOWN = [
    "SELECT count(*) FROM {}",
    "SELECT count(*) + 1, count(id), count(text), count(price), max(id) FROM {}",
    "SELECT min(whole), max(whole), min(tiny), max(flag), min(day), max(instant), min(local), max(at) FROM {}",
    "SELECT count(*) FROM (SELECT id, kind FROM {})",
    "SELECT max(n) - min(n) FROM (SELECT count(day) n FROM {} UNION ALL SELECT count(*) FROM {})",
]
EMPTY = [
    f"SELECT count(*), count(text), sum(long), avg(double), max(real) FROM {{}}{rest}" for rest in ("", " GROUP BY id")
]
BY_SPARK = [
    "SELECT avg(long), try_avg(huge) FROM {}",
    "SELECT kind, count(DISTINCT text), sum(DISTINCT whole) FROM {} GROUP BY kind",
    "SELECT sum(whole) FILTER (WHERE flag), count(*) FROM {}",
    "SELECT kind, flag, sum(long) FROM {} GROUP BY ROLLUP(kind, flag)",
    "SELECT sum(tiny / 2), max(upper(text)) FROM {}",
    "SELECT upper(kind), count(*) FROM {} GROUP BY upper(kind)",
    "SELECT max(text COLLATE UNICODE_CI) FROM {}",
    "SELECT count(*) FROM {} WHERE double > 1 OR upper(kind) = 'A'",
    "SELECT stddev(double), first(kind) IS NOT NULL, approx_count_distinct(text) FROM {}",
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", CONFIG)


@pytest.fixture
def views(spark: SparkSession, table: Table) -> Iterator[None]:
    create_views(spark, table)
    yield
    drop_views(spark)


@pytest.mark.parametrize("seed", seeds(1, 11))
@pytest.mark.usefixtures("views")
def test_pushed_aggregates_are_those_of_spark(spark: SparkSession, table: Table, seed: int) -> None:
    assert differing(spark, EMPTY, pushed=True) == []
    append(table, seed, 1)
    table.compact()
    append(table, seed, 2)
    append(table, seed, 3)
    assert differing(spark, PUSHED, pushed=True) == []
    # Two of the four file groups have no logs.
    table.compact(lambda part: part.group.bucket in {1, 3})
    assert {part.group.bucket for part in table.snapshot().slices if len(part.rows)} == {0, 2}
    assert differing(spark, [*PUSHED, *KNOWN], pushed=True) == []
    assert "2 known from statistics" in plan(spark.sql("SELECT count(*), max(id) FROM pushed"))


@pytest.mark.usefixtures("views")
def test_what_is_not_exact_is_left_to_spark(spark: SparkSession, table: Table) -> None:
    append(table, 1, 1)
    taken = [query for query in BY_SPARK if "PushedAggregates" in plan(spark.sql(query.replace("{}", "pushed")))]
    assert taken == []


def outcome(spark: SparkSession, query: str) -> Any:
    """The answer, or the condition of the error."""
    try:
        return spark.sql(query).collect()
    except PySparkException as error:
        return error.getCondition() or str(error).split("]")[0]


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.usefixtures("views")
def test_a_sum_overflows_as_in_spark(spark: SparkSession, table: Table, ansi: str) -> None:
    largest = decimal.Decimal("9" * 28 + "." + "9" * 10)
    types = {field.name: field.type for field in table.snapshot().schema}
    with table.writer("s") as writer:
        row = dict.fromkeys(TYPES) | {"long": 2**63 - 1, "huge": largest, "price": decimal.Decimal("99999.99")}
        row |= {"kind": "a", "at": 1}
        columns = {name: pa.array([value] * 60, types[name]) for name, value in row.items()}
        writer.append(pa.table({"id": range(60), **columns}))
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        for expression in ("sum(long)", "sum(huge)", "sum(price)", "avg(price)", "try_sum(long)", "try_sum(huge)"):
            for rest in ("", " GROUP BY kind"):
                of_spark = outcome(spark, f"SELECT {expression} FROM by_spark{rest}")
                assert outcome(spark, f"SELECT {expression} FROM pushed{rest}") == of_spark, (expression, rest)
        assert "PushedAggregates" in plan(spark.sql("SELECT sum(long), sum(huge) FROM pushed GROUP BY kind"))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.usefixtures("views")
def test_spark_aggregates_what_it_reads_itself_unless_statistics_say_it(spark: SparkSession, table: Table) -> None:
    append(table, 1, 1)
    queries = ["SELECT kind, count(*), max(long) FROM {} GROUP BY kind", "SELECT count(*), sum(long) FROM {}"]
    assert differing(spark, [*queries, *KNOWN], pushed=True) == []
    table.compact()
    assert differing(spark, queries, pushed=False) == []
    assert differing(spark, ["SELECT max(text) FROM {}", "SELECT count(*) FROM {} WHERE id > 3"], pushed=False) == []
    assert differing(spark, KNOWN, pushed=True) == []
    text = plan(spark.sql("SELECT count(*), min(day) FROM pushed"))
    assert "0 file groups (0 with logs), 0 skipped, 4 known from statistics, logs 0 bytes" in text


@pytest.mark.usefixtures("views")
def test_a_mix_is_read_by_two_scans_unless_most_of_it_has_logs(spark: SparkSession, table: Table) -> None:
    append(table, 1, 1)
    table.compact()
    append(table, 1, 2)
    for compacted, by_tasks in (({0}, True), ({0, 1, 2}, False)):
        table.compact(lambda part, compacted=compacted: part.group.bucket in compacted)
        for name, pushes in (("pushed", True), ("by_spark", False)):
            planner = planner_of(spark, table.uri, ReadOptions(push_aggregates=pushes))
            create_relation_view(spark, name, replace(planner, tuning=PlannerTuning(mix_min_bytes=0)))
        assert ("Union" in plan(spark.table("pushed"))) is not by_tasks
        assert "Union" in plan(spark.table("by_spark"))
        assert differing(spark, [KNOWN[0], PUSHED[2]], pushed=by_tasks) == []


@pytest.mark.usefixtures("views")
def test_a_pushed_aggregate_reads_its_columns_alone_and_skips_file_groups(spark: SparkSession, table: Table) -> None:
    append(table, 1, 1)
    text = plan(spark.sql("SELECT kind, max(day), count(*) FROM pushed WHERE id = 3 GROUP BY kind"))
    assert "3 skipped, " in text
    assert "2 columns, filter (id == 3), PushedAggregates: [max(day), count(*)], PushedGroupBy: [kind]" in text


def test_aggregates_of_columns_of_a_reference(spark: SparkSession, tmp_path: Path) -> None:
    products = Table.create(
        tmp_path / "products",
        {
            "key": ["sku"],
            "columns": {"sku": "string", "title": "string", "price": "decimal(9,2)"},
            "groups": {"p": {"columns": ["title", "price"]}},
            "streams": {"p": {"groups": ["p"]}},
        },
    )
    sales = Table.create(
        tmp_path / "sales",
        {
            "key": ["id"],
            "columns": {"id": "bigint", "sku": "string", "n": "int"},
            "groups": {"s": {"columns": ["sku", "n"]}},
            "streams": {"s": {"groups": ["s"]}},
            "references": {"product": {"table": "../products", "on": "sku", "columns": ["title", "price"]}},
        },
    )
    prices = pa.array([decimal.Decimal(price) for price in (1, 2)], pa.decimal128(9, 2))
    with products.writer("p") as writer:
        writer.append(pa.table({"sku": ["a", "b"], "title": ["one", "two"], "price": prices}))
    with sales.writer("s") as writer:
        skus = ["a", "b", "c", None, "a"]
        writer.append(pa.table({"id": range(5), "sku": skus, "n": pa.array(range(5), pa.int32())}))
    queries = [
        "SELECT product_title, sum(product_price), sum(n), count(*) FROM {} GROUP BY product_title",
        "SELECT count(product_title), min(product_price) FROM {} WHERE product_title > 'n' AND n < 4",
        "SELECT sum(n) FROM {} WHERE product_title IS NULL",
    ]
    weft.create_view(spark, sales.uri, "pushed")
    weft.create_view(spark, sales.uri, "by_spark", push_aggregates=False)
    assert differing(spark, queries, pushed=True) == []
    sales.compact()  # the tasks join, so they aggregate too
    assert differing(spark, queries, pushed=True) == []
    (row,) = spark.sql("SELECT count(*) n, sum(product_price) price FROM pushed").collect()
    assert (row.n, row.price) == (5, decimal.Decimal("4.00"))
    weft.create_view(spark, sales.uri, "pushed", require=["product"])  # Spark joins
    weft.create_view(spark, sales.uri, "by_spark", require=["product"], push_aggregates=False)
    assert differing(spark, queries[:2], pushed=False) == []


def test_the_option_is_that_of_every_interface(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    append(table, 1, 1)
    frame = weft.snapshot(spark, table.uri)
    assert "PushedAggregates" in plan(frame.groupBy("kind").count())
    frame = weft.snapshot(spark, table.uri, push_aggregates=False)
    assert "PushedAggregates" not in plan(frame.groupBy("kind").count())
    weft.register_catalog(spark, "pushing", tmp_path.parent)
    query = f"SELECT count(*) FROM pushing.{tmp_path.name}.t"
    assert "PushedAggregates" in plan(spark.sql(query))
    assert "PushedAggregates" not in plan(spark.sql(f"{query} WITH ('push_aggregates' = 'false')"))
