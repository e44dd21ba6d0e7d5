"""Protobuf with a schema registry, decoded without Spark: against messages that confluent_kafka's serializer wrote."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.confluent.types import decimal_pb2
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.formats.debezium_messages import INSTANTS, TEXTS
from tests.streams.formats.registry_server import SchemaRegistry
from weft.storage.core.types import parse_type
from weft.streams.formats import registry as registry_module
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.protobuf_messages import NO_INDEXES, decode_protobuf, split_indexes
from weft.streams.formats.registry import NO_HEADER

FIELD = descriptor_pb2.FieldDescriptorProto


def add_field(message: Any, name: str, kind: int, *, type_name: str = "", repeated: bool = False) -> Any:
    label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
    number = len(message.field) + 1
    given = {"type_name": type_name} if type_name else {}
    return message.field.add(name=name, number=number, type=kind, label=label, **given)


def build() -> Any:
    """Descriptors as protoc makes them: one file with shared types, and one that imports it."""
    shared = descriptor_pb2.FileDescriptorProto(name="shop/address.proto", package="shop", syntax="proto3")
    address = shared.message_type.add(name="Address")
    add_field(address, "city", FIELD.TYPE_STRING)
    Default().Add(shared)

    rows = descriptor_pb2.FileDescriptorProto(name="shop/rows.proto", package="shop", syntax="proto3")
    rows.dependency.extend(
        [
            "shop/address.proto",
            timestamp_pb2.DESCRIPTOR.name,
            wrappers_pb2.DESCRIPTOR.name,
            decimal_pb2.DESCRIPTOR.name,
        ]
    )
    color = rows.enum_type.add(name="Color")
    for number, name in enumerate(("RED", "BLUE")):
        color.value.add(name=name, number=number)
    other = rows.message_type.add(name="Other")
    add_field(other, "id", FIELD.TYPE_INT64)
    inner = other.nested_type.add(name="Inner")
    add_field(inner, "id", FIELD.TYPE_INT64)
    row = rows.message_type.add(name="Row")
    add_field(row, "id", FIELD.TYPE_INT64)
    add_field(row, "name", FIELD.TYPE_STRING)
    add_field(row, "ratio", FIELD.TYPE_DOUBLE)
    add_field(row, "ok", FIELD.TYPE_BOOL)
    add_field(row, "raw", FIELD.TYPE_BYTES)
    add_field(row, "color", FIELD.TYPE_ENUM, type_name=".shop.Color")
    add_field(row, "big", FIELD.TYPE_UINT64)
    add_field(row, "at", FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add_field(row, "maybe", FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Int64Value")
    add_field(row, "amount", FIELD.TYPE_MESSAGE, type_name=".confluent.type.Decimal")
    add_field(row, "home", FIELD.TYPE_MESSAGE, type_name=".shop.Address")
    add_field(row, "tags", FIELD.TYPE_STRING, repeated=True)
    add_field(row, "places", FIELD.TYPE_MESSAGE, type_name=".shop.Address", repeated=True)
    entry = row.nested_type.add(name="CountsEntry")
    add_field(entry, "key", FIELD.TYPE_STRING)
    add_field(entry, "value", FIELD.TYPE_INT32)
    entry.options.map_entry = True
    add_field(row, "counts", FIELD.TYPE_MESSAGE, type_name=".shop.Row.CountsEntry", repeated=True)
    optional = add_field(row, "note", FIELD.TYPE_STRING)
    optional.proto3_optional = True
    optional.oneof_index = 0
    row.oneof_decl.add(name="_note")
    Default().Add(rows)
    return Default().FindFileByName("shop/rows.proto")


FILE = build()
ROW = GetMessageClass(FILE.message_types_by_name["Row"])
OTHER = GetMessageClass(FILE.message_types_by_name["Other"])
INNER = GetMessageClass(FILE.message_types_by_name["Other"].nested_types_by_name["Inner"])
TYPES: Mapping[str, str] = {
    "id": "bigint",
    "name": "string",
    "ratio": "double",
    "ok": "boolean",
    "raw": "binary",
    "color": "string",
    "big": "decimal(20,0)",
    "at": "timestamp",
    "maybe": "bigint",
    "amount": "decimal(12,2)",
    "home": "struct<city:string>",
    "tags": "array<string>",
    "places": "array<struct<city:string>>",
    "counts": "map<string,int>",
    "note": "string",
}
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "name": TEXTS,
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "ok": st.booleans(),
    "raw": st.binary(max_size=5),
    "color": st.sampled_from(["RED", "BLUE"]),
    "big": st.integers(0, 2**64 - 1).map(Decimal),
    "at": st.none() | INSTANTS,
    "maybe": st.none() | st.integers(-5, 5),
    "amount": st.none() | st.integers(-(10**12) + 1, 10**12 - 1).map(lambda number: Decimal(number).scaleb(-2)),
    "home": st.none() | st.fixed_dictionaries({"city": TEXTS}),
    "tags": st.lists(TEXTS, max_size=3),
    "places": st.lists(st.fixed_dictionaries({"city": TEXTS}), max_size=2),
    "counts": st.dictionaries(TEXTS, st.integers(0, 9), max_size=3),
    "note": st.none() | TEXTS,
}


def message_of(row: Mapping[str, Any]) -> Any:
    """The row as a message, through Protobuf's own constructors."""
    given = {name: value for name, value in row.items() if value is not None}
    at, amount, maybe = (given.pop(name, None) for name in ("at", "amount", "maybe"))
    given["big"] = int(given.get("big", 0))
    message = ROW(**given)
    if at is not None:
        message.at.FromDatetime(at)
    if maybe is not None:
        message.maybe.value = maybe
    if amount is not None:
        unscaled = int(amount * 100)
        message.amount.value = unscaled.to_bytes(8, "big", signed=True)
        message.amount.scale, message.amount.precision = 2, 12
    return message


