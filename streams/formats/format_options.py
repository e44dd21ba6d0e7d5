"""Options and settings of message formats.

This module does not import Spark, because pipeline files are checked before a process starts, and workers decode with
the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, get_args

import pyarrow as pa

from weft.storage.errors import InvalidInput
from weft.streams.formats.convert import DecimalText, TimestampUnit, Unmarked
from weft.streams.formats.debezium_event import PLACEHOLDER, used_metadata

_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "debezium": ("timestamps", "decimals", "unavailable_value"),
    "debezium-avro": ("unavailable_value",),  # Avro's schemas determine the others
    "json-schema": ("validate",),
}
"""Options by the name of the format; other formats have none."""
_VALUES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "timestamps": (get_args(TimestampUnit), "use one of millis, micros, nanos"),
    "decimals": (get_args(DecimalText), "use one of text, base64"),
    "validate": (("true", "false"), "use true or false"),
}
"""The values of an option, and the hint for other values; options that are not listed accept any text."""


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """How to decode messages. They are pickled for the workers, and are the key of schemas that workers keep.

    Attributes:
        declared: Declared fields and their types.
        registry: Settings of the schema registry's client, sorted; empty without a registry. They may contain secrets.
        unmarked: How values without a schema are interpreted.
        placeholder: Debezium's ``unavailable.value.placeholder``.
        metadata: The parts of an event besides its row that are used, see `used_metadata`.
        exact: Fields whose values must not be rounded, because they identify a row. Only JSON rounds values.
        validate: Whether to validate values with their JSON Schema.
    """

    declared: pa.Schema = field(default_factory=lambda: pa.schema([]))
    registry: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unmarked: Unmarked = field(default_factory=Unmarked)
    placeholder: str = PLACEHOLDER
    metadata: frozenset[str] = frozenset()
    exact: frozenset[str] = frozenset()
    validate: bool = False


def format_settings(
    name: str,
    options: Mapping[str, str],
    registry: Mapping[str, str],
    expressions: tuple[str, ...],
    exact: AbstractSet[str],
) -> FormatSettings:
    """Make the settings of a format, without the declared fields.

    Args:
        name: Name of the format.
        options: ``format_options`` of the source, as written.
        registry: Settings of the schema registry's client.
        expressions: SQL of `select` and `where`, so that a format can leave out metadata that they do not use.
        exact: Fields whose values must not be rounded.

    Raises:
        InvalidInput: See `check_options`.
    """
    check_options(name, options)
    return FormatSettings(
        registry=tuple(sorted(registry.items())),
        unmarked=Unmarked(options.get("timestamps"), options.get("decimals")),  # type: ignore[arg-type]  # checked above
        placeholder=options.get("unavailable_value", PLACEHOLDER),
        metadata=used_metadata(expressions),
        exact=frozenset(exact),
        validate=options.get("validate") == "true",
    )


def check_options(name: str, options: Mapping[str, str]) -> None:
    """Check the options of a format.

    Raises:
        InvalidInput: An option is unknown, or its value is wrong.
    """
    option_names = _OPTIONS.get(name, ())
    for option in options:
        if option not in option_names:
            hint = f"use {', '.join(option_names)}" if option_names else "remove it: the format has no options"
            raise InvalidInput(f"{option}: is not an option of the format", hint=hint)
    for option, value in options.items():
        values, hint = _VALUES.get(option, ((), ""))
        if values and value not in values:
            raise InvalidInput(f"{option}: unknown value {value!r}", hint=hint)
    if not options.get("unavailable_value", PLACEHOLDER):
        raise InvalidInput(
            "unavailable_value is empty", hint="give the value of Debezium's setting unavailable.value.placeholder"
        )
