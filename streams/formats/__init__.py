"""Message formats: how the value of a message becomes columns. A new format is a module here and a line in `FORMATS`.

`FORMATS` names modules and does not import them, so that a pipeline file can be checked without Spark.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weft.storage.errors import InvalidInput

if TYPE_CHECKING:
    from weft.streams.formats.message_format import MessageFormat

FORMATS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "json": "weft.streams.formats.json_format:JsonFormat",
        "debezium": "weft.streams.formats.debezium_format:DebeziumFormat",
        "debezium-avro": "weft.streams.formats.debezium_format:DebeziumAvroFormat",
        "avro": "weft.streams.formats.avro_format:AvroFormat",
        "protobuf": "weft.streams.formats.avro_format:ProtobufFormat",
        "json-schema": "weft.streams.formats.avro_format:JsonSchemaFormat",
    }
)
"""Name in a pipeline file to the class of the format, ``module:class``."""


def check_format(name: str) -> str:
    """Check the name of a format, and return it.

    Raises:
        InvalidInput: There is no such format; the hint names the formats.
    """
    if name not in FORMATS:
        raise InvalidInput(f"there is no message format {name!r}", hint=f"use one of {', '.join(FORMATS)}")
    return name


def load_format(
    name: str,
    options: Mapping[str, str] | None = None,
    registry: Mapping[str, str] | None = None,
    expressions: tuple[str, ...] = (),
    exact: AbstractSet[str] = frozenset(),
) -> MessageFormat:
    """Make a message format; for the other arguments see `weft.streams.formats.format_options.format_settings`.

    Raises:
        InvalidInput: There is no format of that name, or an option is wrong.
    """
    from weft.streams.formats.format_options import format_settings

    module, _, kind = FORMATS[check_format(name)].partition(":")
    settings = format_settings(name, options or {}, registry or {}, expressions, exact)
    message_format: MessageFormat = getattr(importlib.import_module(module), kind)(settings)
    return message_format
