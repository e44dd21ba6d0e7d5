"""Tasks of a view hand over columns: the same rows as the table's own read, in every kind of session."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from weft import Table
from weft.streams.read.relation import columnar_tasks
from weft.streams.read.view import create_view
from weft.streams.spark import java_classes

TYPES = {
    "k": "bigint",
    "at": "bigint",
    "text": "string",
    "flag": "boolean",
    "small": "int",
    "real": "float",
    "amount": "decimal(20,3)",
    "raw": "binary",
    "moment": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "item": "struct<x:int,y:string,z:array<string>>",
    "numbers": "array<bigint>",
    "named": "map<string,double>",
    "items": "array<struct<q:string>>",
}
FILE_GROUPS = 8  # two tasks read them, so each task has several batches
WIDE = 110  # more columns than Spark generates code for
ITEM = pa.struct([("x", pa.int32()), ("y", pa.string()), ("z", pa.list_(pa.string()))])


def rows(keys: range, at: int) -> pa.Table:
    return pa.table(
        {
            "k": keys,
            "at": pa.array([at] * len(keys)),
            "text": [None if k % 7 == 0 else f"text {k} {at}" for k in keys],
            "flag": [k % 2 == 0 for k in keys],
            "small": pa.array(keys, pa.int32()),
            "real": pa.array([k / 4 for k in keys], pa.float32()),
            "amount": pa.array([Decimal(k).scaleb(-3) if k % 2 else None for k in keys], pa.decimal128(20, 3)),
            "raw": [str(k).encode() for k in keys],
            "moment": pa.array([k * 1_000_003 for k in keys], pa.timestamp("us", "UTC")),
            "local": pa.array([k * 1_000_003 for k in keys], pa.timestamp("us")),
            "day": pa.array(keys, pa.int32()).cast(pa.date32()),
            "item": pa.array([None if k % 5 == 0 else {"x": k, "y": f"{k}", "z": [f"{at}", None]} for k in keys], ITEM),
            "numbers": pa.array([None if k % 3 == 0 else list(range(k % 4)) for k in keys], pa.list_(pa.int64())),
            "named": pa.array(
                [None if k % 4 == 0 else [(f"{k}", k / 2)] for k in keys], pa.map_(pa.string(), pa.float64())
            ),
            "items": pa.array([[{"q": f"{k}"}, None] for k in keys], pa.list_(pa.struct([("q", pa.string())]))),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    groups = {
        "g": {"columns": list(TYPES)[1:], "ordering": ["at"]},
        "wide": {"columns": [f"w{number}" for number in range(WIDE)], "ordering": ["w0"]},
    }
    columns = TYPES | {f"w{number}": "int" for number in range(WIDE)}
    streams = {"s": {"groups": ["g", "wide"]}}
    made = Table.create(
        tmp_path / "table",
        {"columns": columns, "key": ["k"], "buckets": FILE_GROUPS, "groups": groups, "streams": streams},
    )
    with made.writer("s") as writer:
        writer.append(rows(range(2_000), 1))
        writer.append(rows(range(500, 1_500, 3), 2))
    return made


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own."""
    made = spark.newSession()
    made.conf.set("spark.sql.session.timeZone", "America/New_York")
    return made


def final_plan(frame: DataFrame) -> str:
    frame.collect()
    return str(frame._jdf.queryExecution().executedPlan().toString())


def check_rows(spark: SparkSession, table: Table, columns: list[str]) -> None:
    expected = table.snapshot().to_arrow(columns).sort_by("k")
    found = spark.sql(f"SELECT {', '.join(columns)} FROM every_type ORDER BY k").toArrow()
    assert found.num_rows == expected.num_rows == 2_000
    for name in columns:
        assert found.column(name).to_pylist() == expected.column(name).to_pylist(), name


def test_all_types_are_read_as_columns(session: SparkSession, table: Table) -> None:
    create_view(session, table.uri, "every_type", push_aggregates=False)
    check_rows(session, table, list(TYPES))
    check_rows(session, table, [*TYPES, *(f"w{number}" for number in range(WIDE))])
    values = "count(*), count(item.x), sum(size(numbers)), max(item.z[0]), min(items[0].q), sum(map_values(named)[0])"
    frame = session.sql(f"SELECT {values} FROM every_type")
    assert [tuple(row) for row in frame.collect()] == [(2_000, 1_600, 1_999, "2", "0", 750_000.0)]
    assert "ColumnarToRow" in final_plan(frame)
    assert session.sql("SELECT count(*) FROM every_type").first()[0] == 2_000  # no column at all
    assert len(session.sql("SELECT * FROM every_type LIMIT 3").collect()) == 3
    cached = session.sql("SELECT * FROM every_type").cache()
    assert cached.count() == 2_000
    cached.unpersist()


