"""The time to live in a table's configuration: its fields, checks and defaults (deploy/docs/configuration.md)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict

from weft.storage.config.config_file import MAX_SECONDS, parse_duration
from weft.storage.core.model import Column, Ttl
from weft.storage.core.modes import find_mode
from weft.storage.core.modes.latest import Latest
from weft.storage.core.modes.partial import LatestNonNull
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput

_MAX_SECONDS: Final = 100 * MAX_SECONDS


def _milliseconds(duration: Any) -> int:
    if isinstance(duration, dt.timedelta):
        duration = duration.total_seconds()
    return round(parse_duration(duration, _MAX_SECONDS) * 1000)


Milliseconds = Annotated[int, BeforeValidator(_milliseconds)]
"""A duration of up to 100 years."""


class TtlConfig(BaseModel):
    """How long rows and deletes are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: Milliseconds | None = None
    by: str | None = None
    unit: Literal["seconds", "milliseconds", "microseconds"] | None = None
    deletes: Milliseconds | None = None
    within: Milliseconds | None = None


def resolve_ttl(config: TtlConfig, columns: Mapping[str, Column], merge: Mapping[str, str]) -> Ttl:
    """Check a time to live and fill in its defaults.

    Args:
        config: The section ``ttl`` of the configuration.
        columns: All columns of the table.
        merge: Merge mode of the group of each column outside the key.

    Raises:
        InvalidInput: Its fields contradict each other, or its column does not exist or does not hold times.
    """
    if config.rows is None and config.deletes is None:
        raise InvalidInput("ttl: neither rows nor deletes is set", hint="for example ttl: {rows: 90 days}")
    for field, value in (("rows", config.rows), ("deletes", config.deletes)):
        if value is not None and value <= 0:
            raise InvalidInput(
                f"ttl.{field}: must be above 0", hint="for example 90 days; leave it out to keep them for ever"
            )
    if config.rows is None and (config.by is not None or config.unit is not None):
        field = "unit" if config.by is None else "by"
        raise InvalidInput(f"ttl.{field}: rows do not expire", hint=f"add rows: 90 days, or remove {field}")
    if config.by is not None:
        _check_column(config.by, config.unit, columns, merge)
    elif config.unit is not None:
        raise InvalidInput("ttl.unit: is set without by", hint="add by: an integer column, or remove unit")
    shortest = min(age for age in (config.rows, config.deletes) if age is not None)
    deletes = config.deletes if config.deletes is not None else shortest
    within = config.within if config.within is not None else shortest // 10
    return Ttl(config.rows, config.by or "", config.unit or "", deletes, within)


def _check_column(name: str, unit: str | None, columns: Mapping[str, Column], merge: Mapping[str, str]) -> None:
    if name not in columns:
        raise InvalidInput(f"ttl.by: there is no {name!r}", hint=f"known: {', '.join(columns)}")
    kind = columns[name].type
    what = f"ttl.by: column {name!r}"
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise InvalidInput(
            f"{what} has type {format_type(kind)}, which is not a time",
            hint="choose a date, a timestamp, or an integer with a unit; without `by` the age of the last event counts",
        )
    if pa.types.is_integer(kind) and unit is None:
        hint = "add unit: seconds, milliseconds or microseconds (since 1970)"
        raise InvalidInput(f"ttl.unit: is missing, because column {name!r} is {format_type(kind)}", hint=hint)
    if not pa.types.is_integer(kind) and unit is not None:
        raise InvalidInput(
            f"ttl.unit: column {name!r} is {format_type(kind)}", hint="only integers have a unit: remove it"
        )
    mode = find_mode(merge[name]) if name in merge else None
    if mode is not None and not isinstance(mode, Latest | LatestNonNull):
        raise InvalidInput(
            f"{what} is in a group that is merged by {mode.name}",
            hint="choose a key column, or a column of a group with latest or latest_non_null",
        )


def ttl_configuration(ttl: Ttl) -> dict[str, Any]:
    """A time to live as in the configuration: `resolve_ttl` turns it into an equal one."""
    times = {"rows": ttl.rows_ms, "deletes": ttl.deletes_ms, "within": ttl.within_ms}
    durations: dict[str, Any] = {name: f"{value} ms" for name, value in times.items() if value is not None}
    return durations | {name: value for name, value in (("by", ttl.by), ("unit", ttl.unit)) if value}
