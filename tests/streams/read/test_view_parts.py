"""The view over tables in which some file groups are compacted and others have logs: one query, two readers.

The expected rows are those of `Snapshot.to_arrow`. With partitions it is easy to write to some file groups only: an
append to one partition adds logs to its file groups.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import weft
from tests.streams.support.seeds import seeds
from weft import Table
from weft.streams.read.native_or_merged import PlannerTuning, TablePlanner
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.view import planner_of

CONFIG: dict[str, Any] = {
    "key": ["p", "id"],
    "partition_by": ["p"],
    "buckets": 2,
    "columns": {"p": "int", "id": "bigint", "a": "bigint", "b": "string", "c": "double", "at": "bigint"},
    "groups": {
        "g": {"columns": ["a", "b", "at"], "ordering": ["at"]},
        "h": {"columns": ["c"]},
    },
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}, "u": {"groups": ["h"]}},
}
VIEW = "parts"
PARTITIONS = 3
IDS = 30

QUERIES = [
    "SELECT * FROM {}",
    "SELECT count(*) FROM {}",
    "SELECT sum(a), count(c), max(b), min(at) FROM {}",
    "SELECT p, sum(a), count(*) FROM {} GROUP BY p",
    "SELECT id, c FROM {} WHERE a > 500 AND b <> 'b3'",
    "SELECT a FROM {} WHERE p = 1",
    "SELECT b FROM {} WHERE p = 2 AND id = 7",
    "SELECT count(*) FROM {} WHERE id IN (1, 2, 3, 99)",
    "SELECT p, id FROM {} WHERE c IS NULL OR a IS NULL",
    "SELECT id FROM {} WHERE c < 100 OR upper(b) = 'B4'",
    "SELECT x.id, y.a FROM {} x JOIN {} y ON x.id = y.id AND x.p < y.p",
    "SELECT id FROM {} WHERE a > (SELECT avg(a) FROM {}) AND p IN (SELECT p FROM {} WHERE a > 900)",
    "SELECT DISTINCT b FROM {}",
    "SELECT count(*) FROM (SELECT * FROM {} LIMIT 7)",
    "SELECT p, id, a FROM {} ORDER BY a DESC NULLS LAST, p, id LIMIT 5",
    "SELECT id, row_number() OVER (PARTITION BY p ORDER BY id) FROM {}",
    "SELECT p, id FROM {} EXCEPT SELECT p, id FROM {} WHERE a > 300",
]


@pytest.fixture(autouse=True)
def nothing_cached(spark: SparkSession) -> None:
    """A view keeps its scans while Spark caches anything, even by another test."""
    spark.catalog.clearCache()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", CONFIG)


@pytest.fixture
def view(spark: SparkSession, table: Table) -> Iterator[str]:
    """A mix is read in two parts, however small it is."""
    make_view(spark, table, mix_min_bytes=0)
    yield VIEW
    spark.catalog.dropTempView(VIEW)


def make_view(spark: SparkSession, table: Table, *, mix_min_bytes: int) -> None:
    planner = planner_of(spark, table.uri, ReadOptions())
    create_relation_view(
        spark, VIEW, replace(planner, tuning=PlannerTuning(mix_min_bytes=mix_min_bytes, merged_share=2))
    )


class Writing:
    """Random operations on a table, by a seed."""

    def __init__(self, table: Table, seed: int = 0) -> None:
        self.table = table
        self.random = random.Random(seed)
        self.time = 0

    def events(self, partition: int, count: int = 12) -> None:
        """Upserts and deletes in one partition."""
        self.time += 1
        ids = self.random.sample(range(IDS), count)
        rows = {
            "p": pa.array([partition] * count, pa.int32()),
            "id": pa.array(ids, pa.int64()),
            "a": pa.array([self.random.choice([None, self.random.randrange(1000)]) for _ in ids], pa.int64()),
            "b": pa.array([f"b{self.random.randrange(6)}" for _ in ids]),
            "at": pa.array([self.time + self.random.randrange(-2, 3) for _ in ids], pa.int64()),
            "_op": pa.array([self.random.choice("IIIID") for _ in ids]),
        }
        with self.table.writer("s") as writer:
            writer.append(pa.table(rows))
        if self.random.random() < 0.5:
            numbers = pa.array([self.random.random() * 200 for _ in ids])
            with self.table.writer("u") as writer:
                writer.append(pa.table({"p": rows["p"], "id": rows["id"], "c": numbers}))

    def everywhere(self) -> None:
        for partition in range(PARTITIONS):
            self.events(partition)

    def compact(self, *partitions: int) -> None:
        """Compact partitions one by one, so that no base file has rows of two of them."""
        for partition in partitions or range(PARTITIONS):
            self.together(partition)

    def together(self, *partitions: int) -> None:
        """Compact partitions together: because they are small, they share one base file."""
        chosen = [f"p={partition}" for partition in partitions]
        self.table.compact(lambda part: not chosen or str(part.group.partition) in chosen)


def all_clean(writing: Writing) -> None:
    writing.everywhere()
    writing.compact()


def all_dirty(writing: Writing) -> None:
    writing.everywhere()


def mixed(writing: Writing) -> None:
    writing.everywhere()
    writing.compact()
    writing.events(1)


def other_mix(writing: Writing) -> None:
    """The file groups without logs in `mixed` have logs here, and vice versa."""
    writing.events(0)
    writing.events(2)
    writing.compact(1)


STATES: list[Callable[[Writing], None]] = [all_clean, all_dirty, mixed, other_mix]


def plan_text(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def expected(spark: SparkSession, table: Table, query: str) -> list[str]:
    """The result over rows in Spark's memory."""
    spark.createDataFrame(table.snapshot().to_arrow()).createOrReplaceTempView("expected")
    return rows_of(spark.sql(query.replace("{}", "expected")))


