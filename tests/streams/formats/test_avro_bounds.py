"""A message of a few bytes that would become much more, or end the process, is a dead letter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import decode
from tests.streams.formats.test_avro_meanings import number, sized

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "id", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "id", "type": "long"}, {"name": "parts", "type": {"type": "array", "items": "Tree"}}],
}
EMPTY = {"type": "record", "name": "Nothing", "fields": []}
DEEP = "the value is nested deeper than 100 levels"
EMPTIES = "the value has more than 10,000 parts without bytes"
LONG = "a number of the value has more than 10 bytes"


def chain(depth: int) -> bytes:
    return number(1) + (number(1) + number(7)) * depth + number(0)


def tree(depth: int) -> bytes:
    return (number(1) + number(1)) * depth + number(1) + number(0) + number(0) * depth


def array_of(schema: Any) -> dict[str, Any]:
    fields = [{"name": "id", "type": "long"}, {"name": "items", "type": {"type": "array", "items": schema}}]
    return {"type": "record", "name": "Row", "fields": fields}


def reasons(registry: SchemaRegistry, schema: Any, *values: bytes) -> list[str | None]:
    schema_id = registry.register("rows-value", json.dumps(schema))
    header = b"\0" + schema_id.to_bytes(4, "big")
    return [row["reason"] for row in decode(registry, {"id": "bigint"}, [header + value for value in values])]


@pytest.mark.parametrize(
    ("schema", "good", "bad", "reason"),
    [
        pytest.param(NODE, chain(99), chain(100_000), DEEP, id="records within themselves"),
        pytest.param(TREE, tree(49), tree(100_000), DEEP, id="arrays within themselves"),
        pytest.param(
            array_of("null"), number(1) + number(9000) + number(0), number(1) + number(2**31) + number(0), EMPTIES,
            id="an array of null",
        ),
        pytest.param(
            array_of(EMPTY), number(1) + number(9000) + number(0), number(1) + number(2**40) + number(0), EMPTIES,
            id="an array of records without fields",
        ),
        pytest.param(
            array_of({"type": "fixed", "name": "Zero", "size": 0}),
            number(1) + number(9000) + number(0), number(1) + number(-(2**40)) + number(0) * 2, EMPTIES,
            id="an array of fixed without bytes",
        ),
        pytest.param(
            array_of({**EMPTY, "fields": [{"name": f"f{n}", "type": "null"} for n in range(1000)]}),
            number(1) + number(10) + number(0), number(1) + number(20) + number(0), EMPTIES,
            id="records whose fields are null",
        ),
        pytest.param(
            array_of("long"), number(1) + number(0), b"\xff" * 1_000_000 + b"\x01" + number(0), LONG, id="a long number"
        ),
        pytest.param(
            array_of("string"),
            number(1) + number(1) + sized("äöü日本語".encode() * 9) + number(0),
            number(1) + number(1) + sized("äöü日本語".encode() * 9) + b"\x80" * 10 + b"\0",
            LONG,
            id="a long number after text of other scripts",
        ),
        pytest.param(
            array_of({"type": "fixed", "name": "One", "size": 1}),
            number(1) + number(40) + b"\xff" * 40 + number(0),
            number(1) + number(2) + b"\xff" * 2 + b"\x80" * 10 + b"\0", LONG,
            id="a long number after single bytes",
        ),
        pytest.param(
            array_of("string"), number(1) + number(0), number(1) + number(1) + number(2**62),
            "the value cannot be read with its schema of Avro", id="a text of more bytes than there are",
        ),
    ],
)  # fmt: skip
def test_what_a_message_becomes_is_bounded(
    registry: SchemaRegistry, schema: Any, good: bytes, bad: bytes, reason: str
) -> None:
    """Also within a field that is not declared; and its neighbours are decoded."""
    assert reasons(registry, schema, good, bad, good) == [None, reason, None]


def nested_schema(levels: int) -> Any:
    schema: Any = "long"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return array_of(schema)


@pytest.mark.parametrize("levels", [400, 100_000])
def test_a_schema_that_is_nested_too_deep(registry: SchemaRegistry, levels: int) -> None:
    text = json.dumps(array_of("X")).replace('"X"', '{"type": "array", "items": ' * levels + '"long"' + "}" * levels)
    schema_id = registry.register("rows-value", text)
    [row] = decode(registry, {"id": "bigint"}, [b"\0" + schema_id.to_bytes(4, "big") + number(1) + number(0)])
    assert row["reason"] is None if levels == 400 else row["reason"].startswith("schema 1 is not a schema of Avro")


def test_a_schema_whose_types_are_used_many_times(registry: SchemaRegistry) -> None:
    """Each of 60 records has the next one twice: written out it would have 2^60 of them."""
    schema: Any = {"type": "record", "name": "Level0", "fields": [{"name": "id", "type": "long"}]}
    for level in range(1, 60):
        fields = [
            {"name": "id", "type": "long"},
            {"name": "a", "type": ["null", schema]},
            {"name": "b", "type": ["null", f"Level{level - 1}"]},
        ]
        schema = {"type": "record", "name": f"Level{level}", "fields": fields}
    assert reasons(registry, schema, number(1) + number(0) + number(1) + number(1) + number(0) * 2) == [None]
