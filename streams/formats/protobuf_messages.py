"""Protobuf messages with the wire format of a schema registry. Runs in Spark's workers, so it does not import Spark.

    00  00 00 00 07  indexes  ...       the indexes identify the message type in the schema

The registry returns the descriptor of a schema (``format=serialized``), so neither a Protobuf compiler nor generated
code is needed. A field is found by its name in the schema, or by its JSON name. As Protobuf defines, a field without
presence has its default value (0, "", false) if it was not sent; any other field that was not sent is NULL.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from weft.streams.formats.convert import Unmarked
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.records import Reader, Rows, make_reader, rows_array
from weft.streams.formats.registry import RegistryClient, SchemaId, Schemas, UnknownSchema, registry_client
from weft.streams.formats.source_type import SourceType

Get = Callable[[Any], Any]

WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""Messages with one field ``value``, which may be absent."""
_GOOGLE: Final = {
    "protobuf": "any api descriptor duration empty field_mask source_context struct timestamp type wrappers",
    "type": "calendar_period color date datetime dayofweek decimal expr fraction interval latlng localized_text money "
    "month phone_number postal_address quaternion timeofday",
    "api": "annotations client field_behavior field_info http httpbody launch_stage resource routing visibility",
    "rpc": "code error_details http status",
}
KNOWN_FILES: Final[Mapping[str, str]] = {
    **{
        f"google/{folder}/{name}.proto": f"google.{folder}.{name}_pb2"
        for folder, names in _GOOGLE.items()
        for name in names.split()
    },
    "confluent/meta.proto": "confluent_kafka.schema_registry.confluent.meta_pb2",
    "confluent/type/variant.proto": "confluent_kafka.schema_registry.confluent.type.variant_pb2",
    "confluent/type/decimal.proto": "confluent_kafka.schema_registry.confluent.type.decimal_pb2",
    "confluent/types/decimal.proto": "confluent_kafka.schema_registry.confluent.types.decimal_pb2",
}
"""Files that a schema may import without a reference, and the modules that contain them.

A name from a schema is never imported as a module: that could run any module whose name ends in ``_pb2``.
"""
_SHAPES: Final[Mapping[str, Mapping[str, str]]] = {
    "google.protobuf.Timestamp": {"seconds": "INT64", "nanos": "INT32"},
    "google.type.Decimal": {"value": "STRING"},
    "confluent.type.Decimal": {"value": "BYTES", "scale": "INT32"},
}
"""Message types whose values are not records, and the fields by which they are recognized: a schema may define another
type of the same name."""
LARGEST_BYTES: Final = 512 * 1024 * 1024
"""Limit of the memory of the parsed messages of one value."""
_FIELD_BYTES: Final = 8
_MESSAGE_BYTES: Final = 64
LARGEST_DEPTH: Final = 100
"""Limit of the depth of nested messages in Protobuf's decoder."""
DEEP: Final = f"the value is nested deeper than {LARGEST_DEPTH} levels"
NO_INDEXES: Final = "the value does not name a message type of its Protobuf schema"


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    """A message type: functions that parse it, and that make a record of the declared fields.

    Attributes:
        widest: Size in memory of the largest type of nested messages, in bytes; 0 if there is none.
    """

    parse: Callable[[bytes], Any]
    record: Get
    reader: Reader
    descriptor: Any
    widest: int