def wrong_answers(spark: SparkSession, table: Table, view: str, queries: Sequence[str]) -> list[Any]:
    wrong = []
    spark.createDataFrame(table.snapshot().to_arrow()).createOrReplaceTempView("expected")
    for query in queries:
        found = rows_of(spark.sql(query.replace("{}", view)))
        right = rows_of(spark.sql(query.replace("{}", "expected")))
        if found != right:
            wrong.append((query, found, right))
    return wrong


@pytest.fixture(autouse=True)
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Without code generation, because compiling takes most of the time of each query."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")


# Shape of the plan ---------------------------------------------------------------------------------------------------


def test_a_mixed_snapshot_is_read_by_both_readers_with_pushdown(spark: SparkSession, table: Table, view: str) -> None:
    mixed(Writing(table))
    text = plan_text(spark.sql(f"SELECT sum(a) FROM {view} WHERE at > 0"))
    native, tasks = (line for line in text.splitlines() if "BatchScan" in line)
    assert text.count("Union") == 1
    assert "ReadSchema: struct<a:bigint,at:bigint>" in native
    assert "GreaterThan(at,0)" in native
    assert "ParquetScan" not in tasks
    assert "[a#" in tasks, "a filter that the tasks apply needs no column of its own"
    assert text.count("partial_sum") == 1, "both are aggregated before anything is exchanged"


@pytest.mark.parametrize("state", [all_clean, all_dirty])
def test_a_snapshot_for_one_reader_is_one_scan(spark: SparkSession, table: Table, view: str, state: Any) -> None:
    state(Writing(table))
    text = plan_text(spark.table(view))
    assert text.count("BatchScan") == 1
    assert ("ParquetScan" in text) is (state is all_clean)


def test_a_limit_reaches_both_scans(spark: SparkSession, table: Table, view: str) -> None:
    mixed(Writing(table))
    assert plan_text(spark.sql(f"SELECT id FROM {view} LIMIT 3")).count("LocalLimit 3") == 2


def test_both_statistics_count_for_a_broadcast(spark: SparkSession, table: Table, view: str) -> None:
    mixed(Writing(table))
    text = plan_text(spark.sql(f"SELECT * FROM range(1000000000) r JOIN {view} v ON r.id = v.id"))
    assert "BroadcastHashJoin" in text
    assert text.count("BatchScan") == 2


def test_small_base_files_do_not_get_a_second_scan(spark: SparkSession, table: Table, view: str) -> None:
    mixed(Writing(table))
    make_view(spark, table, mix_min_bytes=1 << 30)
    assert plan_text(spark.table(view)).count("BatchScan") == 1


def read_and_skipped(frame: DataFrame) -> list[tuple[int, int]]:
    """File groups per scan, from EXPLAIN."""
    text = plan_text(frame)
    return [(int(read), int(skipped)) for read, skipped in re.findall(r"(\d+) file groups? .*?, (\d+) skipped", text)]


