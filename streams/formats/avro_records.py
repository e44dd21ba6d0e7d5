"""Avro records with the wire format of a schema registry. Runs in Spark's workers, so it does not import Spark.

fastavro reads a record with the schema that wrote it. Its fields are then converted to the declared types by name. So
the declared fields are the reader's schema: a field that the writer's schema lacks is NULL, undeclared fields are
ignored, and another schema of the writer needs no restart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from weft.streams.formats.avro_schema import (
    LARGEST_DEPTH,
    AvroType,
    TooDeep,
    native_schema,
    parse_avro,
    source_type,
)
from weft.streams.formats.convert import Unmarked
from weft.streams.formats.debezium_event import EventReader, decode_events, event_reader, events_type
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.records import Reader, Rows, make_reader, rows_array
from weft.streams.formats.registry import RegistryClient, SchemaId, Schemas, Split, UnknownSchema, registry_client
from weft.streams.formats.source_type import SourceType

LARGEST_EMPTY: Final = 10_000
"""Largest number of parts without bytes in a value: a few bytes may announce billions of such parts."""
_NUMBER_BYTES: Final = 10
"""Length of the longest encoded number of 64 bits, in bytes."""
_LONG_RUN: Final = re.compile(rb"[\x80-\xff]{%d,}" % _NUMBER_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class WriterSchema:
    """A schema of a writer.

    Attributes:
        native: The schema for fastavro, see `weft.streams.formats.avro_schema.native_schema`.
        is_record: Whether all values are records; false, for example, for a union of a record and null.
        type: The type of its values.
        without_bytes: Whether there may be values without bytes.
    """

    native: Any
    is_record: bool
    type: SourceType
    without_bytes: bool


def decode_records(settings: FormatSettings, values: pa.Array) -> pa.StructArray:
    """Decode the values of a batch.

    A value that is not a record becomes the value of the declared field, if exactly one field is declared.

    Args:
        settings: Settings of the format.
        values: Binary; NULL for a message without a value.

    Returns:
        Structs of `weft.streams.formats.records.rows_type`. ``schema_id`` is NULL if the value does not have the wire
        format.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    split = _schemas(settings).split(values.to_pylist())
    rows = Rows()
    alone = settings.declared.names[0] if len(settings.declared) == 1 else None

    @cache
    def reader_of(source: SourceType) -> Reader:
        if source.kind != "struct":
            source = SourceType("struct", fields={settings.declared.names[0]: source})
        return make_reader(settings.declared, source, Unmarked())

    for value in _data(split, values):
        if not isinstance(value, tuple):
            rows.refuse(value)
            continue
        kind, datum = value
        if isinstance(datum, dict) and kind.kind == "struct":
            rows.add(datum, reader_of(kind))
        elif alone is not None:
            rows.add({alone: datum}, reader_of(kind))
        else:
            rows.refuse("the value is not a record of Avro")
    return rows_array(rows, split.ids, settings.declared)


def decode_avro_events(settings: FormatSettings, values: pa.Array) -> pa.StructArray:
    """Decode change events of Debezium.

    Returns:
        The structs of `weft.streams.formats.debezium_event.decode_events`, with ``schema_id``.

    Raises:
        RegistryUnavailable: The registry does not answer.
    """
    split = _schemas(settings).split(values.to_pylist())

    @cache
    def reader_of(source: SourceType) -> EventReader:
        return event_reader(settings.declared, source, Unmarked())

    events: list[tuple[Any, EventReader] | str | None] = [
        (value[1], reader_of(value[0])) if isinstance(value, tuple) else value for value in _data(split, values)
    ]
    columns = decode_events(events, settings.declared, placeholder=settings.placeholder, metadata=settings.metadata)
    fields = list(avro_events_type(settings))
    return pa.StructArray.from_arrays([*columns.flatten(), pa.array(split.ids, pa.int32())], fields=fields)


def avro_events_type(settings: FormatSettings) -> pa.DataType:
    """Return the type of the result of `decode_avro_events`."""
    return pa.struct([*events_type(settings.declared, settings.metadata), pa.field("schema_id", pa.int32())])


@lru_cache(maxsize=8)
def _schemas(settings: FormatSettings) -> Schemas[WriterSchema]:
    """Return the schemas of a worker, which are kept between batches."""
    client = registry_client(settings.registry)

    def fetch(schema_id: SchemaId) -> WriterSchema:
        return parse_schema(client.schema(schema_id, "AVRO"), client, f"schema {schema_id}")

    return Schemas(fetch)


def parse_schema(schema: Any, client: RegistryClient, name: str) -> WriterSchema:
    """Parse a schema of the registry and those that it refers to.

    Args:
        schema: The schema, with ``schema_str`` and ``references``.
        client: Fetches the references.
        name: Name of the schema in errors.

    Raises:
        UnknownSchema: The schema is not a schema of Avro, or the registry does not know a reference.
        RegistryUnavailable: The registry does not answer.
    """
    try:
        avro = registered_type(schema, client)
        native, without_bytes = native_schema(avro)
        return WriterSchema(native, avro.kind == "record", source_type(avro), without_bytes)
    except (ValueError, RecursionError) as error:
        raise UnknownSchema(f"{name} is not a schema of Avro: {error}") from None


