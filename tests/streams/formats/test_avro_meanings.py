"""What values of Avro mean: of every type in every declared column the right value, or a dead letter.

The oracle is a table: for each type of Avro, with its logical type, the declared types that it has a value for. It has
an encoder of its own, whose bytes fastavro must be able to read.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.formats.debezium_messages import twos_complement
from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import decode, logical, settings
from weft.streams.formats.avro_records import decode_avro_events
from weft.streams.formats.debezium_event import PLACEHOLDER

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
DECLARED = (
    "int",
    "bigint",
    "double",
    "decimal(12,2)",
    "string",
    "binary",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
)
REFUSED = object()
"""Stands for a value that the declared type does not have."""

Expect = Callable[[Any], Any]


def number(value: int) -> bytes:
    """A zigzag number of variable length."""
    rest, encoded = (value << 1) ^ (value >> 63), b""
    while rest > 0x7F:
        encoded += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return encoded + bytes([rest])


def sized(value: bytes) -> bytes:
    return number(len(value)) + value


@dataclass(frozen=True)
class Leaf:
    """A type of Avro: its schema, raw values, how they are written, and what they are in the types that have them."""

    schema: Any
    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    expected: Mapping[str, Expect]


def in_decimal(value: Decimal) -> Any:
    return value if abs(value) < 10**10 and value == value.quantize(Decimal("0.01")) else REFUSED


def in_integer(bits: int) -> Expect:
    def expect(value: Any) -> Any:
        return int(value) if value == int(value) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else REFUSED

    return expect


NUMBERS: Mapping[str, Expect] = {
    "int": in_integer(32),
    "bigint": in_integer(64),
    "double": float,
    "decimal(12,2)": lambda value: in_decimal(Decimal(value)),
}
PLAIN_NUMBERS: Mapping[str, Expect] = {**NUMBERS, "boolean": lambda value: bool(value) if value in {0, 1} else REFUSED}
BYTES: Mapping[str, Expect] = {"binary": lambda value: value}
TEXT: Mapping[str, Expect] = {"string": lambda value: value}
INTS, LONGS = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2), st.integers(-(2**45), 2**45) | st.integers(-2, 2)


def of_decimal(number_of: Callable[[bytes], Decimal]) -> Mapping[str, Expect]:
    def through(expect: Expect) -> Expect:
        return lambda value: expect(number_of(value))

    return {
        **BYTES,
        **{name: through(NUMBERS[name]) for name in NUMBERS},
        "string": through(lambda value: format(value, "f")),
    }


def moment(unit: int) -> Expect:
    return lambda value: EPOCH + dt.timedelta(microseconds=value * unit // 1000)


def wall_clock(unit: int) -> Expect:
    return lambda value: (EPOCH + dt.timedelta(microseconds=value * unit // 1000)).replace(tzinfo=None)


def big_decimal(value: tuple[int, int]) -> bytes:
    return sized(twos_complement(value[0])) + number(value[1])


def big_number(data: bytes) -> Decimal:
    size = data[0] // 2  # it is short
    return Decimal(int.from_bytes(data[1 : 1 + size], "big", signed=True)).scaleb(
        -((data[1 + size] >> 1) ^ -(data[1 + size] & 1))
    )


def fixed(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


UNSCALED = st.integers(-(10**9), 10**9).map(twos_complement)
LEAVES: Mapping[str, Leaf] = {
    "int": Leaf("int", INTS, number, PLAIN_NUMBERS),
    "long": Leaf("long", LONGS, number, PLAIN_NUMBERS),
    "date": Leaf(
        logical("int", "date"),
        st.integers(-10_000, 10_000),
        number,
        {**NUMBERS, "date": lambda value: (EPOCH + dt.timedelta(days=value)).date()},
    ),
    "no date": Leaf(logical("long", "date"), LONGS, number, PLAIN_NUMBERS),
    "time-millis": Leaf(logical("int", "time-millis"), st.integers(0, 86_399_999), number, PLAIN_NUMBERS),
    "time-micros": Leaf(logical("long", "time-micros"), st.integers(0, 86_399_999_999), number, PLAIN_NUMBERS),
    **{
        f"{kind}-{unit}": Leaf(
            logical("long", f"{kind}-{unit}"),
            LONGS if unit != "millis" else st.integers(-(2**40), 2**40),
            number,
            {
                **NUMBERS,
                **({"timestamp": moment(size)} if kind == "timestamp" else {"timestamp_ntz": wall_clock(size)}),
            },
        )
        for kind in ("timestamp", "local-timestamp")
        for unit, size in (("millis", 1_000_000), ("micros", 1000), ("nanos", 1))
    },
    "no timestamp": Leaf(logical("int", "timestamp-millis"), INTS, number, PLAIN_NUMBERS),
    "boolean": Leaf("boolean", st.booleans(), lambda value: bytes([value]), {"boolean": lambda value: value}),
    "double": Leaf(
        "double",
        st.integers(-(2**40), 2**40).map(lambda value: value / 8),
        lambda value: struct.pack("<d", value),
        {
            "double": lambda value: value,
            "decimal(12,2)": lambda value: in_decimal(Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP)),
        },
    ),
    "string": Leaf("string", st.text("xyzé", max_size=5), lambda value: sized(value.encode()), TEXT),
    "uuid as text": Leaf(logical("string", "uuid"), st.uuids().map(str), lambda value: sized(value.encode()), TEXT),
    "bytes": Leaf("bytes", st.binary(max_size=6), sized, BYTES),
    "decimal": Leaf(
        logical("bytes", "decimal", precision=12, scale=2),
        UNSCALED,
        sized,
        of_decimal(lambda value: Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-2)),
    ),
    "decimal without a precision": Leaf(logical("bytes", "decimal", scale=2), UNSCALED, sized, BYTES),
    "big-decimal": Leaf(
        logical("bytes", "big-decimal"),
        st.tuples(st.integers(-(10**9), 10**9), st.integers(-3, 6)).map(big_decimal),
        sized,
        of_decimal(big_number),
    ),
    "fixed decimal": Leaf(
        logical("fixed", "decimal", name="Money", size=6, precision=12, scale=4),
        st.integers(-(10**9), 10**9).map(lambda value: value.to_bytes(6, "big", signed=True)),
        bytes,
        of_decimal(lambda value: Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-4)),
    ),
    "fixed uuid": Leaf(
        logical("fixed", "uuid", name="Id", size=16),
        fixed(16),
        bytes,
        {**BYTES, "string": lambda value: str(uuid.UUID(bytes=value))},
    ),
    "duration": Leaf(logical("fixed", "duration", name="Span", size=12), fixed(12), bytes, BYTES),
    "fixed": Leaf({"type": "fixed", "name": "Three", "size": 3}, fixed(3), bytes, BYTES),
    "enum": Leaf(
        {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"], "default": "RED"},
        st.sampled_from(["RED", "BLUE"]),
        lambda value: number(["RED", "BLUE"].index(value)),
        TEXT,
    ),
}


@dataclass(frozen=True)
class Written:
    """A value: its schema, its bytes, and the value in a declared type; REFUSED if it has none."""

    schema: Any
    data: bytes
    value: Callable[[str], Any]


@st.composite
def leaf(draw: st.DrawFn) -> Written:
    one = LEAVES[draw(st.sampled_from(sorted(LEAVES)))]
    raw = draw(one.values)
    return Written(one.schema, one.encode(raw), lambda kind: one.expected.get(kind, lambda _: REFUSED)(raw))


def branch_name(schema: Any) -> str:
    """A union has one type of a kind, but several named ones."""
    return (
        schema["name"]
        if isinstance(schema, dict) and "name" in schema
        else str(schema.get("type") if isinstance(schema, dict) else schema)
    )


@st.composite
def union(draw: st.DrawFn) -> Written:
    parts = draw(st.lists(leaf(), min_size=1, max_size=4, unique_by=lambda part: branch_name(part.schema)))
    index = draw(st.integers(0, len(parts)))
    schemas = [part.schema for part in parts]
    place = draw(st.integers(0, len(parts)))
    schemas.insert(place, "null")
    if index == len(parts):
        return Written(schemas, number(place), lambda _: None)
    chosen = parts[index]
    return Written(schemas, number(index + (place <= index)) + chosen.data, chosen.value)


def all_or_refused(values: list[Any]) -> Any:
    return REFUSED if any(value is REFUSED for value in values) else values


@st.composite
def nested(draw: st.DrawFn) -> tuple[str, Written]:
    """A value, alone or in an array, a map or a record; and the form of its declared type."""
    inner = draw(leaf() | union())
    form = draw(st.sampled_from(["{}", "array<{}>", "map<string,{}>", "struct<a:{}>"]))
    if form == "array<{}>":
        data = number(-1) + number(len(inner.data)) + inner.data + number(0)
        made = Written({"type": "array", "items": inner.schema}, data, lambda kind: all_or_refused([inner.value(kind)]))
    elif form == "map<string,{}>":
        data = number(1) + sized(b"k") + inner.data + number(0)
        made = Written(
            {"type": "map", "values": inner.schema},
            data,
            lambda kind: REFUSED if inner.value(kind) is REFUSED else [("k", inner.value(kind))],
        )
    elif form == "struct<a:{}>":
        schema = {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": inner.schema}]}
        made = Written(
            schema, inner.data, lambda kind: REFUSED if inner.value(kind) is REFUSED else {"a": inner.value(kind)}
        )
    else:
        made = inner
    return form, made


def row_of(registry: SchemaRegistry, schema: Any, data: bytes, kind: str) -> dict[str, Any]:
    record = {"type": "record", "name": "Row", "namespace": "shop", "fields": [{"name": "c", "type": schema}]}
    schema_id = registry.register("rows-value", json.dumps(record))
    [found] = decode(registry, {"c": kind}, [b"\0" + schema_id.to_bytes(4, "big") + data])
    return found


@pytest.mark.laws
@given(st.data())
def test_a_value_is_what_the_declared_type_means_or_a_dead_letter(
    registry: SchemaRegistry, data: st.DataObject
) -> None:
    form, value = data.draw(nested())
    readable = fastavro.parse_schema(json.loads(json.dumps(value.schema).replace("logicalType", "other")))
    fastavro.schemaless_reader(io.BytesIO(value.data), readable, None)
    declared = data.draw(st.sampled_from(DECLARED))
    found = row_of(registry, value.schema, value.data, form.format(declared))
    expected = value.value(declared)
    if expected is REFUSED:
        assert found["reason"] is not None
        assert found["reason"].startswith("field 'c': ")
    else:
        assert (found["reason"], found["message"]["c"]) == (None, expected)


DECIMAL = logical("bytes", "decimal", precision=12, scale=2)
TWICE = (sized(b"k") + number(1)) * 2
BIG = sized(sized(twos_complement(1250)) + number(2))


@pytest.mark.parametrize(
    ("schema", "data", "kind", "value"),
    [
        (logical("bytes", "big-decimal"), BIG, "decimal(12,2)", Decimal("12.50")),
        (logical("bytes", "big-decimal"), BIG, "string", "12.50"),
        ("bytes", sized(b"12.5"), "decimal(12,2)", REFUSED),
        (["null", "string", DECIMAL], number(2) + sized(b"\x04\xe2"), "decimal(12,2)", Decimal("12.50")),
        (["int", "string"], number(0) + number(7), "date", REFUSED),
        (["string", logical("int", "date")], number(1) + number(1), "date", dt.date(1970, 1, 2)),
        (["string", logical("long", "timestamp-millis")], number(1) + number(0), "timestamp", EPOCH),
        (logical("bytes", "big-decimal"), sized(b"\x04\x04"), "decimal(12,2)", REFUSED),
        ({"type": "array", "items": "string"}, number(1) + sized(b"ab") + number(0), "map<string,string>", REFUSED),
        ({"type": "map", "values": "long"}, number(2) + TWICE + number(0), "map<string,bigint>", REFUSED),
        ("int", number(2**40), "bigint", REFUSED),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, number(-1), "string", REFUSED),
        (["null", "string"], number(-1) + sized(b"x"), "string", REFUSED),
    ],
)  # fmt: skip
def test_values_that_were_read_as_others(
    registry: SchemaRegistry, schema: Any, data: bytes, kind: str, value: Any
) -> None:
    found = row_of(registry, schema, data, kind)
    if value is REFUSED:
        assert found["reason"] is not None
    else:
        assert (found["reason"], found["message"]["c"]) == (None, value)


def test_pairs_of_kafka_connect_are_a_map(registry: SchemaRegistry) -> None:
    """Connect writes a map whose keys are not texts as an array of records."""
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": "string"}]
    entry = {"type": "record", "name": "MapEntry", "fields": fields}
    data = number(1) + number(7) + sized(b"seven") + number(0)
    found = row_of(registry, {"type": "array", "items": entry}, data, "map<int,string>")
    assert (found["reason"], found["message"]["c"]) == (None, [(7, "seven")])
    twice = number(2) + (number(7) + sized(b"seven")) * 2 + number(0)
    found = row_of(registry, {"type": "array", "items": entry}, twice, "map<int,string>")
    assert found["reason"] == "field 'c': a map has a key twice"


def test_a_message_may_be_one_of_several_records(registry: SchemaRegistry) -> None:
    records = [
        {"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}, {"name": field, "type": "string"}]}
        for name, field in (("Order", "item"), ("Payment", "card"))
    ]
    schema_id = registry.register("rows-value", json.dumps(["null", *records]))
    values = [
        b"\0" + schema_id.to_bytes(4, "big") + number(index) + (number(5) + sized(b"x") if index else b"")
        for index in (1, 2, 0)
    ]
    found = decode(registry, {"id": "bigint", "item": "string", "card": "string"}, [*values])
    assert [(row["message"]["item"], row["message"]["card"], row["reason"]) for row in found] == [
        ("x", None, None),
        (None, "x", None),
        (None, None, "the value is not a record of Avro"),
    ]


def test_a_map_of_a_change_event_that_is_unavailable(registry: SchemaRegistry) -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "m", "type": {"type": "map", "values": "string"}}]}
    fields = [{"name": "after", "type": ["null", row]}, {"name": "op", "type": "string"}]
    schema_id = registry.register("rows-value", json.dumps({"type": "record", "name": "Envelope", "fields": fields}))
    after = number(1) + number(1) + sized(PLACEHOLDER.encode()) * 2 + number(0)
    value = b"\0" + schema_id.to_bytes(4, "big") + after + sized(b"u")
    [event] = decode_avro_events(settings(registry, {"m": "map<string,string>"}), pa.array([value])).to_pylist()
    assert (event["reason"], event["unavailable"], event["message"]) == (None, ["m"], {"m": None})