@pytest.mark.parametrize(
    ("condition", "native", "tasks"),
    [
        ("p = 0", (2, 2), (0, 2)),
        ("p IN (1, 7)", (0, 4), (2, 0)),
        ("p = 1 AND id = 7", (0, 4), (1, 1)),
        ("p = 2 AND id = 7", (1, 3), (0, 2)),
        ("p < 2 AND a > 5", (2, 2), (2, 0)),
        ("a > 5", (4, 0), (2, 0)),
    ],
)
def test_each_scan_skips_file_groups_that_cannot_match(
    spark: SparkSession, table: Table, view: str, condition: str, native: tuple[int, int], tasks: tuple[int, int]
) -> None:
    mixed(Writing(table))
    assert read_and_skipped(spark.sql(f"SELECT a, b FROM {view} WHERE {condition}")) == [native, tasks]
    assert wrong_answers(spark, table, view, [f"SELECT a, b FROM {{}} WHERE {condition}"]) == []


def test_a_scan_is_native_if_all_file_groups_with_logs_are_skipped(
    spark: SparkSession, table: Table, view: str
) -> None:
    mixed(Writing(table))
    make_view(spark, table, mix_min_bytes=1 << 30)
    for condition, native in (("p = 0", True), ("p = 1", False), ("p < 2", False), ("p = 2 AND b > 'b2'", True)):
        frame = spark.sql(f"SELECT id, a FROM {view} WHERE {condition}")
        assert reads_natively(frame) is native, condition
        assert wrong_answers(spark, table, view, [f"SELECT id, a FROM {{}} WHERE {condition}"]) == []


def test_a_file_shared_with_file_groups_with_logs_is_read_by_tasks(
    spark: SparkSession, table: Table, view: str
) -> None:
    writing = Writing(table)
    writing.everywhere()
    writing.together()
    queries = [
        "SELECT * FROM {}",
        "SELECT sum(a), count(*) FROM {} WHERE p = 2",
        "SELECT id FROM {} WHERE id IN (1, 2)",
    ]

    def shape() -> tuple[int, int]:
        assert wrong_answers(spark, table, view, queries) == []
        text = plan_text(spark.table(view))
        return text.count("BatchScan"), text.count("ParquetScan")

    assert shape() == (1, 1)
    assert "ParquetScan" in plan_text(spark.sql(f"SELECT a FROM {view} WHERE p = 2"))
    writing.events(1)
    assert shape() == (1, 0)
    assert "ParquetScan" not in plan_text(spark.sql(f"SELECT a FROM {view} WHERE p = 2"))
    # The file has outdated rows of partition 1 now, so it still cannot be read natively.
    writing.together(1)
    assert shape() == (2, 1)
    writing.events(0)
    writing.events(2)
    writing.together(0, 2)
    assert shape() == (1, 1)


# Answers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_any_mix_gives_the_rows_of_the_snapshot(spark: SparkSession, table: Table, view: str, seed: int) -> None:
    writing = Writing(table, seed)
    shapes = set()
    queries = list(QUERIES)
    for _ in range(6):
        for _ in range(writing.random.randrange(1, 4)):
            if writing.random.random() < 0.6:
                writing.events(writing.random.randrange(PARTITIONS), writing.random.randrange(1, 12))
            else:
                partitions = writing.random.sample(range(PARTITIONS), writing.random.randrange(1, PARTITIONS + 1))
                writing.random.choice([writing.compact, writing.together])(*partitions)
        shapes.add("Union" in plan_text(spark.table(view)))
        writing.random.shuffle(queries)
        assert wrong_answers(spark, table, view, queries[:5]) == []
    assert shapes == {False, True}


def test_a_frame_is_correct_in_any_state_of_the_table(spark: SparkSession, table: Table, view: str) -> None:
    writing = Writing(table)
    frames: list[tuple[str, DataFrame]] = []
    query = f"SELECT p, id, a, c FROM {view} WHERE a > 100 OR p = 1"
    for state in [*STATES, *reversed(STATES)]:
        state(writing)
        right = expected(spark, table, query.replace(view, "{}"))
        for analysed, frame in frames:
            assert rows_of(frame.where("true").select("p", "id", "a", "c")) == right, (analysed, state.__name__)
        frames.append((state.__name__, spark.sql(query)))
    assert len(set(map(plan_text, (frame for _, frame in frames)))) > 2


