"""What a script cannot show: live queries, other sessions, streams, DataFrames, and sessions without a catalog."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import weft
from tests.streams.catalog import shop_lake
from tests.streams.catalog.shop_lake import make_shop
from tests.streams.support.slow_starts import start_in_time
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.catalog import catalog_jvm
from weft.streams.catalog.register import register_configured
from weft.streams.read.sql_query import spark_errors

ORDERS = "weft.shop.orders_wide"


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    root = tmp_path_factory.mktemp("lake")
    made = make_shop(root)
    weft.register_catalog(spark, "weft", root)
    return made


def pay(table: Table, order: int, paid: float) -> None:
    with table.writer("payments") as payments:
        payments.append(pa.table({"order_id": [order], "paid": [paid], "pay_ts": [order * 1_000]}))


def paid(frame: DataFrame, order: int) -> Any:
    return frame.where(f"order_id = {order}").collect()[0]["paid"]


def test_the_next_query_sees_a_commit_and_a_new_column(spark: SparkSession, table: Table) -> None:
    assert paid(spark.table(ORDERS), 3) is None
    pay(table, 3, 7.0)
    assert paid(spark.table(ORDERS), 3) == 7.0
    table.add_column("order", "note", "string")
    assert "note" in spark.table(ORDERS).columns


def test_all_tables_of_a_query_show_one_snapshot(spark: SparkSession, table: Table) -> None:
    frame = spark.sql(
        f"SELECT (SELECT sum(rows) FROM {ORDERS}.commits WHERE kind = 'DATA'), "
        f"(SELECT count(*) FROM weft_changes('{ORDERS}', 'earliest')), (SELECT count(*) FROM {ORDERS})"
    )
    pay(table, 2, 8.0)
    events, changes, rows = frame.collect()[0]
    assert changes == rows == 4
    assert spark.sql(f"SELECT sum(rows) FROM {ORDERS}.commits WHERE kind = 'DATA'").collect()[0][0] == events + 1


def test_a_compacted_table_is_read_natively_with_the_columns_and_the_filter(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table.create(tmp_path / "shop" / "t", shop_lake.ORDERS)
    with table.writer("orders") as orders:
        orders.append(pa.table({"order_id": [1, 2, 3], "status": ["new"] * 3, "order_ts": [10, 11, 12]}))
    pay(table, 3, 9.5)
    table.compact()
    weft.register_catalog(spark, "weft_native", tmp_path)
    frame = spark.sql("SELECT paid FROM weft_native.shop.t WHERE order_ts > 11")
    assert [row.paid for row in frame.collect()] == [9.5]
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    assert "ParquetScan" in plan
    assert "GreaterThan(order_ts,11)" in plan
    assert "ReadSchema: struct<order_ts:bigint,paid:double>" in plan
    pay(table, 1, 7.0)
    again = spark.sql("SELECT paid FROM weft_native.shop.t WHERE order_ts < 11")
    assert [row.paid for row in again.collect()] == [7.0]


def test_a_table_of_options_reads_metadata_columns_in_a_dataframe(spark: SparkSession, table: Table) -> None:
    frame = spark.read.option("metadata_columns", "true").table(ORDERS)
    assert "_bucket" not in frame.columns
    found = {row["order_id"]: row["_bucket"] for row in frame.select("order_id", "_bucket").collect()}
    assert found.keys() == {1, 2, 3, 4}
    assert set(found.values()) <= {0, 1}
    with pytest.raises(PySparkException, match="_bucket"):
        spark.table(ORDERS).select("_bucket")
    del table


@pytest.mark.parametrize("name", [ORDERS, "shop.orders_wide", "orders_wide", f"{ORDERS}.files"])
def test_a_reader_refuses_options_that_do_not_exist(spark: SparkSession, table: Table, name: str) -> None:
    other = spark.newSession()
    other.sql("USE weft.shop" if "." not in name else "USE weft")
    other.sql("CREATE TEMPORARY VIEW v AS SELECT 1")
    for reader in (other.read, other.readStream):
        with pytest.raises(
            InvalidInput, match=r"unknown option 'requires' for reading a table\n +hint: options: .*require,"
        ):
            reader.option("requires", "payment").table(name)
    assert other.read.option("Require", "").table(name).columns
    assert other.read.option("requires", "payment").table("v").count() == 1, "not a table of a catalog"
    del table


def test_a_damaged_table_does_not_hide_the_others(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("good", "bad", "worse"):
        with Table.create(tmp_path / "shop" / name, shop_lake.SMALL).writer("s") as writer:
            writer.append(pa.table({"id": [1], "a": ["x"]}))
    shutil.rmtree(tmp_path / "shop" / "bad" / "_weft" / "timeline")
    entry = next(path for path in (tmp_path / "shop" / "worse" / "_weft").rglob("*") if path.is_file())
    entry.write_bytes(b"damaged")
    weft.register_catalog(spark, "weft_damaged", tmp_path)
    shown = spark.sql("SHOW TABLES IN weft_damaged.shop").collect()
    assert sorted(row.tableName for row in shown) == ["bad", "good", "worse"]
    extended = {row.tableName: row for row in spark.sql("SHOW TABLE EXTENDED IN weft_damaged.shop LIKE '*'").collect()}
    assert "Comment: NotFound" in extended["bad"].information
    assert "|-- a: string" in extended["good"].information
    assert spark.table("weft_damaged.shop.good").count() == 1
    with pytest.raises(PySparkException, match=r"shop\.bad is the folder of a table, whose log is missing"):
        spark.table("weft_damaged.shop.bad")


def test_an_internal_error_of_spark_is_an_error_of_the_query(spark: SparkSession, table: Table) -> None:
    """`weft sql` prints it like any other error, and a script or prompt goes on."""
    with (
        pytest.raises(InvalidInput, match=r"\[INTERNAL_ERROR\](.|\n)*No plan for AnalyzeTables") as caught,
        spark_errors("x"),
    ):
        spark.sql("ANALYZE TABLES IN weft.shop COMPUTE STATISTICS")
    assert "\tat " not in caught.value.message
    del table


def test_a_stream_by_name_in_a_clone_of_the_session_that_uses_the_catalog(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []

    def batch(frame: DataFrame, _number: int) -> None:
        seen.append((frame.count(), frame.sparkSession.table(ORDERS).count()))

    source = spark.readStream.table(ORDERS)
    assert {"_change", "paid"} <= set(source.columns)
    query = (
        source.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    )
    assert start_in_time(lambda: query.start().awaitTermination(300))
    assert seen == [(4, 4)]
    assert spark.sql(f"SELECT * FROM STREAM {ORDERS}").isStreaming
    with pytest.raises(PySparkException, match="cannot be read as a stream"):
        spark.readStream.table(f"{ORDERS}.files")
    del table


def test_changes_of_a_dataframe(spark: SparkSession, table: Table) -> None:
    reader = spark.read.option("startingVersion", "first").option("startingBoundInclusive", "false")
    kinds = reader.changes(ORDERS).where("order_id = 1").select("_change_type").collect()
    assert sorted(row[0] for row in kinds) == ["update_postimage", "update_preimage"]
    with pytest.raises(PySparkException, match="cannot be read as a stream"):
        spark.readStream.changes(ORDERS).writeStream.format("noop").start().awaitTermination(300)
    del table


def test_a_new_session_has_the_catalogs_of_its_application_and_of_its_settings(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    other = spark.newSession()
    assert other.table(ORDERS).count() == 4
    make_shop(tmp_path)
    other.conf.set("spark.weft.catalog.second", str(tmp_path))
    assert register_configured(other) == ["second"]
    assert other.table("second.shop.orders_wide").count() == 4
    other.conf.set("spark.weft.catalog.second.storage_options", "no JSON")
    with pytest.raises(InvalidInput, match="is not a JSON object"):
        register_configured(other)
    with pytest.raises(PySparkException, match="several catalogs"):
        other.sql("SELECT * FROM weft_changes('shop.orders_wide', 'first')")
    del table


def test_a_session_without_a_catalog_says_why(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="Spark Connect"):
        weft.register_catalog(cast("SparkSession", SimpleNamespace()), "weft", "lake")
    for name in ("a.b", "1", "spark_catalog", ""):
        with pytest.raises(InvalidInput, match="is not a plain identifier"):
            weft.register_catalog(spark, name, "lake")
    monkeypatch.setattr(catalog_jvm, "_classes_by_gateway", {})
    monkeypatch.setitem(catalog_jvm._CLASSES, "V1Table", "org.apache.spark.sql.connector.catalog.Moved")
    with pytest.raises(InvalidInput, match=r"lacks a class that the catalog needs.*Moved"):
        weft.register_catalog(spark, "weft_moved", "lake")
