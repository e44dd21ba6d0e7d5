"""Spark's own Parquet reader reads compacted file groups of a table on S3, where hadoop-aws is there.

The queries run in a process of its own, because a JVM gets its jars when it starts. Sessions without these jars read
by tasks: `tests.streams.read.test_remote_table`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyspark
import pytest

from tests.download_cache import Unavailable
from tests.maven import maven_jars
from tests.stores.places import Backend
from tests.stores.real_server import real_server
from weft import Table

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(1_200)]

RUN_SECONDS: Final = 900  # it takes 20 on an idle machine
CONFIG: Final = {
    "key": ["day", "id"],
    "partition_by": ["day"],
    "buckets": 2,
    "columns": {
        "day": "bigint",
        "id": "bigint",
        "status": "string",
        "tags": "array<string>",
        "paid": "double",
        "at": "timestamp",
    },
    "groups": {"order": {"columns": ["status", "tags"]}, "payment": {"columns": ["paid", "at"]}},
    "streams": {"orders": {"groups": ["order"]}, "payments": {"groups": ["payment"]}},
}

QUERIES: Final = """
import json, sys
from dataclasses import replace
from pyspark.sql import SparkSession
import weft.streams
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import relation_dataframe
from weft.streams.read.view import planner_of

given = json.loads(sys.stdin.read())
uri, options = given["uri"], given["options"]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.jars", given["jars"]).config("spark.sql.session.timeZone", "UTC")
for name, value in given["settings"].items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
found = {}

def note(name, frame):
    rows = [row.asDict() for row in frame.orderBy("id").collect()]
    found[name] = {"rows": rows, "plan": str(frame._jdf.queryExecution().toString())}

weft.create_view(spark, uri, "whole", storage_options=options)
note("whole", spark.sql("SELECT * FROM whole"))
note("filtered", spark.sql("SELECT id, paid FROM whole WHERE id >= 150 AND status = 'new'"))

spark.conf.set("fs.s3a.secret.key", "wrong")
weft.create_view(spark, uri, "denied", storage_options=options)
note("denied", spark.sql("SELECT * FROM denied"))
spark.conf.unset("fs.s3a.secret.key")

spark.conf.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
weft.create_view(spark, uri, "mapped", storage_options=options)
note("mapped", spark.sql("SELECT * FROM mapped"))
spark.conf.unset("fs.s3.impl")

with_logs = planner_of(spark, given["with_logs"], ReadOptions.of({}), options)
note("mixed", relation_dataframe(spark, replace(with_logs, tuning=PlannerTuning(mix_min_bytes=0, merged_share=2))))
json.dump(found, sys.stdout, default=str)
"""


@pytest.fixture(scope="module")
def jars() -> str:
    """hadoop-aws for the Hadoop of this pyspark, and the SDK that it needs (700 MB)."""
    (hadoop,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    version = hadoop.stem.removeprefix("hadoop-client-api-")
    try:
        folder = maven_jars(f"hadoop-aws-{version}", {"org.apache.hadoop:hadoop-aws": version})
    except Unavailable as reason:
        pytest.skip(f"no hadoop-aws: {reason}")
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


@pytest.fixture(scope="module")
def s3() -> Iterator[Backend]:
    with real_server() as running:
        yield running


def make_table(s3: Backend) -> Table:
    """A table of 200 rows, half of them with a payment; its two partitions are compacted into a file each."""
    place = s3.new_place()
    table = Table.create(place.uri, CONFIG, storage_options=place.options)
    for day in (0, 1):
        keys = range(100 * day, 100 * (day + 1))
        with table.writer("orders") as orders, table.writer("payments") as payments:
            statuses, tags = ["new" if key % 3 else "sent" for key in keys], [["a", str(key)] for key in keys]
            orders.append(pa.table({"day": [day] * 100, "id": keys, "status": statuses, "tags": tags}))
            payments.append(payment(day, *keys[::2], paid=0.25))
        table.compact()
    return table


def payment(day: int, *keys: int, paid: float) -> pa.Table:
    times = pa.array(keys, pa.timestamp("us", "UTC"))
    return pa.table({"day": [day] * len(keys), "id": keys, "paid": [paid * key for key in keys], "at": times})


def rows_of(table: Table) -> list[dict[str, Any]]:
    """As Arrow reads them, in the form in which the process prints them."""
    rows = table.snapshot().to_arrow().sort_by("id").to_pylist()
    plain = [{**row, "at": None if row["at"] is None else row["at"].replace(tzinfo=None)} for row in rows]
    return json.loads(json.dumps(plain, default=str))


@pytest.fixture(scope="module")
def tables(s3: Backend) -> tuple[Table, Table]:
    """One that is compacted, and one with a commit to one partition since."""
    compacted, with_logs = make_table(s3), make_table(s3)
    with with_logs.writer("payments") as payments:
        payments.append(payment(0, 7, paid=99.0))
    return compacted, with_logs


@pytest.fixture(scope="module")
def found(jars: str, s3: Backend, tables: tuple[Table, Table]) -> dict[str, dict[str, Any]]:
    """Rows and plans of the queries."""
    compacted, with_logs = tables
    settings = {
        "fs.s3a.endpoint": s3.options["endpoint_url"],
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": s3.options["key"],
        "fs.s3a.secret.key": s3.options["secret"],
    }
    given = {
        "uri": compacted.uri,
        "with_logs": with_logs.uri,
        "options": dict(s3.options),
        "jars": jars,
        "settings": {f"spark.hadoop.{name}": value for name, value in settings.items()},
    }
    done = subprocess.run(
        [sys.executable, "-c", QUERIES],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["whole", "mapped"])
def test_a_compacted_table_is_read_natively(
    found: dict[str, dict[str, Any]], tables: tuple[Table, Table], name: str
) -> None:
    """Under s3a://, and under s3:// if Hadoop knows it."""
    assert "ParquetScan" in found[name]["plan"]
    assert "TaskScan" not in found[name]["plan"]
    assert found[name]["rows"] == rows_of(tables[0])


def test_filters_and_columns_are_pushed_into_the_native_reader(
    found: dict[str, dict[str, Any]], tables: tuple[Table, Table]
) -> None:
    assert "ParquetScan" in found["filtered"]["plan"]
    assert "PushedFilters: [" in found["filtered"]["plan"]
    expected = [
        {"id": row["id"], "paid": row["paid"]}
        for row in rows_of(tables[0])
        if row["id"] >= 150 and row["status"] == "new"
    ]
    assert found["filtered"]["rows"] == expected != []


def test_where_s3a_is_refused_tasks_read(found: dict[str, dict[str, Any]], tables: tuple[Table, Table]) -> None:
    assert "ParquetScan" not in found["denied"]["plan"]
    assert found["denied"]["rows"] == rows_of(tables[0])


def test_file_groups_without_logs_are_read_natively_beside_tasks(
    found: dict[str, dict[str, Any]], tables: tuple[Table, Table]
) -> None:
    plan = found["mixed"]["plan"]
    assert "Union" in plan
    assert ("2 file groups (0 with logs)" in plan, "2 file groups (1 with logs)" in plan) == (True, True)
    assert "ParquetScan" in plan
    assert found["mixed"]["rows"] == rows_of(tables[1])


def test_no_plan_shows_the_keys(found: dict[str, dict[str, Any]], s3: Backend) -> None:
    assert [name for name, query in found.items() if s3.options["secret"] in query["plan"]] == []
