"""Shared by the tests of the sink: a table of two streams, and a feed for one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.streams.write.sink.rig import Feed
from weft import Table

CONFIG = {
    "key": ["id"],
    "buckets": 2,
    "columns": {
        "id": "bigint",
        "status": "string",
        "seq": "bigint",
        "price": "double",
        "priced": "double",
    },
    "groups": {
        "order": {"columns": ["status", "seq"], "ordering": ["seq"]},
        "price": {"columns": ["price", "priced"], "ordering": ["priced"]},
    },
    "streams": {"orders": {"groups": ["order"], "on_delete": "row"}, "prices": {"groups": ["price"]}},
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "table", CONFIG)


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "feed")
