"""Options of reads, the same for views, ``format("weft")``, SQL's ``OPTIONS (...)`` and ``weft sql``.

SQL and the command line pass values as text, Python passes Python values; both mean the same. Unknown options and
invalid values or combinations are refused here, before any file is read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from weft.storage import Snapshot, Table
from weft.storage.errors import InvalidInput
from weft.storage.foreign_text import parse_json
from weft.storage.operations.points import Point, parse_point, warn_if_unsettled
from weft.streams.pipeline.file.model import TableLocation

Through = int | dt.datetime | dt.date | str

LOCATION_OPTIONS: Final = ("path", "storage_options")
"""Options of ``format("weft")`` with the location of a table; see `location_of`."""


def split_names(value: Any) -> Any:
    """Split names separated by commas, as SQL and the command line give them; other values are returned unchanged."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def location_of(raw: Mapping[str, str]) -> TableLocation:
    """Parse the location of a table from the options ``path`` and ``storage_options`` (a JSON object).

    No error message contains the storage options, because they may contain secrets.

    Raises:
        InvalidInput: There is no path, or ``storage_options`` is not a JSON object.
    """
    by_name = {name.lower(): value for name, value in raw.items()}
    uri = by_name.get("path")
    if not uri:
        raise InvalidInput("format weft needs the table's location", hint='use .option("path", uri) or .load(uri)')
    try:
        options = parse_json(by_name.get("storage_options") or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise InvalidInput(
            "option storage_options is not a JSON object",
            hint="give the options of the fsspec file system: "
            '.option("storage_options", json.dumps({"endpoint_url": "..."}))',
        )
    return TableLocation(uri, options)


def _names(value: Any) -> Any:
    return () if value is None else tuple(split_names(value))


class ReadOptions(BaseModel):
    """Which snapshot of a table is read, and which of its rows.

    Attributes:
        as_of: Aware time, name of a savepoint, or text of a cut; the newest snapshot of each query by default.
        require: Groups that must be present in a row. With one group the result is that of a left join, with all groups
            that of an inner join.
        read_optimized: Read base files only: as fast as Parquet, but without commits since the last compaction.
        complete_through: Refuse a snapshot as long as events up to this value may still arrive, according to the
            watermarks of the streams that feed the groups of ``complete_groups``.
        complete_groups: Groups that ``complete_through`` applies to; all by default. No row is left out.
        settled: Refuse a time whose snapshot may still change. By default a warning with the cut is logged.
        moment: Require that the newest snapshot is the table at one moment; see `Table.snapshot`.
        push_aggregates: Let the tasks that merge rows also aggregate them, and return no more rows than a LIMIT needs,
            if the result is the same as Spark's. This affects only the speed, and only of views on Spark.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    as_of: Annotated[Point | None, BeforeValidator(parse_point)] = None
    require: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    read_optimized: bool = False
    complete_through: Through | None = None
    complete_groups: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    settled: bool = False
    moment: bool = False
    push_aggregates: bool = True

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> ReadOptions:
        """Parse and check options; upper and lower case of names is ignored, as in Spark.

        Raises:
            InvalidInput: An option is unknown, or its value is invalid.
        """
        values = {name.lower(): value for name, value in raw.items()}
        unknown = sorted(set(values) - set(cls.model_fields))
        if unknown:
            raise InvalidInput(
                f"unknown option {unknown[0]!r} for reading a table", hint=f"options: {', '.join(cls.model_fields)}"
            )
        try:
            return cls(**values)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise InvalidInput(f"option {name} cannot be {values[name]!r}", hint=f"give {_VALUES[name]}") from None

    def snapshot(self, table: Table) -> Snapshot:
        """Take the snapshot that the options select.

        Raises:
            InvalidInput: ``as_of`` is a time before the table was created, or ``complete_through`` has the wrong type.
            NotFound: The table has no such savepoint, cut or group.
            SnapshotExpired: The snapshot is older than cleaning retains.
            NotComplete: Streams are not complete through ``complete_through``; the message names them.
            NotSettled: ``as_of`` is a time whose snapshot may still change, and ``settled`` is true.
            NotOneMoment: ``moment`` is true, and an earlier version of weft commits at the same time.
        """
        snapshot = self._snapshot(table)
        warn_if_unsettled(self.as_of, snapshot)
        return snapshot

    def _snapshot(self, table: Table) -> Snapshot:
        return table.snapshot(
            self.as_of,
            complete_through=self.complete_through,
            complete_groups=self.complete_groups or None,
            settled=self.settled,
            moment=self.moment,
        )

    def check(self, table: Table) -> None:
        """Check the options against the table, without running a query.

        Raises:
            TableError: See `snapshot`.
        """
        self._snapshot(table).scan([], require=self.require, parallelism=1)


_VALUES: Final = {
    "as_of": "a time (ISO 8601 with zone), the name of a savepoint, or the text of a cut",
    "require": "names of groups, separated by commas",
    "read_optimized": "true or false",
    "complete_through": "a value of the ordering columns: a time (ISO 8601), a date or an integer",
    "complete_groups": "names of groups, separated by commas",
    "settled": "true or false",
    "moment": "true or false",
    "push_aggregates": "true or false",
}
