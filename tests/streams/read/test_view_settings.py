"""Settings of a session that change how Spark reads files: none of them changes the rows of a table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import weft
from weft import Table

pytestmark = pytest.mark.timeout(900)

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 2,
    "columns": {
        "id": "bigint",
        "a.b": "string",
        "day": "date",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "d": "double",
        "bin": "binary",
        "st": "struct<x:int,y:date>",
    },
    "groups": {"g": {"columns": ["a.b", "day", "at", "local", "d", "bin", "st"]}},
    "streams": {"s": {"groups": ["g"]}},
}
# The first days of the Gregorian calendar, and the last days of the Julian calendar.
DAYS = [dt.date(1, 1, 5), dt.date(1500, 2, 28), dt.date(1582, 10, 4), dt.date(1582, 10, 15), dt.date(2026, 3, 29), None]
TIMES = [None if day is None else dt.datetime(day.year, day.month, day.day, 2, 30, 0, 1) for day in DAYS]  # noqa: DTZ001 - wall clock
ROWS = {
    "id": range(6),
    "a.b": ["", "x", None, "ä", "x", ""],
    "day": DAYS,
    "at": [None if time is None else time.replace(tzinfo=dt.UTC) for time in TIMES],
    "local": TIMES,
    "d": [float("nan"), -0.0, 0.0, None, float("-inf"), 1.5],
    "bin": [b"", b"\xff\xfe", None, b"a", b"a", b"\x00"],
    "st": [{"x": 1, "y": DAYS[1]}, None, {"x": None, "y": None}, {"x": 2, "y": DAYS[0]}, None, None],
}
QUERIES = [
    "SELECT * FROM {}",
    "SELECT count(*) FROM {}",
    "SELECT id FROM {} WHERE day < DATE'1582-10-10' AND `a.b` <> 'y'",
    "SELECT id FROM {} WHERE at = TIMESTAMP'1500-02-28 02:30:00.000001Z' OR local > TIMESTAMP_NTZ'2000-01-01 00:00:00'",
    "SELECT id FROM {} WHERE d >= 0 OR st.y = DATE'1500-02-28'",
    "SELECT id FROM {} WHERE d = 0 OR bin IN (X'61', X'00')",
]
SETTINGS: list[dict[str, str]] = [
    {"parquet.datetimeRebaseModeInRead": "LEGACY", "parquet.int96RebaseModeInRead": "LEGACY"},
    {"parquet.datetimeRebaseModeInRead": "EXCEPTION", "parquet.enableVectorizedReader": "false"},
    {"parquet.enableVectorizedReader": "false", "parquet.recordLevelFilter.enabled": "true"},
    {"parquet.binaryAsString": "true", "parquet.columnarReaderBatchSize": "1", "caseSensitive": "true"},
    {"session.timeZone": "America/New_York", "timestampType": "TIMESTAMP_NTZ", "ansi.enabled": "false"},
    {"parquet.filterPushdown": "false", "adaptive.enabled": "false", "files.maxPartitionBytes": "500"},
    {"execution.arrow.useLargeVarTypes": "true", "execution.arrow.maxRecordsPerBatch": "1"},
    {"streaming.fileSink.log.compactInterval": "1", "streaming.fileSink.log.cleanupDelay": "0"},
]


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """One view over base files only, and one over base files and a log."""
    weft.register(spark)
    folder = tmp_path_factory.mktemp("settings")
    made = Table.create(folder / "t %41 ä#", CONFIG)
    types = {field.name: field.type for field in made.schema.arrow}
    rows = pa.table({name: pa.array(values, types[name]) for name, values in ROWS.items()})
    with made.writer("s") as writer:
        writer.append(rows)
    made.compact()
    base = str(made.snapshot().cut)
    with made.writer("s") as writer:
        writer.append(rows)
    weft.create_view(spark, made.uri, "of_base", as_of=base)
    weft.create_view(spark, made.uri, "of_both")
    spark.createDataFrame(rows).createOrReplaceTempView("expected")
    yield made
    for name in ("of_base", "of_both", "expected"):
        spark.catalog.dropTempView(name)


@pytest.fixture(params=SETTINGS, ids=",".join)
def settings(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    spark.conf.set("spark.sql.codegen.wholeStage", "false")  # compiling takes most of the time of each query
    before = {f"spark.sql.{name}": spark.conf.get(f"spark.sql.{name}", None) for name in request.param}
    for name, value in request.param.items():
        spark.conf.set(f"spark.sql.{name}", value)
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@pytest.mark.usefixtures("settings")
def test_results_do_not_depend_on_sparks_reader_settings(spark: SparkSession, table: Table) -> None:
    for query in QUERIES:
        right, *found = (
            sorted(map(str, spark.sql(query.replace("{}", view)).collect()))
            for view in ("expected", "of_base", "of_both")
        )
        assert found == [right, right], query
    everything = spark.read.format("weft").load(table.uri)
    assert sorted(map(str, everything.collect())) == sorted(map(str, spark.table("expected").collect()))
    plan = spark.table("of_base")._jdf.queryExecution().executedPlan().toString()
    assert "ParquetScan" in plan
