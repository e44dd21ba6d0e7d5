"""Validation of JSON with its JSON Schema, without Spark."""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import pyarrow as pa
import pytest

from tests.streams.formats.registry_server import SchemaRegistry
from weft.storage.errors import InvalidInput
from weft.streams.formats import json_validation
from weft.streams.formats import registry as registry_module
from weft.streams.formats.format_options import FormatSettings, check_options
from weft.streams.formats.json_validation import validate_values
from weft.streams.formats.registry import RegistryUnavailable, check_registry_settings, uses_registry

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "status": {"enum": ["new", "paid"]}, "home": {"$ref": "address.json"}},
    "required": ["id"],
}
ADDRESS = {"type": "object", "properties": {"zip": {"type": "string", "maxLength": 5}}}


def reasons(registry: SchemaRegistry, *values: bytes | None) -> list[str | None]:
    settings = FormatSettings(registry=(("url", registry.url),))
    found: list[str | None] = validate_values(settings, pa.array(values, pa.binary())).to_pylist()
    return found


def value(schema_id: int, given: Any) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + (given if isinstance(given, bytes) else json.dumps(given).encode())


def test_rules_references_and_other_values(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "UNKNOWN_SECONDS", 0)
    registry.register("address", json.dumps(ADDRESS), "JSON")
    references = [{"name": "address.json", "subject": "address", "version": 1}]
    known = registry.register("orders-value", json.dumps(SCHEMA), "JSON", references)
    far = registry.register("far", json.dumps({"$ref": f"{registry.url}/far.json"}), "JSON")
    broken = registry.register("broken", json.dumps({"type": "none"}), "JSON")
    avro = registry.register("avro", '"long"')
    match = "the value does not match its JSON Schema: "
    cases: list[tuple[bytes | None, str | None]] = [
        (value(known, {"id": 1, "status": "new", "home": {"zip": "01234"}, "other": 1}), None),
        (value(known, {"id": "secret"}), match + '$.id must have type: "integer"'),
        (value(known, {}), match + '$ must have required: ["id"]'),
        (value(known, {"id": 1, "status": "secret"}), match + '$.status must have enum: ["new", "paid"]'),
        (value(known, {"id": 1, "home": {"zip": "012345"}}), match + "$.home.zip must have maxLength: 5"),
        (value(known, b"{"), None),
        (b"{}", None),
        (None, None),
        (value(999, {}), "schema 999 is not in the schema registry"),
        (value(avro, {}), f"schema {avro} is of type AVRO, not JSON"),
        (value(far, {}), f"the JSON Schema refers to {registry.url}/far.json, which the registry does not have for it"),
        (
            value(broken, {}),
            f"schema {broken} is not a JSON Schema: 'none' is not valid under any of the given schemas",
        ),
    ]
    for _ in range(2):
        assert reasons(registry, *(given for given, _ in cases)) == [reason for _, reason in cases]
    assert registry.requests.count(f"/schemas/ids/{known}") == 1
    assert "/far.json" not in registry.requests, "an address in a schema is not fetched"