def test_a_read_with_required_groups_uses_tasks(spark: SparkSession, table: Table) -> None:
    writing = Writing(table)
    for state in STATES:
        state(writing)
    frame = weft.snapshot(spark, table.uri, require=["h"])
    right = table.snapshot().to_arrow(require=["h"])
    assert 0 < len(right) < len(table.snapshot().to_arrow())
    assert "ParquetScan" not in plan_text(frame)
    assert rows_of(frame) == rows_of(spark.createDataFrame(right))


# One snapshot --------------------------------------------------------------------------------------------------------

ONE_SNAPSHOT = [
    "SELECT count(*) FROM {} x FULL JOIN {} y ON x.p = y.p AND x.id = y.id",
    "SELECT count(*) FROM {} WHERE (p, id) IN (SELECT p, id FROM {})",
    "SELECT max(n) FROM (SELECT count(*) n FROM {} UNION ALL SELECT count(a) + count_if(a IS NULL) FROM {})",
]


@pytest.mark.parametrize("query", ONE_SNAPSHOT)
def test_both_scans_of_a_view_use_one_snapshot(spark: SparkSession, table: Table, view: str, query: str) -> None:
    writing = Writing(table)
    mixed(writing)
    counts: list[int] = []
    pin = TablePlanner.__call__

    def moving(planner: TablePlanner) -> Any:
        pinned = pin(planner)
        counts.append(len(pinned.snapshot.to_arrow()))
        other_mix(writing) if len(counts) % 2 else mixed(writing)
        return pinned

    with mock.patch.object(TablePlanner, "__call__", moving):
        found = [spark.sql(query.replace("{}", view)).collect()[0][0] for _ in range(2)]
    assert len(counts) == 2, "one snapshot per query"
    assert found == counts


def test_a_cached_view_is_used_after_the_mix_has_changed(spark: SparkSession, table: Table, view: str) -> None:
    writing = Writing(table)
    mixed(writing)
    before = spark.table(view).count()
    spark.catalog.cacheTable(view)
    try:
        assert spark.table(view).count() == before
        for state in (all_clean, all_dirty):
            state(writing)
            assert spark.table(view).count() == before
        assert len(table.snapshot().to_arrow()) != before
    finally:
        spark.catalog.uncacheTable(view)
    assert not spark.catalog.isCached(view)
    assert spark.table(view).count() == len(table.snapshot().to_arrow())


# Older schemas -------------------------------------------------------------------------------------------------------


def reads_natively(frame: DataFrame) -> bool:
    return "ParquetScan" in plan_text(frame)


def test_spark_reads_a_base_file_without_an_added_column(spark: SparkSession, table: Table, view: str) -> None:
    writing = Writing(table)
    all_clean(writing)
    table.add_column("g", "later", "string")
    table.add_column("h", "shown", "int", default=7)
    for number in range(2):
        columns = ", ".join(table.snapshot().schema.names)
        assert rows_of(spark.sql(f"SELECT {columns} FROM {view}")) == expected(
            spark, table, f"SELECT {columns} FROM {{}}"
        )
        assert wrong_answers(spark, table, view, ["SELECT later, a FROM {}", "SELECT p, shown FROM {}"]) == []
        assert wrong_answers(spark, table, view, ["SELECT id FROM {} WHERE later IS NULL AND shown = 7"]) == []
        assert {row[0] for row in spark.sql(f"SELECT shown FROM {view}").collect()} >= {7}
        # A mix of bases of both revisions, with logs in the third partition.
        assert reads_natively(spark.sql(f"SELECT id, later FROM {view}"))
        assert not reads_natively(spark.sql(f"SELECT id, shown FROM {view}"))
        if not number:
            writing.events(0)
            writing.compact(0)
            writing.events(2)
    assert "Union" in plan_text(spark.table(view))


def test_changed_defaults_and_wider_types_are_not_read_natively(spark: SparkSession, table: Table, view: str) -> None:
    writing = Writing(table)
    all_clean(writing)
    table.add_column("h", "n", "int", default=1)
    writing.everywhere()
    writing.compact()
    writing.events(1)
    table.set_default("n", 2)
    table.widen_column("n", "bigint")
    query = f"SELECT p, id, n FROM {view}"
    assert not reads_natively(spark.sql(query))
    assert wrong_answers(spark, table, view, [query.replace(view, "{}")]) == []
    assert reads_natively(spark.sql(f"SELECT p, id, a FROM {view}"))