def decode_protobuf(settings: FormatSettings, values: pa.Array) -> pa.StructArray:
    """Decode the values of a batch.

    Args:
        settings: Settings of the format.
        values: Binary; NULL for a message without a value.

    Returns:
        Structs of `weft.streams.formats.records.rows_type`. ``schema_id`` is NULL if the value does not have the wire
        format.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    return _decoder(settings).decode(values.to_pylist())


@lru_cache(maxsize=8)
def _decoder(settings: FormatSettings) -> _Decoder:
    """Return the decoder for all batches of a worker, which remembers schemas between batches."""
    return _Decoder(settings.declared, registry_client(settings.registry))


class _Decoder:
    def __init__(self, row_schema: pa.Schema, client: RegistryClient) -> None:
        self._declared, self._client = row_schema, client
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
            result = self._find_type(*part)
            if isinstance(result, str):
                rows.refuse(result)
                continue
            kind, data = result
            if len(data) // 2 * kind.widest > LARGEST_BYTES and parsed_bytes(data, kind.descriptor) > LARGEST_BYTES:
                rows.refuse(f"the messages within the value need more than {LARGEST_BYTES >> 20} MiB")
                continue
            try:
                record = kind.record(kind.parse(data))
            except DecodeError as error:
                is_deep = "MaxDepth" in str(error)
                rows.refuse(DEEP if is_deep else "the value cannot be read with its schema of Protobuf")
                continue
            except ValueError:  # a string of proto2 may contain any bytes
                rows.refuse("the value cannot be read with its schema of Protobuf")
                continue
            rows.add(record, kind.reader)
        return rows_array(rows, split.ids, self._declared)

    def _find_type(self, file: Any, data: bytes) -> tuple[_Message, bytes] | str:
        """Return the message type of a value, and the message; or the reason why there is none."""
        split = split_indexes(data)
        if split is None:
            return NO_INDEXES
        indexes, rest = split
        kind = self._messages.get((file, indexes))
        if kind is None:
            kind = self._messages[file, indexes] = self._message(file, indexes)
        return kind if isinstance(kind, str) else (kind, rest)

    def _fetch(self, schema_id: SchemaId) -> Any:
        schema = self._client.schema(schema_id, "PROTOBUF", serialized=True)
        return load_file(schema, self._client, f"schema {schema_id}")

    def _message(self, file: Any, indexes: tuple[int, ...]) -> _Message | str:
        from google.protobuf.message_factory import GetMessageClass

        descriptor = message_type(file, indexes)
        if descriptor is None:
            return NO_INDEXES
        record, source = _record_getter(descriptor, self._declared)
        reader = make_reader(self._declared, source, Unmarked())
        return _Message(GetMessageClass(descriptor).FromString, record, reader, descriptor, _widest(descriptor))


def _widest(message: Any) -> int:
    """Return the size in memory of the largest type of messages nested in a type, in bytes; 0 if there is none."""
    types, remaining = {}, [message]
    while remaining:
        for field in remaining.pop().fields:
            if field.message_type is not None and field.message_type.full_name not in types:
                types[field.message_type.full_name] = _size_of(field.message_type)
                remaining.append(field.message_type)
    return max(types.values(), default=0)


def _size_of(message: Any) -> int:
    return _MESSAGE_BYTES + _FIELD_BYTES * len(message.fields)


def parsed_bytes(data: bytes, message: Any) -> int:
    """Return a lower bound of the memory of the nested messages of a value, in bytes; 0 if it cannot be parsed.

    A parsed message has room for all its fields, but may take only two bytes of a value: so a small value can fill the
    memory.

    Args:
        data: The value.
        message: Descriptor of its type.
    """
    try:
        return _Walk(data).within(message, 0, len(data), 0)[0]
    except (IndexError, ValueError):
        return 0


class _Walk:
    """Walks through the encoded fields of a value without decoding their values."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields: dict[str, dict[int, Any]] = {}

    def within(self, message: Any, place: int, end: int, depth: int) -> tuple[int, int]:
        """Return the memory of the messages between two positions, and the position after the last field.

        Args:
            message: Descriptor of the type; None for a group that the schema does not have.
            place: Position of the first field.
            end: Position after the message; a group may end before it.
            depth: Number of enclosing messages.
        """
        if depth > LARGEST_DEPTH:
            raise ValueError
        fields = self._messages_of(message)
        total = 0
        while place < end and total <= LARGEST_BYTES:
            tag, place = self._number(place)
            kind, wire = fields.get(tag >> 3), tag & 7
            size = {1: 8, 5: 4}.get(wire, 0)
            if wire in {0, 2}:
                size, place = self._number(place)
            if wire == 2 and size > end - place:
                raise ValueError
            if kind is not None and wire in {2, 3}:
                total += _size_of(kind)
            if wire == 3 or (wire == 2 and kind is not None):
                inner, after = self.within(kind, place, place + size if wire == 2 else end, depth + 1)
                total += inner
                place = after if wire == 3 else place
            if wire == 4:
                break
            place += size if wire in {1, 2, 5} else 0
        return total, place

    def _messages_of(self, message: Any) -> dict[int, Any]:
        """Return the types of the fields that are messages, by field number."""
        if message is None:
            return {}
        if message.full_name not in self._fields:
            self._fields[message.full_name] = {
                field.number: field.message_type for field in message.fields if field.message_type is not None
            }
        return self._fields[message.full_name]

    def _number(self, place: int) -> tuple[int, int]:
        value = 0
        for count in range(10):
            byte = self._data[place + count]
            value |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                return value, place + count + 1
        raise ValueError


