"""The decoders against a real registry with TLS and a login, and messages that confluent-kafka's serializers wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.download_cache import Unavailable
from tests.streams.formats.real_registry import Login, RealRegistry
from tests.streams.formats.test_avro import record, written
from tests.streams.formats.test_protobuf import ROW
from tests.streams.kafka.certificates import Authority
from weft.storage.core.types import parse_type
from weft.streams.formats import registry as registry_module
from weft.streams.formats.avro_records import decode_avro_events, decode_records
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.protobuf_messages import decode_protobuf
from weft.streams.formats.registry import RegistryRefused, RegistryUnavailable, UnknownSchema, registry_client

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(600)]

USER, PASSWORD = "weft", "registry:1c0ffee"


@dataclass(frozen=True)
class Secured:
    """A registry with a login, and the settings of its clients."""

    registry: RealRegistry
    settings: dict[str, str]

    @property
    def sorted(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self.settings.items()))

    @property
    def client(self) -> SchemaRegistryClient:
        return SchemaRegistryClient(self.settings)

    def avro(self, **types: str) -> FormatSettings:
        return FormatSettings(declared(types), self.sorted)


def declared(types: dict[str, str]) -> pa.Schema:
    return pa.schema([(name, parse_type(kind)) for name, kind in types.items()])


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("registry")
    authority = Authority(folder, "authority")
    login = Login(*authority.issue("registry"), USER, PASSWORD)
    try:
        starting = RealRegistry(folder, login)
    except Unavailable as reason:
        pytest.skip(f"no real schema registry: {reason}")
    with starting as running:
        settings = {
            "url": running.url,
            "basic.auth.user.info": f"{USER}:{PASSWORD}",
            "ssl.ca.location": str(authority.certificate),
        }
        yield Secured(running, settings)


def test_avro_whose_schema_changes_while_the_decoder_lives(secured: Secured) -> None:
    read = secured.avro(id="bigint", name="string", note="string")
    versions = [{"id": "int", "name": "string"}, {"note": "string", "id": "int"}]
    ids = []
    for number, fields in enumerate(versions):
        serialize = AvroSerializer(secured.client, json.dumps(record(fields)))
        row = {name: number if name == "id" else name for name in fields}
        found = decode_records(read, binary(serialize(row, value_of("avro-rows")), None)).to_pylist()
        assert found[0]["reason"] is None
        assert found[0]["message"] == {"id": None, "name": None, "note": None, **row}
        ids.append(found[0]["schema_id"])
    assert ids == [secured.client.get_version("avro-rows-value", version).schema_id for version in (1, 2)]


def test_avro_with_references(secured: Secured) -> None:
    city = {"type": "record", "name": "shop.City", "fields": [{"name": "name", "type": "string"}]}
    row = {"type": "record", "name": "shop.Order", "fields": [{"name": "city", "type": "shop.City"}]}
    secured.client.register_schema("city", Schema(json.dumps(city), "AVRO"))
    references = [SchemaReference("shop.City", "city", 1)]
    schema_id = secured.client.register_schema("orders-value", Schema(json.dumps(row), "AVRO", references))
    whole = {**row, "fields": [{"name": "city", "type": city}]}
    value = written(whole, {"city": {"name": "Ulm"}}, schema_id)
    [found] = decode_records(secured.avro(city="struct<name:string>"), binary(value)).to_pylist()
    assert (found["reason"], found["message"]) == (None, {"city": {"name": "Ulm"}})


def test_protobuf_with_imports(secured: Secured) -> None:
    """The serializer registers the imported file as a subject of its own, and refers to it."""
    serialize = ProtobufSerializer(ROW, secured.client, {"use.deprecated.format": False})
    message = ROW(id=7, name="x", home={"city": "Ulm"}, tags=["a"])
    message.at.seconds = 1
    types = {"id": "bigint", "home": "struct<city:string>", "tags": "array<string>", "at": "timestamp"}
    read = FormatSettings(declared(types), secured.sorted)
    [found] = decode_protobuf(read, binary(serialize(message, value_of("rows")))).to_pylist()
    assert found["reason"] is None
    assert {**found["message"], "at": found["message"]["at"].timestamp()} == {
        "id": 7,
        "home": {"city": "Ulm"},
        "tags": ["a"],
        "at": 1.0,
    }
    references = secured.client.get_schema(found["schema_id"]).references or []
    assert [reference.name for reference in references] == ["shop/address.proto"]


def test_the_newest_schema_of_a_subject(secured: Secured) -> None:
    client = registry_client(secured.sorted)
    for name in ("old", "new"):
        schema = {**record({"id": "long"}), "name": name}
        secured.client.register_schema("newest-value", Schema(json.dumps(schema), "AVRO"))
    schema_id, found = client.latest("newest-value")
    assert json.loads(found.schema_str)["name"] == "new"
    assert client.schema(schema_id).schema_str == found.schema_str
    with pytest.raises(UnknownSchema, match="'none-value' is not in the schema registry"):
        client.latest("none-value")


def test_change_events_as_avro(secured: Secured) -> None:
    row = {**record({"id": "long", "name": "string"}), "name": "Value"}
    fields = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ]
    event = {"type": "record", "name": "Envelope", "namespace": "shop", "fields": fields}
    serialize = AvroSerializer(secured.client, json.dumps(event))
    value = serialize({"before": None, "after": {"id": 1, "name": "a"}, "op": "c"}, value_of("events"))
    [found] = decode_avro_events(secured.avro(id="bigint", name="string"), binary(value)).to_pylist()
    assert (found["reason"], found["op"], found["message"]) == (None, "c", {"id": 1, "name": "a"})


def test_other_types_and_unknown_ids(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "UNKNOWN_SECONDS", 0)
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    json_id = secured.client.register_schema("json-value", Schema(json.dumps(schema), "JSON"))
    values = [b"\0" + number.to_bytes(4, "big") + b"{}" for number in (json_id, 2**31 - 1)]
    avro = decode_records(secured.avro(id="bigint"), binary(*values)).to_pylist()
    protobuf = decode_protobuf(FormatSettings(declared({"id": "bigint"}), secured.sorted), binary(*values))
    for rows, wanted in ((avro, "AVRO"), (protobuf.to_pylist(), "PROTOBUF")):
        assert [row["reason"] for row in rows] == [
            f"schema {json_id} is of type JSON, not {wanted}",
            "schema 2147483647 is not in the schema registry",
        ]


def test_a_registry_that_is_killed_and_started_again(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known schemas need no registry. A batch with another one fails as a whole, and is decoded when it is back."""
    monkeypatch.setattr(registry_module, "RETRY_SECONDS", (0.0,))
    values = []
    for name in ("first", "second"):
        schema = {**record({"id": "long"}), "name": name}
        schema_id = secured.client.register_schema(f"{name}-value", Schema(json.dumps(schema), "AVRO"))
        values.append(written(schema, {"id": 5}, schema_id))
    read = secured.avro(id="bigint")

    def decoded(*given: bytes) -> list[Any]:
        return [(row["reason"], row["message"]["id"]) for row in decode_records(read, binary(*given)).to_pylist()]

    assert decoded(values[0]) == [(None, 5)]
    secured.registry.kill()
    try:
        assert decoded(values[0]) == [(None, 5)]
        with pytest.raises(RegistryUnavailable, match="does not answer") as away:
            decoded(*values)
        assert not isinstance(away.value, RegistryRefused)
    finally:
        secured.registry.start()
    assert decoded(*values) == [(None, 5)] * 2


@pytest.mark.parametrize("wrong", ["password", "certificate"])
def test_a_wrong_login_is_not_an_unknown_schema(secured: Secured, tmp_path: Path, wrong: str) -> None:
    settings = dict(secured.settings)
    kind: type[RegistryUnavailable]
    if wrong == "password":
        settings["basic.auth.user.info"] = f"{USER}:other-{PASSWORD}"
        kind, text = RegistryRefused, "HTTP 401"
    else:
        settings["ssl.ca.location"] = str(Authority(tmp_path, "other").certificate)
        kind, text = RegistryUnavailable, "CERTIFICATE_VERIFY_FAILED"
    with pytest.raises(kind, match=text) as refused:
        registry_client(tuple(sorted(settings.items()))).check()
    assert PASSWORD not in str(refused.value)
