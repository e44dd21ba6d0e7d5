"""Options of reads: the same for the view, the DataFrame, ``format("weft")``, SQL and ``weft sql``."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import weft
from weft import Table
from weft.storage.errors import InvalidInput, NotComplete, NotFound
from weft.storage.operations.points import parse_point
from weft.streams.cli.main import app
from weft.streams.read.read_options import ReadOptions

CONFIG: dict[str, Any] = {
    "key": ["p", "id"],
    "partition_by": ["p"],
    "buckets": 1,
    "columns": {"p": "int", "id": "bigint", "a": "string", "at": "bigint", "b": "double"},
    "groups": {"ga": {"columns": ["a", "at"], "ordering": ["at"]}, "gb": {"columns": ["b"]}},
    "streams": {"sa": {"groups": ["ga"]}, "sb": {"groups": ["gb"]}},
}
OLD = "old"
SQL_SECONDS = 600.0  # starts a JVM on a busy machine


def append(table: Table, partition: int, first: int, value: str, lateness: int | None = None) -> None:
    ids = range(first, first + 3)
    with table.writer("sa", lateness=lateness) as writer:
        rows = {"p": pa.array([partition] * 3, pa.int32()), "id": ids, "a": [value] * 3, "at": [100 + first] * 3}
        writer.append(pa.table(rows))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two compacted partitions, one of which has later updates and inserts; a savepoint before these."""
    table = Table.create(tmp_path / "wide-1", CONFIG)
    append(table, 1, 0, "one")
    append(table, 2, 0, "two")
    table.compact()
    table.savepoint(OLD)
    append(table, 2, 1, "later")
    with table.writer("sb") as writer:
        writer.append(pa.table({"p": pa.array([2], pa.int32()), "id": [3], "b": [0.5]}))
    return table


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> Iterator[None]:
    weft.register(spark)
    yield
    for name in ("asked", "plain"):
        spark.catalog.dropTempView(name)


def values(frame: DataFrame) -> list[tuple[int, int, str]]:
    return sorted((row.p, row.id, row.a) for row in frame.collect())


ONE = [(1, i, "one") for i in range(3)]
BEFORE = [*ONE, *((2, i, "two") for i in range(3))]
NOW = [*ONE, (2, 0, "two"), *((2, i, "later") for i in (1, 2, 3))]


def test_a_second_session_of_an_application_registers_the_source_too(spark: SparkSession, table: Table) -> None:
    other = spark.newSession()
    weft.register(other)
    assert values(other.read.format("weft").load(table.uri)) == NOW
    weft.register(spark)
    assert values(spark.read.format("weft").load(table.uri)) == NOW


# Options -------------------------------------------------------------------------------------------------------------


def test_options_can_be_text_or_values() -> None:
    text = ReadOptions.of({"AS_OF": "2026-11-20T10:30:00+01:00", "require": "ga, gb", "read_optimized": "true"})
    moment = dt.datetime(2026, 11, 20, 9, 30, tzinfo=dt.UTC)
    assert text == ReadOptions.of({"as_of": moment, "require": ["ga", "gb"], "read_optimized": True})
    assert ReadOptions.of({"as_of": None, "require": None}) == ReadOptions()


