"""Reads a pipeline file as plain values: YAML, environment variables, durations, locations, wording of errors.

Every error names the field as the user wrote it (``writers.orders.source.topic``) and says how to fix it. Values of
environment variables, which may be secrets, are never part of a message. `streams.pipeline.pipeline` knows what the
fields mean.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from storage.errors import InvalidInput, NotFound

SUFFIXES: Final = (".yaml", ".yml")
MAX_SECONDS: Final = 366 * 24 * 3600  # a longer one is a mistake; a year in milliseconds still fits into Spark's int

_VARIABLE: Final = re.compile(r"\$\$|\$\{([^}]*)\}|\$\{")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_WHOLE: Final = re.compile(r"\s*\d{1,19}\s*")
_UNITS: Final[Mapping[str, float]] = {
    "": 1,
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1,
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86400,
}
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: C: is a drive


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a repeated key is an error; PyYAML silently keeps the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} appears twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the file as a mapping.

    Raises:
        NotFound: There is no such file.
        InvalidInput: The file cannot be read, or is not a YAML mapping.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506 - a SafeLoader
    except FileNotFoundError:
        raise NotFound(f"there is no pipeline file {path}", hint="weft init DIR writes one to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"cannot read the pipeline file {path}: {error}", hint="check the file and its permissions"
        ) from error
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidInput(f"{path}{where}: {error.problem}", hint="fix the YAML there") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path} is not YAML: {error}", hint="fix the file") from None
    if not isinstance(raw, dict):
        raise InvalidInput(
            f"{path} is not a mapping", hint="a pipeline has the sections table and writers; see weft init"
        )
    return raw


def substitute(value: Any, environment: Mapping[str, str], field: str = "") -> Any:
    """Replace ``${NAME}`` in string values by the environment variable, and ``$$`` by a dollar sign.

    Raises:
        InvalidInput: A variable is not set, or its name is invalid; the message names the field.
    """
    if isinstance(value, Mapping):
        return {k: substitute(v, environment, f"{field}.{k}" if field else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [substitute(item, environment, f"{field}.{i}") for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        name = match.group(1)
        if name is None or not _NAME.fullmatch(name):
            raise InvalidInput(
                f"{field}: {match.group()!r} is not the name of an environment variable",
                hint="write ${NAME}, or $$ for a dollar sign",
            )
        if name not in environment:
            raise InvalidInput(
                f"{field}: environment variable {name} is not set", hint=f"export {name}=..., or write $$ for a $"
            )
        return environment[name]

    return _VARIABLE.sub(replaced, value)


def parse_duration(value: Any) -> float:
    """Parse ``2 seconds``, ``10 minutes``, ``1 hour``, ``500 ms`` or a number of seconds; returns seconds.

    Raises:
        ValueError: The value is not a duration, or longer than a year.
    """
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    match = _DURATION.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    factor = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not a duration; write for example 2 seconds, 10 minutes, 1 hour or 500 ms")
    seconds = float(match.group(1)) * factor
    if seconds > MAX_SECONDS:
        raise ValueError(f"{value!r} is longer than a year")
    return seconds


def parse_lateness(value: Any) -> int | dt.timedelta:
    """Parse a lateness: ``10 minutes`` for events that a time orders, a whole number if an integer orders them.

    Raises:
        ValueError: The value is neither, or longer than a year.
    """
    if isinstance(value, dt.timedelta) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)  # from the environment, or in quotes
    if isinstance(value, str):
        return dt.timedelta(seconds=parse_duration(value))
    raise ValueError(
        f"{value!r} is not a lateness; write for example 10 minutes, or a whole number for integer columns"
    )


def resolve_location(location: str, folder: Path) -> str:
    """A URL unchanged, or an absolute path; relative paths start at the folder of the pipeline file."""
    if _URL.match(location):
        return location
    return os.path.normpath(folder / Path(location).expanduser())


def describe_mistakes(
    error: ValidationError, raw: Any, fields_at: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> tuple[str, str]:
    """Message and hint for a pydantic error; the message names every wrong field.

    Args:
        error: Raised while validating ``raw``.
        raw: The values. Parts of pydantic's path that are not in them are internal names and are left out.
        fields_at: The known field names of the mapping at a path.
    """
    seen: dict[str, str] = {}
    hints = []
    for item in error.errors():
        path = _written(item["loc"], raw)
        field = ".".join(path) or "the pipeline"
        if field in seen:
            continue
        if item["type"] == "extra_forbidden":
            known = fields_at(path[:-1])
            close = get_close_matches(path[-1], known, n=1)
            seen[field] = "is not a known field"
            hints.append(f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}")
        elif item["type"] == "missing":
            seen[field] = "is missing"
            hints.append(f"add {path[-1]}")
        else:
            seen[field] = item["msg"].removeprefix("Value error, ")
    return "; ".join(f"{field}: {message}" for field, message in seen.items()), "; ".join(dict.fromkeys(hints))


def _written(loc: tuple[int | str, ...], raw: Any) -> tuple[str, ...]:
    """The part of pydantic's path that is in the file; the last step may be a missing field."""
    path = []
    for i, part in enumerate(loc):
        there = isinstance(raw, dict) and part in raw
        there |= isinstance(raw, list) and isinstance(part, int) and part < len(raw)
        absent = isinstance(raw, dict) and isinstance(part, str) and i == len(loc) - 1
        if there:
            raw = raw[part]
        if there or absent:
            path.append(str(part))
    return tuple(path)
