"""Whatever a message holds, it is decoded or has a reason; it never fails the batch, and never harms its neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.formats.debezium_messages import KINDS, columns_of, write_event
from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import KINDS as AVRO_KINDS
from tests.streams.formats.test_avro import record, written
from tests.streams.formats.test_protobuf import ROW, serializer
from weft.storage.core.types import parse_type
from weft.streams.formats import registry as registry_module
from weft.streams.formats.avro_records import decode_records
from weft.streams.formats.convert import Unmarked
from weft.streams.formats.debezium_json import decode_json_events
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.protobuf_messages import decode_protobuf

TYPES = {"id": "bigint", "name": "string", "amount": "decimal(12,2)", "at": "timestamp", "tags": "array<string>"}
DECLARED = pa.schema([(name, parse_type(kind)) for name, kind in TYPES.items()])
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "set", "insert", "drop"]), st.integers(0, 10_000), st.binary(min_size=1, max_size=6)
    ),
    min_size=1,
    max_size=4,
)


def damaged(good: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    found = bytearray(good)
    for what, where, data in edits:
        place = where % (len(found) + 1)
        if what == "cut":
            del found[place:]
        elif what == "set":
            found[place : place + len(data)] = data
        elif what == "insert":
            found[place:place] = data
        else:
            del found[place : place + len(data)]
    return bytes(found)


def check(decode: Callable[[pa.Array], pa.Array], good: bytes, bad: list[bytes]) -> None:
    [wanted] = decode(pa.array([good], pa.binary())).to_pylist()
    assert wanted["reason"] is None
    found = decode(pa.array([good, *bad, None, good], pa.binary()))
    assert len(found) == len(bad) + 3
    found.validate(full=True)
    shown = found.field("reason").to_pylist()
    assert found[0].as_py() == found[-1].as_py() == wanted
    assert shown[-2] is None
    assert all(reason is None or reason for reason in shown)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63) - 1, 10**400])
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["\ud800", "a\udc00", "NaN", "1e999999999"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*TYPES, "scale", "value"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(EDITS, max_size=5), st.booleans())
def test_damaged_events_of_debezium(edits: list[Any], envelope: bool) -> None:  # noqa: FBT001
    columns = dict(zip(TYPES, columns_of(["bigint", "text", "precise", "micros", "array"]).values(), strict=True))
    good = write_event(columns, "c", after={"id": 1, "name": "a", "tags": ["x"]}, envelope=envelope)
    settings = FormatSettings(
        DECLARED, unmarked=Unmarked("micros", "text"), metadata=frozenset(["source", "transaction", "before", "ts_ms"])
    )
    check(lambda values: decode_json_events(settings, values), good, [damaged(good, edit) for edit in edits])


@given(st.data())
def test_events_whose_parts_are_any_json(data: st.DataObject) -> None:
    """Every part of an event, and of its schema, may be anything."""
    good = write_event({"id": KINDS["bigint"]}, "c", after={"id": 1})
    bad = []
    for _ in range(3):
        event = json.loads(good)
        for part in data.draw(st.lists(st.sampled_from(["after", "before", "source", "op", "transaction", "ts_ms"]))):
            event["payload"][part] = data.draw(JSON_VALUES)
        event["payload"]["after"] = data.draw(st.dictionaries(st.sampled_from(list(TYPES)), JSON_VALUES) | JSON_VALUES)
        for field in event["schema"]["fields"][1]["fields"]:
            field.update(
                data.draw(st.dictionaries(st.sampled_from(["type", "name", "parameters", "fields"]), JSON_VALUES))
            )
        bad.append(json.dumps(event).encode())
        bad.append(json.dumps(event["payload"]).encode())
    settings = FormatSettings(
        DECLARED, unmarked=Unmarked("nanos", "base64"), metadata=frozenset(["source", "transaction", "before", "ts_ms"])
    )
    check(lambda values: decode_json_events(settings, values), good, bad)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait before a registry is asked again for an id that it does not know."""
    monkeypatch.setattr(registry_module, "UNKNOWN_SECONDS", 0)


@pytest.mark.usefixtures("quick")
@given(edits=st.lists(EDITS, max_size=5))
def test_damaged_records_of_avro(registry: SchemaRegistry, edits: list[Any]) -> None:
    kinds = ("long", "string", "decimal", "micros")
    fields = {name: AVRO_KINDS[kind].schema for name, kind in zip(TYPES, kinds, strict=False)}
    schema = record({**fields, "tags": {"type": "array", "items": "string"}})
    good = written(schema, {"id": 1, "name": "a", "tags": ["x"]}, registry.register("rows-value", json.dumps(schema)))
    settings = FormatSettings(DECLARED, (("url", registry.url),))
    check(lambda values: decode_records(settings, values), good, [damaged(good, edit) for edit in edits])


@pytest.mark.usefixtures("quick")
@given(edits=st.lists(EDITS, max_size=5))
def test_damaged_messages_of_protobuf(registry: SchemaRegistry, edits: list[Any]) -> None:
    message = ROW(id=1, name="a", tags=["x"])
    message.at.seconds, message.amount.value, message.amount.scale = 5, b"\x04\xe2", 2
    good = serializer(registry, ROW)(message)
    settings = FormatSettings(DECLARED, (("url", registry.url),))
    check(lambda values: decode_protobuf(settings, values), good, [damaged(good, edit) for edit in edits])


def test_objects_in_place_of_the_pairs_of_a_map_are_a_dead_letter_and_no_error() -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "m", "type": "map", "keys": {"type": "string"}, "values": {"type": "int64"}},
    ]
    images = [{"type": "struct", "optional": True, "fields": fields, "field": name} for name in ("before", "after")]
    schema = {"type": "struct", "fields": [*images, {"field": "op", "type": "string"}]}
    payload = {"before": None, "after": {"id": 1, "m": [{"a": 1}]}, "op": "c"}
    value = json.dumps({"schema": schema, "payload": payload}).encode()
    settings = FormatSettings(pa.schema([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))]))
    (row,) = decode_json_events(settings, pa.array([value], pa.binary())).to_pylist()
    assert row["reason"] == "field 'm': an array is not map<string,bigint>"