@pytest.mark.parametrize("name", ["before-fix", "2026-11-20", "20261120T103000", "cut:1:4:sa=3"])
def test_other_texts_than_times_are_names_or_cuts(name: str) -> None:
    assert parse_point(name) == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"as-of": "x"},
            "unknown option 'as-of' for reading a table.*options: as_of, require, read_optimized, complete_through",
        ),
        ({"as_of": "2026-11-20T10:30:00"}, "has no zone.*2026-11-20T10:30:00Z"),
        ({"as_of": dt.datetime(2026, 11, 20, 10)}, "has no zone"),  # noqa: DTZ001 - the mistake
        ({"as_of": "10:30"}, "'10:30' is not a time"),
        ({"as_of": 7}, "option as_of cannot be 7.*the name of a savepoint"),
        ({"read_optimized": "perhaps"}, "option read_optimized cannot be 'perhaps'.*true or false"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        ReadOptions.of(given)


# Every way to read ---------------------------------------------------------------------------------------------------


def by_view(spark: SparkSession, table: Table, options: dict[str, Any]) -> DataFrame:
    weft.create_view(spark, table.uri, "asked", **options)
    return spark.sql("SELECT * FROM asked")


def by_snapshot(spark: SparkSession, table: Table, options: dict[str, Any]) -> DataFrame:
    return weft.snapshot(spark, table.uri, **options)


def by_format(spark: SparkSession, table: Table, options: dict[str, Any]) -> DataFrame:
    return spark.read.format("weft").options(**options).load(table.uri)


def by_sql(spark: SparkSession, table: Table, options: dict[str, Any]) -> DataFrame:
    listed = "".join(f", {name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW plain USING weft OPTIONS (path '{table.uri}'{listed})")
    return spark.sql("SELECT * FROM plain")


WAYS = pytest.mark.parametrize("read", [by_view, by_snapshot, by_format, by_sql])


@WAYS
def test_every_interface_reads_the_same_snapshot(spark: SparkSession, table: Table, read: Any) -> None:
    assert values(read(spark, table, {})) == NOW
    assert values(read(spark, table, {"as_of": OLD})) == BEFORE
    cut = str(table.snapshot(OLD).cut)
    assert values(read(spark, table, {"as_of": cut})) == BEFORE
    assert values(read(spark, table, {"require": "ga,gb"})) == [(2, 3, "later")]
    assert values(read(spark, table, {"read_optimized": "true"})) == BEFORE
    assert values(read(spark, table, {"moment": "true"})) == NOW
    later = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    assert values(read(spark, table, {"as_of": later})) == NOW


@WAYS
def test_every_interface_names_what_the_table_lacks(spark: SparkSession, table: Table, read: Any) -> None:
    errors = (InvalidInput, NotFound, NotComplete, PySparkException)
    for options, message in (
        ({"as_of": "older"}, "has no savepoint 'older'"),
        ({"require": "gc"}, "has no group 'gc'"),
        ({"complete_through": "100", "complete_groups": "ga"}, "stream 'sa'"),
        ({"complete_groups": "ga"}, "complete_groups: needs complete_through"),
        ({"moment": "true", "as_of": OLD}, "moment: not possible with as_of"),
    ):
        with pytest.raises(errors, match=message):
            read(spark, table, options).collect()
    if read in {by_format, by_sql}:
        with pytest.raises(AnalysisException, match="unknown option 'asof' for reading a table"):
            read(spark, table, {"asOf": OLD})


def test_a_view_can_be_queried_once_the_table_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", {**CONFIG, "streams": {"sa": {"groups": ["ga"]}, "sb": {"groups": ["gb"]}}})
    append(table, 1, 0, "one", lateness=10)
    asked = {"complete_groups": ["ga"], "complete_through": 100}
    with pytest.raises(NotComplete):
        weft.create_view(spark, table.uri, "asked", **asked)  # type: ignore[arg-type]
    append(table, 1, 50, "two", lateness=10)
    weft.create_view(spark, table.uri, "asked", **asked)  # type: ignore[arg-type]
    assert spark.table("asked").count() == 6, "rows without the group are shown, too"


def test_a_read_optimized_view_is_read_by_spark_alone_and_stays_live(spark: SparkSession, table: Table) -> None:
    weft.create_view(spark, table.uri, "asked", read_optimized=True)
    frame = spark.table("asked")
    text = frame._jdf.queryExecution().executedPlan().toString()
    assert "ParquetScan" in text
    assert "Union" not in text
    table.compact()
    assert values(spark.table("asked")) == NOW


def test_a_loaded_format_is_one_snapshot(spark: SparkSession, table: Table) -> None:
    loaded = by_format(spark, table, {})
    by_sql(spark, table, {})
    append(table, 1, 7, "newer")
    table.add_column("gb", "later", "string")
    assert values(loaded) == NOW
    assert values(spark.table("plain")) == NOW
    assert spark.table("plain").columns == loaded.columns


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("a string, id long", {("one", 0), ("two", 0), ("later", 3)}),
        ("id long NOT NULL, b double", {(0, None), (3, 0.5)}),
    ],
)
def test_a_format_accepts_fewer_columns_in_any_order(
    spark: SparkSession, table: Table, columns: str, rows: set[tuple[Any, ...]]
) -> None:
    found = [tuple(row) for row in spark.read.format("weft").schema(columns).load(table.uri).collect()]
    assert len(found) == len(NOW)
    assert rows <= set(found)


