"""A catalog whose root is in an object store: from CREATE TABLE to DROP TABLE."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import weft
from tests.stores.moto_server import moto_server
from tests.stores.places import Backend
from tests.stores.real_server import real_server
from weft.storage.core.names import Path

pytestmark = pytest.mark.timeout(900)

CREATE = """
CREATE TABLE weft_s3.shop.eu.orders (id BIGINT, status STRING, ts BIGINT)
TBLPROPERTIES ('key' = 'id', 'buckets' = '1', 'group.g' = 'status, ts', 'group.g.ordering' = 'ts', 'stream.s' = 'g')
"""


@pytest.fixture(
    params=[
        pytest.param("moto", marks=pytest.mark.extended),
        pytest.param("s3", marks=[pytest.mark.integration, pytest.mark.extended]),
    ]
)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """S3 simulated by moto, and a real server."""
    with moto_server() if request.param == "moto" else real_server() as running:
        yield running


def test_a_table_by_name_from_creation_to_purge(spark: SparkSession, backend: Backend) -> None:
    place = backend.new_place()
    weft.register_catalog(spark, "weft_s3", place.uri, storage_options=place.options)

    def rows(statement: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in spark.sql(statement).collect()]

    assert rows("SHOW NAMESPACES IN weft_s3") == []
    spark.sql(CREATE)
    assert rows("SHOW NAMESPACES IN weft_s3") == [("shop",)]
    assert rows("SHOW NAMESPACES IN weft_s3.shop") == [("shop.eu",)]
    assert [row[:2] for row in rows("SHOW TABLES IN weft_s3.shop.eu")] == [("shop.eu", "orders")]
    spark.sql("INSERT INTO weft_s3.shop.eu.orders VALUES (1, 'new', 1), (2, 'new', 2)")
    spark.sql("INSERT INTO weft_s3.shop.eu.orders VALUES (1, 'sent', 3)")
    assert rows("SELECT id, status FROM weft_s3.shop.eu.orders ORDER BY id") == [(1, "sent"), (2, "new")]
    spark.sql("DROP TABLE weft_s3.shop.eu.orders PURGE")
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM weft_s3.shop.eu.orders")
    # SeaweedFS lists the empty folders of deleted objects, as a local disk does; moto does not.
    assert list(place.open().list(Path(""))) == []
    spark.sql(CREATE)
    assert rows("SELECT * FROM weft_s3.shop.eu.orders") == []
