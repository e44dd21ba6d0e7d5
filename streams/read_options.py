"""What a reader may ask for, in one room: for the view, ``format("weft")``, SQL's ``OPTIONS (...)`` and ``weft sql``.

Options come as text where SQL or the command line gives them, and as Python values from Python; both mean the same.
What is unknown, is not what it must be, or does not go together is refused here, before any file is looked at.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from storage import Snapshot, Table
from storage.core.cut import PREFIX
from storage.errors import InvalidInput

AsOf = dt.datetime | str
Through = int | dt.datetime | dt.date | str


def parse_as_of(given: Any) -> Any:
    """A time, or the name of a savepoint, or a cut. No name has a colon, and a time is not taken without one.

    Raises:
        InvalidInput: It is not a time, but can be nothing else; or it has no zone.
        ValueError: It is no such thing at all.
    """
    moment = given
    if isinstance(given, str) and ":" in given and not given.startswith(PREFIX):
        try:
            moment = dt.datetime.fromisoformat(given)
        except ValueError:
            raise InvalidInput(f"as_of {given!r} is not a time", hint="for example 2026-11-20T10:30:00Z") from None
    if not isinstance(moment, str | dt.datetime | None):
        raise ValueError("not a time, a name or a cut")  # noqa: TRY004 - what pydantic takes for a wrong value
    if isinstance(moment, dt.datetime) and moment.tzinfo is None:
        text = moment.isoformat()
        raise InvalidInput(f"as_of {text!r} has no zone", hint=f"for example {text}Z, or {text}+01:00")
    return moment


def _names(given: Any) -> Any:
    """Names as SQL gives them, separated by commas, or one by one."""
    if given is None:
        return ()
    return tuple(name.strip() for name in given.split(",") if name.strip()) if isinstance(given, str) else tuple(given)


class ReadOptions(BaseModel):
    """Which snapshot of a table is read, and which of its rows.

    Attributes:
        as_of: Aware time, name of a savepoint, or text of a cut; the newest snapshot of each query by default.
        require: Groups that must be present in a row: one makes a left join, all an inner join.
        read_optimized: Base files alone, as the last compaction has left them: as fast as Parquet, and less fresh.
        complete_through: Refuse a snapshot to which events up to this value may still come, by the watermarks of the
            streams that feed the groups of ``require``, or all groups.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    as_of: Annotated[AsOf | None, BeforeValidator(parse_as_of)] = None
    require: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    read_optimized: bool = False
    complete_through: Through | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ReadOptions:
        """Check what was given; names in any case, as in Spark.

        Raises:
            InvalidInput: An option is unknown, or its value is not what it takes.
        """
        known = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(known) - set(cls.model_fields))
        if unknown:
            raise InvalidInput(
                f"reading a table takes no option {unknown[0]!r}", hint=f"options: {', '.join(cls.model_fields)}"
            )
        try:
            return cls(**known)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise InvalidInput(f"option {name} is no {known[name]!r}", hint=f"{name} is {_VALUES[name]}") from None

    def snapshot(self, table: Table) -> Snapshot:
        """The snapshot that is asked for, as of now.

        Raises:
            InvalidInput: ``as_of`` is a time before the table existed, or ``complete_through`` fits no group.
            NotFound: The table has no such savepoint, cut or group.
            SnapshotExpired: It is older than what is retained.
            NotComplete: A stream is not there yet; it is named.
        """
        if self.complete_through is None:
            return table.snapshot(self.as_of)
        return table.snapshot(self.as_of, complete_through=self.complete_through, require=self.require or None)

    def check(self, table: Table) -> None:
        """Make sure, without a query, that the table has what is asked for.

        Raises:
            TableError: It has not; see `snapshot`.
        """
        self.snapshot(table).scan([], require=self.require, parallelism=1)


_VALUES: Final = {
    "as_of": "a time (ISO 8601 with zone), the name of a savepoint, or the text of a cut",
    "require": "names of groups, separated by commas",
    "read_optimized": "true or false",
    "complete_through": "a value of the ordering columns: a time (ISO 8601), a date or an integer",
}
