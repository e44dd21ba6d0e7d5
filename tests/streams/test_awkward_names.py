"""Awkward names of columns through every door that Spark has to a table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.captured import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import weft
from tests.awkward_names import AWKWARD_NAMES, KEY, TIME, awkward_rows, awkward_table
from weft import Table
from weft.storage.config.table_properties import schema_properties
from weft.streams.catalog.register import register_catalog
from weft.streams.spark.sql_text import quoted
from weft.streams.write.decode import decode_messages
from weft.streams.write.sink import write_stream

pytestmark = pytest.mark.spark
NAMES = [KEY, *AWKWARD_NAMES, TIME]
LIST = ", ".join(map(quoted, NAMES))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    """A table that `CREATE TABLE` made, named ``weft.d.t``."""
    register_catalog(spark, "weft", tmp_path)
    weft.register(spark)
    config = awkward_table()
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in config["columns"].items())
    modelled = Table.create(tmp_path / "d" / "model", config)
    properties = ", ".join(
        f"{text(name)} = {text(value)}" for name, value in schema_properties(modelled.schema).items()
    )
    spark.sql(f"CREATE TABLE weft.d.t ({columns}) TBLPROPERTIES ({properties})")
    made = Table.open(tmp_path / "d" / "t")
    assert made.schema == modelled.schema
    return made


def text(value: str) -> str:
    """A text as a constant of SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def row(key: int) -> str:
    """The values of `awkward_rows` for a key, in SQL."""
    return ", ".join([str(key), *(f"'{number}-{key}'" for number in range(len(AWKWARD_NAMES))), str(key)])


def rows(table: Table) -> pa.Table:
    return table.snapshot().to_arrow().sort_by(KEY)


def one_batch(spark: SparkSession, tmp_path: Path, key: int) -> DataFrame:
    """A streaming frame of one row."""
    folder = tmp_path / "source"
    spark.createDataFrame([(key,)], "number bigint").write.parquet(str(folder))
    given = awkward_rows(key).to_pylist()[0]
    source = spark.readStream.schema("number bigint").parquet(str(folder))
    return source.select(*(sf.lit(given[name]).cast(kind).alias(name) for name, kind in kinds()))


def kinds() -> list[tuple[str, str]]:
    return list(awkward_table()["columns"].items())


