"""Debezium: change events of a database, as JSON with or without the schema of Kafka Connect, or as Avro.

The declared fields are those of the row: ``after``, or ``before`` of a delete. `select` and `where` also see the struct
`METADATA`. Workers of Spark decode in Python (`weft.streams.formats.debezium_json`,
`weft.streams.formats.avro_records`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Final, Self

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from weft.streams.formats.avro_records import AvroSettings, avro_events_type, decode_avro_events
from weft.streams.formats.debezium_event import SOURCE, events_type
from weft.streams.formats.debezium_json import DebeziumSettings, decode_json_events
from weft.streams.formats.format_options import DebeziumOptions, debezium_avro_options, debezium_options
from weft.streams.formats.isolated_decoder import Decode
from weft.streams.formats.message_format import Extras, FormatSettings
from weft.streams.formats.worker_format import WorkerFormat

METADATA: Final = "_debezium"
"""Name of a struct: ``op``, ``ts_ms``, ``source``, ``transaction``, ``before`` and ``unavailable`` of the event."""
_PARTS: Final = ("ts_ms", "source", "transaction", "before")


class DebeziumFormat(WorkerFormat):
    """Change events as JSON."""

    reserved = (METADATA,)

    def __init__(self, options: DebeziumOptions | None = None, metadata: frozenset[str] = frozenset()) -> None:
        """Decode with these options, and only the parts of the metadata that are used."""
        self._options, self._metadata = options or DebeziumOptions(), metadata

    @classmethod
    def create(cls, settings: FormatSettings) -> Self:
        return cls(debezium_options(settings.options), used_metadata(settings.expressions))

    def decoder(self, row_schema: pa.Schema) -> tuple[Decode, pa.DataType]:
        unmarked = self._options.unmarked
        settings = DebeziumSettings(
            row_schema, unmarked.timestamps, unmarked.decimals, self._options.placeholder, self._metadata
        )
        return partial(decode_json_events, settings), events_type(row_schema, self._metadata)

    def extras(self, parsed: Column) -> Extras:
        requested = {name.partition(".")[0] for name in self._metadata}
        metadata_parts = ("op", *(name for name in _PARTS if name in requested), "unavailable")
        return Extras(
            operation=F.when(parsed["op"] == "d", "delete").otherwise("upsert"),
            unavailable=parsed["unavailable"],
            absent=parsed["absent"],
            metadata={METADATA: F.struct(*(parsed[name].alias(name) for name in metadata_parts))},
        )


class DebeziumAvroFormat(DebeziumFormat):
    """Change events as Avro."""

    names_schema = True

    def __init__(
        self,
        options: DebeziumOptions | None = None,
        metadata: frozenset[str] = frozenset(),
        registry: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Create the format as `DebeziumFormat`, with the settings of the registry's client."""
        super().__init__(options, metadata)
        self._registry = registry

    @classmethod
    def create(cls, settings: FormatSettings) -> Self:
        metadata = used_metadata(settings.expressions)
        return cls(debezium_avro_options(settings.options), metadata, tuple(sorted(settings.registry.items())))

    def decoder(self, row_schema: pa.Schema) -> tuple[Decode, pa.DataType]:
        settings = AvroSettings(row_schema, self._registry, self._options.placeholder, self._metadata)
        return partial(decode_avro_events, settings), avro_events_type(row_schema, self._metadata)

    def extras(self, parsed: Column) -> Extras:
        return replace(super().extras(parsed), schema_id=parsed["schema_id"])


def used_metadata(expressions: tuple[str, ...]) -> frozenset[str]:
    """The parts of `METADATA` that expressions may use: those whose names they contain, or all.

    Of ``source`` it is single fields, because it has many: ``source.lsn``.
    """
    requested: set[str] = set()
    names = {f"source.{name}".lower(): f"source.{name}" for name in SOURCE.names}
    for text in expressions:
        for part, inner in re.findall(
            rf"\b{METADATA}\b`?(?:\s*\.\s*`?(\w+)`?(?:\s*\.\s*`?(\w+))?)?", text, re.IGNORECASE
        ):
            one = names.get(f"{part}.{inner}".lower())
            requested.update([one] if one else [part.lower()] if part else _PARTS)
    return frozenset(requested & {*_PARTS, *names.values()})