@lru_cache(maxsize=8)
def serializer(registry: SchemaRegistry, kind: Any) -> Any:
    client = SchemaRegistryClient({"url": registry.url})
    serialize = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
    return lambda message: serialize(message, SerializationContext("rows", MessageField.VALUE))


def decode(registry: SchemaRegistry, types: Mapping[str, str], values: list[bytes | None]) -> list[dict[str, Any]]:
    declared = pa.schema([(name, parse_type(kind)) for name, kind in types.items()])
    settings = FormatSettings(declared, (("url", registry.url),))
    return decode_protobuf(settings, pa.array(values, pa.binary())).to_pylist()


@given(rows=st.lists(st.fixed_dictionaries(dict(VALUES)), max_size=4))
def test_every_value_of_every_type_arrives_as_it_was_serialized(
    registry: SchemaRegistry, rows: list[dict[str, Any]]
) -> None:
    serialize = serializer(registry, ROW)
    found = decode(registry, TYPES, [serialize(message_of(row)) for row in rows])
    assert [row["reason"] for row in found] == [None] * len(rows)
    for row, wanted in zip(found, rows, strict=True):
        assert {**row["message"], "counts": dict(row["message"]["counts"])} == wanted


def test_message_types_of_one_schema_and_unknown_fields(registry: SchemaRegistry) -> None:
    values = [
        serializer(registry, ROW)(ROW(id=1, name="a")),
        serializer(registry, OTHER)(OTHER(id=2)),
        serializer(registry, INNER)(INNER(id=3)),
        None,
    ]
    for _ in range(2):
        found = decode(registry, {"id": "bigint", "name": "string", "later": "int"}, values)
        assert [(row["message"]["id"], row["message"]["name"], row["reason"]) for row in found] == [
            (1, "a", None),
            (2, None, None),
            (3, None, None),
            (None, None, None),
        ]
        assert len({row["schema_id"] for row in found[:3]}) == 1
    # Three subjects' versions are not asked for again; each id and each reference once.
    fetched = [path for path in registry.requests if path.startswith("/schemas/ids/")]
    assert len(fetched) == len(set(fetched))


def test_fields_by_their_json_name_and_enums_as_numbers(registry: SchemaRegistry) -> None:
    value = serializer(registry, ROW)(ROW(color=1))
    assert decode(registry, {"color": "int"}, [value])[0]["message"] == {"color": 1}
    unknown = serializer(registry, ROW)(ROW(color=7))
    assert decode(registry, {"color": "string"}, [unknown])[0]["message"] == {"color": "7"}


def test_bad_values_have_a_reason_and_others_are_decoded(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "UNKNOWN_SECONDS", 0)
    good = serializer(registry, ROW)(ROW(id=1, name="a"))
    avro_id = registry.register("other", '"long"')
    text_id = registry.register("text", 'syntax = "proto3";', "PROTOBUF")
    assert split_indexes(good[5:]) is not None
    bad = [
        (b"", NO_HEADER),
        (b"\0\0\0\0", NO_HEADER),
        (b"\0\x80\0\0\1" + good[5:], NO_HEADER),
        (b"\x01" + good[1:], NO_HEADER),
        (b"\0\0\0\x03\xe7" + good[5:], "schema 999 is not in the schema registry"),
        (b"\0" + avro_id.to_bytes(4, "big") + b"\0", f"schema {avro_id} is of type AVRO, not PROTOBUF"),
        (b"\0" + text_id.to_bytes(4, "big") + b"\0", f"schema {text_id} is not given as a descriptor"),
        (good[:5], NO_INDEXES),
        (good[:5] + b"\x02", NO_INDEXES),
        (good[:5] + b"\x02\x01", NO_INDEXES),
        (good[:5] + b"\x02\x0e", NO_INDEXES),
        (good[:5] + b"\xff" * 12, NO_INDEXES),
        (good[:-1], "the value cannot be read with its schema of Protobuf"),
    ]
    found = decode(registry, {"id": "bigint", "name": "string"}, [good, *(value for value, _ in bad), good])
    assert [row["message"]["id"] for row in found] == [1, *[None] * len(bad), 1]
    for row, (_, reason) in zip(found[1:-1], bad, strict=True):
        assert row["reason"].startswith(reason)
    found = decode(
        registry,
        {"id": "string", "at": "timestamp", "home": "bigint"},
        [serializer(registry, ROW)(ROW(home={"city": "x"}))],
    )
    assert found[0]["reason"] == "field 'id': a number is not string; field 'home': an object is not bigint"


def test_a_timestamp_before_1970_is_rounded_down(registry: SchemaRegistry) -> None:
    message = ROW()
    message.at.seconds, message.at.nanos = -1, 999_999_999
    value = serializer(registry, ROW)(message)
    found = decode(registry, {"at": "timestamp"}, [value])[0]["message"]["at"]
    assert found == dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
