"""Missing and damaged files: the query fails and says why, even if the session is set to ignore such files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import weft
from weft import Table
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.view import planner_of

pytestmark = pytest.mark.timeout(900)

CONFIG = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint", "a": "bigint"},
    "groups": {"g": {"columns": ["a"]}},
    "streams": {"s": {"groups": ["g"]}},
}
ROWS = 50
NOTHING = dt.timedelta(0)
FAILURE = (PySparkException, Py4JJavaError)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with all rows in base files."""
    made = Table.create(tmp_path / "t", CONFIG)
    append(made)
    made.compact()
    return made


@pytest.fixture(autouse=True)
def lax(spark: SparkSession) -> Iterator[None]:
    """A session that is set to ignore missing and corrupt files, which must not affect tables."""
    names = [f"spark.sql.files.ignore{what}Files" for what in ("Missing", "Corrupt")]
    for name in names:
        spark.conf.set(name, "true")
    yield
    for name in names:
        spark.conf.unset(name)


def append(table: Table) -> None:
    with table.writer("s") as writer:
        writer.append(pa.table({"id": range(ROWS), "a": range(ROWS)}))


def planned(df: DataFrame) -> DataFrame:
    """The same frame after Spark has planned it."""
    text = df._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan" in text
    return df


def is_native(df: DataFrame) -> bool:
    return "ParquetScan" in df._jdf.queryExecution().executedPlan().toString()


def base_files(table: Table) -> list[Path]:
    return sorted(Path(table.uri.removeprefix("file://"), "base").rglob("*.parquet"))


def test_a_base_file_missing_during_the_read_fails_the_query(spark: SparkSession, table: Table) -> None:
    df = planned(weft.snapshot(spark, table.uri))
    assert is_native(df)
    base_files(table)[0].unlink()
    with pytest.raises(FAILURE, match="FILE_NOT_EXIST"):
        df.collect()


def test_a_base_file_missing_before_planning_fails_the_query(spark: SparkSession, table: Table) -> None:
    for gone in base_files(table):
        gone.unlink()
        with pytest.raises(FAILURE, match="FILE_NOT_EXIST"):
            weft.snapshot(spark, table.uri).collect()


def test_a_damaged_base_file_fails_the_query(spark: SparkSession, table: Table) -> None:
    df = planned(weft.snapshot(spark, table.uri))
    assert is_native(df)
    rotten = base_files(table)[0]
    rotten.write_bytes(rotten.read_bytes()[: rotten.stat().st_size // 2])
    with pytest.raises(FAILURE):
        df.collect()


@pytest.mark.parametrize("waiting", [False, True], ids=["base files alone", "with logs"])
def test_a_query_of_an_expired_snapshot_fails_with_snapshot_expired(
    spark: SparkSession, table: Table, *, waiting: bool
) -> None:
    if waiting:
        append(table)
    df = weft.snapshot(spark, table.uri)
    assert df.count() == ROWS
    append(table)
    table.compact()
    table.clean(retain=NOTHING)
    with pytest.raises(FAILURE) as caught:
        df.where("a >= 0").collect()  # another query over the same snapshot
    assert "SnapshotExpired: snapshot cut:1:" in str(caught.value)
    assert "hint: " in str(caught.value)


def test_a_frame_run_after_its_snapshot_expired_fails_with_snapshot_expired(spark: SparkSession, table: Table) -> None:
    planner = planner_of(spark, table.uri, ReadOptions())
    create_relation_view(spark, "cleaned", replace(planner, tuning=PlannerTuning(recheck_seconds=0)))
    try:
        df = spark.table("cleaned")
        append(table)
        table.compact()
        table.clean(retain=NOTHING)
        with pytest.raises(FAILURE, match="SnapshotExpired: snapshot cut:1:"):
            df.collect()
        assert spark.table("cleaned").count() == ROWS
    finally:
        spark.catalog.dropTempView("cleaned")


def test_a_view_continues_with_the_newest_snapshot(spark: SparkSession, table: Table) -> None:
    weft.create_view(spark, table.uri, "cleaned")
    try:
        assert spark.table("cleaned").count() == ROWS
        append(table)
        table.compact()
        table.clean(retain=NOTHING)
        assert spark.table("cleaned").count() == ROWS
    finally:
        spark.catalog.dropTempView("cleaned")
