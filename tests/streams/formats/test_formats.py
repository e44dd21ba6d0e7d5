"""Adding a message format needs one module and one line: this test adds one without other changes."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

import weft.streams.formats
from weft.storage.errors import InvalidInput
from weft.streams.formats import FORMATS, check_format, load_format
from weft.streams.formats.message_format import MessageFormat
from weft.streams.write.dead_letter import SOURCE
from weft.streams.write.decode import decode_messages


class CommaSeparated(MessageFormat):
    """Strings between commas, one per declared field."""

    def parse(self, value: Column, fields: StructType) -> Column:
        parts = F.split(value.cast("string"), ",")
        columns = [F.get(parts, F.lit(i)).try_cast(field.dataType).alias(field.name) for i, field in enumerate(fields)]
        return F.struct(F.struct(*columns).alias("message"), (F.size(parts) == len(fields)).alias("complete"))

    def message(self, parsed: Column) -> Column:
        return parsed["message"]

    def reason(self, parsed: Column, value: Column, fields: StructType) -> Column:
        return F.when(~parsed["complete"], "another number of fields")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"comma": f"{__name__}:CommaSeparated"}
    monkeypatch.setitem(sys.modules, __name__, sys.modules[CommaSeparated.__module__])
    monkeypatch.setattr(weft.streams.formats, "FORMATS", MappingProxyType({**FORMATS, **line}))


@pytest.mark.spark
@pytest.mark.usefixtures("added")
def test_adding_a_format_needs_one_module_and_one_line(spark: SparkSession) -> None:
    values = spark.createDataFrame([("7,paid",), ("8",), (None,)], "value string")
    found = decode_messages(
        values,
        {"id": "string", "status": "string"},
        message_format="comma",
        select={"id": "CAST(id AS BIGINT)", "status": "upper(status)"},
        where=None,
        keep_source=True,
        tombstones="dead_letter",
    )
    rows: list[Any] = found.select("id", "status", f"{SOURCE}.reason").collect()
    assert [tuple(row) for row in rows] == [
        (7, "PAID", None),
        (None, None, "another number of fields"),
        (None, None, "the message has no value (a tombstone)"),
    ]


def test_every_format_can_be_loaded() -> None:
    assert all(isinstance(load_format(name), MessageFormat) for name in FORMATS)


def test_an_unknown_format_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(InvalidInput, match="no message format 'xml'") as refused:
        check_format("xml")
    assert "json" in refused.value.hint
