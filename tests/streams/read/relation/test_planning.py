"""What the live view passes to its planner: columns and filters; and which files Spark reads natively."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.streams.read.relation.planner import SCHEMA, Files, State, only_ids_below_ten, plan_text, rows
from weft.storage.core.predicate import And, Comparison, Condition, In, IsNull, Not, Operator, Or, StartsWith
from weft.streams.read.relation.jvm import Jvm
from weft.streams.read.relation.live_view import Part, ReadPlan, create_relation_view

# Columns and filters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT name FROM {}", ("name",)),
        ("SELECT count(*) FROM {}", ()),
        ("SELECT ratio, id FROM {} WHERE flag", ("id", "ratio", "flag")),
        ("SELECT place.city FROM {}", ("place",)),
        ("SELECT * FROM {}", tuple(SCHEMA.names)),
        ("SELECT max(day) FROM {} GROUP BY small", ("small", "day")),
    ],
)
def test_tasks_read_only_the_columns_a_query_needs(
    spark: SparkSession, files: Files, name: str, query: str, columns: tuple[str, ...]
) -> None:
    create_relation_view(spark, name, files)
    spark.sql(query.replace("{}", name)).collect()
    assert files.columns_read() == {columns}


def compare(column: str, operator: Operator, value: Any) -> Condition:
    return Comparison(column, operator, value, SCHEMA.field(column).type)


PUSHED: list[tuple[str, Condition]] = [
    ("small = 3", compare("small", "==", 3)),
    ("3 < small", compare("small", ">", 3)),
    ("small <=> 3", And((Not(IsNull("small")), compare("small", "==", 3)))),
    ("small <= 3", compare("small", "<=", 3)),
    ("id >= 3", compare("id", ">=", 3)),
    ("small IN (1, 2, 3)", In("small", (1, 2, 3), pa.int32())),
    ("small <> 3", Not(compare("small", "==", 3))),
    ("name IS NULL", IsNull("name")),
    ("name IS NOT NULL", Not(IsNull("name"))),
    ("name LIKE 'n%'", StartsWith("name", "n")),
    ("flag", compare("flag", "==", True)),
    ("NOT flag", Not(compare("flag", "==", True))),
    ("price > 1.5", compare("price", ">", decimal.Decimal("1.50"))),
    ("day = DATE'2024-02-29'", compare("day", "==", dt.date(2024, 2, 29))),
    ("day = DATE'1066-10-14'", compare("day", "==", dt.date(1066, 10, 14))),
    (
        "at > TIMESTAMP'1500-01-01 00:00:00.000001'",
        compare("at", ">", dt.datetime(1500, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)),
    ),
    ("small = 1 OR id > 5", Or((compare("small", "==", 1), compare("id", ">", 5)))),
    (
        "id = 1 OR (small = 1 AND name = 'n')",
        Or((compare("id", "==", 1), And((compare("small", "==", 1), compare("name", "==", "n"))))),
    ),
]


def test_filters_reach_the_planner_with_python_values(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    missing = []
    for condition, expected in PUSHED:
        spark.sql(f"SELECT id FROM {name} WHERE {condition}").collect()
        _, filters = files.plans[-1]
        if expected not in filters:
            missing.append((condition, filters))
    assert not missing


def test_predicates_without_an_equivalent_are_not_pushed(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    for condition in (
        "upper(name) = 'X'",
        "id = small + 1",
        "day = DATE'9999-12-31' + 1",
        "name COLLATE UNICODE_CI = 'N'",
    ):
        spark.sql(f"SELECT id FROM {name} WHERE {condition}").collect()
        _, filters = files.plans[-1]
        assert all(isinstance(pushed, Not) and isinstance(pushed.condition, IsNull) for pushed in filters), condition


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        ("ratio < 2.5", "LessThan(ratio,2.5)"),
        ("name LIKE '%n'", "StringEndsWith(name,n)"),
        ("name LIKE '%n%'", "StringContains(name,n)"),
        ("place.city = 'c1'", "EqualTo(place.city,c1)"),
        ("ratio > 2.5", None),  # NaN is greater, and statistics ignore it
        ("ratio = 0", None),  # so is -0.0
        ("NOT ratio <=> 2.5", None),
    ],
)
def test_predicates_that_are_no_conditions_are_for_the_reader_of_spark_alone(
    spark: SparkSession, files: Files, name: str, condition: str, shown: str | None
) -> None:
    files.native = True
    create_relation_view(spark, name, files)
    text = plan_text(spark.sql(f"SELECT id FROM {name} WHERE {condition}"))
    _, filters = files.plans[-1]
    assert all(isinstance(pushed, Not) and isinstance(pushed.condition, IsNull) for pushed in filters)
    pushed = text.partition("PushedFilters: ")[2].partition("ReadSchema")[0]
    assert shown in pushed if shown else "(ratio," not in pushed


def test_a_filter_that_is_not_declared_exact_is_evaluated_by_spark(
    spark: SparkSession, files: Files, name: str
) -> None:
    files.read = only_ids_below_ten  # a read that drops rows shows which side filters
    files.paths = files.paths[:1]
    create_relation_view(spark, name, files)
    assert spark.sql(f"SELECT id FROM {name} WHERE id < 5").count() == 5


def test_an_exact_filter_is_applied_by_the_plan_and_its_column_is_not_read(
    spark: SparkSession, files: Files, name: str
) -> None:
    files.exact = lambda filters: [i for i, _ in enumerate(filters)]
    files.native = True  # such a scan is never read natively, because Spark's reader would not apply the filter
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT name FROM {name} WHERE id < 5")
    # This plan does not apply its exact filter, so all rows are returned: Spark did not evaluate it again.
    assert len(frame.collect()) == 70
    assert files.columns_read() == {("name",)}
    assert "ParquetScan" not in plan_text(frame)


# Native reading ------------------------------------------------------------------------------------------------------


def test_files_without_merges_are_read_by_spark(spark: SparkSession, files: Files, name: str) -> None:
    files.native = True
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT place.zip FROM {name} WHERE id > 60")
    assert len(frame.collect()) == 9
    text = plan_text(frame)
    assert "ParquetScan" in text
    assert "GreaterThan(id,60)" in text
    assert "ReadSchema: struct<id:bigint,place:struct<zip:int>>" in text
    assert files.columns_read() == set()


@pytest.mark.parametrize("file", ["_0.parquet", ".0.parquet"])
def test_files_that_spark_would_ignore_are_read_by_tasks(
    spark: SparkSession, tmp_path: Path, name: str, file: str
) -> None:
    files = Files(tmp_path / "table", native=True)
    files.add(rows(0, 10))
    files.paths[0] = files.paths[0].rename(files.folder / file)
    create_relation_view(spark, name, files)
    assert spark.table(name).count() == 10


def test_special_characters_in_paths_work(spark: SparkSession, tmp_path: Path, name: str) -> None:
    files = Files(tmp_path / "a [b] {c} %20 é=1" / "*", native=True)
    files.add(rows(0, 10))
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT id FROM {name} WHERE id > 4")
    assert len(frame.collect()) == 5
    assert "ParquetScan" in plan_text(frame)


def test_an_unchanged_list_of_files_is_built_once(spark: SparkSession, files: Files, name: str) -> None:
    files.native = True
    with mock.patch.object(Jvm, "parquet_index", autospec=True, side_effect=Jvm.parquet_index) as listed:
        create_relation_view(spark, name, files)
        for column in ("id", "name", "id"):
            spark.sql(f"SELECT {column} FROM {name}").collect()
        assert listed.call_count == 1
        files.add(rows(70, 10))
        assert spark.table(name).count() == 80
        assert listed.call_count == 2


def test_explain_shows_the_description_of_the_plan(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT id FROM {name} WHERE small = 3")
    assert f"BatchScan {name}[id#" in plan_text(frame)
    assert "2 files of the test" in plan_text(frame)
    spark_utils: Any = spark._jvm
    formatted = spark_utils.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted")
    assert "PushedFilters: [IsNotNull(small), EqualTo(small,3)]" in formatted


@pytest.mark.parametrize(("columns", "broadcast"), [("v.id", True), ("v.*", False)])
def test_size_estimates_count_only_the_read_columns(
    spark: SparkSession, files: Files, name: str, columns: str, *, broadcast: bool
) -> None:
    create_relation_view(spark, name, files)
    plan = State.plan

    def sized(state: State, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        return replace(plan(state, columns, filters, part), size_bytes=20 << 20)  # twice what is broadcast

    with mock.patch.object(State, "plan", sized):
        text = plan_text(spark.sql(f"SELECT {columns} FROM range(1000000000) r JOIN {name} v ON r.id = v.id"))
    assert ("BroadcastHashJoin" in text) is broadcast


def test_a_small_known_size_makes_spark_broadcast_the_view(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    query = f"SELECT * FROM range(1000) r JOIN {name} v ON r.id = v.id"
    before = plan_text(spark.sql(query))
    plan = State.plan

    def sized(state: State, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        made = plan(state, columns, filters, part)
        return ReadPlan(made.description, made.tasks, made.read, size_bytes=1000, row_count=70)

    with (
        mock.patch.object(State, "plan", sized),
        mock.patch.object(Files, "__call__", lambda files: State(files, tuple(files.paths))),
    ):
        after = plan_text(spark.sql(query.replace("range(1000)", "range(1000000000)")))
    assert "BuildLeft" in before
    assert "BuildRight" in after
