"""Views over slices with overlays: Spark reads the file that has all columns of a query, and tasks read the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import weft
from weft import Table

ROWS = 40
GROUPS = ("a", "b", "c")
CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint"} | {f"{group}_{name}": "bigint" for group in GROUPS for name in ("v", "t")},
    "groups": {group: {"columns": [f"{group}_v", f"{group}_t"], "ordering": [f"{group}_t"]} for group in GROUPS},
    "streams": {group: {"groups": [group]} for group in GROUPS},
    "overlays": True,
}
NATIVE = [
    "SELECT id, b_v FROM {} WHERE b_v > 1000 AND id > 3",
    "SELECT c_v FROM {} WHERE c_t = 1",
]
BY_TASKS = [
    "SELECT count(*), max(b_v), min(a_t), count(c_v) FROM {}",  # from statistics
    "SELECT * FROM {}",
    "SELECT id, a_v FROM {} WHERE b_t = 2",
]


def write(table: Table, group: str, at: int, step: int = 1) -> None:
    keys = pa.array(range(0, ROWS, step), pa.int64())
    values = pa.array([key * 1000 + at for key in range(0, ROWS, step)], pa.int64())
    with table.writer(group) as writer:
        writer.append(
            pa.table({"id": keys, f"{group}_v": values, f"{group}_t": pa.array([at] * len(keys), pa.int64())})
        )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Each file group has a base and an overlay of group ``b``."""
    table = Table.create(tmp_path / "t", CONFIG)
    table = Table(table.env.tuned(small_group_bytes=0, overlay_percent=1000), table._table_log.stamps)
    for group in GROUPS:
        write(table, group, 1)
    table.compact()
    write(table, "b", 2, step=3)
    table.compact()
    assert all([each.groups for each in made.overlays] == [[2]] for made in table.state().slices.values())
    return table


@pytest.fixture(autouse=True)
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Without code generation, because compiling takes most of the time of each query."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")


def check(spark: SparkSession, table: Table, query: str, *, native: bool) -> None:
    found = spark.sql(query.format("overlaid"))
    assert ("ParquetScan" in str(found._jdf.queryExecution().executedPlan().toString())) is native, query
    rows = table.snapshot().to_arrow()
    right = duckdb.sql(query.format("rows")).fetchall()
    assert len(rows)
    assert sorted(map(tuple, found.collect())) == sorted(right), query


def test_spark_reads_the_file_that_has_all_columns(spark: SparkSession, table: Table) -> None:
    weft.create_view(spark, table.uri, "overlaid")
    for query in NATIVE:
        check(spark, table, query, native=True)
    for query in BY_TASKS:
        check(spark, table, query, native=False)
    # One file group is compacted to a base alone: the columns of the other are in its overlay, or in its base.
    table.set_overlays(on=False)
    write(table, "a", 4, step=ROWS)
    (group,) = [each.group for each in table.snapshot().slices if len(each.rows)]
    table.compact(only=lambda each: each.group == group)
    assert sum(bool(made.overlays) for made in table.state().slices.values()) == 1
    for query in NATIVE:
        check(spark, table, query, native=True)
    check(spark, table, BY_TASKS[-1], native=False)