def message_type(file: Any, indexes: tuple[int, ...]) -> Any | None:
    """Return the descriptor of a message type of a file; None if the file does not have it.

    Args:
        file: Descriptor of the file.
        indexes: See `split_indexes`.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    plain = FileDescriptorProto()  # has types by index; a descriptor has them by name
    file.CopyToProto(plain)
    names, inner = [], plain.message_type
    for index in indexes:
        if not 0 <= index < len(inner):
            return None
        names.append(inner[index].name)
        inner = inner[index].nested_type
    descriptor = file.message_types_by_name[names[0]]
    for name in names[1:]:
        descriptor = descriptor.nested_types_by_name[name]
    return descriptor


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes] | None:
    """Split a value into the indexes of its message type and the message; None if there are no indexes.

    Indexes are signed numbers of variable length, after their count. A single zero stands for the first type.
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
    """Decode a zigzag number; returns it, or -1 if there is none, and the position after it."""
    value = shift = 0
    while place < len(data) and shift < 64:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place
        shift += 7
    return -1, place


def load_file(schema: Any, client: RegistryClient, schema_name: str) -> Any:
    """Load the descriptor of a schema's file, and those of the files that it refers to.

    Args:
        schema: The schema, requested with ``format=serialized``.
        client: Fetches the references.
        schema_name: Name of the schema in errors.

    Raises:
        UnknownSchema: The schema is not a descriptor, or the registry does not know a reference.
        RegistryUnavailable: The registry does not answer.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool = DescriptorPool()
    texts = client.references(schema, serialized=True)
    added_names = set(texts)

    def add(name: str, text: str) -> None:
        plain = FileDescriptorProto()
        try:
            plain.ParseFromString(base64.b64decode(text, validate=True))
        except (ValueError, DecodeError):
            raise UnknownSchema(f"{schema_name} is not given as a descriptor (format=serialized): {name}") from None
        for dependency in plain.dependency:
            if dependency not in added_names:
                added_names.add(dependency)
                _add_known(pool, dependency, added_names)
        plain.name = name
        pool.Add(plain)

    try:
        for name, text in {**texts, "weft_schema.proto": schema.schema_str}.items():
            add(name, text)
        return pool.FindFileByName("weft_schema.proto")
    except (TypeError, KeyError, RecursionError) as error:
        raise UnknownSchema(f"{schema_name} cannot be loaded: {error}") from None


def _add_known(pool: Any, name: str, added_names: set[str]) -> None:
    """Add a file that is part of Protobuf or the client, and the files that it imports."""
    import importlib

    from google.protobuf import descriptor_pool
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    missing = UnknownSchema(f"the schema needs the file {name}, which the registry does not refer to")
    if name not in KNOWN_FILES:
        raise missing
    try:
        importlib.import_module(KNOWN_FILES[name])
    except ImportError:
        raise missing from None
    plain = FileDescriptorProto()
    descriptor_pool.Default().FindFileByName(name).CopyToProto(plain)
    for dependency in plain.dependency:
        if dependency not in added_names:
            added_names.add(dependency)
            _add_known(pool, dependency, added_names)
    pool.Add(plain)


def _by_json_name(message: Any, name: str) -> Any:
    return next((field for field in message.fields if field.json_name == name), None)


def field_getter(field: Any, target: pa.DataType) -> tuple[Get, SourceType]:
    """Return a function that gets the value of a field from its message, and the type of the values.

    Args:
        field: Descriptor of the field.
        target: Declared type, which decides whether the value of an enum is its name or its number.
    """
    name = field.name
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = target.item_type if pa.types.is_map(target) else pa.null()
            of_value, kind = _plain_value(field.message_type.fields_by_name["value"], item)
            _, keys = _plain_value(field.message_type.fields_by_name["key"], item)
            return (
                lambda message: {key: of_value(value) for key, value in getattr(message, name).items()},
                SourceType("map", items=kind, keys=keys),
            )
        item = target.value_type if pa.types.is_list(target) else pa.null()
        of_item, kind = _plain_value(field, item)
        return lambda message: [of_item(value) for value in getattr(message, name)], SourceType("array", items=kind)
    of_value, kind = _plain_value(field, target)
    if field.has_presence:
        return lambda message: of_value(getattr(message, name)) if message.HasField(name) else None, kind
    return lambda message: of_value(getattr(message, name)), kind


def _plain_value(field: Any, target: pa.DataType) -> tuple[Get, SourceType]:
    """Return a function that converts a single value to one that `convert` understands, and the type of the result."""
    if field.enum_type is not None:
        if pa.types.is_integer(target):
            return lambda value: value, SourceType("number")
        names = {value.number: value.name for value in field.enum_type.values}
        # A later version of the schema may have more values of the enum.
        return lambda value: names.get(value, str(value)), SourceType("enum")
    if field.message_type is None:
        if field.cpp_type == field.CPPTYPE_STRING:
            return lambda value: value, SourceType("bytes" if field.type == field.TYPE_BYTES else "string")
        return lambda value: value, SourceType("boolean" if field.cpp_type == field.CPPTYPE_BOOL else "number")
    message = field.message_type
    if pa.types.is_struct(target):
        return _record_getter(message, target)
    if pa.types.is_timestamp(target) and _is_known(message, "google.protobuf.Timestamp"):
        return _nanoseconds, SourceType("number", "nanos", local=False)
    if message.full_name in WRAPPERS and "value" in message.fields_by_name:
        of_value, kind = _plain_value(message.fields_by_name["value"], target)
        return lambda value: of_value(value.value), kind
    if _is_known(message, "confluent.type.Decimal"):
        return lambda value: {"scale": value.scale, "value": value.value}, SourceType("struct", "variable_decimal")
    if _is_known(message, "google.type.Decimal") and (pa.types.is_decimal(target) or pa.types.is_string(target)):
        return lambda value: value.value or "0", SourceType("string")
    return lambda _: {}, SourceType("struct")  # does not fit any declared type, so the value gets a reason


def _is_known(message: Any, name: str) -> bool:
    """Whether a message type is one of `_SHAPES`, by its name and its fields."""
    if message.full_name != name:
        return False
    fields = message.fields_by_name
    return all(
        part in fields and fields[part].type == getattr(fields[part], f"TYPE_{kind}") and not fields[part].is_repeated
        for part, kind in _SHAPES[name].items()
    )


def _nanoseconds(value: Any) -> Any:
    """Convert a timestamp to nanoseconds since 1970; if its nanoseconds are invalid, to {}, which is not a time."""
    return value.seconds * 1_000_000_000 + value.nanos if 0 <= value.nanos < 1_000_000_000 else {}


def _record_getter(message: Any, fields: Iterable[pa.Field]) -> tuple[Get, SourceType]:
    """Return a function that makes a record of fields from a message, and its type; missing fields are left out."""
    getters, types = {}, {}
    for column in fields:
        field = message.fields_by_name.get(column.name) or _by_json_name(message, column.name)
        if field is not None:
            getters[column.name], types[column.name] = field_getter(field, column.type)
    return lambda value: {name: get(value) for name, get in getters.items()}, SourceType("struct", fields=types)
