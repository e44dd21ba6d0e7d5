"""Tables in an object store: all ways to read them with Spark, with and without Hadoop access; secrets stay hidden."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import weft
from tests.storage.support.shop import SHOP, append, orders, payments
from tests.stores.moto_server import moto_server
from tests.stores.places import Backend, Place
from tests.stores.real_server import real_server
from tests.streams.support.pipelines import weft_output
from tests.streams.support.slow_starts import start_in_time
from tests.streams.write.sink.rig import Feed, run
from weft import Table
from weft.storage.errors import GapError
from weft.streams.read.hadoop_access import HadoopAccess
from weft.streams.read.relation.live_view import ParquetFile

pytestmark = pytest.mark.timeout(900)

SECRET = "not-a-secret"
END_S = 300


@pytest.fixture(
    scope="module", params=["moto", pytest.param("s3", marks=[pytest.mark.integration, pytest.mark.extended])]
)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """S3 simulated by moto, and a real server."""
    with moto_server() if request.param == "moto" else real_server() as running:
        yield running


@pytest.fixture
def place(spark: SparkSession, backend: Backend) -> Iterator[Place]:
    weft.register(spark)
    yield backend.new_place()
    for name in ("remote", "listed"):
        spark.catalog.dropTempView(name)


@pytest.fixture
def table(place: Place) -> Table:
    made = Table.create(place.uri, SHOP, storage_options=place.options)
    append(made, orders(1, 2))
    append(made, payments(1), "payments")
    return made


def ids(frame: DataFrame) -> list[Any]:
    return sorted((row.id, row.paid) for row in frame.collect())


def text_of(frame: DataFrame) -> str:
    """Everything that Spark prints about a query."""
    return str(frame._jdf.queryExecution().toString())


def test_tasks_read_a_compacted_table_if_spark_finds_no_file(spark: SparkSession, table: Table, place: Place) -> None:
    weft.create_view(spark, place.uri, "remote", storage_options=place.options)
    waiting = ids(spark.table("remote"))
    table.compact()
    frame = spark.sql("SELECT * FROM remote WHERE id < 9")
    assert ids(frame) == waiting == [(1, 1.0), (2, None)]
    assert "ParquetScan" not in text_of(frame)
    assert ids(weft.snapshot(spark, place.uri, storage_options=place.options)) == waiting
    assert ids(weft.snapshot(spark, place.uri, storage_options=place.options, read_optimized=True)) == waiting
    append(table, payments(2, paid=2.0), "payments")
    assert ids(spark.table("remote")) == [(1, 1.0), (2, 2.0)]


def test_a_table_in_an_object_store_from_creation_to_cleaning(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    """Streams and batches write, commands maintain, Spark reads; all of them use the storage options."""
    options = ("--storage-option", json.dumps(place.options))
    table = Table.create(place.uri, SHOP, storage_options=place.options)
    feed = Feed(spark, tmp_path / "feed")
    reached: dict[int, tuple[str, float | None]] = {}

    def stream(*keys: int, status: str) -> None:
        feed.put(*({"id": key, "status": status, "seq": len(reached)} for key in keys))
        frame = feed.read().selectExpr("id", "status", "seq AS ots")
        run(frame, table, tmp_path, storage_options=place.options)
        reached.update({key: (status, reached.get(key, ("", None))[1]) for key in keys})

    def pay(number: int, *keys: int, paid: float) -> None:
        frame = spark.createDataFrame([(key, paid, number) for key in keys], "id bigint, paid double, pts bigint")
        for again in (False, True):
            given = {"batch": ("backfill", number), "storage_options": place.options}
            assert weft.write_batch(frame, place.uri, "payments", **given).replayed is again
        reached.update({key: (reached[key][0], paid) for key in keys})

    weft.create_view(spark, place.uri, "remote", storage_options=place.options)

    def check() -> None:
        found = {row.id: (row.status, row.paid) for row in spark.table("remote").collect()}
        assert found == reached
        weft_output("verify", place.uri, *options)

    stream(1, 2, 3, status="new")
    pay(0, 1, 2, paid=1.5)
    check()
    assert "base files written" in weft_output("compact", place.uri, *options)
    check()
    stream(2, 3, 4, status="sent")
    pay(1, 3, paid=2.5)
    weft_output("compact", place.uri, "--fold", *options)
    check()
    weft_output("savepoint", place.uri, "good", *options)
    good = dict(reached)
    stream(1, 5, status="wrong")
    assert weft.compact(spark, place.uri, storage_options=place.options).done
    check()
    cleaned = json.loads(weft_output("clean", place.uri, "--retain", "0 seconds", "--json", *options))
    assert sum(tally["files"] for tally in cleaned["deleted"].values()) > 0
    check()
    weft_output("restore", place.uri, "good", "--yes", *options)
    reached = good
    check()
    with pytest.raises(GapError, match="restored"):
        stream(6, status="lost")
    output = weft_output("show", place.uri, *options) + weft_output("show", place.uri, "timeline", *options)
    assert SECRET not in output


def test_only_a_file_of_the_same_size_counts_as_found(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"12345")
    ask = HadoopAccess(spark)._ask
    assert ask(ParquetFile(f"file://{path}", 5))
    assert not ask(ParquetFile(f"file://{path}", 6))
    assert not ask(ParquetFile(f"file://{path}.gone", 5))
    assert HadoopAccess(spark)(ParquetFile("s3://bucket/x.parquet", 5)) is None


@pytest.mark.usefixtures("table")
def test_formats_accept_storage_options(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    options = json.dumps(place.options)
    frame = spark.read.format("weft").option("storage_options", options).load(place.uri)
    assert ids(frame) == [(1, 1.0), (2, None)]
    listed = f"path '{place.uri}', storage_options '{options}', require 'payment'"
    spark.sql(f"CREATE TEMPORARY VIEW listed USING weft OPTIONS ({listed})")
    assert ids(spark.table("listed")) == [(1, 1.0)]
    changes = spark.read.format("weft").options(storage_options=options, changes_since="earliest").load(place.uri)
    assert sorted(row._change for row in changes.collect()) == ["insert", "insert"]
    taken: list[Row] = []
    stream = spark.readStream.format("weft").option("storage_options", options).load(place.uri)
    writer = stream.writeStream.foreachBatch(lambda batch, _: taken.extend(batch.collect()))
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)

    def run_query() -> StreamingQuery:
        query = writer.start()
        try:
            assert query.awaitTermination(END_S)
        finally:
            query.stop()
        return query

    query = start_in_time(run_query)
    assert sorted((row.id, row._change) for row in taken) == [(1, "insert"), (2, "insert")]
    texts = [text_of(frame), text_of(spark.table("listed")), text_of(changes), str(query.lastProgress)]
    texts += [path.read_text() for path in (tmp_path / "c").rglob("*") if path.is_file() and path.suffix != ".crc"]
    assert [text for text in texts if SECRET in text] == []


@pytest.mark.parametrize("given", ['"s3"', "{", "[1]", '{"secret": "not-a-secret"'])
def test_storage_options_that_are_not_an_object_are_refused_without_being_shown(
    spark: SparkSession, place: Place, given: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(PySparkException, match="storage_options is not a JSON object") as caught,
    ):
        spark.read.format("weft").option("storage_options", given).load(place.uri)
    assert "hint: " in str(caught.value)
    assert SECRET not in str(caught.value)
