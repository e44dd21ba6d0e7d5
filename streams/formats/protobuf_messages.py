"""Protobuf messages with the wire format of a schema registry. Runs in Spark's workers, so it does not import Spark.

    00  00 00 00 07  indexes  ...       the indexes say which message type of the schema it is

The registry gives the descriptor of a schema (``format=serialized``), so no Protobuf compiler and no generated code is
needed. A field is found by its name in the schema, or by its JSON name. A field without presence has its default value
(0, "", false) where it was not sent, as Protobuf defines; any other field that was not sent is NULL.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from streams.formats.convert import Unmarked
from streams.formats.records import Reader, Rows, make_reader, rows_array
from streams.formats.registry import RegistryClient, Schemas, UnknownSchema, registry_client
from streams.formats.source_type import ANY, SourceType

Get = Callable[[Any], Any]

WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""Messages with one field ``value``, which may be absent."""
NO_INDEXES: Final = "the value does not name a message type of its Protobuf schema"


@dataclass(frozen=True, slots=True)
class ProtobufSettings:
    """How to decode Protobuf: the declared fields, and the settings of the registry's client, sorted."""

    declared: pa.Schema
    registry: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    """A message type: how to parse it, and how to get a record of the declared fields."""

    parse: Callable[[bytes], Any]
    record: Get
    reader: Reader


def decode_protobuf(settings: ProtobufSettings, values: pa.Array) -> pa.StructArray:
    """Decode the values of a batch.

    Args:
        settings: How to decode them.
        values: Binary; NULL for a message without a value.

    Returns:
        A struct, see `streams.formats.records.rows_type`. ``schema_id`` is NULL if the value does not have the wire
        format.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    return _decoder(settings).decode(values.to_pylist())


@lru_cache(maxsize=8)
def _decoder(settings: ProtobufSettings) -> _Decoder:
    """One decoder for all batches of a worker, so that schemas are remembered between batches."""
    return _Decoder(settings.declared, registry_client(settings.registry))


class _Decoder:
    def __init__(self, declared: pa.Schema, client: RegistryClient) -> None:
        self._declared, self._client = declared, client
        self._files = Schemas(self._fetch)
        self._messages: dict[tuple[Any, tuple[int, ...]], _Message | str] = {}

    def decode(self, values: Sequence[bytes | None]) -> pa.StructArray:
        from google.protobuf.message import DecodeError

        split = self._files.split(values)
        rows = Rows()
        for part in split.parts:
            if not isinstance(part, tuple):
                rows.refuse(part)
                continue
            found = self._typed(*part)
            if isinstance(found, str):
                rows.refuse(found)
                continue
            kind, data = found
            try:
                message = kind.parse(data)
            except DecodeError:
                rows.refuse("the value cannot be read with its schema of Protobuf")
                continue
            rows.add(kind.record(message), kind.reader)
        return rows_array(rows, split.ids, self._declared)

    def _typed(self, file: Any, data: bytes) -> tuple[_Message, bytes] | str:
        """The message type of a value and the message; or why there is none."""
        split = split_indexes(data)
        if split is None:
            return NO_INDEXES
        indexes, rest = split
        kind = self._messages.get((file, indexes))
        if kind is None:
            kind = self._messages[file, indexes] = self._message(file, indexes)
        return kind if isinstance(kind, str) else (kind, rest)

    def _fetch(self, schema_id: int) -> Any:
        schema = self._client.schema(schema_id, serialized=True)
        if schema.schema_type != "PROTOBUF":
            raise UnknownSchema(f"schema {schema_id} is of type {schema.schema_type or 'AVRO'}, not PROTOBUF")
        return load_file(schema, self._client, f"schema {schema_id}")

    def _message(self, file: Any, indexes: tuple[int, ...]) -> _Message | str:
        from google.protobuf.message_factory import GetMessageClass

        found = message_type(file, indexes)
        if found is None:
            return NO_INDEXES
        record, source = _record_getter(found, self._declared)
        return _Message(GetMessageClass(found).FromString, record, make_reader(self._declared, source, Unmarked()))


def message_type(file: Any, indexes: tuple[int, ...]) -> Any | None:
    """The descriptor of a message type of a file; None if the file does not have it.

    Args:
        file: Descriptor of the file.
        indexes: See `split_indexes`.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    plain = FileDescriptorProto()  # types by index; a descriptor has them by name
    file.CopyToProto(plain)
    names, inner = [], plain.message_type
    for index in indexes:
        if not 0 <= index < len(inner):
            return None
        names.append(inner[index].name)
        inner = inner[index].nested_type
    found = file.message_types_by_name[names[0]]
    for name in names[1:]:
        found = found.nested_types_by_name[name]
    return found


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes] | None:
    """The indexes of a message type and the rest; None if there are none.

    Signed numbers of variable length: their count, then as many. A single zero stands for the first type.
    """
    count, place = _number(data, 0)
    if count == 0:
        return (0,), data[place:]
    if not 0 < count <= 64:
        return None
    indexes = []
    for _ in range(count):
        index, place = _number(data, place)
        if index < 0:
            return None
        indexes.append(index)
    return tuple(indexes), data[place:]


def _number(data: bytes, place: int) -> tuple[int, int]:
    """A zigzag number and the place after it; -1 if there is none."""
    value = shift = 0
    while place < len(data) and shift < 64:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place
        shift += 7
    return -1, place


