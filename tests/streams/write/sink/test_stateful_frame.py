"""Frames that keep state: they are recognised, and refused where the next start would not find the state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.streams.write.sink.rig import TEST_SECONDS, Feed, event, rows, run
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.write.resume import ResumePoint
from weft.streams.write.sink import write_stream
from weft.streams.write.stateful_frame import refuse_local_state, stateful_operator

pytestmark = pytest.mark.timeout(TEST_SECONDS)


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda df: df.select("value").where("value > 1"), None),
        (lambda df: df.union(df), None),
        (lambda df: df.join(df.sparkSession.range(3).groupBy("id").count(), F.expr("id = value")), None),
        (lambda df: df.groupBy(F.window("timestamp", "1 minute")).count().select("count"), "Aggregate"),
        (lambda df: df.dropDuplicates(["value"]), "Deduplicate"),
        (lambda df: df.dropDuplicatesWithinWatermark(["value"]).where("value > 1"), "DeduplicateWithinWatermark"),
        (lambda df: df.alias("a").join(df.alias("b"), F.expr("a.timestamp = b.timestamp")), "Join"),
        (lambda df: df.select("value").intersect(df.sparkSession.range(3).toDF("value")), "Intersect"),
        (lambda df: df.select("value").subtract(df.sparkSession.range(3).toDF("value")), "Except"),
        (lambda df: df.limit(3), "GlobalLimit"),
        (
            lambda df: df.groupBy("value").applyInPandasWithState(
                lambda _key, frames, _state: frames, "value long", "n long", "append", "NoTimeout"
            ),
            "FlatMapGroupsInPandasWithState",
        ),
    ],
)
def test_stateful_operators(stream: DataFrame, change: Callable[[DataFrame], DataFrame], expected: str | None) -> None:
    assert stateful_operator(change(stream)) == expected


@pytest.mark.parametrize(
    ("master", "folder", "scheme"),
    [
        ("local[2]", "/tmp/c", "file"),
        ("spark://host:7077", "file:///mnt/share/c", "file"),
        ("spark://host:7077", "s3a://bucket/c", "s3a"),
        ("yarn", "/user/weft/c", "hdfs"),
    ],
)
def test_state_that_is_found_again_is_accepted(master: str, folder: str, scheme: str) -> None:
    refuse_local_state("Deduplicate", master, folder, scheme)


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,1024]"])
def test_state_of_a_cluster_on_local_disks_is_refused(master: str) -> None:
    with pytest.raises(InvalidInput, match=r"executors store below checkpoint /lake/c") as caught:
        refuse_local_state("Deduplicate", master, "/lake/c", "file")
    assert "s3a:// or hdfs://" in caught.value.hint


def test_on_one_machine_a_stateful_frame_is_written(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1), event(1, status="again"))
    run(feed.read().dropDuplicates(["id"]), table, tmp_path)
    assert [row[0] for row in rows(table)] == [1]


def test_a_stateful_frame_is_not_continued_without_its_state(feed: Feed, table: Table, tmp_path: Path) -> None:
    point = ResumePoint("orders", str(tmp_path / "c"), True, {}, {})
    before = table.snapshot().cut
    with pytest.raises(InvalidInput, match="which is in the old checkpoint and not in the table"):
        write_stream(feed.read().distinct(), table.uri, "orders", checkpoint=point.checkpoint, resume=point)
    assert table.snapshot().cut == before