def registered_type(schema: Any, client: RegistryClient) -> AvroType:
    """Parse a schema of the registry to a type.

    Raises:
        ValueError: The schema is not a schema of Avro.
        RecursionError: The schema is nested too deep.
        UnknownSchema: The registry does not know a reference.
        RegistryUnavailable: The registry does not answer.
    """
    # Several names can refer to types of one schema.
    return parse_avro([*dict.fromkeys(client.references(schema).values()), schema.schema_str])


def _data(split: Split[WriterSchema], values: pa.Array) -> Iterator[tuple[SourceType, Any] | str | None]:
    """Yield for each value its type and datum, the reason why it cannot be decoded, or None if there is no value.

    For a union of several types, the type is the branch that was written.
    """
    from fastavro import schemaless_reader

    runs = _long_runs(values)
    for row, part in enumerate(split.parts):
        if not isinstance(part, tuple):
            yield part
            continue
        schema, data = part
        file = _CarefulFile(data) if schema.without_bytes else io.BytesIO(data)
        try:
            datum: Any = schemaless_reader(file, schema.native, None)
            if row in runs and type(file) is io.BytesIO and _runs_within((datum,)) != runs[row]:
                file = _CarefulFile(data)
                datum = schemaless_reader(file, schema.native, None)
        except TooDeep:
            yield f"the value is nested deeper than {LARGEST_DEPTH} levels"
            continue
        except TooMuch as reason:
            yield str(reason)
            continue
        except Exception:  # fastavro raises many types for bytes that do not fit the schema
            yield "the value cannot be read with its schema of Avro"
            continue
        if file.tell() != len(data):
            yield "the value is longer than its record of Avro"
            continue
        kind = schema.type
        if not schema.is_record:
            datum = datum["value"]
            if kind.kind == "union" and datum is not None:
                [(branch, datum)] = datum.items()
                kind = kind.field(branch)
        yield kind, datum


class TooMuch(ValueError):
    """A message claims more content than its bytes can have; the text is the reason."""


class _CarefulFile(io.BytesIO):
    """The bytes of a message, for a reader that reads numbers byte by byte; limits numbers, and parts without bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._numbers = self._empty = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if size == 0:
            self._empty += 1
            if self._empty > LARGEST_EMPTY + self.getbuffer().nbytes:
                raise TooMuch(f"the value has more than {LARGEST_EMPTY:,} parts without bytes")
        # A number continues while the highest bit of its bytes is set.
        self._numbers = self._numbers + 1 if type(size) is int and size == 1 and data >= b"\x80" else 0
        if self._numbers >= _NUMBER_BYTES:
            raise TooMuch(f"a number of the value has more than {_NUMBER_BYTES} bytes")
        return data


def _long_runs(values: pa.Array) -> Mapping[int, int]:
    """Find the rows that may have a number of more than `_NUMBER_BYTES` bytes, which fastavro reads without a limit.

    All bytes of a number except the last have their highest bit set.

    Returns:
        For each such row, the number of places where `_NUMBER_BYTES` consecutive bytes have their highest bit set. Text
        of other scripts has such bytes, too, see `_runs_within`. Two values may share such a place.
    """
    offsets, data = (values.buffers()[number] for number in (1, 2))
    if offsets is None or data is None or not len(values):
        return {}
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    runs = np.frombuffer(data, np.int8)[ends[0] : ends[-1]] < 0
    length = 1
    while length < _NUMBER_BYTES:
        step = min(length, _NUMBER_BYTES - length)
        runs = runs[:-step] & runs[step:]
        length += step
    if not runs.any():
        return {}
    before = np.zeros(int(ends[-1] - ends[0]) + 1, np.int64)
    np.cumsum(runs, out=before[1 : len(runs) + 1])
    before[len(runs) + 1 :] = before[len(runs)]
    counts = np.diff(before[ends - ends[0]])
    rows = np.flatnonzero(counts)
    return dict(zip(rows.tolist(), counts[rows].tolist(), strict=True))


def _runs_within(parts: Iterable[Any]) -> int:
    """Count the places of `_long_runs` within the texts and bytes of a datum; if these are all, no number has one."""
    total = 0
    for part in parts:
        kind = type(part)
        if kind is dict or kind is list:
            total += _runs_within(part.values() if kind is dict else part)
        elif (kind is str and not part.isascii()) or kind is bytes:
            runs = _LONG_RUN.findall(part.encode() if kind is str else part)
            total += sum(map(len, runs)) - (_NUMBER_BYTES - 1) * len(runs)
    return total
