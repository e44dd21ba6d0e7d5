"""Messages whose schema is named in a header, as the clients of Confluent Platform 8.1 write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, Row, SparkSession

from tests.streams.formats.registry_server import SchemaRegistry, guid_of
from tests.streams.formats.test_avro import record
from tests.streams.formats.test_protobuf import OTHER
from weft.streams.formats import registry as registry_module
from weft.streams.formats.registry import KEY_HEADER, NO_HEADER, VALUE_HEADER, add_schema_id, split_header
from weft.streams.pipeline.infer.infer_messages import kafka_messages, keys_and_values
from weft.streams.pipeline.infer.infer_registry import Kafka
from weft.streams.write.dead_letter import SOURCE
from weft.streams.write.decode import decode_messages

SCHEMA = {"id": "bigint"}
JSON = {"title": "Row", "type": "object", "properties": {"id": {"type": "integer", "minimum": 1}}}
Headers = list[tuple[str, bytes]]


def serialized(
    registry: SchemaRegistry, name: str, number: int, part: str = MessageField.VALUE
) -> tuple[bytes, Headers]:
    """A value or a key of a format and the header that its serializer adds."""
    client = SchemaRegistryClient({"url": registry.url})
    conf = {"schema.id.serializer": header_schema_id_serializer}
    headers: Headers = []
    context = SerializationContext("rows", part, headers)
    if name == "avro":
        return AvroSerializer(client, json.dumps(record({"id": "long"})), conf=conf)({"id": number}, context), headers
    if name == "protobuf":
        serialize = ProtobufSerializer(OTHER, client, {**conf, "use.deprecated.format": False})
        return serialize(OTHER(id=number), context), headers
    return JSONSerializer(json.dumps(JSON), client, conf=conf)({"id": number}, context), headers


def frame(spark: SparkSession, messages: Sequence[tuple[bytes | None, bytes | None, Headers]]) -> DataFrame:
    rows = [(*(None if part is None else bytearray(part) for part in pair), headers) for *pair, headers in messages]
    return spark.createDataFrame(rows, "key binary, value binary, headers array<struct<key:string,value:binary>>")


def decode(spark: SparkSession, registry: SchemaRegistry, messages: Any, name: str, **settings: Any) -> list[Row]:
    frame_of_messages = frame(spark, messages)
    settings = {"select": None, "where": None, "keep_source": True, "registry": {"url": registry.url}, **settings}
    return decode_messages(frame_of_messages, SCHEMA, message_format=name, **settings).collect()


@pytest.mark.spark
@pytest.mark.parametrize("name", ["avro", "protobuf", "json-schema"])
def test_values(spark: SparkSession, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(registry_module, "UNKNOWN_SECONDS", 0)
    value, headers = serialized(registry, name, 7)
    assert [header for header, _ in headers] == [VALUE_HEADER]
    guid = headers[0][1]
    before = guid + value
    good = [(None, value, [("trace", b"1"), *headers]), (None, before, []), (None, None, headers)]
    bad = [(None, value, []), (None, value, [(VALUE_HEADER, b"\7")])]
    rows = decode(spark, registry, [*good, *bad], name)
    assert [row.id for row in rows] == [7, 7, None, None, None]
    assert [row[SOURCE].reason for row in rows[:2]] == [None, None]
    assert {row[SOURCE].reason for row in rows[3:]} == {NO_HEADER}
    assert VALUE_HEADER in NO_HEADER
    assert [row[SOURCE].schema_id for row in rows] == [None] * 5
    assert bytes(rows[0][SOURCE].value) == value, "a dead letter has the value as it came"


@pytest.mark.spark
def test_json_is_validated_with_the_schema_of_the_header(spark: SparkSession, registry: SchemaRegistry) -> None:
    value, headers = serialized(registry, "json-schema", 7)
    messages = [(None, value, headers), (None, b'{"id": 0}', headers)]
    rows = decode(spark, registry, messages, "json-schema", format_options={"validate": "true"})
    assert [(row.id, row[SOURCE].reason) for row in rows] == [
        (7, None),
        (None, "the value does not match its JSON Schema: $.id must have minimum: 1"),
    ]


@pytest.mark.spark
def test_keys(spark: SparkSession, registry: SchemaRegistry) -> None:
    key, headers = serialized(registry, "avro", 5, MessageField.KEY)
    assert [name for name, _ in headers] == [KEY_HEADER]
    settings = {"key": SCHEMA, "key_format": "avro", "tombstones": "delete", "select": {"id": "id", "k": "_key.id"}}
    [row, other] = decode(spark, registry, [(key, None, headers), (key, b"", [])], "avro", **settings)
    assert (row.id, row.k, row._op, row[SOURCE].reason) == (5, 5, "delete", None)
    assert KEY_HEADER in other[SOURCE].reason


@pytest.mark.parametrize("name", ["avro", "protobuf", "json-schema"])
@pytest.mark.parametrize("url", [True, False])
def test_infer(registry: SchemaRegistry, name: str, *, url: bool) -> None:
    if not url and name != "json-schema":
        return
    value, headers = serialized(registry, name, 7)
    pairs = [{"key": header, "value": data} for header, data in headers]
    rows = pa.table({"key": pa.array([None], pa.binary()), "value": [value], "headers": [pairs]})
    source = Kafka("rows", ["rows"], name, "json", {"url": registry.url} if url else {})
    messages = kafka_messages(source, keys_and_values(rows, source))
    assert {field: one.type for field, one in messages.fields.items()} == SCHEMA
    assert messages.rows == [{"id": 7}]


def test_a_header_without_a_value_names_no_schema() -> None:
    assert add_schema_id(b"x", [{"key": VALUE_HEADER, "value": None}], VALUE_HEADER) == b"x"
    assert add_schema_id(None, [{"key": VALUE_HEADER, "value": b"\0"}], VALUE_HEADER) is None
    assert split_header(b"\1" + b"\0" * 15) is None
    assert split_header(b"\1" + b"\0" * 16 + b"x") == ("00000000-0000-0000-0000-000000000000", b"x")
    assert guid_of(1) != guid_of(2)