def load_file(schema: Any, client: RegistryClient, what: str) -> Any:
    """The descriptor of a schema's file, with those that it refers to.

    Args:
        schema: From the client, ``format=serialized``.
        client: For the references.
        what: Name of the schema in errors.

    Raises:
        UnknownSchema: It is not a descriptor, or the registry does not know a reference.
        RegistryUnavailable: The registry does not answer.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool = DescriptorPool()
    added: set[str] = set()

    def add(name: str, text: str, references: Any) -> None:
        plain = FileDescriptorProto()
        try:
            plain.ParseFromString(base64.b64decode(text, validate=True))
        except (ValueError, DecodeError):
            raise UnknownSchema(f"{what} is not given as a descriptor (format=serialized): {name}") from None
        for reference in references or ():
            if reference.name not in added:
                added.add(reference.name)
                found = client.version(reference.subject, reference.version, serialized=True)
                add(reference.name, found.schema_str, found.references)
        for dependency in plain.dependency:
            if dependency not in added:
                added.add(dependency)
                _add_known(pool, dependency, added)
        plain.name = name
        pool.Add(plain)

    try:
        add("weft_schema.proto", schema.schema_str, schema.references)
        return pool.FindFileByName("weft_schema.proto")
    except (TypeError, KeyError) as error:
        raise UnknownSchema(f"{what} cannot be loaded: {error}") from None


def _add_known(pool: Any, name: str, added: set[str]) -> None:
    """Add a file that comes with Protobuf or the client, and those that it needs."""
    import importlib

    from google.protobuf import descriptor_pool
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    if name.startswith("confluent/"):
        module = f"confluent_kafka.schema_registry.{module}"
    try:
        importlib.import_module(module)
    except ImportError:
        raise UnknownSchema(f"the schema needs the file {name}, which the registry does not refer to") from None
    plain = FileDescriptorProto()
    descriptor_pool.Default().FindFileByName(name).CopyToProto(plain)
    for dependency in plain.dependency:
        if dependency not in added:
            added.add(dependency)
            _add_known(pool, dependency, added)
    pool.Add(plain)


def _by_json_name(message: Any, name: str) -> Any:
    return next((one for one in message.fields if one.json_name == name), None)


def field_getter(one: Any, target: pa.DataType) -> tuple[Get, SourceType]:
    """How to get the value of a field from its message, and the type of the values.

    Args:
        one: Descriptor of the field.
        target: Declared type, which says whether the value of an enum is its name or its number.
    """
    name = one.name
    if one.is_repeated:
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            item = target.item_type if pa.types.is_map(target) else pa.null()
            of_value, kind = _plain_value(one.message_type.fields_by_name["value"], item)
            return (
                lambda message: {key: of_value(value) for key, value in getattr(message, name).items()},
                SourceType("map", items=kind),
            )
        item = target.value_type if pa.types.is_list(target) else pa.null()
        of_item, kind = _plain_value(one, item)
        return lambda message: [of_item(value) for value in getattr(message, name)], SourceType("array", items=kind)
    of_value, kind = _plain_value(one, target)
    if one.has_presence:
        return lambda message: of_value(getattr(message, name)) if message.HasField(name) else None, kind
    return lambda message: of_value(getattr(message, name)), kind


def _plain_value(one: Any, target: pa.DataType) -> tuple[Get, SourceType]:
    """How a single value becomes a value that `convert` understands, and its type."""
    if one.enum_type is not None:
        if pa.types.is_integer(target):
            return lambda value: value, SourceType("number")
        names = {value.number: value.name for value in one.enum_type.values}
        # An enum is open: a later version of the schema may have more values.
        return lambda value: names.get(value, str(value)), SourceType("string")
    if one.message_type is None:
        if one.cpp_type == one.CPPTYPE_STRING:
            return lambda value: value, SourceType("bytes" if one.type == one.TYPE_BYTES else "string")
        return lambda value: value, SourceType("boolean" if one.cpp_type == one.CPPTYPE_BOOL else "number")
    full_name = one.message_type.full_name
    if full_name == "google.protobuf.Timestamp":
        return lambda value: value.seconds * 1_000_000_000 + value.nanos, SourceType("number", "nanos")
    if full_name in WRAPPERS:
        of_value, kind = _plain_value(one.message_type.fields_by_name["value"], target)
        return lambda value: of_value(value.value), kind
    if full_name == "confluent.type.Decimal":
        return lambda value: {"scale": value.scale, "value": value.value}, SourceType("struct", "variable_decimal")
    if not pa.types.is_struct(target):
        return lambda _: {}, ANY  # never what is declared, so the value has a reason
    return _record_getter(one.message_type, target)


def _record_getter(message: Any, fields: Iterable[pa.Field]) -> tuple[Get, SourceType]:
    """How to get a record of fields from a message, and its type. Fields that the message lacks are left out."""
    getters, types = {}, {}
    for given in fields:
        one = message.fields_by_name.get(given.name) or _by_json_name(message, given.name)
        if one is not None:
            getters[given.name], types[given.name] = field_getter(one, given.type)
    return lambda value: {name: get(value) for name, get in getters.items()}, SourceType("struct", fields=types)
