"""What values of Protobuf mean, in every declared column: the right value, or a dead letter. And what is bounded."""

from __future__ import annotations

import base64
import datetime as dt
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.type import decimal_pb2 as google_decimal
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro_meanings import DECLARED, EPOCH, PLAIN_NUMBERS, REFUSED, TEXT
from tests.streams.formats.test_protobuf import FIELD, add_field, decode
from weft.streams.formats.protobuf_messages import DEEP, LARGEST_BYTES, parsed_bytes

Expect = Callable[[Any], Any]
FILES = [
    module.DESCRIPTOR for module in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2, google_decimal)
]


def file_of(name: str, syntax: str = "proto3") -> Any:
    return descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax=syntax)


def registered(registry: SchemaRegistry, file: Any) -> bytes:
    """The bytes before a message of the first type of a file."""
    text = base64.b64encode(file.SerializeToString()).decode()
    return b"\0" + registry.register("rows-value", text, "PROTOBUF").to_bytes(4, "big") + b"\0"


def row_file() -> Any:
    file = file_of("shop/meanings.proto")
    file.dependency.extend(one.name for one in FILES)
    color = file.enum_type.add(name="Color")
    for number, name in enumerate(("RED", "BLUE")):
        color.value.add(name=name, number=number)
    row = file.message_type.add(name="Row")
    add_field(row, "number", FIELD.TYPE_INT64)
    add_field(row, "text", FIELD.TYPE_STRING)
    add_field(row, "raw", FIELD.TYPE_BYTES)
    add_field(row, "color", FIELD.TYPE_ENUM, type_name=".shop.Color")
    for name, kind in (
        ("at", "protobuf.Timestamp"), ("span", "protobuf.Duration"), ("any", "protobuf.Any"),
        ("tree", "protobuf.Struct"), ("amount", "type.Decimal"), ("wrapped", "protobuf.Int32Value"),
        ("packed", "protobuf.BytesValue"),
    ):  # fmt: skip
        add_field(row, name, FIELD.TYPE_MESSAGE, type_name=f".google.{kind}")
    add_field(row, "texts", FIELD.TYPE_STRING, repeated=True)
    return file


def message_class(file: Any) -> Any:
    pool = DescriptorPool()
    for one in FILES:
        plain = descriptor_pb2.FileDescriptorProto()
        one.CopyToProto(plain)
        pool.Add(plain)
    pool.Add(file)
    return GetMessageClass(pool.FindFileByName(file.name).message_types_by_name["Row"])


ROW_FILE = row_file()
ROW = message_class(ROW_FILE)


def in_decimal(value: str) -> Any:
    number = Decimal(value)
    return number if number == number.quantize(Decimal("0.01")) else REFUSED


SPANS = st.fixed_dictionaries({"seconds": st.integers(1, 10**9), "nanos": st.integers(0, 10**9 - 1)})
MEANINGS: Mapping[str, tuple[st.SearchStrategy[Any], Mapping[str, Expect]]] = {
    "number": (st.integers(-(2**45), 2**45) | st.integers(0, 2), PLAIN_NUMBERS),
    "text": (st.text("xyz"), TEXT),
    "raw": (st.binary(max_size=6), {"binary": lambda value: value}),
    "color": (st.integers(0, 3), {
        "string": lambda value: ["RED", "BLUE", "2", "3"][value], "int": lambda value: value,
        "bigint": lambda value: value,
    }),
    "at": (SPANS, {
        "timestamp": lambda value: EPOCH + dt.timedelta(seconds=value["seconds"], microseconds=value["nanos"] // 1000),
    }),
    "span": (SPANS, {}),
    "any": (st.just({"type_url": "x", "value": b"12"}), {}),
    "tree": (st.just({"scale": 2, "value": "x"}), {}),
    "amount": (
        st.sampled_from(["12.50", "-1.5", "1e3", "", "20240102", "1.005"]).map(lambda text: {"value": text}),
        {
            "decimal(12,2)": lambda value: in_decimal(value["value"] or "0"),
            "string": lambda value: value["value"] or "0",
        },
    ),
    "wrapped": (st.integers(-5, 5).map(lambda value: {"value": value}), {
        name: lambda value, expect=expect: expect(value["value"]) for name, expect in PLAIN_NUMBERS.items()
    }),
    "packed": (st.binary(max_size=6).map(lambda value: {"value": value}), {"binary": lambda value: value["value"]}),
    "texts": (st.lists(st.text("xy", max_size=2), min_size=1, max_size=3), {"array<string>": lambda value: value}),
}  # fmt: skip


@pytest.mark.laws
@given(st.data())
def test_a_value_is_what_the_declared_type_means_or_a_dead_letter(
    registry: SchemaRegistry, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(MEANINGS)))
    values, expected = MEANINGS[name]
    value = data.draw(values)
    kind = data.draw(st.sampled_from([*DECLARED, "array<string>", "map<string,string>", "map<string,binary>"]))
    message = ROW()
    if name == "tree":
        message.tree.update(value)
    else:
        message = ROW(**{name: value})
    [found] = decode(registry, {name: kind}, [registered(registry, ROW_FILE) + message.SerializeToString()])
    result = expected.get(kind, lambda _: REFUSED)(value)
    if result is REFUSED:
        assert found["reason"] is not None
        assert found["reason"].startswith(f"field {name!r}: ")
    else:
        assert (found["reason"], found["message"][name]) == (None, result)