def test_rows_are_the_same_without_generated_code(session: SparkSession, table: Table) -> None:
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    create_view(session, table.uri, "every_type", push_aggregates=False)
    check_rows(session, table, list(TYPES))


@pytest.mark.parametrize("arrow", [False, True])
def test_python_functions_get_the_rows_of_every_batch(session: SparkSession, table: Table, *, arrow: bool) -> None:
    """Spark keeps the columns beside a function's argument until its answer comes, when later batches were read."""
    create_view(session, table.uri, "every_type", push_aggregates=False)
    twice = udf(lambda value: None if value is None else value * 2, "string", useArrow=arrow)
    frame = session.table("every_type").select(*TYPES, twice("text").alias("doubled")).orderBy("k")
    expected = table.snapshot().to_arrow(list(TYPES)).sort_by("k")
    found = frame.toArrow()
    for name in TYPES:
        assert found.column(name).to_pylist() == expected.column(name).to_pylist(), name
    texts = expected.column("text").to_pylist()
    assert found.column("doubled").to_pylist() == [None if text is None else text * 2 for text in texts]


def test_a_session_with_artifacts_of_its_own_reads_rows(session: SparkSession, table: Table) -> None:
    session.conf.set("spark.sql.artifact.isolation.enabled", "true")
    create_view(session, table.uri, "every_type", push_aggregates=False)
    frame = session.sql("SELECT sum(small) FROM every_type")
    frame.explain()  # plans it before the execution, in which Spark knows the artifacts
    assert "ColumnarToRow" not in final_plan(frame)
    check_rows(session, table, list(TYPES))


def test_an_error_of_a_task_is_that_of_the_worker(session: SparkSession, table: Table) -> None:
    create_view(session, table.uri, "every_type", push_aggregates=False)
    frame = session.sql("SELECT sum(small) FROM every_type")
    assert "ColumnarToRow" in final_plan(frame)
    for file in (Path(table.uri.removeprefix("file://"))).rglob("*.arrow"):
        file.write_bytes(b"damaged")
    with pytest.raises(Exception, match="CorruptData"):
        session.sql("SELECT sum(small), max(text) FROM every_type").collect()


@pytest.mark.parametrize("source", ["class ColumnarTasks extends org.apache.spark.sql.Missing {}", "no Java"])
def test_a_spark_with_other_classes_reads_rows(
    session: SparkSession,
    table: Table,
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "ColumnarTasks.java").write_text(source)
    monkeypatch.setattr(java_classes, "files", lambda _: tmp_path)
    monkeypatch.setattr(java_classes, "_constructors", {})
    monkeypatch.setattr(columnar_tasks, "_warned", set())
    create_view(session, table.uri, "every_type", push_aggregates=False)
    check_rows(session, table, list(TYPES))
    assert "ColumnarToRow" not in final_plan(session.sql("SELECT sum(small) FROM every_type"))
    told = [record.getMessage() for record in caplog.records if record.name == "weft"]
    assert len(told) == 1
    assert "Spark 4.3" in told[0]


def test_the_class_is_found_in_an_archive(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    archive = tmp_path / "weft.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for package in ("weft", "weft/storage", "weft/streams"):
            for file in (root / package).rglob("*"):
                if file.suffix in (".py", ".java"):
                    packed.write(file, file.relative_to(root))
    read = (
        "from weft.streams.spark import java_classes as c; print(c.__file__)\n"
        "classes = ('weft.streams.read.relation', 'ColumnarTasks'), ('weft.streams.formats', 'JsonReader')\n"
        "for package, name in classes:\n"
        "    print(c.source_of(package, name)[:13], end='')"
    )
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    command = [sys.executable, "-P", "-c", read]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith(str(archive))
    assert done.stdout.endswith("package weft;package weft;")


TWO_CONTEXTS = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
from weft import Table
from weft.streams.read.view import create_view

config = {"columns": {"k": "bigint", "v": "bigint"}, "key": ["k"], "buckets": 1,
          "groups": {"g": {"columns": ["v"], "ordering": ["v"]}}, "streams": {"s": {"groups": ["g"]}}}
table = Table.create(sys.argv[1], config)
with table.writer("s") as writer:
    writer.append(pa.table({"k": [1, 2], "v": [10, 20]}))
for number in range(2):
    spark = (
        SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false").getOrCreate()
    )
    create_view(spark, sys.argv[1], "wide", push_aggregates=False)
    frame = spark.sql("SELECT sum(v) FROM wide")
    print("sum", frame.first()[0])
    spark.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_second_context_of_a_process_gets_the_class_too(tmp_path: Path) -> None:
    script = tmp_path / "read.py"
    script.write_text(TWO_CONTEXTS)
    here = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "table")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": here, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["sum 30", "sum 30"]
