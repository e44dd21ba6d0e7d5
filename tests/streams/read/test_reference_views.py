"""References through Spark: a view joins the tables of one pair of cuts, and reads no more of them than it needs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import weft
from tests.storage.support.reference_shop import CUSTOMER, Shop, write
from weft import Table
from weft.streams.read import reference_planner
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.relation.without_jvm import fixed_dataframe
from weft.streams.read.view import planner_of

PRODUCT = {"table": "../products", "on": ["shop", "sku"], "columns": ["title", "sku"]}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Orders 0 to 5; their customers are 1, 2, NULL, 7 (missing), 1 and 2; order 0 has a product."""
    made = Shop(tmp_path, {"customer": CUSTOMER, "product": PRODUCT})
    made.customer(1, "Ann")
    made.customer(2, "Bob")
    write(made.customers, "loyalty", id=[2], tier=["gold"], tier_ts=[1])
    write(made.products, "products", shop=pa.array([1], pa.int32()), sku=["a"], title=["one"])
    columns: dict[str, Any] = {
        "order_id": list(range(6)),
        "customer_id": [1, 2, None, 7, 1, 2],
        "shop": pa.array([1, *[None] * 5], pa.int32()),
        "sku": pa.array(["a", *[None] * 5], pa.string()),
        "ts": [1] * 6,
    }
    write(made.orders, "orders", **columns)
    made.orders.compact()
    made.customers.compact()
    write(made.orders, "payments", order_id=[1, 9], paid=[5.0, 1.0], pay_ts=[1, 1])
    return made


def pay_all(shop: Shop) -> None:
    """Write to all orders, so that all file groups have logs."""
    write(shop.orders, "payments", order_id=[*range(6), 9], paid=[2.0] * 7, pay_ts=[2] * 7)


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in spark.sql(query).collect()), key=repr)


