"""Creating and dropping live views, the messages of their errors, and unsupported Spark versions."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PythonException
from pyspark.sql import SparkSession

from tests.streams.read.relation.planner import Files, answer, rows
from weft.storage.errors import InvalidInput, NotFound
from weft.streams.read.relation import spark_scan
from weft.streams.read.relation.jvm import Jvm, UnsupportedSessionError
from weft.streams.read.relation.live_view import RelationFallbackWarning, create_relation_view, relation_dataframe
from weft.streams.read.relation.query_state import SWEEP_AT, QueryStates

SECONDS = 120.0

# Creating and dropping -----------------------------------------------------------------------------------------------


def test_replacing_and_dropping_a_view(spark: SparkSession, files: Files, tmp_path: Path, name: str) -> None:
    create_relation_view(spark, name, files)
    other = Files(tmp_path / "other")
    other.add(rows(0, 3))
    create_relation_view(spark, name, other)
    assert spark.table(name).count() == 3
    spark.sql(f"DROP VIEW {name}")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table(name)
    create_relation_view(spark, name, files)
    assert spark.table(name).count() == 70


def test_a_view_belongs_to_its_session(spark: SparkSession, files: Files, tmp_path: Path, name: str) -> None:
    create_relation_view(spark, name, files)
    session = spark.newSession()
    with pytest.raises(AnalysisException):
        session.table(name)
    other = Files(tmp_path / "other")
    other.add(rows(0, 3))
    create_relation_view(session, name, other)
    assert session.table(name).count() == 3
    assert spark.table(name).count() == 70


def test_a_view_name_must_be_an_identifier(spark: SparkSession, files: Files) -> None:
    with pytest.raises(InvalidInput, match="not a plain identifier"):
        create_relation_view(spark, "a.b", files)


def test_a_dataframe_needs_no_view(spark: SparkSession, files: Files) -> None:
    frame = relation_dataframe(spark, files)
    assert frame.where("small = 3").count() == 7
    files.add(rows(70, 10))
    assert frame.count() == 80


@pytest.mark.extended
def test_queries_leave_no_objects_behind(spark: SparkSession, files: Files, name: str) -> None:
    made: list[QueryStates] = []

    def remember(*arguments: Any) -> QueryStates:
        made.append(QueryStates(*arguments))
        return made[-1]

    with mock.patch.object(spark_scan, "QueryStates", remember):
        create_relation_view(spark, name, files)
    gateway: Any = spark.sparkContext._gateway
    pool = gateway.gateway_property.pool

    def run(count: int) -> None:
        for _ in range(count):
            spark.sql(f"SELECT id FROM {name} WHERE small = 3").collect()
        gc.collect()
        gateway.jvm.System.gc()
        gateway.jvm.System.runFinalization()

    run(SWEEP_AT)
    before = len(pool)
    run(2 * SWEEP_AT)
    run(1)
    limit = before + 2 * SWEEP_AT  # one query alone creates four callback objects
    deadline = time.monotonic() + SECONDS
    while len(pool) >= limit and time.monotonic() < deadline:
        run(0)  # the JVM says in threads of its own that it needs an object no more
        time.sleep(0.1)
    assert len(pool) < limit
    assert len(made[0]._pins) <= 2 * SWEEP_AT


RESTART = """
    import sys
    from pathlib import Path

    sys.path.insert(0, sys.argv[1])
    from pyspark.sql import SparkSession
    from weft.streams.read.relation.live_view import create_relation_view
    from tests.streams.read.relation.planner import Files, rows

    files = Files(Path(sys.argv[2]) / "table")
    files.add(rows(0, 10))
    for step in range(2):
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        create_relation_view(spark, "v", files)
        frame = spark.sql("SELECT count(*), count(small) FROM v WHERE id >= 0")
        print("found", frame.collect()[0][0])
        spark.stop()
        files.add(rows(10, 10))
"""


@pytest.mark.spark
@pytest.mark.timeout(660)
def test_spark_stopped_and_started_again_in_one_process(tmp_path: Path) -> None:
    script = tmp_path / "restart.py"
    script.write_text(textwrap.dedent(RESTART))
    root = str(Path(__file__).parents[4])
    done = subprocess.run(
        [sys.executable, str(script), root, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("found")] == ["found 10", "found 20"], (
        done.stderr
    )


# Errors --------------------------------------------------------------------------------------------------------------


def refuse() -> None:
    raise NotFound("table 'orders' is not there", hint="create it first")


def crash() -> None:
    raise KeyError("lane 7")


def test_errors_at_creation_and_analysis_have_the_planners_message(
    spark: SparkSession, files: Files, name: str
) -> None:
    files.on_pin = refuse
    for attempt in (
        lambda: create_relation_view(spark, name, files),
        lambda: spark.sql(f"SELECT * FROM weft_{name}()"),
    ):
        with pytest.raises(IllegalArgumentException) as caught:
            attempt()
        assert str(caught.value) == "NotFound: table 'orders' is not there\n  hint: create it first"
    files.on_pin = lambda: None
    create_relation_view(spark, name, files)
    assert spark.table(name).count() == 70


def test_errors_at_planning_have_the_planners_message(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    frame = spark.table(name)
    files.on_plan = crash
    with pytest.raises(IllegalArgumentException) as caught:
        frame.collect()
    assert str(caught.value) == "KeyError: 'lane 7'"
    origin: Any = vars(caught.value)["_origin"]
    assert "in crash" in origin.getCause().getMessage()  # the stack trace is kept


def test_batches_that_do_not_match_the_plan_are_named(spark: SparkSession, files: Files, name: str) -> None:
    files.read = lambda _task: iter([pa.RecordBatch.from_pydict({"id": pa.array(["x"])})])
    create_relation_view(spark, name, files)
    with pytest.raises(PythonException, match="column 'id' was planned as int64, but read returned string"):
        spark.sql(f"SELECT id FROM {name}").collect()


# Requirements on Spark -----------------------------------------------------------------------------------------------


def test_a_spark_with_unknown_methods_is_unsupported(spark: SparkSession) -> None:
    jvm = Jvm.of(spark, spark_scan.check_interfaces)
    spark_scan.check_interfaces(jvm)
    with (
        mock.patch.object(Jvm, "method_names", return_value={"fromTheFuture"}),
        pytest.raises(UnsupportedSessionError, match="fromTheFuture"),
    ):
        spark_scan.check_interfaces(jvm)


def test_a_session_without_a_jvm_is_unsupported() -> None:
    with pytest.raises(UnsupportedSessionError, match="Spark Connect"):
        Jvm.of(object(), spark_scan.check_interfaces)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 2])
def test_without_the_jvm_results_are_the_same_but_not_live(
    spark: SparkSession, tmp_path: Path, name: str, count: int
) -> None:
    files = Files(tmp_path / "table")
    for number in range(count):
        files.add(rows(30 * number, 30))
    with mock.patch.object(Jvm, "of", side_effect=UnsupportedSessionError("no JVM here")):
        with pytest.warns(RelationFallbackWarning, match="no JVM here; reading through a plain"):
            create_relation_view(spark, name, files)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RelationFallbackWarning)
            frame = relation_dataframe(spark, files)
    query = f"SELECT id, place.city FROM {name} WHERE small = 3"
    create_relation_view(spark, "live", files)
    assert answer(spark.sql(query)) == answer(spark.sql(query.replace(name, "live")))
    assert frame.count() == 30 * count
    files.add(rows(90, 5))
    assert spark.table(name).count() == 30 * count
