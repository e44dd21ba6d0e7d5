"""A new session finds ``format("weft")`` by itself, and its catalog can have tables of this format."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import weft
from weft import Table

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 600

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "a": "string", "at": "bigint"},
    "groups": {"ga": {"columns": ["a", "at"], "ordering": ["at"]}},
    "streams": {"sa": {"groups": ["ga"]}},
}

NEW_SESSION = """
import sys
from pyspark.sql import SparkSession
uri, order, folder = sys.argv[1:]
if order == "with weft":
    import weft.streams
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print("read", spark.read.format("weft").load(uri).count())
spark.sql(f"CREATE TEMPORARY VIEW v USING weft OPTIONS (path '{uri}')")
print("sql", spark.table("v").count())
def streamed(reader, name):
    said = []
    writer = reader.load(uri).writeStream.foreachBatch(lambda rows, n: said.extend(rows.collect()))
    writer = writer.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True)
    for _ in range(10):
        try:
            assert writer.start().awaitTermination(300)
        except Exception as error:
            if "Python worker failed to connect back" in str(error):
                continue  # a busy machine: `tests.streams.support.slow_starts`
            return "needs option 'starting'" if "needs option 'starting'" in str(error) else str(error)
        return [row["_change"] for row in said]
print("starting", streamed(spark.readStream.format("weft").option("starting", "earliest"), "from earliest"))
print("plain", streamed(spark.readStream.format("weft"), "from the default"))
try:
    spark.read.format("weft_kafka").load()
except Exception as error:
    print("kafka", "kafka.bootstrap.servers" in str(error))
"""


def made(path: Path, *ids: int) -> Table:
    table = Table.create(path, CONFIG)
    append(table, *ids)
    return table


def append(table: Table, *ids: int) -> None:
    with table.writer("sa") as writer:
        writer.append(pa.table({"id": ids, "a": ["x"] * len(ids), "at": ids}))


@pytest.mark.spark
@pytest.mark.timeout(START_SECONDS + 60)
@pytest.mark.parametrize("order", ["with weft", "alone"])
def test_a_new_session_knows_the_formats(tmp_path: Path, order: str) -> None:
    table = made(tmp_path / "table", 1, 2)
    path = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "streams/spark_path"))
    done = subprocess.run(
        [sys.executable, "-c", NEW_SESSION, table.uri, order, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plain = "['insert', 'insert']" if order == "with weft" else "needs option 'starting'"
    assert done.stdout.splitlines() == [
        "read 2",
        "sql 2",
        "starting ['insert', 'insert']",
        f"plain {plain}",
        "kafka True",
    ]


def test_an_installation_puts_the_formats_where_spark_looks() -> None:
    setuptools = pytest.importorskip("setuptools")
    find = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    packages = {
        name
        for where in find["where"]
        for name in setuptools.find_namespace_packages(str(ROOT / where), find["exclude"], find["include"])
    }
    assert {"weft.storage", "weft.streams.kafka"} <= packages
    assert {name.partition(".")[0] for name in packages} == {"weft", "pyspark_weft", "pyspark_weft_kafka"}
    assert not any("spark_path" in name for name in packages)


# Tables of Spark's catalog --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["OPTIONS (path '{}')", "LOCATION '{}'", "OPTIONS (path '{}', require 'ga')"])
def test_a_catalog_table_can_be_created_and_read(spark: SparkSession, tmp_path: Path, how: str) -> None:
    weft.register(spark)
    folder = tmp_path / "t %41 ä"
    table = made(folder, 1, 2)
    spark.sql(f"CREATE TABLE kept USING weft {how.format(folder)}")
    try:
        assert spark.sql("SELECT id FROM kept WHERE a = 'x' ORDER BY id DESC").collect() == [(2,), (1,)]
        append(table, 3)
        assert spark.table("kept").count() == 3, "a query sees the newest snapshot"
        older = str(table.snapshot().cut)
        append(table, 4)
        assert spark.sql(f"SELECT count(*) FROM kept WITH (as_of = '{older}')").first() == (3,)
        with pytest.raises(AnalysisException, match=r"(?s)cannot write.*weft\.write_batch"):
            spark.sql("INSERT INTO kept VALUES (5, 'x', 5)")
    finally:
        spark.sql("DROP TABLE kept")
    assert table.snapshot().to_arrow().num_rows == 4, "dropping the view keeps the files"


def test_a_catalog_table_without_a_location_is_an_error_with_a_hint(spark: SparkSession, tmp_path: Path) -> None:
    weft.register(spark)
    table = made(tmp_path / "table", 1)
    needs = r"CREATE TABLE \.\.\. USING weft needs the table's location"
    for statement, message in (
        ("CREATE TABLE none USING weft", needs),
        ("CREATE TABLE none USING weft OPTIONS (as_of 'x')", needs),
        (f"CREATE TABLE none USING weft LOCATION '{tmp_path}/other'", "no table at"),
        (
            f"CREATE TABLE none USING weft OPTIONS (path '{table.uri}', a_s_of 'x')",
            "unknown option 'a_s_of' for reading a table",
        ),
        (f"CREATE TABLE none USING weft OPTIONS (path '{table.uri}', storage_options '{{}}')", "may contain secrets"),
    ):
        with pytest.raises(AnalysisException, match=f"(?s){message}"):
            spark.sql(statement)
        assert not spark.catalog.tableExists("none")
    # If columns are listed, Spark does not call the source before the first query.
    for statement in ("", f"OPTIONS (path '{table.uri}')"):
        spark.sql(f"CREATE TABLE listed (id bigint) USING weft {statement}")
        try:
            with pytest.raises(AnalysisException, match=r"(?s)Spark passes none.*without a list of columns"):
                spark.table("listed").collect()
        finally:
            spark.sql("DROP TABLE listed")
