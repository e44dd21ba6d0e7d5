"""Reads configuration files: parses YAML and checks its values with a pydantic model.

Every error names the field as the user wrote it (``writers.orders.source.topic``) and says how to fix it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from weft.storage.errors import InvalidInput
from weft.storage.foreign_text import MAX_CHARACTERS, parse_yaml

Model = TypeVar("Model", bound=BaseModel)
Sections = Mapping[str, type[BaseModel]]
"""Models of the mappings in a file by pydantic's path, such as ``writers.*.source.kafka``; ``*`` is any name."""

MAX_SECONDS: Final = 366 * 24 * 3600  # longer is a mistake; a year in milliseconds still fits into Spark's int

_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_UNITS: Final = {
    "": 1,
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1,
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86400,
}
_WORDING: Final[Mapping[str, str]] = {
    "extra_forbidden": "is not a known field",
    "missing": "is missing",
    "model_type": "is not a mapping",
    "union_tag_invalid": "type is {tag!r}, and must be one of {expected_tags}",
    "union_tag_not_found": "type is missing",
    "value_error": "{error}",
    "string_type": "is {kind}, and must be a text",
    "list_type": "is {kind}, and must be a list",
    "sequence_str": "is {kind}, and must be a list",
    "dict_type": "is {kind}, and must be a mapping, with a name before each value",
    "mapping_type": "is {kind}, and must be a mapping, with a name before each value",
    "bool_type": "is {kind}, and must be true or false",
    "bool_parsing": "is {kind}, and must be true or false",
    "int_type": "is {kind}, and must be a whole number",
    "int_parsing": "is {kind}, and must be a whole number",
    "int_from_float": "is a number with a fraction, and must be a whole number",
    "float_type": "is {kind}, and must be a number",
    "float_parsing": "is {kind}, and must be a number",
    "literal_error": "must be {expected}",
    "too_short": "is empty",
    "string_too_short": "is empty",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be {le:g} or less",
}
"""Message for a type of pydantic error; for other types pydantic's message is shown. Values are not shown, because a
file can contain secrets."""
_KINDS: Final[Mapping[type, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
    type(None): "empty",
}


class FieldError(ValueError):
    """Raised by the validator of a field: what is wrong with its value, and a hint."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class FieldProblem(NamedTuple):
    """What is wrong with a field.

    Attributes:
        path: The field as written in the file; empty for the whole file.
        field: The path as text, such as ``columns.amount.type``.
        text: What is wrong.
        hints: How to fix it; may be empty.
        missing: Whether the field is missing.
    """

    path: tuple[str, ...]
    field: str
    text: str
    hints: tuple[str, ...]
    missing: bool


def _check_unique(items: list[str]) -> list[str]:
    for name, count in Counter(items).items():
        if count > 1:
            raise FieldError(f"{name!r} is listed {count} times", hint="list it once")
    return items


Names = Annotated[list[str], AfterValidator(_check_unique)]
"""A list of names without duplicates."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file as plain values.

    Raises:
        InvalidInput: The file does not exist, cannot be read, is not YAML, or exceeds a limit of
            `weft.storage.foreign_text`.
    """
    try:
        with path.open(encoding="utf-8") as file:
            return parse_yaml(file.read(MAX_CHARACTERS + 1))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}", hint="check the file and its permissions") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where, problem = (f", line {mark.line + 1}", getattr(error, "problem", error)) if mark else ("", error)
        raise InvalidInput(
            f"{path}{where}: {problem}", hint="weft does not read this YAML: fix the file there"
        ) from None


def parse_fields(model: type[Model], raw: Any, sections: Sections, *, hint: str = "") -> Model:
    """Turn the values of a file into a model.

    Args:
        model: Model of the whole file.
        raw: The values.
        sections: Models of the mappings within the file; hints name their fields.
        hint: Shown if no wrong field has a hint of its own.

    Raises:
        InvalidInput: The message names every wrong field.
    """
    parsed, problems = find_problems(model, raw, sections)
    if parsed is not None:
        return parsed
    raise wrong_fields(problems, hint=hint)


def wrong_fields(problems: Sequence[FieldProblem], *, where: str = "", hint: str = "") -> InvalidInput:
    """Build the error that names every wrong field, prefixed with ``where``.

    Args:
        problems: The wrong fields.
        where: Put before each field, such as ``add_column.``.
        hint: Shown if no wrong field has a hint of its own.
    """
    hints = dict.fromkeys(hint for problem in problems for hint in problem.hints)
    message = "; ".join(f"{where}{problem.field}: {problem.text}" for problem in problems)
    return InvalidInput(message, hint="; ".join(hints) or hint)


def find_problems(model: type[Model], raw: Any, sections: Sections) -> tuple[Model | None, list[FieldProblem]]:
    """The values of a file as a model, or everything that is wrong with them. Arguments as for `parse_fields`."""
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        return None, describe_problems(error, raw, {**sections, "": model})


def describe_problems(error: ValidationError, raw: Any, sections: Sections) -> list[FieldProblem]:
    """Describe pydantic's errors. Arguments as for `parse_fields`; ``sections`` has the whole model as ""."""
    by_field: dict[str, FieldProblem] = {}
    for item in error.errors():
        missing = item["type"] == "missing"
        path = _path_in_file(item["loc"], raw, missing=missing)
        field = ".".join(path) or "the configuration"
        if field not in by_field:
            wording = _WORDING.get(item["type"])
            facts = {"kind": _KINDS.get(type(item["input"]), "another value"), **item.get("ctx", {})}
            text = item["msg"] if wording is None else wording.format_map(facts)
            by_field[field] = FieldProblem(path, field, text, tuple(_hints(item, sections)), missing)
    return list(by_field.values())


def remove_field(raw: Any, path: Sequence[str]) -> bool:
    """Remove a field from plain values; returns whether it existed. The path is not empty."""
    for name in path[:-1]:
        raw = raw[int(name)] if isinstance(raw, list) else raw.get(name) if isinstance(raw, dict) else None
    if isinstance(raw, list) and path[-1].isdigit() and int(path[-1]) < len(raw):
        del raw[int(path[-1])]
        return True
    if isinstance(raw, dict):
        # Two problems may name one field, or a field within a removed one.
        raw.pop(path[-1], None)
        return True
    return raw is None


def _hints(item: ErrorDetails, sections: Sections) -> Iterator[str]:
    *parents, field = map(str, item["loc"] or ("",))
    if item["type"] == "missing":
        yield f"add {field}"
    elif item["type"] == "extra_forbidden":
        model = next(model for at, model in sections.items() if fnmatchcase(".".join(parents), at))
        field_names = [info.alias or name for name, info in model.model_fields.items()]
        close = get_close_matches(field, field_names, n=1)
        yield f"did you mean {close[0]}?" if close else f"known: {', '.join(field_names)}"
    elif item["type"] in {"list_type", "sequence_str"}:
        value = item["input"]
        yield f"{field}: [{value}]" if isinstance(value, str | int) and value else f"{field}: [A, B]"
    elif item["type"] in {"dict_type", "mapping_type"}:
        yield f"{field}: {{NAME: VALUE}}"
    elif item["type"] == "string_type":
        yield "put quotes around it"
    elif item["type"] == "literal_error":
        choices = re.findall("'([^']*)'", item["ctx"]["expected"])
        yield from (f"did you mean {choice}?" for choice in get_close_matches(str(item["input"]), choices, 1))
    elif isinstance(error := item.get("ctx", {}).get("error"), FieldError):
        yield error.hint


def _path_in_file(loc: tuple[int | str, ...], raw: Any, *, missing: bool) -> tuple[str, ...]:
    """The part of pydantic's path that is in the file, without the names of union members, plus a missing field."""
    path = []
    for part in loc[:-1] if missing else loc:
        if isinstance(part, int) if isinstance(raw, list) else isinstance(raw, Mapping) and part in raw:
            raw = raw[part]
            path.append(str(part))
    return (*path, str(loc[-1])) if missing else tuple(path)


@contextmanager
def collect(problems: list[InvalidInput]) -> Iterator[None]:
    """Append the `InvalidInput` that the block raises."""
    try:
        yield
    except InvalidInput as error:
        problems.append(error)


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Put a prefix, such as ``columns.a: ``, before the message of an `InvalidInput` that is raised in the block."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{where}{error.message}", hint=error.hint) from None


def parse_duration(value: Any, max_seconds: float = MAX_SECONDS) -> float:
    """Parse ``2 seconds``, ``10 minutes``, ``1 hour``, ``500 ms`` or a number of seconds; returns seconds.

    Raises:
        ValueError: The value is not a duration, or longer than ``max_seconds``, by default a year.
    """
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    match = _DURATION.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    factor = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not a duration; write for example 2 seconds, 10 minutes, 1 hour or 500 ms")
    seconds = float(match.group(1)) * factor
    if seconds > max_seconds:
        years = max_seconds // MAX_SECONDS
        raise ValueError(f"{value!r} is longer than {'a year' if years == 1 else f'{years:.0f} years'}")
    return seconds