def test_every_way_to_write(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    with table.writer("s") as writer:
        writer.append(awkward_rows(1))
    weft.write_batch(spark.createDataFrame(awkward_rows(2)), table.uri, "s")
    spark.sql(f"INSERT INTO weft.d.t VALUES ({row(3)})")
    spark.sql(f"INSERT INTO weft.d.t ({LIST}) VALUES ({row(4)})")
    spark.sql(f"INSERT INTO weft.d.t ({', '.join(map(quoted, reversed(NAMES)))}) SELECT * FROM {reversed_row(5)}")
    spark.createDataFrame(awkward_rows(6)).createOrReplaceTempView("awkward_rows")
    spark.sql("INSERT INTO weft.d.t BY NAME SELECT * FROM awkward_rows")
    spark.createDataFrame(awkward_rows(7)).writeTo("weft.d.t").append()
    query = write_stream(one_batch(spark, tmp_path, 8), table.uri, "s", checkpoint=str(tmp_path / "check"), once=True)
    assert query.awaitTermination(300)
    assert rows(table).equals(awkward_rows(*range(1, 9)).cast(rows(table).schema))


def reversed_row(key: int) -> str:
    values = row(key).split(", ")
    return f"VALUES ({', '.join(reversed(values))})"


def test_every_way_to_read(spark: SparkSession, table: Table) -> None:
    with table.writer("s") as writer:
        writer.append(awkward_rows(1, 2))
        table.compact()
        writer.append(awkward_rows(2, 3))  # a file group is read natively, the other one merged
    weft.create_view(spark, table.uri, "awkward_view")
    expected = [tuple(each.values()) for each in awkward_rows(1, 2, 3).to_pylist()]
    frames = {
        "view": spark.table("awkward_view"),
        "catalog": spark.table("weft.d.t"),
        "snapshot": weft.snapshot(spark, table.uri),
        "format": spark.read.format("weft").load(table.uri),
        "metadata": spark.sql(f"SELECT {LIST} FROM weft.d.t WHERE _bucket >= 0"),
    }
    for door, frame in frames.items():
        assert frame.columns == NAMES, door
        assert [tuple(each) for each in frame.orderBy(quoted(KEY)).collect()] == expected, door
        # All names at once: each filter is pushed down, and each of them is true for the one row.
        conditions = [sf.col(quoted(name)) == f"{number}-3" for number, name in enumerate(AWKWARD_NAMES)]
        chosen = frame
        for condition in conditions:
            chosen = chosen.where(condition)
        assert [tuple(each) for each in chosen.collect()] == expected[2:], door
        largest = frame.agg(*(sf.max(quoted(name)).alias(name) for name in NAMES))
        assert [tuple(each) for each in largest.collect()] == expected[2:], door
        grouped = frame.groupBy(*map(quoted, AWKWARD_NAMES)).agg(sf.sum(quoted(TIME)).alias(TIME))
        assert sorted(each[TIME] for each in grouped.collect()) == [1, 2, 3], door
        first = frame.orderBy(*map(quoted, AWKWARD_NAMES)).limit(1)
        assert [tuple(each) for each in first.collect()] == expected[:1], door


def test_commands_and_deletes(spark: SparkSession, table: Table) -> None:
    with table.writer("s") as writer:
        writer.append(awkward_rows(1, 2, 3))
    described = spark.sql("DESCRIBE weft.d.t").collect()
    assert [each[0] for each in described][: len(NAMES)] == NAMES
    shown = spark.sql("SHOW CREATE TABLE weft.d.t").collect()[0][0]
    spark.sql(shown.replace("weft.d.t", "weft.d.again", 1))
    assert Table.open(table.uri.removesuffix("t") + "again").schema.to_json() == table.schema.to_json()
    for name in ("a.b", "a`b", "``", "select", " "):
        spark.sql(f"ALTER TABLE weft.d.t ALTER COLUMN {quoted(name)} COMMENT 'said'")
        spark.sql(f"ALTER TABLE weft.d.t ADD COLUMN {quoted(name + '.2')} string AFTER {quoted(name)}")
    assert table.schema.column("a`b").comment == "said"
    condition = " AND ".join(f"{quoted(name)} = '{number}-1'" for number, name in enumerate(AWKWARD_NAMES))
    spark.sql(f"DELETE FROM weft.d.t WHERE {condition}")
    assert rows(table)[KEY].to_pylist() == [2, 3]


def test_messages(spark: SparkSession, table: Table) -> None:
    """Fields of these names, and columns of these names that are selected from them."""
    values = [json.dumps(each).encode() for each in awkward_rows(1, 2).to_pylist()]
    messages = spark.createDataFrame([(value,) for value in values], "value binary")
    schema = dict(kinds())
    for given in ({}, {name: quoted(name) for name in NAMES}):
        decoded = decode_messages(messages, schema, select=given or None, where=None, keep_source=True)
        weft.write_batch(decoded, table.uri, "s")
        assert rows(table).to_pylist() == awkward_rows(1, 2).to_pylist()


def test_statements_that_hints_print(spark: SparkSession, table: Table) -> None:
    """The hint of a DELETE with a subquery is a statement that does it."""
    with table.writer("s") as writer:
        writer.append(awkward_rows(1, 2, 3, 4))
    for key, name, condition in [
        (1, "weft.d.t", "WHERE {} IN (SELECT 1)"),
        (2, "weft.d.t.s", "WHERE EXISTS (SELECT 1 FROM VALUES (2) AS x(y) WHERE y = s.{})"),
        (3, "weft.d.t.s AS o", "WHERE EXISTS (SELECT 1 FROM VALUES (3) AS x(y) WHERE y = o.{})"),
    ]:
        with pytest.raises(IllegalArgumentException) as caught:
            spark.sql(f"DELETE FROM {name} {condition.format(quoted(KEY))}")
        (hint,) = re.findall(
            r"hint: use (INSERT INTO .*?\))(?:: java|$)", str(caught.value).split("\n\nJVM")[0], re.DOTALL
        )[:1]
        spark.sql(hint)
        assert key not in rows(table)[KEY].to_pylist()
    assert rows(table)[KEY].to_pylist() == [4]
