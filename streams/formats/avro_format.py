"""Avro and Protobuf with the wire format of a schema registry, and JSON Schema with the same wire format."""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from weft.streams.formats.avro_records import decode_records
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.json_format import JsonFormat
from weft.streams.formats.json_validation import validate_values
from weft.streams.formats.message_format import Extras
from weft.streams.formats.protobuf_messages import decode_protobuf
from weft.streams.formats.records import rows_type
from weft.streams.formats.registry import GUID_BYTES, HEADER_BYTES, MOST_SIGNIFICANT, NO_HEADER
from weft.streams.formats.worker_format import WorkerFormat, in_workers

_MAGIC: Final = b"\0"
_MAGIC_OF_GUID: Final = b"\1"


class AvroFormat(WorkerFormat):
    """The format for messages that are one Avro record."""

    names_schema = True
    decode = staticmethod(decode_records)

    @staticmethod
    def result(settings: FormatSettings) -> pa.DataType:
        return rows_type(settings.declared)

    def extras(self, parsed: Column) -> Extras:
        return Extras(schema_id=parsed["schema_id"])


class ProtobufFormat(AvroFormat):
    """The format for messages that are one Protobuf message."""

    decode = staticmethod(decode_protobuf)


class JsonSchemaFormat(JsonFormat):
    """The format for messages that are one JSON object after the id of its JSON Schema.

    The declared types are checked. The JSON Schema is checked only with the option ``validate``; without it no schema
    is fetched, and no registry is needed.
    """

    names_schema = True

    def parse(self, value: Column, fields: StructType) -> Column:
        parsed = super().parse(_data(value), fields)
        number = F.conv(F.hex(F.substring(value.cast("binary"), 2, HEADER_BYTES - 1)), 16, 10)
        mismatch = F.lit(None).cast("string")
        if self.settings.validate:
            validate = in_workers(partial(validate_values, self.settings), pa.string())
            mismatch = validate(value.cast("binary"))
        return F.struct(
            parsed.alias("json"),
            F.when(_has_header(value) & ~_has_guid(value), number.try_cast("int")).alias("schema_id"),
            mismatch.alias("mismatch"),
        )

    def message(self, parsed: Column) -> Column:
        return super().message(parsed["json"])

    def reason(self, parsed: Column, value: Column, fields: StructType) -> Column:
        plain = super().reason(parsed["json"], _data(value), fields)
        return F.when(~_has_header(value), NO_HEADER).otherwise(F.coalesce(plain, parsed["mismatch"]))

    def extras(self, parsed: Column) -> Extras:
        return Extras(schema_id=parsed["schema_id"])


def _has_header(value: Column) -> Column:
    data = value.cast("binary")
    positive = F.substring(data, 2, 1) <= F.lit(bytes([MOST_SIGNIFICANT]))
    has_id = (F.octet_length(data) >= HEADER_BYTES) & (F.substring(data, 1, 1) == F.lit(_MAGIC)) & positive
    return has_id | _has_guid(value)


def _has_guid(value: Column) -> Column:
    data = value.cast("binary")
    return (F.octet_length(data) >= GUID_BYTES) & (F.substring(data, 1, 1) == F.lit(_MAGIC_OF_GUID))


def _data(value: Column) -> Column:
    """Return the bytes after the id of the schema."""
    start = F.when(_has_guid(value), GUID_BYTES).otherwise(HEADER_BYTES) + 1
    return F.substring(value.cast("binary"), start, F.lit(2**31 - 1))