HOSTILE: dict[str, tuple[Any, Any, str]] = {
    "a pattern that goes back for ever": (
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        {"a": "a" * 60 + "b"},
        "takes more",
    ),
    "a name that does": ({"patternProperties": {"^(a+)+$": False}}, {"a" * 60 + "b": 1}, "takes more"),
    "a name that no pattern has": (
        {"patternProperties": {"^(a|a)*$": True}, "additionalProperties": False},
        {"a" * 60 + "b": 1},
        "takes more",
    ),
    "rules that multiply": (
        {"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(12)} | {"d12": True},
         "$ref": "#/$defs/d0"},
        {},
        "takes more",
    ),
    "a schema that refers to itself": ({"$ref": "#"}, {}, "too many arrays and objects"),
    "a number that no float has": ({"properties": {"a": {"multipleOf": 0.1}}}, {"a": 10**400}, "cannot be checked"),
    "no number": ({"properties": {"a": {"multipleOf": 3}}}, {"a": float("nan")}, "must have multipleOf: 3"),
    "a pattern of another dialect": ({"properties": {"a": {"pattern": "\\p{L}"}}}, {"a": "b"}, "is not a 'regex'"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_value_that_cannot_be_checked_has_a_reason(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    schema, given, words = HOSTILE[name]
    # Short where it ends the check, and long where the check ends by itself, however slow the machine is.
    monkeypatch.setattr(json_validation, "MAX_SECONDS", 0.1 if words == "takes more" else 60.0)
    known = registry.register("hostile", json.dumps({"title": name, **schema}), "JSON")
    easy = registry.register("easy", json.dumps({"title": name, "required": ["id"]}), "JSON")
    good, found, other = reasons(registry, value(easy, {"id": 1}), value(known, given), value(easy, {"id": 1}))
    assert (good, other) == (None, None)
    assert found is not None
    assert words in found


def test_a_deep_value_is_not_taken_for_valid(registry: SchemaRegistry) -> None:
    tree = {"title": "deep", "properties": {"a": {"$ref": "#"}, "b": {"type": "integer"}}}
    known = registry.register("deep", json.dumps(tree), "JSON")
    shallow, deep, deeper = (
        value(known, b'{"a": ' * depth + b'{"b": "x"}' + b"}" * depth) for depth in (5, 500, 50_000)
    )
    first, *others = reasons(registry, shallow, deep, deeper)
    assert first is not None
    assert "$.a.a.a.a.a.b must have type" in first
    assert others == [json_validation.TOO_DEEP] * 2


def test_many_items_are_compared_once(registry: SchemaRegistry) -> None:
    known = registry.register("many", json.dumps({"properties": {"a": {"uniqueItems": True}}, "title": "many"}), "JSON")
    many = [{"a": [number, {"b": str(number)}]} for number in range(4_000)]
    match = "the value does not match its JSON Schema: $.a must have uniqueItems: true"
    cases = [
        (many, None),
        ([*many, many[7]], match),
        ([1, True, "1", [1], {"a": 1}, {"a": True}], None),
        ([1, 1.0], match),
    ]
    cases += [([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], match), ([[], {}], None), ([0, False, None, ""], None)]
    assert reasons(registry, *(value(known, {"a": items}) for items, _ in cases)) == [reason for _, reason in cases]


def test_a_collection_of_garbage_is_not_charged_to_a_value(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a second in a process with millions of objects; here a callback does."""
    known = registry.register("garbage", json.dumps({"properties": {"a": {"uniqueItems": True}}}), "JSON")
    data = value(known, {"a": [{"a": [number]} for number in range(200)]})
    assert reasons(registry, data) == [None]  # the schema is loaded
    monkeypatch.setattr(json_validation, "MAX_SECONDS", 0.2)

    def collect(phase: str, _info: dict[str, int]) -> None:
        end = time.process_time() + 0.3
        while phase == "start" and time.process_time() < end:
            pass

    thresholds = gc.get_threshold()
    gc.callbacks.append(collect)
    try:
        gc.set_threshold(100, 1_000, 1_000)
        assert reasons(registry, data) == [None]
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collect)
    assert gc.isenabled()


def test_an_outage_of_the_registry_is_no_reason(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "RETRY_SECONDS", (0.0,))
    known = registry.register("orders-value", json.dumps({**SCHEMA, "title": "outage"}), "JSON")
    registry.failing = -1
    with pytest.raises(RegistryUnavailable, match="HTTP 503"):
        reasons(registry, value(known, {}))
    registry.failing = 0
    assert reasons(registry, value(known, {"id": 1})) == [None]


def test_the_option() -> None:
    validates = {"validate": "true"}
    for options, uses in ((validates, True), ({"validate": "false"}, False), ({}, False)):
        check_options("json-schema", options)
        assert uses_registry("json-schema", options) is uses
    with pytest.raises(InvalidInput, match="validate: unknown value 'yes'"):
        check_options("json-schema", {"validate": "yes"})
    check_registry_settings("json-schema", {})
    with pytest.raises(InvalidInput, match="'json-schema' needs a schema registry"):
        check_registry_settings("json-schema", {}, validates)
