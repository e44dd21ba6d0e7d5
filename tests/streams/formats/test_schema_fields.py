"""Columns for the fields of a schema: the proposed types read every value that the schema allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.formats.debezium_messages import KINDS as CHANGES
from tests.streams.formats.debezium_messages import columns_of, write_event
from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import KINDS, decode, record, written
from tests.streams.formats.test_protobuf import ROW, TYPES
from weft.storage.core.types import parse_type
from weft.streams.formats.avro_records import registered_type
from weft.streams.formats.avro_schema import parse_avro
from weft.streams.formats.debezium_json import decode_json_events
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.json_schema import json_schema_fields
from weft.streams.formats.registry import RegistryClient
from weft.streams.formats.schema_fields import (
    SchemaField,
    arrow_fields,
    avro_fields,
    connect_field_schema,
    connect_fields,
    protobuf_fields,
)


class Given:
    """A schema as the registry's client returns it."""

    references = ()

    def __init__(self, schema: Any) -> None:
        self.schema_str = json.dumps(schema)


def avro(schema: Any) -> Mapping[str, SchemaField]:
    found = avro_fields(registered_type(Given(schema), RegistryClient("", None)))  # never asked
    assert found is not None
    return found


def declared(fields: Mapping[str, SchemaField]) -> pa.Schema:
    return pa.schema([(name, parse_type(one.type)) for name, one in fields.items()])


@pytest.mark.parametrize("name", sorted(KINDS))
def test_avro(name: str) -> None:
    kind = KINDS[name]
    [found] = avro(record({"c": kind.schema})).values()
    assert found.type == ("int" if name == "int to bigint" else kind.declared)


@given(data=st.data())
def test_the_types_of_avro_read_every_value(registry: SchemaRegistry, data: st.DataObject) -> None:
    kind = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    schema = record({"c": kind.schema})
    types = {name: one.type for name, one in avro(schema).items()}
    schema_id = registry.register("rows-value", json.dumps(schema))
    value = written(schema, {"c": data.draw(kind.values)}, schema_id)
    assert [row["reason"] for row in decode(registry, types, [value])] == [None]


@given(data=st.data())
def test_the_types_of_change_events_read_every_value(data: st.DataObject) -> None:
    columns = columns_of([data.draw(st.sampled_from(sorted(CHANGES)))])
    row = {name: data.draw(kind.values) for name, kind in columns.items()}
    value = write_event(columns, "c", after=row)
    found = connect_fields(connect_field_schema(json.loads(value)["schema"], "after"))
    assert found is not None
    decoded = decode_json_events(FormatSettings(declared(found)), pa.array([value], pa.binary()))
    assert [row["reason"] for row in decoded.to_pylist()] == [None]


def test_protobuf() -> None:
    found = protobuf_fields(ROW.DESCRIPTOR)
    assert {name: one.type for name, one in found.items()} == {**TYPES, "amount": "string"}, (
        "the scale of a decimal is not in the schema"
    )
    assert {name for name, one in found.items() if one.required} == {"id", "name", "ratio", "ok", "raw", "color", "big"}


def test_nullability_and_texts_of_avro() -> None:
    fields = [
        {"name": "id", "type": "long", "doc": "number  of\n the order"},
        {"name": "note", "type": ["string", "null"]},
        {"name": "odd", "type": ["long", "string"]},
        {"name": "tree", "type": {"type": "record", "name": "Node", "fields": [{"name": "n", "type": "Node"}]}},
        {"name": "big", "type": {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 4}},
    ]
    assert avro({"type": "record", "name": "Row", "fields": fields}) == {
        "id": SchemaField("bigint", required=True, text="number of the order"),
        "note": SchemaField("string"),
        "odd": SchemaField("", required=True, reason="it is a union of several types"),
        "tree": SchemaField("", required=True, reason="its type contains itself"),
        "big": SchemaField("decimal(38,4)", required=True),
    }
    assert avro_fields(parse_avro(['"long"'])) is None


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["boolean", "null"]}, "boolean"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "bigint"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"const": 1}, "bigint"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "struct<a:string>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
        ({"type": "object"}, "string"),
        ({"$ref": "#/$defs/number"}, "bigint"),
        ({"$ref": "other.json#/definitions/text"}, "string"),
        ({"$ref": "other.json"}, "struct<a:string>"),
        ({"$ref": "#/$defs/tree"}, ""),
        ({"$ref": "#/$defs/none"}, ""),
        ({"$ref": "none.json"}, ""),
        ({"type": ["integer", "string"]}, ""),
        ({"type": "array"}, ""),
        ({}, ""),
        (True, ""),
    ],
)
def test_json_schema(schema: Any, kind: str) -> None:
    other = {
        "definitions": {"text": {"type": "string"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/text"}},
    }
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}
    whole = {"properties": {"c": schema}, "$defs": {"number": {"type": "integer"}, "tree": tree}}
    found = json_schema_fields(whole, {"other.json": other})
    assert found is not None
    assert found["c"].type == kind
    assert bool(found["c"].reason) == (not kind)


def test_nullability_and_texts_of_json_schema() -> None:
    properties = {"a": {"type": "integer", "description": "x"}, "b": {"type": ["string", "null"]}, "c": {"const": "c"}}
    assert json_schema_fields({"properties": properties, "required": ["a", "b"]}, {}) == {
        "a": SchemaField("bigint", required=True, text="x"),
        "b": SchemaField("string"),
        "c": SchemaField("string"),
    }
    assert json_schema_fields({"type": "string"}, {}) is None


@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        (pa.uint8(), "smallint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.decimal128(12, 2), "decimal(12,2)"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("ms"), "timestamp_ntz"),
        (pa.timestamp("ns"), ""),
        (pa.time32("s"), ""),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.large_list(pa.struct([("a", pa.int8())])), "array<struct<a:tinyint>>"),
        (pa.map_(pa.string(), pa.date32()), "map<string,date>"),
        (pa.struct([("a b", pa.int8())]), ""),
        (pa.large_binary(), "binary"),
    ],
)
def test_arrow(kind: pa.DataType, sql: str) -> None:
    found = arrow_fields(pa.schema([pa.field("c", kind, nullable=False)]))["c"]
    assert (found.type, found.required, bool(found.reason)) == (sql, True, not sql)