def test_a_format_returns_state_columns_on_request(spark: SparkSession, table: Table) -> None:
    columns = ["id", "_present_gb", "_arrival_ga", "_arrival_gb"]
    given = "id bigint, _present_gb boolean, _arrival_ga bigint, _arrival_gb bigint"
    found = spark.read.format("weft").schema(given).load(table.uri).collect()
    assert {tuple(row) for row in found} == {
        tuple(row.values()) for row in table.snapshot().to_arrow(columns).to_pylist()
    }
    assert [row.id for row in found if row["_present_gb"]] == [3]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id int", "column id is bigint, not int"),
        ("id long, a string NOT NULL", "column a is string, not string NOT NULL"),
        ("ID long", "has no column ID.*columns: p, id, a, at, b"),
    ],
)
def test_a_format_refuses_columns_that_are_not_the_tables(
    spark: SparkSession, table: Table, columns: str, message: str
) -> None:
    with pytest.raises(AnalysisException, match=f"(?s){message}"):
        spark.read.format("weft").schema(columns).load(table.uri).collect()


def test_writing_through_the_format_names_the_alternative(spark: SparkSession, table: Table) -> None:
    reader = spark.read.format("weft")
    for name in ("changes_until", "columns", "before", "max_commits_per_trigger"):
        with pytest.raises(AnalysisException, match=f"(?s)'{name}' is for reading changes.*changes_since"):
            reader.options(**{name: "true"}).load(table.uri)
        reader = spark.read.format("weft")
    with pytest.raises(AnalysisException, match=r"(?s)cannot write.*weft\.write_batch"):
        spark.range(1).write.format("weft").mode("append").save(table.uri)


# weft sql ------------------------------------------------------------------------------------------------------------


def weft_sql(table: Table, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "weft.streams.cli.main", "sql", table.uri, *arguments],
        capture_output=True,
        text=True,
        timeout=SQL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.spark
def test_sql_explains_what_it_reads_and_what_it_skips(table: Table) -> None:
    query = "SELECT id, a FROM t JOIN wide_1 USING (p, id, a) WHERE p = 2"
    found = json.loads(weft_sql(table, query, "--explain", "--json").stdout)
    (scan,) = (scan for scan in found["scans"] if scan["file_groups"])
    assert scan["cut"] == str(table.snapshot().cut)
    assert (scan["file_groups"], scan["with_logs"], scan["skipped"]) == (1, 1, 1)
    assert scan["log_bytes"] > 0
    assert scan["base_bytes"] > 0
    assert scan["reader"] == "Arrow in tasks"
    assert "p == 2" in scan["filter"]
    assert "BatchScan t[" in found["plan"]


@pytest.mark.spark
def test_sql_reads_older_snapshots_and_base_files_and_prints_what_they_lack(table: Table) -> None:
    query = "SELECT p, max(a) AS a, count(*) AS n FROM wide_1 GROUP BY p ORDER BY p"
    base = weft_sql(table, query, "--read-optimized", "--json")
    assert [json.loads(line) for line in base.stdout.splitlines()] == [
        {"p": 1, "a": "one", "n": 3},
        {"p": 2, "a": "two", "n": 3},
    ]
    assert "without 4 events of 2 commits since" in base.stderr
    shown = weft_sql(table, "SELECT * FROM t", "--as-of", OLD, "--explain").stdout
    for word in ("Spark's Parquet reader", "file groups skipped", str(table.snapshot(OLD).cut), "p, id, a, at, b"):
        assert word in shown, shown


def test_sql_refuses_wrong_options_before_it_starts_spark(table: Table) -> None:
    wrong = CliRunner().invoke(app, ["sql", table.uri, "SELECT 1", "--as-of", "2026-11-20T10:30:00"])
    assert wrong.exit_code == 2
    assert "has no zone" in wrong.stderr
    unknown = CliRunner().invoke(app, ["sql", table.uri, "SELECT 1", "--as-of", "older"])
    assert unknown.exit_code == 1
    assert "has no savepoint 'older'" in unknown.stderr
