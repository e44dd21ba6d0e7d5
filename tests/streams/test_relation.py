"""The live view against rows that Spark holds itself, over a real implementation of the seam: Parquet files.

The planner here writes down what it was asked for, and its tasks write down what they were asked to read, so a test can
tell a pruned scan from a scan that merely answered right.
"""

from __future__ import annotations

import datetime as dt
import decimal
import gc
import importlib
import json
import subprocess
import sys
import textwrap
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, IllegalArgumentException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from storage.errors import InvalidInput, NotFound
from streams import relation_scan
from streams.relation import Plan, RelationFallbackWarning, create_relation_view, relation_dataframe
from streams.relation_filters import And, Or
from streams.relation_jvm import Jvm, UnfitError
from streams.relation_pins import SWEEP_AT, Pins
from streams.relation_worker import RelationReadError, conform, conformed_batches

# Spark's Python workers cannot import this module (pytest loads it by path).
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("name", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)


def rows(start: int, count: int) -> pa.Table:
    """Rows with nulls in every column but the first, each column with its own rhythm."""

    def maybe(every: int, index: int, value: Any) -> Any:
        return None if index % every == 0 else value

    numbers = range(start, start + count)
    columns: dict[str, list[Any]] = {
        "id": list(numbers),
        "small": [maybe(5, i, i % 10) for i in numbers],
        "name": [maybe(7, i, f"name {i % 13}") for i in numbers],
        "price": [maybe(6, i, decimal.Decimal(i * 25) / 100) for i in numbers],
        "ratio": [maybe(9, i, float("nan") if i % 11 == 0 else i / 4) for i in numbers],
        "flag": [maybe(8, i, i % 3 == 0) for i in numbers],
        "day": [maybe(10, i, dt.date(1066 if i % 13 == 0 else 2024, 1, 1) + dt.timedelta(days=i)) for i in numbers],
        "at": [
            maybe(11, i, dt.datetime(1500 if i % 13 == 0 else 2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i))
            for i in numbers
        ],
        "place": [maybe(4, i, {"city": f"c{i % 3}", "zip": i}) for i in numbers],
        "tags": [maybe(3, i, ["x"] * (i % 4)) for i in numbers],
    }
    return pa.table(columns, schema=SCHEMA)


class Files:
    """A table of Parquet files that moves on: every `add` is a new state."""

    def __init__(self, folder: Path, *, native: bool = False) -> None:
        self.folder = folder
        self.native = native
        self.paths: list[Path] = []
        self.pins = 0
        self.plans: list[tuple[tuple[str, ...], tuple[Filter, ...]]] = []
        self.exact: Callable[[Sequence[Filter]], Sequence[int]] = lambda _filters: ()
        self.on_pin: Callable[[], None] = lambda: None
        self.on_plan: Callable[[], None] = lambda: None
        self.read: Callable[[Any], Iterator[pa.RecordBatch]] = read_file
        folder.mkdir(parents=True)

    def add(self, table: pa.Table) -> None:
        path = self.folder / f"{len(self.paths):04}.parquet"
        pq.write_table(table, path, row_group_size=16)
        self.paths.append(path)

    def pin(self) -> State:
        self.on_pin()
        self.pins += 1
        return State(self, tuple(self.paths))

    def columns_read(self) -> set[tuple[str, ...]]:
        """What the tasks were asked for since the last call."""
        notes = list(self.folder.glob("*.read"))
        read = {tuple(json.loads(note.read_text())) for note in notes}
        for note in notes:
            note.unlink()
        return read


class State:
    def __init__(self, files: Files, paths: tuple[Path, ...]) -> None:
        self._files = files
        self._paths = paths

    def schema(self) -> StructType:
        return from_arrow_schema(pq.read_schema(self._paths[-1])) if self._paths else from_arrow_schema(SCHEMA)

    def exact(self, filters: Sequence[Filter]) -> Sequence[int]:
        return self._files.exact(filters)

    def plan(self, columns: Sequence[str], filters: Sequence[Filter]) -> Plan:
        self._files.on_plan()
        self._files.plans.append((tuple(columns), tuple(filters)))
        return Plan(
            description=f"{len(self._paths)} files of the test",
            tasks=[(str(path), tuple(columns)) for path in self._paths],
            read=self._files.read,
            parquet_paths=[f"file://{path}" for path in self._paths] if self._files.native else None,
        )


