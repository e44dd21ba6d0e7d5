"""Debezium: change events of a database, as JSON with or without the schema of Kafka Connect, or as Avro.

The declared fields are those of the row: ``after``, or ``before`` of a delete. `select` and `where` can also use the
struct `METADATA`. Workers of Spark decode in Python (`weft.streams.formats.debezium_json`,
`weft.streams.formats.avro_records`).
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from weft.streams.formats.avro_records import avro_events_type, decode_avro_events
from weft.streams.formats.debezium_event import METADATA, METADATA_PARTS, events_type
from weft.streams.formats.debezium_json import decode_json_events
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.message_format import Extras
from weft.streams.formats.worker_format import WorkerFormat


class DebeziumFormat(WorkerFormat):
    """Change events as JSON."""

    reserved = (METADATA,)
    decode = staticmethod(decode_json_events)

    @staticmethod
    def result(settings: FormatSettings) -> pa.DataType:
        return events_type(settings.declared, settings.metadata)

    def extras(self, parsed: Column) -> Extras:
        requested = {name.partition(".")[0] for name in self.settings.metadata}
        metadata_parts = ("op", *(name for name in METADATA_PARTS if name in requested), "unavailable")
        return Extras(
            operation=F.when(parsed["op"] == "d", "delete").otherwise("upsert"),
            unavailable=parsed["unavailable"],
            absent=parsed["absent"],
            metadata={METADATA: F.struct(*(parsed[name].alias(name) for name in metadata_parts))},
        )


class DebeziumAvroFormat(DebeziumFormat):
    """Change events as Avro."""

    names_schema = True
    decode = staticmethod(decode_avro_events)
    result = staticmethod(avro_events_type)

    def extras(self, parsed: Column) -> Extras:
        return replace(super().extras(parsed), schema_id=parsed["schema_id"])
