"""How a read is divided for Spark, and how much Spark sends to each task."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests import many_groups
from tests.tuning import tune
from weft import Table
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.scan_facts import ScanFacts
from weft.streams.read.table_source import WeftSource
from weft.streams.read.view import parse_size, planner_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("134217728", 1 << 27),
        ("134217728b", 1 << 27),
        ("128MB", 1 << 27),
        ("128m", 1 << 27),
        (" 64k ", 1 << 16),
        ("2gb", 2 << 30),
        ("1tb", 1 << 40),
        ("1p", 1 << 50),
        ("128 MB", None),
        ("1.5g", None),
        ("many", None),
        ("", None),
    ],
)
def test_sizes_are_those_of_spark(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def table_of(folder: Path, partitions: int) -> Table:
    table = Table.create(folder, many_groups.CONFIG)
    with table.writer("s") as writer:
        writer.append(many_groups.rows(partitions, many_groups.KEYS, 1))
    return table


@pytest.mark.parametrize("options", [{}, {"changes_since": "earliest"}], ids=["snapshot", "changes"])
def test_the_reader_that_every_task_gets_does_not_hold_all_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    tune(monkeypatch, task_min_bytes=1, change_task_bytes=1)
    sizes = []
    for partitions in (1, 40):
        uri = tmp_path / f"{partitions:02d}"
        table_of(uri, partitions)
        source = WeftSource({"path": str(uri), **options})
        reader = source.reader(source.schema())
        tasks = reader.partitions()
        assert len(tasks) == min(4 * partitions, 160 if options else 16)
        sent = pickle.loads(cloudpickle.dumps(reader))
        assert sum(len(batch) for task in tasks for batch in sent.read(task)) == partitions * many_groups.KEYS
        sizes.append(len(cloudpickle.dumps(reader)))
    assert sizes[1] < 1.05 * sizes[0]


@pytest.mark.spark
def test_a_view_divides_a_hot_file_group_by_the_session_s_split_size(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, row_group_rows=500, block_min_bytes=1_000, block_max_bytes=4_000, task_min_bytes=1)
    table = Table.create(tmp_path / "t", {**many_groups.CONFIG, "buckets": 1})
    with table.writer("s") as writer:
        writer.append(many_groups.rows(1, 20_000, 1))
        table.compact()
        writer.append(many_groups.rows(1, 9_000, 2))
    facts: list[ScanFacts] = []
    create_relation_view(spark, "hot", planner_of(spark, table.uri, ReadOptions(), on_scan=facts.append))
    answers = set()
    try:
        for size, most in (("128MB", 2 * spark.sparkContext.defaultParallelism), ("20000b", 64)):
            spark.conf.set("spark.sql.files.maxPartitionBytes", size)
            query = spark.sql("SELECT count(*), sum(v), max(ts) FROM hot")
            answers.add(tuple(query.collect()[0]))
            assert 1 < facts[-1].tasks <= most
            assert facts[-1].divided == 1
            assert f"{facts[-1].tasks} tasks (1 file group divided)" in query._jdf.queryExecution().toString()
        assert facts[-1].tasks > 10 > facts[0].tasks
        assert answers == {(20_000, sum(range(20_000)) + 9_000 * 2 + 11_000, 2)}
        table.compact()
        assert spark.sql("SELECT sum(v) FROM hot").collect()
        assert facts[-1].tasks == 0  # Spark's Parquet reader divides the file
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
        spark.catalog.dropTempView("hot")
