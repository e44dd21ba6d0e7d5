"""Views over file groups of which logs touch a part: Spark reads the other row groups, and the answer is the same.

Each query runs over two views of one table: one divides file groups, the other merges them in tasks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from tests.streams.support.seeds import seeds
from tests.tuning import tuned
from weft import Table
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.view import planner_of

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint", "city": "string", "at": "bigint", "amount": "bigint", "bt": "bigint"},
    "groups": {
        "a": {"columns": ["city", "at"], "ordering": ["at"]},
        "b": {"columns": ["amount", "bt"], "ordering": ["bt"]},
    },
    "streams": {"s": {"groups": ["a"], "on_delete": "row"}, "t": {"groups": ["b"]}},
}
QUERIES = [
    "SELECT * FROM {}",
    "SELECT count(*), sum(amount), min(city), max(at) FROM {}",
    "SELECT city, count(*), sum(amount) FROM {} GROUP BY city",
    "SELECT id FROM {} WHERE amount > 50 AND city = 'c1'",
    "SELECT * FROM {} WHERE id BETWEEN 300 AND 420 OR city IS NULL",
    "SELECT * FROM {} WHERE id IN (1, 2, 399, 405, 7000)",
    "SELECT a.id, b.amount FROM {} a JOIN {} b ON a.id = b.id + 1",
    "SELECT id, city FROM {} WHERE id IN (SELECT id FROM few WHERE used = 1)",
    "SELECT id, amount FROM {} ORDER BY id DESC LIMIT 30",
    "SELECT DISTINCT city FROM {} UNION ALL SELECT city FROM {} WHERE id = 5",
    "SELECT id, city, amount, doubled(id) FROM {}",
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return tuned(Table.create(tmp_path / "t", CONFIG), row_group_rows=40, shared_file_bytes=1)


@pytest.fixture
def views(spark: SparkSession, table: Table) -> Iterator[None]:
    planner = planner_of(spark, table.uri, ReadOptions())
    tunings = {"divided": PlannerTuning(0, 2, 1, 0, 0), "merged": PlannerTuning(mix_min_bytes=2**60)}
    for name, tuning in tunings.items():
        create_relation_view(spark, name, replace(planner, tuning=tuning))
    spark.udf.register("doubled", udf(lambda number: number * 2, "bigint", useArrow=True))
    spark.createDataFrame([(n, n % 2) for n in (3, 11, 399, 401, 9000)], "id bigint, used int").hint(
        "broadcast"
    ).createOrReplaceTempView("few")
    yield
    for name in (*tunings, "few"):
        spark.catalog.dropTempView(name)


def write(table: Table, source: random.Random, stream: str, ids: list[int], time: int) -> None:
    rows: dict[str, Any] = {"id": ids}
    if stream == "s":
        rows |= {"city": [source.choice(["c1", "c2", None]) for _ in ids], "at": [time] * len(ids)}
        rows["_op"] = [source.choice(["upsert"] * 6 + ["delete"]) for _ in ids]
    else:
        rows |= {"amount": [source.randrange(100) for _ in ids], "bt": [time] * len(ids)}
    with table.writer(stream) as writer:
        writer.append(pa.table(rows))


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("seed", seeds(1, 7))
@pytest.mark.usefixtures("views")
def test_answers_are_those_of_merged_rows(spark: SparkSession, table: Table, seed: int) -> None:
    source = random.Random(seed)
    write(table, source, "s", list(range(400)), 1)
    write(table, source, "t", list(range(0, 400, 3)), 1)
    table.compact()
    begin = source.choice([0, 150, 370])
    for time in (2, 3):
        write(table, source, source.choice("st"), source.sample(range(begin, begin + 60), 20), time)
    differing, native = [], 0
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.files.maxPartitionBytes", source.choice(["128MB", "2KB"]))
    try:
        for query in QUERIES:
            divided, merged = spark.sql(query.replace("{}", "divided")), spark.sql(query.replace("{}", "merged"))
            found, right = (sorted(map(str, frame.collect())) for frame in (divided, merged))
            native += "ParquetScan" in plan(divided)
            assert "ParquetScan" not in plan(merged)
            if found != right:
                differing.append((query, set(found) ^ set(right)))
    finally:
        spark.conf.unset("spark.sql.codegen.wholeStage")
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert differing == []
    assert native == len(QUERIES)


@pytest.mark.usefixtures("views")
def test_spark_reads_the_row_groups_that_no_log_touches(spark: SparkSession, table: Table) -> None:
    source = random.Random(1)
    write(table, source, "s", list(range(400)), 1)
    table.compact()
    write(table, source, "t", [390, 391, 1000], 2)
    frame = spark.sql("SELECT id, amount FROM divided")
    native, merged = [part for part in plan(frame).split("BatchScan")[1:] if "weft" in part]
    assert "ParquetScan" in native
    assert "2 file groups (0 with logs)" in native
    assert "2 file groups (2 with logs)" in merged
    right = spark.sql("SELECT id, amount FROM merged")
    assert sorted(map(str, frame.collect())) == sorted(map(str, right.collect()))
    write(table, source, "t", list(range(40)), 3)  # from here on logs touch every row group
    assert "ParquetScan" not in plan(spark.sql("SELECT id, amount FROM divided"))
