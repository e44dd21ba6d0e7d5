"""Decodes mutated messages, in a process of its own: `python -m tests.streams.formats.fuzz_decoders avro 1 1000`.

Whatever a message holds, the process must not end, must not take much memory, and must decode the messages beside it.
"""

from __future__ import annotations

import io
import json
import random
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fastavro
import pyarrow as pa

from tests.streams.formats.debezium_messages import columns_of, write_event
from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import logical
from tests.streams.formats.test_protobuf import ROW, serializer
from tests.streams.formats.test_protobuf_meanings import registered, wide_file
from weft.storage.core.types import parse_type
from weft.streams.formats import registry as registry_module
from weft.streams.formats.avro_records import decode_avro_events, decode_records
from weft.streams.formats.convert import Unmarked
from weft.streams.formats.debezium_json import decode_json_events
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.protobuf_messages import decode_protobuf

LARGEST_GROWTH_KB = 1_500_000
"""Memory that a batch may take besides that of the first one: a Protobuf message may take 512 MiB."""
BATCH = 50
Decode = Callable[[pa.Array], pa.Array]

TYPES = {"id": "bigint", "name": "string", "amount": "decimal(12,2)", "at": "timestamp", "tags": "map<string,string>"}
DECLARED = pa.schema([(name, parse_type(kind)) for name, kind in TYPES.items()])
EMPTY = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]}
AVRO = {
    "type": "record",
    "name": "Row",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string", "int", {"type": "enum", "name": "E", "symbols": ["A", "B"]}]},
        {"name": "amount", "type": ["null", "string", logical("bytes", "decimal", precision=12, scale=2)]},
        {"name": "at", "type": logical("long", "timestamp-millis")},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "nulls", "type": {"type": "array", "items": "null"}},
        {"name": "nothing", "type": {"type": "array", "items": EMPTY}},
        {"name": "parts", "type": {"type": "array", "items": "Row"}},
        {"name": "next", "type": ["null", "Row"]},
    ],
}
EVENT = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", AVRO]},
        {"name": "after", "type": ["null", "shop.Row"]},
        {"name": "op", "type": "string"},
    ],
}


def row(depth: int) -> dict[str, Any]:
    inner = [row(depth - 1)] if depth else []
    return {
        "id": depth, "name": "ä" * 12, "amount": "1.25", "at": 0, "tags": {"a": "b", "c": "日本語" * 5},
        "nulls": [None] * 3, "nothing": [{"n": None}] * 2, "parts": inner, "next": inner[0] if inner else None,
    }  # fmt: skip


def avro_message(registry: SchemaRegistry, schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace("logicalType", "other"))
    fastavro.schemaless_writer(file, fastavro.parse_schema(plain), value)
    return b"\0" + registry.register("rows-value", json.dumps(schema)).to_bytes(4, "big") + file.getvalue()


@contextmanager
def decoder(name: str) -> Iterator[tuple[Decode, list[bytes]]]:
    """A decoder and messages that it decodes."""
    registry_module.UNKNOWN_SECONDS = 0  # type: ignore[misc]  # a damaged id need not be asked for again
    with SchemaRegistry() as registry:
        settings = (("url", registry.url),)
        avro, metadata = FormatSettings(DECLARED, settings), frozenset(["source", "transaction", "before", "ts_ms"])
        if name == "avro":
            yield lambda values: decode_records(avro, values), [avro_message(registry, AVRO, row(n)) for n in (0, 2)]
        elif name == "debezium-avro":
            event = {"before": None, "after": row(1), "op": "c"}
            yield lambda values: decode_avro_events(avro, values), [avro_message(registry, EVENT, event)]
        elif name == "protobuf":
            message = ROW(id=1, name="a" * 12, tags=["x"], home={"city": "Ulm"}, counts={"a": 1})
            message.at.seconds, message.amount.value, message.amount.scale = 5, b"\x04\xe2", 2
            declared = pa.schema([field for field in DECLARED if field.name != "tags"])
            wide = registered(registry, wide_file(1000)) + b"\x08\x01\x12\x02\x08\x01\x1a\x04\x12\x02\x08\x01\x23\x24"
            values = [serializer(registry, ROW)(message), wide]
            yield lambda values: decode_protobuf(FormatSettings(declared, settings), values), values
        else:
            columns = dict(zip(TYPES, columns_of(["bigint", "text", "precise", "micros"]).values(), strict=False))
            events = [write_event(columns, "c", after={"id": 1, "name": "a"}, envelope=one) for one in (False, True)]
            debezium = FormatSettings(DECLARED, unmarked=Unmarked("micros", "text"), metadata=metadata)
            yield lambda values: decode_json_events(debezium, values), events


def mutated(draw: random.Random, message: bytes, other: bytes) -> bytes:
    """A message with a few changes: bytes, cuts, numbers that are too large or too long, repeated and foreign parts."""
    data = bytearray(message)
    for _ in range(draw.randint(1, 4)):
        first = draw.randint(min(5, len(data)), len(data))
        last = min(len(data), first + draw.randint(0, 12))
        part = bytes(data[first:last])
        number = draw.choice([2**31, 2**40, 2**62, 2**16])
        varint = bytearray()
        while number > 0x7F:
            varint.append(number & 0x7F | 0x80)
            number >>= 7
        change = draw.choice(
            [
                lambda: draw.randbytes(draw.randint(1, 4)),
                lambda: b"",
                lambda varint=varint, number=number: bytes([*varint, number]),
                lambda: b"\xff" * draw.choice([9, 10, 11, 5_000]),
                lambda part=part: part * draw.choice([2, 50, 20_000]),
                lambda: other[draw.randint(0, len(other)) :],
                lambda: bytes([data[first] ^ 1 << draw.randint(0, 7)]) if first < len(data) else b"\0",  # noqa: B023
                lambda: (
                    draw.choice([b"[", b'{"a":', b"\x12\0", b"\x1a\x80\x01", b"\2\2"]) * draw.choice([1, 300, 300_000])
                ),
            ]
        )()
        data[first:last] = change
        del data[2_000_000:]
    return bytes(data)


def fuzz(name: str, seed: int, count: int) -> None:
    draw = random.Random(seed)
    with decoder(name) as (decode, good):
        expected = decode(pa.array(good, pa.binary())).to_pylist()
        assert [one["reason"] for one in expected] == [None] * len(good), expected
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(0, count, BATCH):
            bad = [mutated(draw, draw.choice(good), draw.choice(good)) for _ in range(min(BATCH, count - number))]
            found = decode(pa.array([*good, *bad, *good], pa.binary()))
            found.validate(full=True)
            assert found[: len(good)].to_pylist() == found[-len(good) :].to_pylist() == expected
            assert len(found) == len(bad) + 2 * len(good)
            growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert growth < LARGEST_GROWTH_KB, f"batch {number // BATCH} of seed {seed} took {growth:,} KB"


if __name__ == "__main__":
    fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
