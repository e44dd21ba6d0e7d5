"""Limits that tasks apply, with and without an order, give answers that Spark may give for the same rows."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.streams.support.pushed_views import CONFIG, VALUES, append, create_views, differing, drop_views, plan
from tests.streams.support.seeds import seeds
from weft import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", CONFIG)


@pytest.fixture(autouse=True)
def views(spark: SparkSession, table: Table) -> Iterator[None]:
    create_views(spark, table)
    yield
    drop_views(spark)


def write(table: Table, seed: int) -> None:
    """Two of the four file groups have logs."""
    append(table, seed, 1)
    table.compact()
    append(table, seed, 2)
    table.compact(lambda part: part.group.bucket in {1, 3})


def random_query(source: random.Random) -> str:
    """The values of an order, which any choice among equal rows has."""
    columns = source.sample(["id", *VALUES], source.randrange(1, 4))
    orders = [
        f"{name} {source.choice(['ASC', 'DESC'])} {source.choice(['', 'NULLS FIRST', 'NULLS LAST'])}"
        for name in columns
    ]
    condition = source.choice(["", "", " WHERE whole > 0", " WHERE text IS NOT NULL AND id <= 40"])
    limit = source.choice(["1", "3", "10 OFFSET 2", "1000"])
    return f"SELECT {', '.join(columns)} FROM {{}}{condition} ORDER BY {', '.join(orders)} LIMIT {limit}"


@pytest.mark.parametrize("seed", seeds(1, 7))
def test_the_first_rows_of_an_order_are_those_of_spark(spark: SparkSession, table: Table, seed: int) -> None:
    assert differing(spark, ["SELECT id FROM {} ORDER BY id LIMIT 3"], pushed=True, shown="PushedTopN") == []
    write(table, seed)
    source = random.Random(seed)
    queries = [random_query(source) for _ in range(20)]
    queries.append("SELECT id AS n, -id FROM {} ORDER BY n DESC LIMIT 7")
    queries.append("SELECT sum(id) FROM (SELECT * FROM {} ORDER BY id DESC LIMIT 9) WHERE whole IS NOT NULL")
    queries.append("SELECT a.id FROM (SELECT * FROM {} ORDER BY id LIMIT 9) a JOIN {} b ON a.id = b.id AND b.whole > 0")
    assert differing(spark, queries, pushed=True, shown="PushedTopN") == []


def test_a_limit_without_an_order_gives_so_many_of_the_rows(spark: SparkSession, table: Table) -> None:
    write(table, 1)
    for condition in ("", "WHERE whole > 0", "WHERE id = -1"):
        every = sorted(map(str, spark.sql(f"SELECT * FROM by_spark {condition}").collect()))
        for count in (1, 5, 1_000):
            frame = spark.sql(f"SELECT * FROM pushed {condition} LIMIT {count}")
            assert f"PushedLimit: LIMIT {count}" in plan(frame)
            found = list(map(str, frame.collect()))
            assert len(found) == len(set(found)) == min(count, len(every))
            assert set(found) <= set(every)
    assert "PushedLimit: LIMIT 7" in plan(spark.sql("SELECT id FROM pushed LIMIT 5 OFFSET 2"))
    assert spark.sql("SELECT count(*) FROM (SELECT id FROM pushed LIMIT 5 OFFSET 2)").collect()[0][0] == 5


def test_a_limit_that_one_task_answers_leaves_its_worker_for_the_next_query(
    spark: SparkSession, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark ends the Python worker of a task of which it does not take all rows, and starting one takes long."""
    write(table, 1)
    frame = spark.sql("SELECT * FROM pushed LIMIT 3")
    assert "PushedLimit: LIMIT 3" in plan(frame)
    assert re.search(r" [12] file groups? \(0 with logs\), .* 1 task ", plan(frame))
    assert "CollectLimit" not in plan(frame)
    every = sorted(map(str, spark.sql("SELECT * FROM by_spark").collect()))
    assert len(set(map(str, frame.collect())) & set(every)) == 3
    # Spark has a pool of workers for each environment, and ends all workers of a pool that is not used for a minute. So
    # these queries have a pool of their own: workers that other queries have started may end at any time.
    monkeypatch.setitem(spark.sparkContext.environment, "WEFT_TEST_POOL", str(tmp_path))
    others = task_workers()
    for number in range(3):
        assert len(spark.sql("SELECT * FROM pushed LIMIT 3").collect()) == 3
        if number == 0:
            pool = task_workers() - others
            assert len(pool) == 2, "Spark's daemon, and the worker that it has started"
        assert len(spark.sql("SELECT * FROM pushed LIMIT 2 OFFSET 1").collect()) == 2
        assert spark.sql("SELECT count(*) FROM (SELECT * FROM pushed LIMIT 3)").collect()[0][0] == 3
    assert task_workers() - others == pool


def task_workers() -> set[int]:
    """The processes below this one in which Spark runs Python functions of tasks, and the daemons that start them."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    processes = [
        (int(pid), int(parent), args) for pid, parent, args in (line.split(None, 2) for line in listed.splitlines())
    ]
    below = {os.getpid()}
    for _ in range(10):  # generations
        below.update(pid for pid, parent, _ in processes if parent in below)
    return {pid for pid, _, args in processes if pid in below and args.endswith("pyspark.daemon pyspark.worker")}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM {} WHERE upper(kind) = 'A' ORDER BY id LIMIT 3",
        "SELECT id FROM {} ORDER BY -id LIMIT 3",
        "SELECT text FROM {} ORDER BY text COLLATE UNICODE_CI, text LIMIT 3",
        "SELECT max(id) m FROM {} GROUP BY kind ORDER BY m LIMIT 3",
        "SELECT id FROM {} ORDER BY id LIMIT 20000",
        "SELECT id FROM {} ORDER BY id",
        "SELECT count(*) FROM {} WHERE double > 1 LIMIT 3",
        "SELECT DISTINCT kind k FROM {} ORDER BY k LIMIT 2",
        "SELECT DISTINCT kind FROM {} LIMIT 1000",
    ],
)
def test_other_limits_are_left_to_spark(spark: SparkSession, table: Table, query: str) -> None:
    write(table, 1)
    for shown in ("PushedTopN", "PushedLimit"):
        assert differing(spark, [query], pushed=False, shown=shown) == []


def test_spark_limits_what_it_reads_itself(spark: SparkSession, table: Table) -> None:
    write(table, 1)
    query = "SELECT id, text FROM {} ORDER BY text, id LIMIT 3"
    assert differing(spark, [query], pushed=True, shown="PushedTopN") == []
    table.compact()
    assert differing(spark, [query], pushed=False, shown="PushedTopN") == []
    assert "ParquetScan" in plan(spark.sql(query.replace("{}", "pushed")))


def test_two_limits_of_a_view_are_two_scans(spark: SparkSession, table: Table) -> None:
    write(table, 1)
    part = "(SELECT id FROM {} ORDER BY id %s LIMIT 2)"
    query = f"SELECT * FROM {part % ''} UNION ALL SELECT * FROM {part % 'DESC'} UNION ALL SELECT id FROM {{}}"
    assert differing(spark, [query], pushed=True, shown="PushedTopN") == []
    text = plan(spark.sql(query.replace("{}", "pushed")))
    assert set(re.findall(r"PushedTopN: ORDER BY \[id (\w+)", text)) == {"ASC", "DESC"}
