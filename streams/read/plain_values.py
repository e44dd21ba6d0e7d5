"""Converts values of rows and results to JSON and text, in the same way for every output."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from weft.storage.core.schema.table_schema import TableSchema

_FORMULA: Final = re.compile(r"[\s\x00-\x1f\u200b\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""The beginning of a cell that a spreadsheet takes for a formula (OWASP, CSV injection), also after spaces or in full
width."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)


def json_value(value: Any) -> Any:
    """Convert a value for JSON: dataclasses and structs become objects, types that JSON lacks become text."""
    if isinstance(value, TableSchema):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return {field.name: json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "__fields__"):  # a struct, as Spark's rows have it
        return {name: json_value(item) for name, item in zip(value.__fields__, value, strict=True)}
    if isinstance(value, list | tuple | frozenset | set):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


def csv_cell(value: Any) -> str:
    """Convert a value to text; NULL is empty, and nested values are JSON."""
    plain = json_value(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def spreadsheet_cell(value: Any) -> str:
    """Convert a value to text for a spreadsheet; an apostrophe is put before a text that would be a formula.

    Numbers, and texts that are numbers such as ``-5``, are not changed. Use `csv_cell` for output that programs read.
    """
    cell = csv_cell(value)
    is_formula = isinstance(value, str) and _FORMULA.match(cell) is not None and _NUMBER.fullmatch(cell) is None
    return f"'{cell}" if is_formula else cell
