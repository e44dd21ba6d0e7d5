"""Reads a pipeline file as plain values, and parses sizes, latenesses and locations.

`weft.streams.pipeline.file.references` replaces references to environment variables and secrets.
`weft.storage.config.config_file` reads the YAML and formats errors; `weft.streams.pipeline.file.pipeline` interprets
the fields.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from weft.storage.config.config_file import parse_duration, read_yaml
from weft.storage.errors import InvalidInput, NotFound
from weft.streams.spark.settings import ARCHIVES

SUFFIXES: Final = (".yaml", ".yml")
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B?)\s*", re.IGNORECASE)
_BYTES: Final = {
    unit + suffix: factor
    for unit, decimal, binary in (("", 1, 1), ("K", 10**3, 2**10), ("M", 10**6, 2**20), ("G", 10**9, 2**30))
    for suffix, factor in (("", decimal), ("B", decimal), ("IB", binary))
}
_WHOLE: Final = re.compile(r"\s*\d{1,19}\s*")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: C: is a drive


def read_file(path: Path) -> dict[str, Any]:
    """Read the file as a mapping.

    Raises:
        NotFound: There is no such file.
        InvalidInput: The file cannot be read, or is not a YAML mapping.
    """
    if not path.exists():
        raise NotFound(f"there is no pipeline file {path}", hint="create one with weft init DIR")
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise InvalidInput(
            f"{path} is not a mapping", hint="write the sections table and writers; weft init DIR creates an example"
        )
    return raw


def parse_size(value: Any) -> int:
    """Parse ``500 MB``, ``2 GB`` or a number of bytes; returns bytes.

    Raises:
        ValueError: The value is not a positive size.
    """
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    match = _SIZE.fullmatch(text)
    size = int(float(match.group(1)) * _BYTES.get(match.group(2).upper(), 0)) if match else 0
    if size < 1:
        raise ValueError(f"{value!r} is not a size; write for example 500 MB or 2 GB")
    return size


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


def resolve_archives(settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Spark settings whose ``spark.archives`` name files relative to the folder of the pipeline file."""
    if ARCHIVES not in settings:
        return dict(settings)
    archives = (item.strip().partition("#") for item in settings[ARCHIVES].split(",") if item.strip())
    resolved = ",".join(f"{resolve_location(file, folder)}{mark}{name}" for file, mark, name in archives)
    return {**settings, ARCHIVES: resolved}
