"""The time to live in a table's configuration: its fields, checks and defaults. deploy/docs/configuration.md."""

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


def _milliseconds(given: Any) -> int:
    if isinstance(given, dt.timedelta):
        given = given.total_seconds()
    return round(parse_duration(given, _MAX_SECONDS) * 1000)


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


def resolve_ttl(given: TtlConfig, columns: Mapping[str, Column], merge: Mapping[str, str]) -> Ttl:
    """The checked time to live, with its defaults.

    Args:
        given: As in the configuration.
        columns: All columns of the table.
        merge: Merge mode of the group of each column that is in one.

    Raises:
        InvalidInput: It contradicts itself, or its column does not exist or is no time.
    """
    if given.rows is None and given.deletes is None:
        raise InvalidInput("ttl: neither rows nor deletes is given", hint="for example ttl: {rows: 90 days}")
    for field, value in (("rows", given.rows), ("deletes", given.deletes)):
        if value is not None and value <= 0:
            raise InvalidInput(f"ttl.{field}: is not a time above 0", hint="for example 90 days; leave it out for ever")
    if given.rows is None and (given.by is not None or given.unit is not None):
        field = "unit" if given.by is None else "by"
        raise InvalidInput(f"ttl.{field}: rows do not expire", hint=f"add rows: 90 days, or remove {field}")
    if given.by is not None:
        _check_column(given.by, given.unit, columns, merge)
    elif given.unit is not None:
        raise InvalidInput("ttl.unit: there is no column", hint="add by: an integer column, or remove unit")
    shortest = min(each for each in (given.rows, given.deletes) if each is not None)
    deletes = given.deletes if given.deletes is not None else shortest
    within = given.within if given.within is not None else shortest // 10
    return Ttl(given.rows, given.by or "", given.unit or "", deletes, within)


def _check_column(name: str, unit: str | None, columns: Mapping[str, Column], merge: Mapping[str, str]) -> None:
    if name not in columns:
        raise InvalidInput(f"ttl.by: there is no {name!r}", hint=f"known: {', '.join(columns)}")
    kind = columns[name].type
    what = f"ttl.by: column {name!r}"
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise InvalidInput(
            f"{what} has type {format_type(kind)}, which is no time",
            hint="choose a date, a timestamp, or an integer with a unit; without by the last event counts",
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
    given: dict[str, Any] = {name: f"{value} ms" for name, value in times.items() if value is not None}
    return given | {name: value for name, value in (("by", ttl.by), ("unit", ttl.unit)) if value}
