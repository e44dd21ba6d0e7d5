"""The keys of a join, which Spark knows when it runs a query, leave out file groups and rows, never rows of the answer.

Every query runs twice: with Spark's dynamic partition pruning, and without it, which is the right answer.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tests.streams.support.seeds import seeds
from weft import Table
from weft.storage.core.predicate import Condition, In
from weft.streams.read.native_or_merged import PlannerTuning
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation import runtime_filters
from weft.streams.read.relation.jvm import Jvm
from weft.streams.read.relation.live_view import ReadPlan, create_relation_view
from weft.streams.read.relation.runtime_filters import FilteredAtRunTime, parse_runtime_filters
from weft.streams.read.relation.spark_scan import check_interfaces
from weft.streams.read.view import planner_of

PRUNING = "spark.sql.optimizer.dynamicPartitionPruning.enabled"
DAY = dt.date(1500, 1, 1)
KEYS: dict[str, list[Any]] = {
    "bigint": [-(2**63), *range(200), 2**63 - 1],
    "string": ["", 'quote " and \\', "ü\n", *(f"k{number}" for number in range(200))],
    "decimal(20,3)": [decimal.Decimal(number) / 8 for number in range(200)],
    "date": [DAY + dt.timedelta(days=100 * number) for number in range(200)],
    "timestamp": [dt.datetime(1500, 1, 1, 0, 0, 0, 1, dt.UTC) + dt.timedelta(hours=n) for n in range(200)],
    "binary": [bytes([number, 0]) for number in range(200)],
}


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def wide(folder: Path, key_type: str, source: random.Random, *, keys: tuple[str, ...] = ("id",)) -> Table:
    """A table with rows in base files, updates, deletes and new rows in logs of some file groups."""
    config: dict[str, Any] = {
        "key": list(keys),
        "buckets": 8,
        "columns": {"id": key_type, "part": "int", "city": "string", "amount": "bigint", "at": "bigint"},
        "groups": {"g": {"columns": ["city", "amount", "at"], "ordering": ["at"]}},
        "streams": {"s": {"groups": ["g"], "on_delete": "row"}},
    }
    if "part" not in keys:
        config["groups"]["g"]["columns"] = ["part", "city", "amount", "at"]
    elif source.random() < 0.5:
        config["partition_by"] = ["part"]
    table = Table.create(folder, config)
    types = {field.name: field.type for field in table.snapshot().schema}
    everything = KEYS[key_type]
    for time, (count, compacted) in enumerate([(len(everything) * 3 // 4, True), (source.choice([1, 3, 60]), False)]):
        chosen = source.sample(everything, count)
        rows: dict[str, Any] = {
            "id": chosen,
            "part": [number % 3 for number in range(count)],
            "city": [source.choice(["a", "b", "c", None]) for _ in chosen],
            "amount": [source.randrange(100) for _ in chosen],
            "at": [time] * count,
        }
        operations = [source.choice(["upsert"] * 6 + ["delete"] * time) for _ in chosen]
        columns = {name: pa.array(values, types[name]) for name, values in rows.items()}
        with table.writer("s") as writer:
            writer.append(pa.table({**columns, "_op": operations}))
        if compacted:
            table.compact()
    return table


def small_file(spark: SparkSession, folder: Path, frame: DataFrame) -> None:
    """A temporary view over a file, whose rows Spark sends to all tasks of a join: the wide tables are small, too."""
    frame.coalesce(1).write.parquet(str(folder))
    spark.read.parquet(str(folder)).hint("broadcast").createOrReplaceTempView("small")


def small(spark: SparkSession, folder: Path, key_type: str, source: random.Random) -> None:
    """Some keys, some of them absent, one null."""
    chosen = [*source.sample(KEYS[key_type], source.choice([1, 5, 30])), None]
    rows = [
        (key, number % 3, "abcx"[number % 4], int(number == 0 or source.random() < 0.7))
        for number, key in enumerate(chosen)
    ]
    schema = f"id {key_type}, part int, city string, used int"
    small_file(spark, folder, spark.createDataFrame(rows, schema))


def answers(frame: DataFrame) -> list[str]:
    return sorted(str(row.asDict()) for row in frame.collect())


def executed(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


JOINS = [
    "SELECT w.* FROM wide w JOIN small s USING (id) WHERE s.used = 1",
    "SELECT count(*), sum(amount), min(w.city) FROM wide w JOIN small s ON w.id = s.id WHERE s.used = 1",
    "SELECT w.id, amount FROM wide w WHERE id IN (SELECT id FROM small WHERE used = 1)",
    "SELECT w.id, amount FROM wide w LEFT SEMI JOIN (SELECT * FROM small WHERE used = 1) s USING (id, part)",
    "SELECT w.id, amount, s.city FROM wide w RIGHT JOIN (SELECT * FROM small WHERE used = 1) s ON w.id = s.id",
    "SELECT w.id, amount, s.city FROM wide w LEFT JOIN (SELECT * FROM small WHERE used = 1) s ON w.id = s.id",
    "SELECT w.id, amount FROM wide w JOIN small s ON w.id <=> s.id WHERE s.used = 1",
    (
        "SELECT w.id, w.city, s.id other FROM wide w JOIN small s ON w.city = s.city AND w.part = s.part "
        "WHERE s.used = 1 AND amount > 20"
    ),
    # One scan in two places, of which one has a runtime filter.
    (
        "SELECT 'some', count(*), sum(amount), max(id) FROM (SELECT w.id, amount FROM wide w JOIN small s USING (id) "
        "WHERE s.used = 1) UNION ALL SELECT 'all', count(*), sum(amount), max(id) FROM (SELECT id, amount FROM wide "
        "ORDER BY rand() LIMIT 1000)"
    ),
    (
        "SELECT w.id, w.n, w.total, w.least FROM (SELECT id, count(*) n, sum(amount) total, min(city) least FROM wide "
        "GROUP BY id) w JOIN small s USING (id) WHERE s.used = 1"
    ),
    (
        "SELECT w.city, w.part, n FROM (SELECT city, part, count(*) n FROM wide WHERE amount > 20 GROUP BY city, part) "
        "w JOIN small s USING (city, part) WHERE s.used = 1"
    ),
    # The first rows of the table, not of the join.
    (
        "SELECT w.id, w.amount FROM (SELECT * FROM wide ORDER BY amount, id, part LIMIT 20) w JOIN small s USING (id) "
        "WHERE s.used = 1"
    ),
    (
        "SELECT a.id, a.amount, b.amount FROM wide a JOIN wide b USING (id) JOIN small s USING (id) "
        "WHERE s.used = 1 AND b.amount > 10"
    ),
]


@pytest.mark.parametrize("key_type", KEYS)
@pytest.mark.parametrize("seed", seeds(1, 5))
def test_the_answer_is_that_without_runtime_filters(
    spark: SparkSession, tmp_path: Path, key_type: str, seed: int
) -> None:
    source = random.Random(f"{key_type} {seed}")
    keys = source.choice([("id",), ("part", "id")])
    table = wide(tmp_path / "t", key_type, source, keys=keys)
    planner = planner_of(spark, table.uri, ReadOptions())
    tuning = PlannerTuning(source.choice([0, 2**40]), merged_share=2, filter_min_bytes=0, filter_min_groups=0)
    found: list[str] = []
    create_relation_view(spark, "wide", replace(planner, tuning=tuning, on_scan=lambda facts: found.append(str(facts))))
    small(spark, tmp_path / "small", key_type, source)
    # A type matters where values of keys are read, not for every kind of join. The nightly loop runs all.
    queries = JOINS if key_type == "bigint" or seed > 1 else JOINS[::3]
    differing, runtime = [], 0
    with setting(spark, "spark.sql.codegen.wholeStage", "false"):
        for query in queries:
            frame = spark.sql(query)
            filtered = answers(frame)
            runtime += "filtered at run time" in executed(frame)
            with setting(spark, PRUNING, "false"):
                right = spark.sql(query)
                if filtered != answers(right):
                    differing.append((query, set(filtered) ^ set(answers(right))))
                assert "filtered at run time" not in executed(right)
    assert differing == []
    assert runtime >= (4 if queries is JOINS else 2)


def runs_of(text: str) -> list[int]:
    """Numbers of file groups that scans of an executed plan read with runtime filters."""
    return [int(number) for number in re.findall(r"filtered at run time: .*?(\d+) file groups? \(", text)]


@pytest.mark.parametrize("state", ["logs", "compacted"])
def test_only_file_groups_with_keys_of_the_join_are_read(spark: SparkSession, tmp_path: Path, state: str) -> None:
    table = wide(tmp_path / "t", "bigint", random.Random(1))
    if state == "compacted":
        table.compact()
    planner = planner_of(spark, table.uri, ReadOptions())
    create_relation_view(spark, "wide", replace(planner, tuning=PlannerTuning(filter_min_bytes=0, filter_min_groups=0)))
    rows = [(7, "new"), (8, "new"), (9, "old")]
    small_file(spark, tmp_path / "small", spark.createDataFrame(rows, "id bigint, kind string"))
    query = "SELECT w.id, w.amount FROM wide w JOIN small s ON w.id = s.id WHERE s.kind = '{}'"
    frame = spark.sql(query.format("new"))
    frame.collect()
    (read,) = set(runs_of(executed(frame)))  # the plan that was made first is shown, too
    assert 1 <= read <= 2, executed(frame)
    assert "8 file groups" in executed(frame)
    assert "dynamicpruning" in executed(frame)
    none = spark.sql(query.format("missing"))
    assert none.collect() == []
    assert set(runs_of(executed(none))) <= {0}, executed(none)


def test_groups_that_are_not_in_the_join_are_not_aggregated(spark: SparkSession, tmp_path: Path) -> None:
    planner = planner_of(spark, wide(tmp_path / "t", "bigint", random.Random(1)).uri, ReadOptions())
    create_relation_view(spark, "wide", replace(planner, tuning=PlannerTuning(filter_min_bytes=0, filter_min_groups=0)))
    small_file(spark, tmp_path / "small", spark.createDataFrame([(7, "new"), (9, "old")], "id bigint, kind string"))
    query = (
        "SELECT * FROM (SELECT id, sum(amount) total, count(city) n FROM wide GROUP BY id) JOIN small USING (id) "
        "WHERE kind = 'new'"
    )
    frame = spark.sql(query)
    found = answers(frame)
    with setting(spark, PRUNING, "false"):
        assert found == answers(spark.sql(query))
    filtered = executed(frame).split("filtered at run time: ")[1]
    assert "is_in(id" in filtered, filtered
    assert "PushedAggregates: [sum(amount), count(city)], PushedGroupBy: [id]" in filtered
    assert set(runs_of(executed(frame))) == {1}


def predicate(jvm: Any, column: str, values: list[Any], kind: str) -> Any:
    """The predicate that Spark makes of the values of a join."""
    java = jvm.spark.sparkContext._gateway.jvm
    connector = java.org.apache.spark.sql.connector.expressions
    data_type = java.org.apache.spark.sql.types.DataType.fromDDL(f"x {kind}").fields()[0].dataType()
    children = [jvm.FieldReference.column(column), *(connector.LiteralValue(value, data_type) for value in values)]
    return jvm.Predicate("IN", jvm.array(connector.Expression, children))


def test_filters_that_are_too_large_or_unknown_are_not_used(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm = Jvm.of(spark, check_interfaces)
    schema = StructType.fromDDL("id bigint, day date, text string")
    assert parse_runtime_filters(jvm, [predicate(jvm, "id", [2**40, None, 7], "bigint")], schema) == [
        In("id", (7, 2**40), pa.int64())
    ]
    assert parse_runtime_filters(jvm, [predicate(jvm, "day", [0, None], "date")], schema) == [
        In("day", (dt.date(1970, 1, 1),), pa.date32())
    ]
    assert parse_runtime_filters(jvm, [predicate(jvm, "id", [], "bigint")], schema) == [In("id", (), pa.int64())]
    assert parse_runtime_filters(jvm, [predicate(jvm, "other", [1], "bigint")], schema) == []
    monkeypatch.setattr(runtime_filters, "MAX_VALUES", 1)
    monkeypatch.setattr(runtime_filters, "MAX_LITERALS", 1)
    assert parse_runtime_filters(jvm, [predicate(jvm, "id", [1, 2], "bigint")], schema) == []
    assert parse_runtime_filters(jvm, [predicate(jvm, "day", [1, 2], "date")], schema) == []


def test_a_filtered_batch_is_given_once_and_on_its_thread(spark: SparkSession) -> None:
    """Spark may have the same scan in other places, in which it is not filtered."""
    jvm = Jvm.of(spark, check_interfaces)

    class Example(FilteredAtRunTime):
        def filtered_batch(self, filters: Sequence[Condition]) -> tuple[Any, ReadPlan]:
            return f"filtered by {len(filters)}", ReadPlan("less", (), lambda _task: iter(()))

    plan = ReadPlan("all", (), lambda _task: iter(()), filterable=["id"])
    scan = Example(jvm, "example", "everything", plan, StructType.fromDDL("id bigint, a int"))
    scan.filter([predicate(jvm, "id", [1], "bigint")])
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(scan.toBatch).result() == "everything"
    assert [scan.toBatch(), scan.toBatch()] == ["filtered by 1", "everything"]
    assert [each.fieldNames()[0] for each in scan.filterAttributes()] == ["id"]
    assert "less" in scan.effect