def test_messages_of_google_as_their_fields(registry: SchemaRegistry) -> None:
    types = {"span": "struct<seconds:bigint,nanos:int>", "any": "struct<type_url:string,value:binary>"}
    message = ROW(span={"seconds": 5, "nanos": 6}, any={"type_url": "x", "value": b"12"})
    [found] = decode(registry, types, [registered(registry, ROW_FILE) + message.SerializeToString()])
    assert (found["reason"], found["message"]) == (
        None, {"span": {"seconds": 5, "nanos": 6}, "any": {"type_url": "x", "value": b"12"}},
    )  # fmt: skip


def test_a_timestamp_whose_nanoseconds_are_a_second_or_more(registry: SchemaRegistry) -> None:
    message = ROW(at={"seconds": 1, "nanos": 2_000_000_000})
    [found] = decode(registry, {"at": "timestamp"}, [registered(registry, ROW_FILE) + message.SerializeToString()])
    assert found["reason"] == "field 'at': an object is not timestamp"


def test_a_schema_with_a_timestamp_of_its_own(registry: SchemaRegistry) -> None:
    """Its name is that of Protobuf's, its fields are not."""
    file = file_of("own.proto")
    file.package = "google.protobuf"
    row = file.message_type.add(name="Row")
    add_field(row, "at", FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add_field(row, "n", FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Int64Value")
    add_field(file.message_type.add(name="Timestamp"), "text", FIELD.TYPE_STRING)
    add_field(file.message_type.add(name="Int64Value"), "text", FIELD.TYPE_STRING)
    value = registered(registry, file) + b"\x0a\x03\x0a\x01x\x12\0"
    [found] = decode(registry, {"at": "timestamp", "n": "bigint"}, [value])
    assert found["reason"] == "field 'at': an object is not timestamp; field 'n': an object is not bigint"


def test_a_text_of_proto2_that_is_not_utf8(registry: SchemaRegistry) -> None:
    file = file_of("two.proto", "proto2")
    row = file.message_type.add(name="Row")
    add_field(row, "id", FIELD.TYPE_INT64)
    add_field(row, "text", FIELD.TYPE_STRING)
    header = registered(registry, file)
    found = decode(
        registry, {"id": "bigint", "text": "string"}, [header + b"\x08\x01\x12\x01\xff", header + b"\x08\x02"]
    )
    assert found[0]["reason"] is not None
    assert (found[1]["reason"], found[1]["message"]) == (None, {"id": 2, "text": None})


@pytest.fixture
def module_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the machine that writes a file when it is imported."""
    trace = tmp_path / "imported"
    for name in ("stranger_pb2", "google_stranger_pb2"):
        (tmp_path / f"{name}.py").write_text(f"open({str(trace)!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield trace
    sys.modules.pop("stranger_pb2", None)


@pytest.mark.parametrize(
    "name", ["stranger.proto", "google/../stranger.proto", "google/protobuf/none.proto", "confluent/stranger.proto"]
)
def test_a_schema_imports_no_module(registry: SchemaRegistry, module_of_a_stranger: Path, name: str) -> None:
    file = file_of("shop/rows.proto")
    file.dependency.append(name)
    add_field(file.message_type.add(name="Row"), "id", FIELD.TYPE_INT64)
    [found] = decode(registry, {"id": "bigint"}, [registered(registry, file) + b"\x08\x01"])
    assert found["reason"] == f"the schema needs the file {name}, which the registry does not refer to"
    assert not module_of_a_stranger.exists()


def wide_file(fields: int) -> Any:
    file = file_of("wide.proto", "proto2")
    row = file.message_type.add(name="Row")
    add_field(row, "id", FIELD.TYPE_INT64)
    add_field(row, "wide", FIELD.TYPE_MESSAGE, type_name=".shop.Wide", repeated=True)
    add_field(row, "row", FIELD.TYPE_MESSAGE, type_name=".shop.Row")
    add_field(row, "wider", FIELD.TYPE_GROUP, type_name=".shop.Wide", repeated=True)
    wide = file.message_type.add(name="Wide")
    for number in range(fields):
        add_field(wide, f"f{number}", FIELD.TYPE_INT64)
    return file


@pytest.mark.parametrize("part", [b"\x12\0", b"\x92\0\0", b"\x12\x80\0", b"\x23\x24", b"\x1a\x02\x12\0"])
def test_a_value_whose_messages_would_fill_the_memory(registry: SchemaRegistry, part: bytes) -> None:
    """Each takes a few bytes of the value, and room for 1,000 fields. Their field is not even declared."""
    header = registered(registry, wide_file(1000))
    values = [b"\x08\x01", part * 100_000, b"\x08\x02" + b"\x12\x02\x08\x01" * 10_000]
    found = decode(registry, {"id": "bigint"}, [header + value for value in values])
    assert [row["reason"] for row in found] == [None, "the messages within the value need more than 512 MiB", None]


@given(
    st.integers(0, 40),
    st.sampled_from([b"\x12\0", b"\x92\0\0", b"\x23\x24", b"\x12\x02\x08\x01"]),
    st.binary(max_size=9),
)
def test_the_size_of_parsed_messages(count: int, part: bytes, text: bytes) -> None:
    kind = message_class(wide_file(100))
    sizes = 64 + 8 * 100
    assert parsed_bytes(b"\x08\x01" + part * count, kind.DESCRIPTOR) == count * sizes
    assert 0 <= parsed_bytes(text + part * count, kind.DESCRIPTOR) <= LARGEST_BYTES


def test_messages_within_themselves(registry: SchemaRegistry) -> None:
    header = registered(registry, wide_file(1))

    def nested(depth: int) -> bytes:
        value = b""
        for _ in range(depth):
            size = len(value)
            value = b"\x1a" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + value
        return b"\x08\x01" + value

    found = decode(registry, {"id": "bigint"}, [header + nested(99), header + nested(20_000)])
    assert [row["reason"] for row in found] == [None, DEEP]
