"""Options of message formats, checked without Spark, so that a pipeline file is refused before a process starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, get_args, get_type_hints

from weft.storage.errors import InvalidInput
from weft.streams.formats.convert import Unmarked
from weft.streams.formats.debezium_event import PLACEHOLDER


def no_options(options: Mapping[str, str]) -> None:
    """Check that there are no options.

    Raises:
        InvalidInput: There are.
    """
    _refuse_unknown(options, ())


@dataclass(frozen=True, slots=True)
class DebeziumOptions:
    """Options of the formats of Debezium.

    Attributes:
        unmarked: How values without a schema are interpreted.
        placeholder: Debezium's ``unavailable.value.placeholder``.
    """

    unmarked: Unmarked = field(default_factory=Unmarked)
    placeholder: str = PLACEHOLDER


def debezium_options(options: Mapping[str, str]) -> DebeziumOptions:
    """Parse the options of format ``debezium``: ``timestamps``, ``decimals`` and ``unavailable_value``.

    Raises:
        InvalidInput: An option is not known, or its value is wrong.
    """
    _refuse_unknown(options, ("timestamps", "decimals", "unavailable_value"))
    hints = get_type_hints(Unmarked)
    for name in ("timestamps", "decimals"):
        valid_values = [value for part in get_args(hints[name]) for value in get_args(part)]
        if name in options and options[name] not in valid_values:
            raise InvalidInput(f"{name}: {options[name]!r} is not known", hint=f"use one of {', '.join(valid_values)}")
    if not options.get("unavailable_value", PLACEHOLDER):
        raise InvalidInput(
            "unavailable_value: is empty", hint="give the value of Debezium's setting unavailable.value.placeholder"
        )
    unmarked = Unmarked(options.get("timestamps"), options.get("decimals"))  # type: ignore[arg-type]  # checked above
    return DebeziumOptions(unmarked, options.get("unavailable_value", PLACEHOLDER))


def debezium_avro_options(options: Mapping[str, str]) -> DebeziumOptions:
    """Parse the options of format ``debezium-avro``: ``unavailable_value``. Avro's schemas say all the rest.

    Raises:
        InvalidInput: An option is not known, or its value is wrong.
    """
    _refuse_unknown(options, ("unavailable_value",))
    return debezium_options(options)


def json_schema_options(options: Mapping[str, str]) -> bool:
    """Parse the options of format ``json-schema``: whether to ``validate`` with the JSON Schema.

    Raises:
        InvalidInput: An option is not known, or its value is wrong.
    """
    _refuse_unknown(options, ("validate",))
    value = options.get("validate", "false")
    if value not in {"true", "false"}:
        raise InvalidInput(f"validate: {value!r} is not known", hint="use true or false")
    return value == "true"


def _refuse_unknown(options: Mapping[str, str], option_names: tuple[str, ...]) -> None:
    for name in options:
        if name not in option_names:
            hint = f"options: {', '.join(option_names)}" if option_names else "the format has no options: remove it"
            raise InvalidInput(f"{name}: is not an option of the format", hint=hint)


CHECKS: Final[Mapping[str, Callable[[Mapping[str, str]], object]]] = MappingProxyType(
    {"debezium": debezium_options, "debezium-avro": debezium_avro_options, "json-schema": json_schema_options}
)
"""How the options of a format are checked, by its name; formats that are missing here have no options."""


def check_options(name: str, options: Mapping[str, str]) -> None:
    """Check the options of a format.

    Raises:
        InvalidInput: An option is not known, or its value is wrong.
    """
    CHECKS.get(name, no_options)(options)
