"""The results of the live view, compared with rows that Spark holds in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.streams.read.relation.planner import Files, answer
from weft.streams.read.relation.live_view import create_relation_view

CONDITIONS = [
    "small = 3",
    "3 = small",
    "small <=> NULL",
    "small <=> 4",
    "small <> 3",
    "small < 3",
    "5 <= small",
    "id > 12 AND id <= 60",
    "small IN (1, 2, NULL)",
    "small NOT IN (1, 2)",
    "name IS NULL",
    "name IS NOT NULL AND NOT (small = 3)",
    "NOT (small = 3 AND name = 'name 3')",
    "small = 3 OR name = 'name 4'",
    "name LIKE 'name 1%'",
    "name LIKE '%1'",
    "name LIKE '%me 1%'",
    "name = 'name 1'",
    "price >= 3.75",
    "price = CAST(5.00 AS DECIMAL(12,2))",
    "ratio > 2.5",
    "ratio = CAST('NaN' AS DOUBLE)",
    "ratio < 3",
    "flag",
    "NOT flag",
    "day >= DATE'2024-01-20'",
    "day IN (DATE'2024-01-05', DATE'1066-10-14')",
    "at < TIMESTAMP'2024-01-02 03:00:00'",
    "at = TIMESTAMP'2024-01-01 05:00:00'",
    "place.city = 'c1'",
    "place.zip > 20",
    "upper(name) = 'NAME 2'",
    "id % 7 = 2",
    "array_contains(tags, 'x')",
]

QUERIES = [
    "SELECT * FROM {}",
    "SELECT count(*) FROM {}",
    "SELECT count(*) FROM {} WHERE small = 3",
    "SELECT id, name FROM {} ORDER BY id DESC LIMIT 5",
    "SELECT place.city, count(*), sum(price), max(at) FROM {} GROUP BY 1",
    "SELECT place.zip FROM {}",
    "SELECT a.id, b.name FROM {} a JOIN {} b ON a.id = b.small",
    "SELECT id FROM {} UNION ALL SELECT small FROM {}",
    "SELECT id FROM {} WHERE id IN (SELECT small FROM {}) AND ratio < (SELECT avg(id) FROM {})",
    "WITH t AS (SELECT id, small FROM {}) SELECT * FROM t x LEFT JOIN t y ON x.id = y.small",
    "SELECT small, row_number() OVER (PARTITION BY small ORDER BY id) FROM {}",
    "SELECT DISTINCT flag FROM {}",
    "SELECT 1 FROM {} WHERE false",
    "SELECT id AS at, name AS id FROM {} WHERE name > 'name 4'",
]


def union(conditions: Sequence[str]) -> str:
    """All conditions as scans of one query, which is faster than many queries."""
    return " UNION ALL ".join(
        f"SELECT {number} AS condition, id FROM {{}} WHERE {condition}" for number, condition in enumerate(conditions)
    )


def wrong_answers(spark: SparkSession, files: Files, name: str, queries: Sequence[str]) -> list[Any]:
    """Compared with rows in memory, because Spark's Parquet source and its cache lose NaN rows by statistics."""
    create_relation_view(spark, name, files)
    expected = spark.createDataFrame(pa.concat_tables([pq.read_table(path) for path in files.paths]))
    expected.createOrReplaceTempView("expected")
    wrong = []
    spark.conf.set("spark.sql.codegen.wholeStage", "false")  # compiling these queries would take most of their time
    for query in queries:
        found = answer(spark.sql(query.replace("{}", name)))
        right = answer(spark.sql(query.replace("{}", "expected")))
        if found != right:
            wrong.append((query[:80], sorted(set(found) ^ set(right))))
    spark.conf.unset("spark.sql.codegen.wholeStage")
    return wrong


def test_results_through_tasks(spark: SparkSession, files: Files, name: str) -> None:
    assert wrong_answers(spark, files, name, [*QUERIES, union(CONDITIONS[::4])]) == []
    assert len(files.columns_read()) > 8


def test_results_read_natively(spark: SparkSession, files: Files, name: str) -> None:
    files.native = True
    assert wrong_answers(spark, files, name, [*QUERIES, union(CONDITIONS)]) == []
    assert files.columns_read() == set()


FLOATS = [float("nan"), 1.0, -0.0, 0.0, None]

FLOAT_CONDITIONS = [
    f"{condition} {literal}"
    for condition in ("x =", "x <=>", "x <>", "x <", "x <=", "x >", "x >=", "x IN (77,", "x NOT IN (77,")
    for literal in ("CAST('NaN' AS DOUBLE)", "CAST(1.0 AS DOUBLE)", "CAST(0.0 AS DOUBLE)", "-CAST(0.0 AS DOUBLE)", "2D")
]


def test_nan_and_negative_zero_are_not_pruned_by_parquet_statistics(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    # Statistics leave out NaN, dictionaries distinguish the zeros, and Spark SQL does neither.
    files = Files(tmp_path / "table", native=True)
    for value in FLOATS:
        files.add(pa.table({"id": [1, 2, 3], "x": pa.array([value, 1.0, 1.0], pa.float64())}))
        files.add(pa.table({"id": [4, 5], "x": pa.array([value, value], pa.float64())}))
    conditions = [f"{text})" if "IN (" in text else text for text in FLOAT_CONDITIONS]
    assert wrong_answers(spark, files, name, [union(conditions)]) == []


def test_a_table_without_files_is_empty(spark: SparkSession, tmp_path: Path, name: str) -> None:
    create_relation_view(spark, name, Files(tmp_path / "empty"))
    assert spark.sql(f"SELECT * FROM {name}").collect() == []
    assert spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0] == 0