def read_file(task: tuple[str, tuple[str, ...]]) -> Iterator[pa.RecordBatch]:
    path, columns = task
    note = Path(path).with_name(f"{uuid.uuid4().hex}.read")
    note.write_text(json.dumps(columns))
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        if not columns:
            count = file.metadata.row_group(group).num_rows
            yield pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))
            continue
        table = file.read_row_group(group, columns=list(columns))
        missing = [name for name in columns if name not in table.column_names]
        for name in missing:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.int64()))
        yield from table.select(list(columns)).to_batches()


def only_ids_below_ten(task: tuple[str, tuple[str, ...]]) -> Iterator[pa.RecordBatch]:
    path, columns = task
    for batch in read_file((path, columns)):
        ids = pq.read_table(path, columns=["id"])["id"].to_pylist()[: batch.num_rows]
        yield batch.filter(pa.array([number < 10 for number in ids]))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path / "table")
    made.add(rows(0, 40))
    made.add(rows(40, 30))
    return made


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    made = f"view_{uuid.uuid4().hex[:8]}"
    yield made
    spark.catalog.dropTempView(made)


def answer(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def plan_text(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


# Answers -------------------------------------------------------------------------------------------------------------

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
    """All conditions as scans of one query, which saves the time of many."""
    return " UNION ALL ".join(
        f"SELECT {number} AS condition, id FROM {{}} WHERE {condition}" for number, condition in enumerate(conditions)
    )


def wrong_answers(spark: SparkSession, files: Files, name: str, queries: Sequence[str]) -> list[Any]:
    """Against rows that Spark holds itself: its own Parquet source and its cache lose NaN rows to statistics."""
    create_relation_view(spark, name, files)
    expected = spark.createDataFrame(pa.concat_tables([pq.read_table(path) for path in files.paths]))
    expected.createOrReplaceTempView("expected")
    wrong = []
    spark.conf.set("spark.sql.codegen.wholeStage", "false")  # compiling each of these once is most of their time
    for query in queries:
        found = answer(spark.sql(query.replace("{}", name)))
        right = answer(spark.sql(query.replace("{}", "expected")))
        if found != right:
            wrong.append((query[:80], sorted(set(found) ^ set(right))))
    spark.conf.unset("spark.sql.codegen.wholeStage")
    return wrong


def test_answers_through_tasks(spark: SparkSession, files: Files, name: str) -> None:
    assert wrong_answers(spark, files, name, [*QUERIES, union(CONDITIONS[::4])]) == []
    assert len(files.columns_read()) > 8


def test_answers_read_natively(spark: SparkSession, files: Files, name: str) -> None:
    files.native = True
    assert wrong_answers(spark, files, name, [*QUERIES, union(CONDITIONS)]) == []
    assert files.columns_read() == set()


FLOATS = [float("nan"), 1.0, -0.0, 0.0, None]
FLOAT_CONDITIONS = [
    f"{condition} {literal}"
    for condition in ("x =", "x <=>", "x <>", "x <", "x <=", "x >", "x >=", "x IN (77,", "x NOT IN (77,")
    for literal in ("CAST('NaN' AS DOUBLE)", "CAST(1.0 AS DOUBLE)", "CAST(0.0 AS DOUBLE)", "-CAST(0.0 AS DOUBLE)", "2D")
]


def test_nan_and_negative_zero_survive_the_statistics_of_parquet(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    # Statistics leave NaN out, dictionaries tell the zeros apart, and Spark's SQL does neither.
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


PUSHED: list[tuple[str, Filter]] = [
    ("small = 3", EqualTo(("small",), 3)),
    ("3 < small", GreaterThan(("small",), 3)),
    ("small <=> 3", EqualNullSafe(("small",), 3)),
    ("small <= 3", LessThanOrEqual(("small",), 3)),
    ("id >= 3", GreaterThanOrEqual(("id",), 3)),
    ("ratio < 2.5", LessThan(("ratio",), 2.5)),
    ("small IN (1, 2, 3)", In(("small",), (1, 2, 3))),
    ("small <> 3", Not(EqualTo(("small",), 3))),
    ("name IS NULL", IsNull(("name",))),
    ("name IS NOT NULL", IsNotNull(("name",))),
    ("name LIKE 'n%'", StringStartsWith(("name",), "n")),
    ("name LIKE '%n'", StringEndsWith(("name",), "n")),
    ("name LIKE '%n%'", StringContains(("name",), "n")),
    ("flag", EqualTo(("flag",), value=True)),
    ("NOT flag", Not(EqualTo(("flag",), value=True))),
    ("price > 1.5", GreaterThan(("price",), decimal.Decimal("1.50"))),
    ("day = DATE'2024-02-29'", EqualTo(("day",), dt.date(2024, 2, 29))),
    ("day = DATE'1066-10-14'", EqualTo(("day",), dt.date(1066, 10, 14))),
    (
        "at > TIMESTAMP'1500-01-01 00:00:00.000001'",
        GreaterThan(("at",), dt.datetime(1500, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)),
    ),
    ("place.city = 'c1'", EqualTo(("place", "city"), "c1")),
    ("small = 1 OR id > 5", Or(EqualTo(("small",), 1), GreaterThan(("id",), 5))),
    (
        "id = 1 OR (small = 1 AND name = 'n')",
        Or(EqualTo(("id",), 1), And(EqualTo(("small",), 1), EqualTo(("name",), "n"))),
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


def test_what_cannot_be_said_as_a_filter_is_not_pushed(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    for condition in (
        "upper(name) = 'X'",
        "id = small + 1",
        "day = DATE'9999-12-31' + 1",
        "name COLLATE UNICODE_CI = 'N'",
    ):
        spark.sql(f"SELECT id FROM {name} WHERE {condition}").collect()
        _, filters = files.plans[-1]
        assert all(isinstance(pushed, IsNotNull) for pushed in filters), condition


def test_a_filter_that_is_not_declared_exact_is_evaluated_by_spark(
    spark: SparkSession, files: Files, name: str
) -> None:
    files.read = only_ids_below_ten  # a read that drops rows shows who filters
    files.paths = files.paths[:1]
    create_relation_view(spark, name, files)
    assert spark.sql(f"SELECT id FROM {name} WHERE id < 5").count() == 5


def test_an_exact_filter_is_left_to_the_plan_and_its_column_is_not_read(
    spark: SparkSession, files: Files, name: str
) -> None:
    files.exact = lambda filters: [i for i, _ in enumerate(filters)]
    files.native = True  # and such a scan is never left to Spark's reader, which would not apply it
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT name FROM {name} WHERE id < 5")
    assert len(frame.collect()) == 70  # this plan breaks its promise, so all rows come: Spark did not look again
    assert files.columns_read() == {("name",)}
    assert "ParquetScan" not in plan_text(frame)


# Native reading ------------------------------------------------------------------------------------------------------


def test_files_that_are_the_answer_are_read_by_spark_itself(spark: SparkSession, files: Files, name: str) -> None:
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
def test_files_that_spark_would_pass_over_are_read_by_tasks(
    spark: SparkSession, tmp_path: Path, name: str, file: str
) -> None:
    files = Files(tmp_path / "table", native=True)
    files.add(rows(0, 10))
    files.paths[0] = files.paths[0].rename(files.folder / file)
    create_relation_view(spark, name, files)
    assert spark.table(name).count() == 10


def test_paths_mean_what_they_say(spark: SparkSession, tmp_path: Path, name: str) -> None:
    files = Files(tmp_path / "a [b] {c} %20 é=1" / "*", native=True)
    files.add(rows(0, 10))
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT id FROM {name} WHERE id > 4")
    assert len(frame.collect()) == 5
    assert "ParquetScan" in plan_text(frame)


def test_files_are_listed_once_while_they_stay_the_same(spark: SparkSession, files: Files, name: str) -> None:
    files.native = True
    with mock.patch.object(Jvm, "parquet_table", autospec=True, side_effect=Jvm.parquet_table) as listed:
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


def test_a_small_known_size_makes_spark_broadcast_the_view(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    query = f"SELECT * FROM range(1000) r JOIN {name} v ON r.id = v.id"
    before = plan_text(spark.sql(query))
    plan = State.plan

    def sized(state: State, columns: Sequence[str], filters: Sequence[Filter]) -> Plan:
        made = plan(state, columns, filters)
        return Plan(made.description, made.tasks, made.read, size_bytes=1000, row_count=70)

    with (
        mock.patch.object(State, "plan", sized),
        mock.patch.object(Files, "pin", lambda files: State(files, tuple(files.paths))),
    ):
        after = plan_text(spark.sql(query.replace("range(1000)", "range(1000000000)")))
    assert "BuildLeft" in before
    assert "BuildRight" in after


# Live, and one state a query -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["tasks", "native"])
def test_a_view_made_before_the_data_shows_the_data(spark: SparkSession, files: Files, name: str, how: str) -> None:
    files.native = how == "native"
    create_relation_view(spark, name, files)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW above AS SELECT id FROM {name} WHERE id >= 70")
    counts = []
    for step in range(3):
        counts.append((spark.table(name).count(), spark.sql("SELECT * FROM above").count()))
        files.add(rows(70 + 10 * step, 10))
    assert counts == [(70, 0), (80, 10), (90, 20)]


def test_a_new_column_shows_up_in_the_view(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    before = spark.table(name)
    files.add(rows(70, 5).append_column("extra", pa.array(range(5), pa.int64())))
    assert spark.table(name).columns == [*SCHEMA.names, "extra"]
    assert spark.sql(f"SELECT sum(extra) FROM {name}").collect()[0][0] == 10
    assert before.count() == 75  # a frame keeps its columns and sees the new rows
    assert before.columns == SCHEMA.names


def test_a_frame_whose_column_is_gone_says_so(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    before = spark.table(name)
    files.add(rows(70, 5).drop_columns(["small"]))
    assert before.select("id").count() == 75
    with pytest.raises(IllegalArgumentException, match=r"column 'small' of .* was int and is gone") as caught:
        before.select("small").collect()
    assert "create the DataFrame again" in str(caught.value)
    with pytest.raises(AnalysisException, match="small"):
        spark.sql(f"SELECT small FROM {name}")


def test_a_frame_collected_twice_gives_the_same_rows_and_derived_frames_the_newest(
    spark: SparkSession, files: Files, name: str
) -> None:
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT id FROM {name}")
    assert len(frame.collect()) == 70
    files.add(rows(70, 10))
    assert len(frame.collect()) == 70
    assert len(frame.where("id >= 0").collect()) == 80
    assert frame.count() == 80


ONE_STATE = [
    "SELECT count(*) FROM {} a JOIN {} b ON a.id = b.id",
    "SELECT count(*) FROM (SELECT id FROM {} INTERSECT SELECT id FROM {} WHERE id >= 0)",
    "SELECT count(*) FROM {} WHERE id IN (SELECT id FROM {} WHERE small IS NULL OR small >= 0)",
    "SELECT (SELECT max(id) FROM {}) - (SELECT count(id) FROM {}) + 1 + count(*) FROM {}",
    "WITH t AS (SELECT * FROM {}) SELECT count(*) FROM t x JOIN t y USING (id) WHERE id <= (SELECT max(id) FROM {})",
    "SELECT count(*) FROM {} a WHERE EXISTS (SELECT 1 FROM {} b WHERE b.id = a.id)",
]


@pytest.mark.parametrize("query", ONE_STATE)
def test_all_scans_of_a_query_see_one_state(spark: SparkSession, files: Files, name: str, query: str) -> None:
    create_relation_view(spark, name, files)

    def grow() -> None:  # every look at the table finds another one
        start = sum(pq.read_metadata(path).num_rows for path in files.paths)
        files.add(rows(start, 10))

    files.on_pin = grow
    files.pins = 0
    size = 70
    for _ in range(3):
        size += 10
        assert spark.sql(query.replace("{}", name)).collect()[0][0] == size
    assert files.pins == 3


def test_frames_made_at_different_times_see_one_state_when_joined(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    early = spark.table(name).select("id")
    files.add(rows(70, 10))
    late = spark.table(name).select("id")
    files.add(rows(80, 10))
    files.pins = 0
    assert len(early.join(late, "id", "full").collect()) == 90
    assert len(early.exceptAll(late).collect()) == 0
    assert files.pins == 2


def test_equal_scans_of_one_query_are_planned_and_run_once(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    frame = spark.sql(f"SELECT count(*) FROM {name} a JOIN {name} b ON a.id = b.id")
    frame.collect()
    assert len(files.plans) == 1
    assert "ReusedExchange" in plan_text(frame)


def test_a_cached_view_stays_and_an_uncached_one_is_live_again(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    spark.catalog.cacheTable(name)
    assert spark.table(name).count() == 70
    files.add(rows(70, 10))
    assert spark.table(name).count() == 70
    spark.catalog.uncacheTable(name)
    assert spark.table(name).count() == 80


def test_a_view_feeds_a_write(spark: SparkSession, files: Files, name: str, tmp_path: Path) -> None:
    create_relation_view(spark, name, files)
    target = tmp_path / "copy"
    spark.sql(f"SELECT a.id, b.name FROM {name} a JOIN {name} b ON a.id = b.id").write.parquet(str(target))
    assert spark.read.parquet(str(target)).count() == 70


def test_each_batch_of_a_stream_joins_the_newest_state(
    spark: SparkSession, files: Files, name: str, tmp_path: Path
) -> None:
    create_relation_view(spark, name, files)
    source = tmp_path / "source"
    seen: list[int] = []

    def take(batch: DataFrame, _number: int) -> None:
        seen.append(batch.count())
        if len(seen) == 1:
            files.add(rows(70, 10))

    for number in range(2):
        spark.range(1).coalesce(1).write.mode("append").parquet(str(source))
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))
        joined = stream.crossJoin(spark.table(name).select("name"))
        query = joined.writeStream.foreachBatch(take).trigger(availableNow=True)
        running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert running.awaitTermination(60), number
    assert seen == [70, 80]


def test_a_file_added_to_the_context_later_reaches_the_tasks(
    spark: SparkSession, files: Files, name: str, tmp_path: Path
) -> None:
    create_relation_view(spark, name, files)
    assert spark.table(name).count() == 70
    module = f"late_{name}"
    path = tmp_path / f"{module}.py"
    path.write_text("NUMBER = 5")
    spark.sparkContext.addPyFile(str(path))

    def read(_task: Any) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": [importlib.import_module(module).NUMBER]})

    files.read = read
    assert spark.sql(f"SELECT sum(id) FROM {name}").collect()[0][0] == 10


def test_threads_get_a_consistent_state_each(spark: SparkSession, files: Files, name: str) -> None:
    lock = threading.Lock()

    def grow() -> None:
        with lock:
            start = sum(pq.read_metadata(path).num_rows for path in files.paths)
            files.add(rows(start, 1))

    create_relation_view(spark, name, files)
    files.on_pin = grow

    def query(_number: int) -> tuple[int, int, int]:
        found = spark.sql(
            f"SELECT count(*), (SELECT count(id) FROM {name}), (SELECT max(id) + 1 FROM {name}) FROM {name}"
        )
        return tuple(found.collect()[0])

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(query, range(8)))
    assert all(len(set(numbers)) == 1 for numbers in answers), answers
    assert len({numbers[0] for numbers in answers}) == 8


# Views come and go ---------------------------------------------------------------------------------------------------


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


def test_nothing_piles_up_query_by_query(spark: SparkSession, files: Files, name: str) -> None:
    made: list[Pins] = []

    def remember(*arguments: Any) -> Pins:
        made.append(Pins(*arguments))
        return made[-1]

    with mock.patch.object(relation_scan, "Pins", remember):
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
    assert len(pool) < before + 2 * SWEEP_AT  # and one query alone makes four callback objects
    assert len(made[0]._pins) <= 2 * SWEEP_AT


RESTART = """
    import sys
    from pathlib import Path

    sys.path.insert(0, sys.argv[1])
    from pyspark.sql import SparkSession
    from streams.relation import create_relation_view
    from tests.streams.test_relation import Files, rows

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


def test_spark_stopped_and_started_again_in_one_process(tmp_path: Path) -> None:
    script = tmp_path / "restart.py"
    script.write_text(textwrap.dedent(RESTART))
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(script), root, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
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


def test_a_refusal_at_creation_and_at_analysis_carries_the_planner_s_words(
    spark: SparkSession, files: Files, name: str
) -> None:
    files.on_pin = refuse
    for attempt in (
        lambda: create_relation_view(spark, name, files),
        lambda: spark.sql(f"SELECT * FROM weft_{name}()"),
    ):
        with pytest.raises(IllegalArgumentException) as caught:
            attempt()
        assert str(caught.value) == "table 'orders' is not there\n  hint: create it first"
    files.on_pin = lambda: None
    create_relation_view(spark, name, files)
    assert spark.table(name).count() == 70


def test_a_refusal_at_planning_carries_the_planner_s_words(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    frame = spark.table(name)
    files.on_plan = crash
    with pytest.raises(IllegalArgumentException) as caught:
        frame.collect()
    assert str(caught.value) == "KeyError: 'lane 7'"
    origin: Any = vars(caught.value)["_origin"]
    assert "in crash" in origin.getCause().getMessage()  # the way there is kept for the curious


def test_a_read_that_breaks_its_promise_is_named(spark: SparkSession, files: Files, name: str) -> None:
    files.read = lambda _task: iter([pa.RecordBatch.from_pydict({"id": pa.array(["x"])})])
    create_relation_view(spark, name, files)
    with pytest.raises(PythonException, match="column 'id' was planned as int64, read gave string"):
        spark.sql(f"SELECT id FROM {name}").collect()


# What Spark must look like -------------------------------------------------------------------------------------------


def test_a_spark_with_more_methods_than_we_answer_is_unfit(spark: SparkSession) -> None:
    jvm = Jvm.of(spark)
    relation_scan.check_interfaces(jvm)
    with (
        mock.patch.object(Jvm, "method_names", return_value={"fromTheFuture"}),
        pytest.raises(UnfitError, match="fromTheFuture"),
    ):
        relation_scan.check_interfaces(jvm)


def test_a_session_without_a_jvm_is_unfit() -> None:
    with pytest.raises(UnfitError, match="Spark Connect"):
        Jvm.of(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 2])
def test_without_the_jvm_the_answers_are_the_same_but_fixed(
    spark: SparkSession, tmp_path: Path, name: str, count: int
) -> None:
    files = Files(tmp_path / "table")
    for number in range(count):
        files.add(rows(30 * number, 30))
    with mock.patch.object(Jvm, "of", side_effect=UnfitError("no JVM here")):
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


# The worker's side ---------------------------------------------------------------------------------------------------


def test_conform_selects_orders_and_casts() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"b": pa.array(["x"], pa.large_string()), "z": [1], "a": pa.array([7], pa.int32())}
    )
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert conform(batch, schema) == pa.RecordBatch.from_pydict({"a": [7], "b": ["x"]}, schema=schema)


def test_conform_without_columns_keeps_the_number_of_rows() -> None:
    assert conform(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), pa.schema([])).num_rows == 3


def test_conform_names_a_missing_and_a_wrong_column() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1 << 40])})
    with pytest.raises(RelationReadError, match="promised column 'b'"):
        conform(batch, pa.schema([("b", pa.int64())]))
    with pytest.raises(RelationReadError, match="column 'a' was planned as int32"):
        conform(batch, pa.schema([("a", pa.int32())]))


def test_large_batches_are_cut_and_empty_ones_dropped() -> None:
    schema = pa.schema([("a", pa.int64())])
    batches = [pa.RecordBatch.from_pydict({"a": list(range(count))}, schema=schema) for count in (0, 5, 2)]
    assert [batch.num_rows for batch in conformed_batches(batches, schema, batch_rows=2)] == [2, 2, 1, 2]
