"""The live view follows its table, and every query sees one state of it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from tests.streams.read.relation.planner import SCHEMA, Files, plan_text, rows
from weft.streams.read.relation.live_view import create_relation_view


@pytest.mark.parametrize("how", ["tasks", "native"])
def test_a_view_made_before_the_data_shows_the_data(spark: SparkSession, files: Files, name: str, how: str) -> None:
    files.native = how == "native"
    create_relation_view(spark, name, files)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW above AS SELECT id FROM {name} WHERE id >= 70")
    counts = []
    for step in range(3):
        counts.append((spark.table(name).count(), spark.sql("SELECT * FROM above").count()))
        files.add(rows(70 + 10 * step, 10))
    assert counts == [(70, 0), (80, 10), (90, 20)]


def test_a_new_column_shows_up_in_the_view(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    before = spark.table(name)
    files.add(rows(70, 5).append_column("extra", pa.array(range(5), pa.int64())))
    assert spark.table(name).columns == [*SCHEMA.names, "extra"]
    assert spark.sql(f"SELECT sum(extra) FROM {name}").collect()[0][0] == 10
    assert before.count() == 75  # a frame keeps its columns and sees the new rows
    assert before.columns == SCHEMA.names


def test_a_frame_whose_column_was_dropped_names_it(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    before = spark.table(name)
    files.add(rows(70, 5).drop_columns(["small"]))
    assert before.select("id").count() == 75
    with pytest.raises(IllegalArgumentException, match=r"column 'small' of .* was int and no longer exists") as caught:
        before.select("small").collect()
    assert "create the DataFrame again" in str(caught.value)
    with pytest.raises(AnalysisException, match="small"):
        spark.sql(f"SELECT small FROM {name}")


def test_a_frame_collected_twice_gives_the_same_rows_and_derived_frames_the_newest(
    spark: SparkSession, files: Files, name: str
) -> None:
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT id FROM {name}")
    assert len(frame.collect()) == 70
    files.add(rows(70, 10))
    assert len(frame.collect()) == 70
    assert len(frame.where("id >= 0").collect()) == 80
    assert frame.count() == 80


ONE_STATE = [
    "SELECT count(*) FROM {} a JOIN {} b ON a.id = b.id",
    "SELECT count(*) FROM (SELECT id FROM {} INTERSECT SELECT id FROM {} WHERE id >= 0)",
    "SELECT count(*) FROM {} WHERE id IN (SELECT id FROM {} WHERE small IS NULL OR small >= 0)",
    "SELECT (SELECT max(id) FROM {}) - (SELECT count(id) FROM {}) + 1 + count(*) FROM {}",
    "WITH t AS (SELECT * FROM {}) SELECT count(*) FROM t x JOIN t y USING (id) WHERE id <= (SELECT max(id) FROM {})",
    "SELECT count(*) FROM {} a WHERE EXISTS (SELECT 1 FROM {} b WHERE b.id = a.id)",
]


@pytest.mark.parametrize("query", ONE_STATE)
def test_all_scans_of_a_query_see_one_state(spark: SparkSession, files: Files, name: str, query: str) -> None:
    create_relation_view(spark, name, files)

    def grow() -> None:  # every read of the table finds another state
        start = sum(pq.read_metadata(path).num_rows for path in files.paths)
        files.add(rows(start, 10))

    files.on_pin = grow
    files.pins = 0
    size = 70
    for _ in range(3):
        size += 10
        assert spark.sql(query.replace("{}", name)).collect()[0][0] == size
    assert files.pins == 3


def test_frames_made_at_different_times_see_one_state_when_joined(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    early = spark.table(name).select("id")
    files.add(rows(70, 10))
    late = spark.table(name).select("id")
    files.add(rows(80, 10))
    files.pins = 0
    assert len(early.join(late, "id", "full").collect()) == 90
    assert len(early.exceptAll(late).collect()) == 0
    assert files.pins == 2


def test_equal_scans_of_one_query_are_planned_and_run_once(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT count(*) FROM {name} a JOIN {name} b ON a.id = b.id")
    frame.collect()
    assert len(files.plans) == 1
    assert "ReusedExchange" in plan_text(frame)


def test_a_cached_view_is_fixed_and_an_uncached_one_is_live(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    spark.catalog.cacheTable(name)
    assert spark.table(name).count() == 70
    files.add(rows(70, 10))
    assert spark.table(name).count() == 70
    spark.catalog.uncacheTable(name)
    assert spark.table(name).count() == 80


def test_a_view_can_be_written_to_a_table(spark: SparkSession, files: Files, name: str, tmp_path: Path) -> None:
    create_relation_view(spark, name, files)
    target = tmp_path / "copy"
    spark.sql(f"SELECT a.id, b.name FROM {name} a JOIN {name} b ON a.id = b.id").write.parquet(str(target))
    assert spark.read.parquet(str(target)).count() == 70


def test_each_batch_of_a_stream_joins_the_newest_state(
    spark: SparkSession, files: Files, name: str, tmp_path: Path
) -> None:
    create_relation_view(spark, name, files)
    source = tmp_path / "source"
    seen: list[int] = []

    def take(batch: DataFrame, _number: int) -> None:
        seen.append(batch.count())
        if len(seen) == 1:
            files.add(rows(70, 10))

    for number in range(2):
        spark.range(1).coalesce(1).write.mode("append").parquet(str(source))
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))
        joined = stream.crossJoin(spark.table(name).select("name"))
        query = joined.writeStream.foreachBatch(take).trigger(availableNow=True)
        running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert running.awaitTermination(300), number
    assert seen == [70, 80]


def test_a_file_added_to_the_context_later_reaches_the_tasks(
    spark: SparkSession, files: Files, name: str, tmp_path: Path
) -> None:
    create_relation_view(spark, name, files)
    assert spark.table(name).count() == 70
    module = f"late_{name}"
    path = tmp_path / f"{module}.py"
    path.write_text("NUMBER = 5")
    spark.sparkContext.addPyFile(str(path))

    def read(_task: Any) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": [importlib.import_module(module).NUMBER]})

    files.read = read
    assert spark.sql(f"SELECT sum(id) FROM {name}").collect()[0][0] == 10


def test_threads_get_a_consistent_state_each(spark: SparkSession, files: Files, name: str) -> None:
    lock = threading.Lock()

    def grow() -> None:
        with lock:
            start = sum(pq.read_metadata(path).num_rows for path in files.paths)
            files.add(rows(start, 1))

    create_relation_view(spark, name, files)
    files.on_pin = grow

    def query(_number: int) -> tuple[int, int, int]:
        found = spark.sql(
            f"SELECT count(*), (SELECT count(id) FROM {name}), (SELECT max(id) + 1 FROM {name}) FROM {name}"
        )
        return tuple(found.collect()[0])

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(query, range(8)))
    assert all(len(set(numbers)) == 1 for numbers in answers), answers
    assert len({numbers[0] for numbers in answers}) == 8
