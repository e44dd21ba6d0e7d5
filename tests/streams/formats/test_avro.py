"""Avro with a schema registry, decoded without Spark: against messages that fastavro wrote with its logical types."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.formats.debezium_messages import AMOUNTS, DATES, INSTANTS, TEXTS, twos_complement, whole_millis
from tests.streams.formats.registry_server import SchemaRegistry
from weft.storage.core.types import parse_type
from weft.streams.formats import registry as registry_module
from weft.streams.formats.avro_records import decode_avro_events, decode_records
from weft.streams.formats.debezium_event import PLACEHOLDER
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.registry import NO_HEADER, RegistryRefused, RegistryUnavailable, registry_client


@dataclass(frozen=True)
class Kind:
    """A kind of field: its declared type, its schema of Avro, and its values as fastavro writes and weft shows them."""

    declared: str
    schema: Any
    values: st.SearchStrategy[Any]


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": ["null", "string"]}]}
KINDS: Mapping[str, Kind] = {
    "long": Kind("bigint", "long", st.integers(-(2**63), 2**63 - 1)),
    "int to bigint": Kind("bigint", "int", st.integers(-(2**31), 2**31 - 1)),
    "string": Kind("string", "string", TEXTS),
    "boolean": Kind("boolean", "boolean", st.booleans()),
    "double": Kind("double", "double", st.floats(allow_nan=False, allow_infinity=False)),
    "bytes": Kind("binary", "bytes", st.binary(max_size=8)),
    "fixed": Kind("binary", {"type": "fixed", "name": "Four", "size": 4}, st.binary(min_size=4, max_size=4)),
    "enum": Kind(
        "string", {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}, st.sampled_from(["RED", "BLUE"])
    ),
    "decimal": Kind("decimal(12,2)", logical("bytes", "decimal", precision=12, scale=2), AMOUNTS),
    "fixed decimal": Kind(
        "decimal(12,2)",
        logical("fixed", "decimal", name="Money", size=6, precision=12, scale=2),
        AMOUNTS,
    ),
    "date": Kind("date", logical("int", "date"), DATES),
    "millis": Kind("timestamp", logical("long", "timestamp-millis"), INSTANTS.map(whole_millis)),
    "micros": Kind("timestamp", logical("long", "timestamp-micros"), INSTANTS),
    "local micros": Kind("timestamp_ntz", logical("long", "local-timestamp-micros"), st.datetimes()),
    "uuid as text": Kind("string", logical("string", "uuid"), st.uuids().map(str)),
    "array": Kind("array<bigint>", {"type": "array", "items": "long"}, st.lists(st.integers(0, 9), max_size=3)),
    "map": Kind(
        "map<string,int>", {"type": "map", "values": "int"}, st.dictionaries(TEXTS, st.integers(0, 9), max_size=3)
    ),
    "record": Kind("struct<city:string>", ADDRESS, st.fixed_dictionaries({"city": st.none() | TEXTS})),
}


def record(fields: Mapping[str, Any]) -> dict[str, Any]:
    parts = [{"name": name, "type": ["null", kind], "default": None} for name, kind in fields.items()]
    return {"type": "record", "name": "Row", "namespace": "shop", "fields": parts}


def written(schema: Any, datum: Any, schema_id: int) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), datum)
    return b"\0" + schema_id.to_bytes(4, "big") + file.getvalue()


def settings(registry: SchemaRegistry, types: Mapping[str, str], **given: Any) -> FormatSettings:
    declared = pa.schema([(name, parse_type(kind)) for name, kind in types.items()])
    return FormatSettings(declared, (("url", registry.url),), **given)


def decode(registry: SchemaRegistry, types: Mapping[str, str], values: list[bytes | None]) -> list[dict[str, Any]]:
    return decode_records(settings(registry, types), pa.array(values, pa.binary())).to_pylist()


def plain(value: Any, kind: str) -> Any:
    return dict(value) if kind.startswith("map") and value is not None else value


@given(data=st.data())
def test_every_value_of_every_type_arrives_as_fastavro_wrote_it(registry: SchemaRegistry, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5, unique=True))
    kinds = {f"c{number}": KINDS[name] for number, name in enumerate(names)}
    types = {name: kind.declared for name, kind in kinds.items()}
    rows = data.draw(
        st.lists(st.fixed_dictionaries({name: st.none() | kind.values for name, kind in kinds.items()}), max_size=5)
    )
    schema = record({name: kind.schema for name, kind in kinds.items()})
    schema_id = registry.register("rows-value", json.dumps(schema))
    found = decode(registry, types, [written(schema, row, schema_id) for row in rows])
    assert [(row["reason"], row["schema_id"]) for row in found] == [(None, schema_id)] * len(rows)
    shown = [{name: plain(value, types[name]) for name, value in row["message"].items()} for row in found]
    assert shown == rows


def test_writers_of_several_versions_in_one_batch(registry: SchemaRegistry) -> None:
    """Fields that were added, removed, reordered and widened; one request for each schema, ever."""
    first = record({"id": "int", "name": "string", "gone": "long"})
    second = record({"note": "string", "id": "long"})
    ids = [registry.register("rows-value", json.dumps(schema)) for schema in (first, second)]
    types = {"id": "bigint", "name": "string", "note": "string"}
    values = [
        written(first, {"id": 1, "name": "a", "gone": 7}, ids[0]),
        written(second, {"id": 2**40, "note": "n"}, ids[1]),
        written(first, {"id": 3, "name": "c", "gone": None}, ids[0]),
    ]
    for _ in range(3):
        found = decode(registry, types, [*values, None])
        assert [row["message"] for row in found] == [
            {"id": 1, "name": "a", "note": None},
            {"id": 2**40, "name": None, "note": "n"},
            {"id": 3, "name": "c", "note": None},
            {"id": None, "name": None, "note": None},
        ]
        assert [(row["reason"], row["schema_id"]) for row in found] == [
            (None, ids[0]),
            (None, ids[1]),
            (None, ids[0]),
            (None, None),
        ]
    assert sorted(registry.requests) == ["/schemas/ids/1", "/schemas/ids/2"]


def test_references_to_other_schemas(registry: SchemaRegistry) -> None:
    country = {"type": "record", "name": "shop.Country", "fields": [{"name": "code", "type": "string"}]}
    city = {"type": "record", "name": "shop.City", "fields": [{"name": "country", "type": "shop.Country"}]}
    row = {"type": "record", "name": "shop.Row", "fields": [{"name": "city", "type": "shop.City"}]}
    registry.register("country", json.dumps(country))
    reference = {"name": "shop.Country", "subject": "country", "version": 1}
    registry.register("city", json.dumps(city), references=[reference])
    names = ("shop.City", "shop.Country")  # the second is known from the first by then
    references = [{"name": name, "subject": name[5:].lower(), "version": 1} for name in names]
    references.append({"name": "shop.Same", "subject": "city", "version": 1})  # another name for the same schema
    schema_id = registry.register("rows-value", json.dumps(row), references=references)
    file = io.BytesIO()
    named: dict[str, Any] = {}
    for schema in (country, city):
        fastavro.parse_schema(schema, named_schemas=named)
    parsed = fastavro.parse_schema(row, named_schemas=named)
    fastavro.schemaless_writer(file, parsed, {"city": {"country": {"code": "DE"}}})
    value = b"\0" + schema_id.to_bytes(4, "big") + file.getvalue()
    [found] = decode(registry, {"city": "struct<country:struct<code:string>>"}, [value])
    assert (found["reason"], found["message"]) == (None, {"city": {"country": {"code": "DE"}}})


def test_a_value_that_is_not_a_record_is_the_only_declared_field(registry: SchemaRegistry) -> None:
    schema_id = registry.register("rows-key", json.dumps("long"))
    value = written("long", 7, schema_id)
    assert decode(registry, {"id": "bigint"}, [value])[0]["message"] == {"id": 7}
    assert decode(registry, {"id": "bigint", "b": "int"}, [value])[0]["reason"] == "the value is not a record of Avro"


def test_bad_values_have_a_reason_and_others_are_decoded(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "UNKNOWN_SECONDS", 0)
    schema = record({"id": "long", "name": "string"})
    schema_id = registry.register("rows-value", json.dumps(schema))
    json_id = registry.register("other-value", "{}", "JSON")
    broken_id = registry.register("broken-value", '{"type": "record"}')
    good = written(schema, {"id": 1, "name": "a"}, schema_id)
    bad = [
        (b"", NO_HEADER),
        (b"\0\0\0\0", NO_HEADER),
        (b'{"id": 1}', NO_HEADER),
        (b"\0\x80\0\0\1" + good[5:], NO_HEADER),
        (b"\0\x7f\xff\xff\xff" + good[5:], "schema 2147483647 is not in the schema registry"),
        (b"\0\0\0\x03\xe7" + good[5:], "schema 999 is not in the schema registry"),
        (b"\0" + json_id.to_bytes(4, "big"), f"schema {json_id} is of type JSON, not AVRO"),
        (b"\0" + broken_id.to_bytes(4, "big"), f"schema {broken_id} is not a schema of Avro"),
        (good[:-1], "the value cannot be read with its schema of Avro"),
        (good + b"\0", "the value is longer than its record of Avro"),
        (good[:5] + b"\xff" * 20, "the value cannot be read with its schema of Avro"),
    ]
    found = decode(registry, {"id": "bigint", "name": "string"}, [good, *(value for value, _ in bad), good])
    assert [row["message"]["id"] for row in found] == [1, *[None] * len(bad), 1]
    for row, (_, reason) in zip(found[1:-1], bad, strict=True):
        assert row["reason"].startswith(reason)
    found = decode(registry, {"id": "bigint", "name": "int"}, [good])
    assert found[0]["reason"] == "field 'name': a text is not int"


def test_an_outage_of_the_registry_is_no_reason(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some failures are waited out; then the batch fails as a whole. Schemas that are known need no registry."""
    monkeypatch.setattr(registry_module, "RETRY_SECONDS", (0.0, 0.0))
    schema = record({"id": "long"})
    values = []
    for name in ("a", "b"):
        one = {**schema, "name": name}
        values.append(written(one, {"id": 1}, registry.register("rows-value", json.dumps(one))))
    registry.failing = 2
    assert decode(registry, {"id": "bigint"}, values[:1])[0]["message"] == {"id": 1}
    registry.failing = -1
    assert decode(registry, {"id": "bigint"}, values[:1])[0]["message"] == {"id": 1}
    with pytest.raises(RegistryUnavailable, match=r"HTTP 503"):
        decode(registry, {"id": "bigint"}, values)
    registry.failing = 0
    assert [row["message"] for row in decode(registry, {"id": "bigint"}, values)] == [{"id": 1}] * 2


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_how_often_a_registry_that_is_away_is_asked(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    monkeypatch.setattr(registry_module, "RETRY_SECONDS", (0.0, 0.0))
    registry.failing = -1
    client = registry_client((("max.retries", str(retries)), ("url", registry.url)))
    with pytest.raises(RegistryUnavailable, match=r"HTTP 503"):
        client.schema(1)
    assert len(registry.requests) == 1 + retries


def test_a_registry_that_is_not_there_or_not_a_registry(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "RETRY_SECONDS", (0.0,))
    value = b"\0\0\0\0\x01\0"
    with SchemaRegistry() as gone:
        pass
    with pytest.raises(RegistryUnavailable, match="does not answer") as caught:
        decode(gone, {"id": "bigint"}, [value])
    assert not isinstance(caught.value, RegistryRefused)
    wrong = settings(registry, {"id": "bigint"})
    wrong = FormatSettings(wrong.declared, (("url", registry.url + "/other"),))
    with pytest.raises(RegistryRefused, match="HTTP 404"):
        decode_records(wrong, pa.array([value], pa.binary()))


def test_change_events_of_debezium_as_avro(registry: SchemaRegistry) -> None:
    """As Debezium writes them through Confluent's converter: its logical types are in ``connect.name``."""

    def connect(kind: Any, name: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "connect.version": 1, "connect.name": name, **more}

    variable = {
        "type": "record",
        "name": "VariableScaleDecimal",
        "namespace": "io.debezium.data",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
        "connect.name": "io.debezium.data.VariableScaleDecimal",
    }
    fields = {
        "id": "long",
        "body": "string",
        "raw": "bytes",
        "amount": {
            **connect("bytes", "org.apache.kafka.connect.data.Decimal"),
            "scale": 2,
            "precision": 12,
            "logicalType": "decimal",
        },
        "any": variable,
        "micros": connect("long", "io.debezium.time.MicroTimestamp"),
        "zoned": connect("string", "io.debezium.time.ZonedTimestamp"),
        "day": connect("int", "io.debezium.time.Date"),
    }
    row = {**record(fields), "name": "Value"}
    source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": ["null", "long"]}]}
    event = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"]},
        ],
    }
    schema_id = registry.register("rows-value", json.dumps(event))
    raw = fastavro.parse_schema(json.loads(json.dumps(event).replace('"logicalType": "decimal"', '"x": 1')))
    at = dt.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
    after = {
        "id": 7,
        "body": PLACEHOLDER,
        "raw": PLACEHOLDER.encode(),
        "amount": twos_complement(1250),
        "any": {"scale": 1, "value": twos_complement(-25)},
        "micros": int(at.timestamp()) * 1_000_000 + at.microsecond,
        "zoned": "2024-05-06T09:08:09.123456+02:00",
        "day": 19_849,
    }
    values = []
    for op, pair in (
        ("u", {"before": None, "after": after}),
        ("d", {"before": {"id": 7}, "after": None}),
        ("t", {"before": None, "after": None}),
    ):
        file = io.BytesIO()
        fastavro.schemaless_writer(file, raw, {**pair, "source": {"lsn": 9}, "op": op, "ts_ms": 5})
        values.append(b"\0" + schema_id.to_bytes(4, "big") + file.getvalue())
    types = {
        "id": "bigint", "body": "string", "raw": "binary", "amount": "decimal(12,2)", "any": "decimal(12,2)",
        "micros": "timestamp", "zoned": "timestamp", "day": "date",
    }  # fmt: skip
    given = settings(registry, types, metadata=frozenset(["source"]))
    first, second, third = decode_avro_events(given, pa.array(values, pa.binary())).to_pylist()
    assert (first["reason"], first["op"], first["schema_id"], first["source"]["lsn"]) == (None, "u", schema_id, 9)
    assert first["unavailable"] == ["body", "raw"]
    assert first["message"] == {
        "id": 7, "body": None, "raw": None, "amount": Decimal("12.50"), "any": Decimal("-2.50"), "micros": at,
        "zoned": at, "day": dt.date(2024, 5, 6),
    }  # fmt: skip
    assert (second["reason"], second["op"], second["message"]["id"]) == (None, "d", 7)
    assert "truncate" in third["reason"]
