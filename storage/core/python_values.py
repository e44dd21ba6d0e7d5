"""Converts Arrow values to Python values for people, including times that Python cannot represent.

Columns that are neither keys nor ordering values may hold times outside of the years 1 to 9999. For them `as_py`,
`to_pylist` and `str` of pyarrow raise an OverflowError, and its casts to text print wrong years from 32768 on. Here
they become texts, at any depth of a nested value.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import pyarrow as pa

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


def python_rows(rows: pa.Table | pa.RecordBatch, *, mappings: bool = True) -> list[tuple[Any, ...]]:
    """The rows as tuples in the order of the columns, whose names may repeat; see `python_values`."""
    columns = [python_values(column, mappings=mappings) for column in rows.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows


def python_values(column: pa.Array | pa.ChunkedArray, *, mappings: bool = True) -> list[Any]:
    """The values of a column, as `to_pylist` returns them if it can.

    Args:
        column: The column.
        mappings: Whether a map becomes a mapping, unless a key is duplicate or nested; otherwise it becomes a list of
            pairs.
    """
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict" if mappings else None)
    except (KeyError, TypeError, ValueError, OverflowError):
        return [python_value(value, mappings=mappings) for value in column]
    return values


def python_value(value: pa.Scalar, *, mappings: bool = True) -> Any:
    """A value, as `as_py` returns it if it can; text that is not UTF-8 as bytes. For maps see `python_values`."""
    try:
        return value.as_py(maps_as_pydicts="strict" if mappings else None)
    except (KeyError, TypeError, ValueError, OverflowError):
        kind = value.type
    if pa.types.is_struct(kind):
        return {field.name: python_value(value[number], mappings=mappings) for number, field in enumerate(kind)}
    if pa.types.is_map(kind):
        pairs = list(zip(*(python_values(value.values.field(side), mappings=mappings) for side in (0, 1)), strict=True))
        return _as_mapping(pairs) if mappings else pairs
    if pa.types.is_nested(kind):
        return python_values(value.values, mappings=mappings)
    if pa.types.is_timestamp(kind):
        days, rest = divmod(value.value * _MICROSECONDS[kind.unit], 86_400_000_000)
        clock = (_EPOCH + dt.timedelta(microseconds=rest)).time()
        return f"{_date(days)}T{clock.isoformat()}{'' if kind.tz is None else '+00:00'}"
    if pa.types.is_date32(kind):
        return _date(value.value)
    return value.as_buffer().to_pybytes()


def _as_mapping(pairs: list[tuple[Any, Any]]) -> dict[Any, Any] | list[tuple[Any, Any]]:
    try:
        mapping = dict(pairs)
    except TypeError:  # a key that is nested
        return pairs
    return mapping if len(mapping) == len(pairs) else pairs


def _date(days: int) -> str:
    """Text of the date ``days`` after 1970-01-01, for any year. The calendar repeats every 400 years."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = _EPOCH.date() + dt.timedelta(days=rest)
    return f"{day.year + _CYCLE_YEARS * cycles:04d}-{day:%m-%d}"
