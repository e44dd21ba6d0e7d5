"""A smoke test of weft on Spark: a stream into a table, a batch beside it, and SQL over the live view."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import weft
from tests.streams.write.sink.conftest import CONFIG
from weft import Table

WAIT_SECONDS = 300


@pytest.mark.smoke
@pytest.mark.timeout(3 * WAIT_SECONDS)
def test_two_streams_meet_in_one_view(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "table", CONFIG)
    weft.create_view(spark, table.uri, "smoke")
    orders = spark.createDataFrame([(1, "new", 1), (2, "new", 1)], "id bigint, status string, seq bigint")
    orders.coalesce(1).write.json(str(tmp_path / "orders"))
    feed = spark.readStream.schema(orders.schema).json(str(tmp_path / "orders"))
    query = weft.write_stream(feed, table.uri, "orders", checkpoint=str(tmp_path / "checkpoint"), once=True)
    assert query.awaitTermination(WAIT_SECONDS), "the query did not end"
    prices = spark.createDataFrame([(2, 9.5, 1.0)], "id bigint, price double, priced double")
    weft.write_batch(prices, table.uri, "prices")
    try:
        assert spark.sql("SELECT id, status, price FROM smoke ORDER BY id").collect() == [
            (1, "new", None),
            (2, "new", 9.5),
        ]
        assert table.compact().done
        assert spark.sql("SELECT id FROM smoke WHERE price > 9").collect() == [(2,)]
    finally:
        spark.catalog.dropTempView("smoke")
