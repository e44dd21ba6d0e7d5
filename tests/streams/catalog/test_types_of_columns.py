"""A type that a statement declares is read back as it was declared, or is refused with what to use instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from weft.streams.catalog.register import register_catalog

STORED = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date"),
    *("timestamp", "timestamp_ltz", "timestamp_ntz", "decimal", "decimal(38)", "decimal(38,38)", "decimal(1,0)"),
    *("array<timestamp_ntz>", "map<string,timestamp>", "struct<a:int,`b.c`:array<map<int,decimal(5,2)>>>"),
    "struct<a:struct<`x y`:string COMMENT 'x'>>",
)
REFUSED = (
    *("variant", "char(5)", "varchar(5)", "interval day to second", "interval year to month", "interval hour", "void"),
    *("string collate UTF8_LCASE", "string collate UNICODE_CI", "geometry(4326)", "geometry(ANY)", "geography(4326)"),
    *("interval", "time", "time(3)", "timestamp(9)", "timestamp_ntz(9)"),
)
INSIDE = ("array<{}>", "map<string,{}>", "struct<a:int,b:{}>")
NOT_NULL = ("struct<a:int NOT NULL>", "array<struct<a:int NOT NULL>>", "map<int,struct<a:struct<b:int NOT NULL>>>")


@pytest.mark.spark
def test_types_read_back_as_they_are_declared(spark: SparkSession, tmp_path: Path) -> None:
    register_catalog(spark, "weft", tmp_path)
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(STORED))
    names = ",".join(f"c{number}" for number in range(len(STORED)))
    properties = f"TBLPROPERTIES ('key' = 'id', 'group.g' = '{names}', 'stream.s' = 'g')"
    spark.sql(f"CREATE TABLE weft.d.t (id bigint, {columns}) {properties}")
    declared = [spark.sql(f"SELECT CAST(NULL AS {kind}) AS c").schema["c"].dataType for kind in STORED]
    shown = [field.dataType.simpleString() for field in spark.table("weft.d.t").schema]
    assert shown[1:] == [kind.simpleString() for kind in declared]
    refused = [*REFUSED, *NOT_NULL, *(form.format(kind) for kind in REFUSED for form in INSIDE)]
    for kind in refused:
        properties = "TBLPROPERTIES ('key' = 'id', 'group.g' = 'v', 'stream.s' = 'g')"
        for statement in (
            f"CREATE TABLE weft.d.bad (id bigint, v {kind}) {properties}",
            f"ALTER TABLE weft.d.t ADD COLUMN v {kind}",
        ):
            # Spark itself refuses some of them, with a condition that has an SQLSTATE.
            with pytest.raises((PySparkException, Py4JJavaError)) as caught:
                spark.sql(statement)
            refusal = r"(?s)column 'v': a table cannot have the type.*hint: |SQLSTATE|Cannot use \"INTERVAL\""
            assert re.search(refusal, str(caught.value)), statement
    assert [row.tableName for row in spark.sql("SHOW TABLES IN weft.d").collect()] == ["t"]
    assert len(spark.table("weft.d.t").columns) == 1 + len(STORED)
