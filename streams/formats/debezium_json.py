"""Parses Debezium's JSON to change events. Runs in Spark's workers, so it does not import Spark.

Kafka Connect writes the schema with every message, unless ``schemas.enable`` is false:

    {"schema": {"type": "struct", "fields": [...]}, "payload": {"before": ..., "after": ..., "op": "u", ...}}

The schema is longer than the event, and its text is the same in all messages of a table. So it is parsed once: the text
up to the payload is remembered, and of the next message that begins with this text only the payload is parsed.
"""

from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from weft.streams.formats.debezium_event import EventReader, decode_events, event_reader
from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.source_type import ANY, connect_type

NOT_UTF8: Final = "the value is not UTF-8"
NOT_AN_OBJECT: Final = "the value is not one JSON object"
TOO_DEEP: Final = "the value exceeds a limit of JSON: it has too many arrays and objects within each other"
LONG_NUMBER: Final = (
    f"the value exceeds a limit of JSON: a number has more than {sys.get_int_max_str_digits():,} digits"
)

_SCHEMA: Final = '{"schema":'
_PAYLOAD: Final = ',"payload":'
_MAX_SCHEMAS: Final = 16  # that a worker remembers; a topic has one for each version of its table


def decode_json_events(settings: FormatSettings, values: pa.Array) -> pa.StructArray:
    """Decode the values of a batch.

    Args:
        settings: Settings of the format.
        values: Binary; NULL for a message without a value.

    Returns:
        The structs of `weft.streams.formats.debezium_event.decode_events`.
    """
    parser = _parser(settings)
    events = [None if value is None else parser.parse(value) for value in values.to_pylist()]
    return decode_events(events, settings.declared, placeholder=settings.placeholder, metadata=settings.metadata)


@lru_cache(maxsize=8)
def _parser(settings: FormatSettings) -> _Parser:
    """Return the parser for all batches of a worker, which remembers schemas between batches."""
    return _Parser(settings)


class _Parser:
    def __init__(self, settings: FormatSettings) -> None:
        self._settings = settings
        self._plain = event_reader(settings.declared, ANY, settings.unmarked)
        self._readers_by_prefix: OrderedDict[str, EventReader] = OrderedDict()
        # Numbers are parsed as decimals if a declared field is a decimal, whose digits matter.
        exact = any(_has_decimal(field.type) for field in settings.declared)
        # NaN and Infinity are parsed as texts, because Debezium also writes them as texts.
        self._decoder = json.JSONDecoder(parse_float=Decimal if exact else _finite, parse_constant=str)

    def parse(self, value: bytes) -> tuple[Any, EventReader] | str:
        """Parse an event; returns it with its reader, or the reason why the value is not an event."""
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
        try:
            for prefix, reader in self._readers_by_prefix.items():
                if text.startswith(prefix):
                    payload, end = self._decoder.raw_decode(text, len(prefix))
                    if text[end:] == "}":
                        return payload, reader
                    break
            return self._parse_whole(text)
        except json.JSONDecodeError:
            return NOT_AN_OBJECT
        except RecursionError:
            return TOO_DEEP
        except ValueError:  # raised by int() for a text with too many digits
            return LONG_NUMBER

    def _parse_whole(self, text: str) -> tuple[Any, EventReader] | str:
        document = self._decoder.decode(text)
        if not isinstance(document, dict):
            return NOT_AN_OBJECT
        if not (document.keys() == {"schema", "payload"} and "op" not in document):
            return document, self._plain
        schema = document["schema"]
        reader = self._plain
        if isinstance(schema, Mapping):
            reader = event_reader(self._settings.declared, connect_type(schema), self._settings.unmarked)
            self._remember(text, reader)
        return document["payload"], reader

    def _remember(self, text: str, reader: EventReader) -> None:
        """Remember the text up to the payload, if the message has the form in which Kafka Connect writes it."""
        if not text.startswith(_SCHEMA + "{"):
            return
        _, end = self._decoder.raw_decode(text, len(_SCHEMA))
        if not text.startswith(_PAYLOAD, end):
            return
        self._readers_by_prefix[text[: end + len(_PAYLOAD)]] = reader
        if len(self._readers_by_prefix) > _MAX_SCHEMAS:
            self._readers_by_prefix.popitem(last=False)


def _finite(text: str) -> float | Decimal:
    """Parse a number to a float, or to a decimal if the float would be infinite."""
    number = float(text)
    return number if math.isfinite(number) else Decimal(text)


def _has_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))
