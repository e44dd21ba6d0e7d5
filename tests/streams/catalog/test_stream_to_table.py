"""``writeTo`` and ``writeStream.toTable`` of a catalog's streams."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.catalog.register import register_catalog

CONFIG = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "status": "string", "ots": "bigint", "paid": "double", "pts": "bigint"},
    "groups": {
        "order": {"columns": ["status", "ots"], "ordering": ["ots"]},
        "payment": {"columns": ["paid", "pts"], "ordering": ["pts"]},
    },
    "streams": {"orders": {"groups": ["order"]}, "payments": {"groups": ["payment"]}},
}


def landing(spark: SparkSession, folder: Path, number: int) -> DataFrame:
    """A stream of files, with one more file."""
    folder.mkdir(exist_ok=True)
    spark.createDataFrame([(number, 0.5, 7)], "id bigint, paid double, pts bigint").coalesce(1).write.mode(
        "append"
    ).parquet(str(folder))
    return spark.readStream.schema("id bigint, paid double, pts bigint").parquet(str(folder))


def test_a_stream_is_written_exactly_once_and_a_frame_is_appended(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "lake" / "shop" / "t", CONFIG)
    register_catalog(spark, "weft", tmp_path / "lake")
    checkpoint = str(tmp_path / "checkpoint")
    for number in (1, 2):
        frame = landing(spark, tmp_path / "files", number)
        writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.toTable("weft.shop.t.payments", queryName=f"q{number}")
        assert query.name == f"q{number}"
        assert query.awaitTermination(300)
    orders = spark.createDataFrame([(2, "new", 5)], "id int, status string, ots int")
    orders.writeTo("weft.shop.t.orders").append()
    rows = table.snapshot().to_arrow().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, None, None, 0.5, 7), (2, "new", 5, 0.5, 7)]
    assert "payments" in table.state().lanes, "the lane of the query is that of the stream"
    for wrong, message in (
        (frame.writeStream.trigger(availableNow=True), "option checkpointLocation is missing"),
        (frame.writeStream.option("checkpointLocation", checkpoint).option("colour", "red"), "'colour' is unknown"),
        (frame.writeStream.option("checkpointLocation", checkpoint).outputMode("update"), "output mode Update"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(message)):
            wrong.toTable("weft.shop.t.payments")
    with pytest.raises(InvalidInput, match="'writer' is unknown"):
        frame.writeStream.option("checkpointLocation", checkpoint).toTable("weft.shop.t.payments", writer="1", plain="")
    with pytest.raises(InvalidInput, match="the statement names none"):
        frame.writeStream.option("checkpointLocation", checkpoint).toTable("weft.shop.t")
    assert pa.compute.sum(table.snapshot().to_arrow()["id"]).as_py() == 3


def test_rows_that_an_insert_does_not_store_are_said(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table.create(tmp_path / "lake" / "t", CONFIG)
    register_catalog(spark, "weft", tmp_path / "lake")
    spark.sql("INSERT INTO weft.t.orders VALUES (1, 'new', 5)")

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name.startswith("weft")]

    assert not said()
    spark.sql("INSERT INTO weft.t.orders VALUES (2, 'new', NULL), (3, 'new', 5)")
    assert [message.partition(":")[0] for message in said()] == ["weft.t.orders"]
    assert "1 row is not stored" in caplog.text
    assert table.snapshot().to_arrow()["id"].to_pylist() == [1, 3]
