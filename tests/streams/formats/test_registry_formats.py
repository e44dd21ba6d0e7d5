"""Formats with a schema registry in Spark, and what happens while the registry is away."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import record, written
from tests.streams.formats.test_protobuf import ROW, serializer
from tests.streams.write.test_tombstones import messages
from weft import Table
from weft.streams.formats.debezium_event import TRUNCATE
from weft.streams.formats.json_reader import NOT_AN_OBJECT, NOT_UTF8
from weft.streams.formats.registry import NO_HEADER, RegistryUnavailable
from weft.streams.pipeline.run.error_kinds import Ending, ending_of
from weft.streams.write.dead_letter import IGNORED, SOURCE
from weft.streams.write.decode import decode_messages
from weft.streams.write.tombstones import NO_KEY
from weft.streams.write.write_batch import write_batch
from weft.streams.write.writer_job import failure_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SCHEMA = {"id": "bigint", "name": "string"}
AVRO = record({"id": "long", "name": "string"})


def frame(
    spark: SparkSession, registry: SchemaRegistry, given: Sequence[tuple[bytes | None, bytes | None]], **settings: Any
) -> DataFrame:
    """Decoded messages; a message is key and value."""
    settings = {"select": None, "where": None, "keep_source": True, "message_format": "avro", **settings}
    # A registry that is away is asked once more, so that tests do not wait long.
    client = {"url": registry.url, "max.retries": "1"}
    return decode_messages(messages(spark, given), SCHEMA, registry=client, **settings)


def decode(spark: SparkSession, registry: SchemaRegistry, values: Sequence[bytes | None], **settings: Any) -> list[Row]:
    return frame(spark, registry, [(None, value) for value in values], **settings).collect()


def avro(registry: SchemaRegistry, **row: Any) -> bytes:
    return written(AVRO, row, registry.register("rows-value", json.dumps(AVRO)))


def test_avro_in_select_where_and_dead_letters(spark: SparkSession, registry: SchemaRegistry) -> None:
    values = [avro(registry, id=1, name="a"), avro(registry, id=2, name="b"), b"\1garbage", None]
    select = {"id": "id", "name": "upper(name)", "schema": "_kafka.schema_id", "at": "_kafka.offset"}
    rows = decode(spark, registry, values, select=select, where="id < 2")
    assert [(*row[:4], row[SOURCE].reason, row[SOURCE].schema_id) for row in rows] == [
        (1, "A", 1, 100, None, 1),
        (None, None, None, None, NO_HEADER, None),
        (None, None, None, None, IGNORED, None),
    ]
    # Without metadata in the frame, the id is still there.
    plain = spark.createDataFrame([(bytearray(values[0]),)], "value binary")
    found = decode_messages(
        plain,
        SCHEMA,
        message_format="avro",
        registry={"url": registry.url},
        select={"n": "_kafka.schema_id"},
        where=None,
    )
    assert found.collect() == [Row(n=1)]


def test_protobuf(spark: SparkSession, registry: SchemaRegistry) -> None:
    value = serializer(registry, ROW)(ROW(id=7, name="x"))
    rows = decode(spark, registry, [value, value[:-1]], message_format="protobuf")
    assert [(row.id, row.name, row[SOURCE].reason is None) for row in rows] == [(7, "x", True), (None, None, False)]


def json_schema(text: bytes, schema_id: int = 258) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + text


def test_json_schema_needs_no_request(spark: SparkSession, registry: SchemaRegistry) -> None:
    values = [
        json_schema(b'{"id": 1, "name": "\xc3\xa9"}'),
        json_schema(b'{"id": "1"}'),
        json_schema(b"[1]"),
        json_schema(b'{"name": "\xff"}'),
        json_schema(b""),
        b'{"id": 1}',
        b"\0\0\0\1",
        b'\0\x80\0\0\1{"id": 1}',
        b'\0\x7f\xff\xff\xff{"id": 1}',
        None,
    ]
    rows = decode(spark, registry, values, message_format="json-schema")
    assert [(row.id, row.name, row[SOURCE].reason, row[SOURCE].schema_id) for row in rows] == [
        (1, "é", None, 258),
        (None, None, "field 'id' is not of type bigint", 258),
        (None, None, NOT_AN_OBJECT, 258),
        (None, None, NOT_UTF8, 258),
        (None, None, NOT_AN_OBJECT, 258),
        (None, None, NO_HEADER, None),
        (None, None, NO_HEADER, None),
        (None, None, NO_HEADER, None),
        (1, None, None, 2**31 - 1),
        (None, None, IGNORED, None),
    ]
    assert registry.requests == []


def test_json_schema_is_validated_if_the_option_says_so(spark: SparkSession, registry: SchemaRegistry) -> None:
    schema = {"type": "object", "properties": {"id": {"minimum": 1}}}
    schema_id = registry.register("rows-value", json.dumps(schema), "JSON")
    values = [json_schema(b'{"id": 1}', schema_id), json_schema(b'{"id": 0}', schema_id), json_schema(b"[", schema_id)]
    rows = decode(spark, registry, values, message_format="json-schema", format_options={"validate": "true"})
    assert [(row.id, row[SOURCE].reason, row[SOURCE].schema_id) for row in rows] == [
        (1, None, schema_id),
        (None, "the value does not match its JSON Schema: $.id must have minimum: 1", schema_id),
        (None, NOT_AN_OBJECT, schema_id),
    ]


def test_debezium_as_avro(spark: SparkSession, registry: SchemaRegistry) -> None:
    row = {**record({"id": "long", "name": "string"}), "name": "Value"}
    source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}
    fields = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
    ]
    event = {"type": "record", "name": "Envelope", "namespace": "shop", "fields": fields}
    schema_id = registry.register("rows-value", json.dumps(event))

    def change(op: str, lsn: int, **rows: Mapping[str, Any]) -> bytes:
        return written(event, {"before": None, "after": None, **rows, "op": op, "source": {"lsn": lsn}}, schema_id)

    values = [change("c", 1, after={"id": 1, "name": "a"}), change("d", 2, before={"id": 1}), change("t", 3)]
    rows = decode(
        spark,
        registry,
        values,
        message_format="debezium-avro",
        select={"id": "id", "lsn": "_debezium.source.lsn", "schema": "_kafka.schema_id"},
    )
    assert [(*row[:4], row[SOURCE].reason) for row in rows] == [
        (1, 1, schema_id, "upsert", None),
        (1, 2, schema_id, "delete", None),
        (None, None, None, None, TRUNCATE),
    ]


def test_the_key_has_its_own_format(spark: SparkSession, registry: SchemaRegistry) -> None:
    key_id = registry.register("rows-key", json.dumps("long"))
    key = written("long", 7, key_id)
    given = [
        (key, avro(registry, id=1, name="a")),
        (key, None),
        (b"7", avro(registry, id=2, name="b")),
        (b"7", None),
        (None, avro(registry, id=3, name="c")),
        (None, None),
    ]
    settings = {"key": {"id": "bigint"}, "key_format": "avro", "tombstones": "delete"}
    rows = frame(spark, registry, given, **settings, select={"id": "coalesce(id, _key.id)", "k": "_key.id"}).collect()
    bad_key = f"the key: {NO_HEADER}"
    assert [(row.id, row.k, row._op, row[SOURCE].reason) for row in rows] == [
        (1, 7, None, None),
        (7, 7, "delete", None),
        (None, None, None, bad_key),
        (None, None, None, bad_key),
        (3, None, None, None),
        (None, None, None, NO_KEY),
    ]
    # Where nothing but tombstones needs the key, only theirs is decoded.
    rows = frame(spark, registry, given, **settings).collect()
    assert [(row.id, row[SOURCE].reason) for row in rows] == [
        (1, None),
        (7, None),
        (2, None),
        (None, bad_key),
        (3, None),
        (None, NO_KEY),
    ]
    # The value in one format, the key in another.
    given = [(key, b'{"id": 1}')]
    [row] = frame(
        spark, registry, given, **settings, message_format="json", select={"id": "id", "k": "_key.id"}
    ).collect()
    assert (row.id, row.k) == (1, 7)


@pytest.mark.slow
def test_while_the_registry_is_away_nothing_is_stored_and_nothing_is_lost(
    spark: SparkSession, registry: SchemaRegistry, tmp_path: Path
) -> None:
    table = Table.create(
        tmp_path / "t",
        {
            "key": ["id"],
            "columns": {"id": "bigint", "name": "string"},
            "groups": {"row": {"columns": ["name"]}},
            "streams": {"rows": {"groups": ["row"]}},
        },
    )
    values = [avro(registry, id=1, name="a"), b"bad"]
    dead = tmp_path / "dead"

    def write() -> None:
        rows = frame(spark, registry, [(None, value) for value in values])
        write_batch(rows, str(table.uri), "rows", batch=("rows-query", 0), dead_letter=str(dead))

    def letters() -> list[Any]:
        return [json.loads(line)["reason"] for file in dead.rglob("*.jsonl") for line in file.open()]

    registry.failing = -1
    with pytest.raises(PySparkException) as caught:
        write()
    failure = failure_of(caught.value)
    assert isinstance(failure, RegistryUnavailable)
    assert ending_of(failure) == Ending.UNAVAILABLE
    assert table.snapshot().to_arrow().num_rows == 0
    assert set(letters()) <= {NO_HEADER}, (
        "another task may have met the bad message; the batch that is repeated replaces its file"
    )
    assert 1 < len(registry.requests) < 20, "it asked again, a bounded number of times"
    registry.failing = 0
    write()
    assert Table.open(tmp_path / "t").snapshot().to_arrow().to_pylist() == [{"id": 1, "name": "a"}]
    assert letters() == [NO_HEADER]