@pytest.fixture
def joined_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every referenced table counts as large: Spark joins it."""
    monkeypatch.setattr(reference_planner, "SMALL_BYTES", -1)


@pytest.mark.parametrize("limit", [reference_planner.SMALL_BYTES, -1], ids=["joined in tasks", "joined by Spark"])
def test_a_view_answers_like_storage(
    spark: SparkSession, shop: Shop, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_planner, "SMALL_BYTES", limit)
    weft.create_view(spark, shop.folder / "orders", "orders_wide")
    for query in (
        "SELECT * FROM orders_wide",
        "SELECT order_id, customer_name, product_title FROM orders_wide",
        "SELECT customer_tier, count(*), sum(paid) FROM orders_wide GROUP BY customer_tier",
        "SELECT order_id FROM orders_wide WHERE customer_name = 'Ann'",
        "SELECT order_id, customer_tier FROM orders_wide WHERE customer_name IS NULL AND order_id > 1",
        "SELECT order_id FROM orders_wide WHERE customer_name IS NOT NULL",
        "SELECT count(*) FROM orders_wide",
        "SELECT order_id, product_sku FROM orders_wide WHERE product_sku IS NOT NULL",
        "SELECT count(product_sku) FROM orders_wide",
        "SELECT a.order_id, b.customer_name FROM orders_wide a JOIN orders_wide b ON a.order_id = b.customer_id",
        "SELECT order_id FROM orders_wide WHERE customer_id IN (SELECT customer_id FROM orders_wide WHERE paid > 1)",
    ):
        spark.createDataFrame(shop.orders.snapshot().to_arrow()).createOrReplaceTempView("expected")
        assert rows(spark, query) == rows(spark, query.replace("orders_wide", "expected")), query
    shop.customer(1, "Anna", ts=2)
    assert rows(spark, "SELECT customer_name FROM orders_wide WHERE order_id = 0") == [("Anna",)]


def test_file_groups_of_both_kinds_are_joined(spark: SparkSession, shop: Shop) -> None:
    pay_all(shop)
    for group in [each.group for each in shop.orders.snapshot().slices]:
        shop.orders.compact(lambda part, group=group: part.group == group)  # type: ignore[misc]
    write(shop.orders, "payments", order_id=[1], paid=[6.0], pay_ts=[3])
    two_scans = replace(
        planner_of(spark, shop.folder / "orders", ReadOptions()), tuning=PlannerTuning(mix_min_bytes=0, merged_share=2)
    )
    create_relation_view(spark, "in_parts", two_scans)
    spark.createDataFrame(shop.orders.snapshot().to_arrow()).createOrReplaceTempView("expected")
    assert "ParquetScan" in plan_of(spark, "SELECT sum(paid) FROM in_parts")
    for query in (
        "SELECT sum(paid) FROM in_parts",
        "SELECT * FROM in_parts",
        "SELECT order_id FROM in_parts WHERE customer_name = 'Ann' OR paid = 6",
        "SELECT count(*) FROM in_parts WHERE customer_tier IS NULL",
    ):
        assert rows(spark, query) == rows(spark, query.replace("in_parts", "expected")), query


def test_require_time_travel_and_the_other_ways_to_read(spark: SparkSession, shop: Shop) -> None:
    then = str(shop.orders.snapshot().cut)
    shop.customer(1, "Anna", ts=2)
    weft.create_view(spark, shop.folder / "orders", "required", require=["customer", "order"])
    assert rows(spark, "SELECT order_id FROM required") == [(0,), (1,), (4,), (5,)]
    assert rows(spark, "SELECT count(*) FROM required") == [(4,)]
    weft.create_view(spark, shop.folder / "orders", "earlier", as_of=then)
    assert rows(spark, "SELECT customer_name FROM earlier WHERE order_id = 0") == [("Ann",)]
    weft.create_view(spark, shop.folder / "orders", "base", read_optimized=True)
    assert rows(spark, "SELECT customer_name FROM base WHERE order_id = 0") == [("Ann",)]
    fixed = weft.snapshot(spark, shop.folder / "orders")
    weft.register(spark)
    plain = spark.read.format("weft").load(str(shop.folder / "orders"))
    without = fixed_dataframe(spark, planner_of(spark, shop.folder / "orders", ReadOptions()))
    expected = sorted(map(repr, shop.orders.snapshot().to_arrow().to_pylist()))
    for frame in (fixed, plain, without):
        assert sorted(map(repr, (row.asDict() for row in frame.collect()))) == expected


def plan_of(spark: SparkSession, query: str) -> str:
    return str(spark.sql(f"EXPLAIN {query}").collect()[0][0])


def test_tasks_join_small_tables_and_a_query_without_their_columns_is_read_natively(
    spark: SparkSession, shop: Shop
) -> None:
    pay_all(shop)
    shop.orders.compact()
    weft.create_view(spark, shop.folder / "orders", "orders_wide")
    for query in ("SELECT customer_name FROM orders_wide", "SELECT sum(paid) FROM orders_wide"):
        assert "Join" not in plan_of(spark, query), query
    assert "ParquetScan" in plan_of(spark, "SELECT sum(paid) FROM orders_wide")
    of_reference = plan_of(spark, "SELECT order_id FROM orders_wide WHERE customer_name = 'Ann'")
    assert "ParquetScan" not in of_reference
    assert "joined with customer" in of_reference
    assert "- Filter" not in of_reference  # the tasks apply it


def test_a_frame_that_outlives_its_plan_shows_the_newest_rows_however_they_are_joined_now(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    weft.create_view(spark, shop.folder / "orders", "orders_wide")
    in_tasks = spark.sql("SELECT order_id, customer_name FROM orders_wide WHERE order_id < 2")
    monkeypatch.setattr(reference_planner, "SMALL_BYTES", -1)
    by_spark = spark.sql("SELECT order_id, customer_name FROM orders_wide WHERE order_id < 2")
    shop.customer(1, "Anna", ts=2)
    for limit in (-1, 1 << 30):
        monkeypatch.setattr(reference_planner, "SMALL_BYTES", limit)
        for frame in (in_tasks, by_spark):
            found = sorted(tuple(row) for row in frame.where("order_id < 7").collect())
            assert found == [(0, "Anna"), (1, "Bob")]


@pytest.mark.usefixtures("joined_by_spark")
def test_a_reference_that_is_not_used_is_not_read(spark: SparkSession, shop: Shop) -> None:
    weft.create_view(spark, shop.folder / "orders", "orders_wide")

    def plan(query: str) -> str:
        return plan_of(spark, query)

    unused = "none of its columns is used"
    assert plan("SELECT sum(paid) FROM orders_wide").count(unused) == 1  # the key of the product is shown
    assert plan("SELECT customer_name FROM orders_wide").count(unused) == 0
    assert plan("SELECT order_id FROM orders_wide WHERE customer_name IS NOT NULL").count(unused) == 0


def test_a_missing_table_fails_only_queries_of_its_columns(spark: SparkSession, shop: Shop) -> None:
    shutil.move(shop.folder / "customers", shop.folder / "moved")
    Table.open(shop.folder / "orders")
    weft.create_view(spark, shop.folder / "orders", "orders_wide")
    # The table was there when the view was created.
    required = replace(
        planner_of(spark, shop.folder / "orders", ReadOptions()), options=ReadOptions.of({"require": ["customer"]})
    )
    create_relation_view(spark, "required", required)
    assert rows(spark, "SELECT order_id, product_title FROM orders_wide WHERE order_id = 0") == [(0, "one")]
    with pytest.raises(PySparkException, match="reference 'customer': there is no table at"):
        rows(spark, "SELECT customer_name FROM orders_wide")
    for query in ("SELECT count(*) FROM required", "SELECT order_id FROM required"):
        with pytest.raises(PySparkException, match="reference 'customer': there is no table at"):
            rows(spark, query)
