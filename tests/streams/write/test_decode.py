"""Messages to columns: decoded messages, undecodable ones, and expressions of users."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from weft.storage.errors import InvalidInput
from weft.streams.formats.json_reader import NOT_AN_OBJECT, NOT_UTF8
from weft.streams.write.dead_letter import SOURCE
from weft.streams.write.decode import TOMBSTONE, decode_messages

pytestmark = pytest.mark.timeout(900)

SCHEMA = {"id": "bigint", "name": "string"}
SEEN = dt.datetime(2024, 5, 6, tzinfo=dt.UTC)
WIDE = {
    "id": "bigint",
    "name": "string",
    "amount": "decimal(12,2)",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "ratio": "double",
    "ok": "boolean",
    "raw": "binary",
    "lines": "array<struct<sku:string,count:int>>",
    "tags": "map<string,string>",
}


def messages(spark: SparkSession, values: Sequence[bytes | None]) -> DataFrame:
    """A frame as the Kafka source gives it: topic ``orders``, partition 3, offsets from 100."""
    rows = [
        (b"key", None if value is None else bytearray(value), "orders", 3, 100 + i, SEEN, 0)
        for i, value in enumerate(values)
    ]
    types = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    return spark.createDataFrame(rows, types)


def decode(spark: SparkSession, values: Sequence[bytes | None], schema: Any = None, **given: Any) -> list[Row]:
    given = {"select": None, "where": None, **given}
    return decode_messages(messages(spark, values), schema or SCHEMA, **given).collect()


def test_a_message_becomes_columns_of_the_declared_types(spark: SparkSession) -> None:
    value = (
        b'{"id": 7, "name": "\xc3\xa9", "amount": 12.5, "at": "2024-01-02T03:04:05.123456+01:00",'
        b' "local": "2024-01-02T03:04:05", "day": "2024-02-29", "ratio": 0.5, "ok": true, "raw": "AAH/",'
        b' "lines": [{"sku": "a", "count": 2}, {"sku": "b"}], "tags": {"k": "v"}, "unknown": [1]}'
    )
    df = decode_messages(messages(spark, [value]), WIDE, select=None, where=None)
    assert df.columns == list(WIDE)
    assert dict(df.dtypes) == WIDE
    row = df.selectExpr("*", "unix_micros(at) AS micros").collect()[0]
    instant = dt.datetime(2024, 1, 2, 2, 4, 5, 123456, tzinfo=dt.UTC)
    assert row.micros == int(instant.timestamp()) * 1_000_000 + 123456
    assert row.name == "é"
    assert row.amount == decimal.Decimal("12.50")
    assert row.local.isoformat() == "2024-01-02T03:04:05"
    assert row.day == dt.date(2024, 2, 29)
    assert (row.ratio, row.ok, bytes(row.raw)) == (0.5, True, b"\x00\x01\xff")
    assert row.lines == [Row(sku="a", count=2), Row(sku="b", count=None)]
    assert row.tags == {"k": "v"}


def test_fields_that_are_missing_are_null(spark: SparkSession) -> None:
    assert decode(spark, [b"{}", b'{"ID": 1, "name": null}']) == [Row(id=None, name=None)] * 2


ID_TYPE = "field 'id' is not of type bigint"
UNDECODABLE = [
    (None, TOMBSTONE),
    (b'{"id": 1, "name": "\xff"}', NOT_UTF8),
    (b"\xff\xfe", NOT_UTF8),
    (b"", NOT_AN_OBJECT),
    (b"  ", NOT_AN_OBJECT),
    (b"null", NOT_AN_OBJECT),
    (b"3", NOT_AN_OBJECT),
    (b'"text"', NOT_AN_OBJECT),
    (b'[{"id": 1}]', NOT_AN_OBJECT),
    (b'{"id": 1', NOT_AN_OBJECT),
    (b"{'id': 1}", NOT_AN_OBJECT),
    (b'{"id": 1} trailing', NOT_AN_OBJECT),
    (b'{"id": 1}\n{"id": 2}\n', NOT_AN_OBJECT),
    (b'{"id": 1},"name":"x"', NOT_AN_OBJECT),
    (b'{"id": 1},"name":{}', NOT_AN_OBJECT),
    (b'{"id": 1},"v":{}', NOT_AN_OBJECT),
    (b'{"id": 1} , {"id": 2}', NOT_AN_OBJECT),
    (b'{"id": 1}}', NOT_AN_OBJECT),
    (b'{"id": 1}} {"id": 2}', NOT_AN_OBJECT),
    (b'{"id": 1}},"x":{"v":{"id": 2}', NOT_AN_OBJECT),
    (b'{"id": 1}]', NOT_AN_OBJECT),
    (b'{"id": 1}/**/', NOT_AN_OBJECT),
    (b'{"id": 1}\0', NOT_AN_OBJECT),
    (b'\xef\xbb\xbf{"id": 1}', NOT_AN_OBJECT),
    (b'{"lines": [{"sku": "a"}]},"name":"x"}', NOT_AN_OBJECT),
    (b'{"id": "1"}', ID_TYPE),
    (b'{"id": 1.5}', ID_TYPE),
    (b'{"id": 9223372036854775808}', ID_TYPE),
    (b'{"id": true}', ID_TYPE),
    (b'{"name": "x", "other": "y", "amount": 12345678901.00, "id": 1}', "field 'amount' is not of type decimal(12,2)"),
    (b'{"at": "yesterday"}', "field 'at' is not of type timestamp"),
    (b'{"day": "2024-13-01", "id": null}', "field 'day' is not of type date"),
    (b'{"ok": 1, "day": "2024-13-01"}', "field 'ok' is not of type boolean"),
    (b'{"lines": [{"sku": "a", "count": "x"}]}', "field 'lines[].count' is not of type int"),
    (b'{"lines": {"sku": "a"}}', "field 'lines' is not of type array<struct<sku:string,count:int>>"),
]


def test_undecodable_messages(spark: SparkSession) -> None:
    values = [value for value, _ in UNDECODABLE]
    given = {"select": {"id": "id"}, "keep_source": True, "tombstones": "dead_letter"}
    good = [b' {"id": 1}\n', b'{"id": 2, "name": "},", "lines": [{"sku": "}}"}, {"sku": "b"}], "tags": {"k": "v"}}']
    rows = decode(spark, [*good, *values], WIDE, **given)
    assert [(row.id, row[SOURCE].reason) for row in rows[: len(good)]] == [(1, None), (2, None)]
    sources = [row[SOURCE] for row in rows[len(good) :]]
    assert [(None if source.value is None else bytes(source.value), source.reason) for source in sources] == UNDECODABLE
    assert [(source.topic, source.partition, source.offset) for source in sources] == [
        ("orders", 3, 100 + len(good) + i) for i in range(len(values))
    ]
    assert [row.id for row in rows[len(good) :]] == [None] * len(values)


@pytest.mark.parametrize(("value", "reason"), [(None, TOMBSTONE), (b"{", NOT_AN_OBJECT), (b'{"id": "1"}', ID_TYPE)])
def test_without_a_source_the_first_undecodable_message_fails_the_query(
    spark: SparkSession, value: bytes | None, reason: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        decode(spark, [b"{}", value], tombstones="dead_letter")
    assert f"{reason}, topic orders, partition 3, offset 101" in str(caught.value)


def test_select_computes_columns_from_fields_and_kafka_metadata(spark: SparkSession) -> None:
    select = {
        "order_id": "id + 1",
        "status": "lower(name)",
        "where_from": "concat(_kafka.topic, '-', _kafka.partition, '@', _kafka.offset)",
        "seen": "unix_seconds(_kafka.timestamp)",
        "key": "decode(_kafka.key, 'UTF-8') -- a comment",
    }
    assert decode(spark, [b'{"id": 1, "name": "NEW"}'], select=select) == [
        Row(order_id=2, status="new", where_from="orders-3@100", seen=int(SEEN.timestamp()), key="key")
    ]


def test_where_drops_rows_but_never_an_undecodable_message(spark: SparkSession) -> None:
    values = [b'{"id": 1}', b'{"id": 2}', b"{", b"{}"]
    rows = decode(spark, values, where="id > 1 AND _kafka.partition = 3", keep_source=True)
    assert [(row.id, row[SOURCE].reason) for row in rows] == [(2, None), (None, NOT_AN_OBJECT)]
    with pytest.raises(PySparkException, match="offset 102"):
        decode(spark, values, where="id > 1")


def test_expressions_are_not_evaluated_for_undecodable_messages(spark: SparkSession) -> None:
    # In ANSI mode this expression fails for NULL.
    rows = decode(spark, [b'{"id": 1}', b"{"], select={"id": "coalesce(id, raise_error('x'))"}, keep_source=True)
    assert [row.id for row in rows] == [1, None]


def test_a_message_without_metadata_is_decoded_too(spark: SparkSession) -> None:
    df = spark.createDataFrame([('{"id": 1, "name": "a"}',), ("{",)], "value string")
    rows = decode_messages(df, SCHEMA, select=None, where=None, keep_source=True).collect()
    assert rows[0].id == 1
    assert rows[1][SOURCE].asDict() == {
        "topic": None, "partition": None, "offset": None, "timestamp": None, "key": None, "headers": [],
        "value": bytearray(b"{"), "reason": NOT_AN_OBJECT,
    }  # fmt: skip
    with pytest.raises(PySparkException, match="topic unknown"):
        decode_messages(df, SCHEMA, select=None, where=None).collect()


def test_json_is_parsed_once(spark: SparkSession) -> None:
    df = decode_messages(
        messages(spark, [b"{}"]), SCHEMA, select={"a": "id", "b": "id + 1"}, where="id > 1", keep_source=True
    )
    plan = df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("read_json") == 1, plan
    assert "Exchange" not in plan


def test_fields_that_name_a_row_are_never_rounded(spark: SparkSession) -> None:
    schema = {"id": "decimal(10,2)", "at": "timestamp", "part": "struct<x:decimal(10,2)>", "amount": "decimal(10,2)"}
    values = [
        b'{"id": 1.100, "at": "2024-01-01T00:00:00.1234560Z", "part": {"x": 1}, "amount": 1.005}',
        b'{"id": 1.001}',
        b'{"at": "2024-01-01T00:00:00.1234567Z"}',
        b'{"part": {"x": 1.001}}',
    ]
    rows = decode(spark, values, schema, keep_source=True, exact={"id", "at", "part"})
    assert rows[0].amount == decimal.Decimal("1.01")
    assert [row[SOURCE].reason for row in rows] == [
        None,
        "field 'id' is not of type decimal(10,2)",
        "field 'at' is not of type timestamp",
        "field 'part.x' is not of type decimal(10,2)",
    ]


def test_odd_field_names_are_quoted(spark: SparkSession) -> None:
    schema = {"a b": "int", "c`d": "int", "e.f": "int"}
    assert decode(spark, [b'{"a b": 1, "c`d": 2, "e.f": 3}'], schema) == [Row(**{"a b": 1, "c`d": 2, "e.f": 3})]


@pytest.mark.parametrize(
    ("schema", "given", "names"),
    [
        ({}, {}, ["message schema is empty"]),
        ({"id": "bigit"}, {}, ["field 'id'", "'bigit'"]),
        ({"_kafka": "int"}, {}, ["'_kafka'", "reserved"]),
        ({"__weft_x": "int"}, {}, ["'__weft_x'", "reserved"]),
        ({"id": "int", "ID": "int"}, {}, ["message field", "case"]),
        (SCHEMA, {"select": {}}, ["select is empty"]),
        (SCHEMA, {"select": {"a": "id", "A": "id"}}, ["select 'a'", "case"]),
        (SCHEMA, {"select": {"a": "id", "b": "idd"}}, ["column 'b'", "'idd'", "id, name, _kafka"]),
        (SCHEMA, {"select": {"a": "id +"}}, ["column 'a'", "'id +'"]),
        (SCHEMA, {"select": {"a": "explode(array(id))"}}, ["column 'a'", "explode"]),
        (SCHEMA, {"select": {"a": "sum(id)"}}, ["column 'a'", "sum(id)"]),
        (SCHEMA, {"select": {SOURCE: "id"}}, [SOURCE, "reserved"]),
        (SCHEMA, {"where": "idd > 1"}, ["where", "'idd > 1'"]),
        (SCHEMA, {"where": "name"}, ["where", "'name'"]),
        (SCHEMA, {"where": "name", "keep_source": True}, ["where", "'name'"]),
        (SCHEMA, {"tombstones": "drop"}, ["tombstones", "'drop'", "ignore, delete, dead_letter"]),
        (SCHEMA, {"key": {"id": "bigit"}}, ["key field 'id'", "'bigit'"]),
        ({"_key": "int"}, {"key": {"id": "bigint"}}, ["'_key'", "reserved"]),
        (SCHEMA, {"key": {"id": "int"}, "tombstones": "delete"}, ["'id'", "bigint in the message and int in the key"]),
    ],
)
def test_wrong_arguments_are_named_before_the_query_starts(
    spark: SparkSession, schema: dict[str, str], given: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_messages(messages(spark, []), schema, **{"select": None, "where": None, **given})
    assert caught.value.hint
    assert [name for name in names if name not in str(caught.value)] == []


def test_a_frame_without_a_value_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match=r"'value'.*columns: id"):
        decode_messages(spark.range(1), SCHEMA, select=None, where=None)
