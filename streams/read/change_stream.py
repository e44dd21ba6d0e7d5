"""Changes of a table as a stream or a batch: ``format("weft")`` with option ``starting``, or ``changes_since``.

Spark asks a Python source for its columns before it says whether it will stream, so an option says it: a stream begins
at ``starting`` (``earliest`` if it is left out, see `streams.read.stream_mark`), a batch of changes at
``changes_since``. Options, columns and errors are those of `Table.changes`.

The offset of a query is a cut, kept in its checkpoint: cuts never change, so a batch that is planned again after a
restart has the very same rows (S9, S21). Beside it stands the id of the table: a cut may fit another table that is made
at the same place later, of which it would tell some rows only. A new query begins with the empty offset, which Spark
does not write down, and takes its first cut as the end of a first batch: all rows as inserts if it starts at
``earliest``, no rows else. A table that others compact while nothing is written gives batches without rows: so the
offset stays within what is retained. What is not retained any more, or was restored meanwhile, fails the query with
`OffsetExpired` or `OffsetInvalidated`; the hint says how to go on.

A query keeps the columns it began with. Columns that are added later are seen, and count, from its next start on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from storage import Table, engine
from storage.engine import BEFORE, CHANGE, CHANGED_GROUPS, ChangeScan, ChangeTask, bounded_cut, expiring, scan_changes
from storage.errors import InvalidInput, OffsetInvalidated
from streams.pipeline.model import TableLocation
from streams.read.as_of import EARLIEST, Point, parse_point
from streams.read.read_options import PLACE_OPTIONS, split_names
from streams.read.stream_mark import MARK
from streams.spark.for_workers import ForWorkers

LATEST: Final = "latest"
_OF_CHANGES: Final = {"max_commits_per_trigger", "changes_until", "columns", "before"}  # and of nothing else
_SAY_WHERE: Final = "say where they begin: readStream takes starting, read takes changes_since"
Json = dict[str, Any]


_Point = Annotated[Point | None, BeforeValidator(parse_point)]
_Names = Annotated[tuple[str, ...] | None, BeforeValidator(split_names)]


class ChangeOptions(BaseModel):
    """What is asked of changes; a point is a cut, a savepoint or a time (ISO 8601 with zone).

    Attributes:
        starting: Where a stream begins: ``earliest`` (what is there comes as inserts), ``latest``, or a point.
        max_commits_per_trigger: About how many commits a batch of a stream has at most, after the first.
        changes_since: Where a batch begins: ``earliest`` or a point.
        changes_until: Where it ends; the newest snapshot by default.
        columns: Of the answer besides the key, separated by commas; all by default. Only what differs in them counts.
        require: Groups without which a row is not there, separated by commas.
        before: With the image of before, in column ``_before``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    starting: _Point = None
    max_commits_per_trigger: Annotated[int, Field(ge=1)] | None = None
    changes_since: _Point = None
    changes_until: _Point = None
    columns: _Names = None
    require: _Names = None
    before: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ChangeOptions | None:
        """The options of ``format("weft")`` besides where the table is; None if they do not ask for changes.

        Raises:
            InvalidInput: One is unknown, or its value is not what it takes, or they contradict each other.
        """
        known = {name.lower(): value for name, value in given.items() if name.lower() not in PLACE_OPTIONS}
        streams = known.pop(MARK, None) is not None
        if "starting" not in known and "changes_since" not in known:
            if not streams:
                lost = sorted(known.keys() & _OF_CHANGES)
                if lost:
                    raise InvalidInput(f"option {lost[0]!r} is for reading changes", hint=_SAY_WHERE)
                return None
            known["starting"] = EARLIEST
        try:
            options = cls.model_validate(known)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidInput(
                f"option {first['loc'][0]!r} for reading changes: {first['msg']}",
                hint=f"options: {', '.join((*PLACE_OPTIONS, *cls.model_fields))}",
            ) from None
        stream, batch = {"starting", "max_commits_per_trigger"}, {"changes_since", "changes_until"}
        if stream & options.model_fields_set and batch & options.model_fields_set:
            raise InvalidInput(
                f"options {', '.join(sorted((stream | batch) & options.model_fields_set))} do not go together",
                hint=_SAY_WHERE,
            )
        return options


def change_schema(table: Table, options: ChangeOptions) -> StructType:
    """Columns of the changes as they are now."""
    return from_arrow_schema(engine.change_schema(table.schema, options.columns, before=options.before))


def _scan(
    table: Table, options: ChangeOptions, schema: StructType, since: Point | None, until: Point | None
) -> ChangeScan:
    """Plan what the query wants; both snapshots under the newest schema, which may be newer than ``until``."""
    with expiring():
        earlier = None if since is None else table.snapshot(since)
        later = table.snapshot(until)
    columns = [name for name in schema.names if name not in {CHANGE, CHANGED_GROUPS, BEFORE}]
    scan = scan_changes(earlier, later, columns, options.require, before=options.before, under=table.state())
    planned = from_arrow_schema(scan.arrow)
    if [(field.name, field.dataType) for field in planned] != [(field.name, field.dataType) for field in schema]:
        raise InvalidInput(
            f"the query has {schema.simpleString()}, the table's changes are {planned.simpleString()}",
            hint="the table's schema has changed: start the query anew, it goes on from its checkpoint; "
            "changes take no .schema(...) of one's own",
        )
    return scan


class _Partition(InputPartition):
    """One task, with all that is needed to read it anywhere."""

    def __init__(self, scan: ChangeScan, task: ChangeTask) -> None:
        super().__init__(None)
        self.scan, self.task = scan, task


def _partitions(scan: ChangeScan) -> list[InputPartition]:
    return [_Partition(scan.without_tasks(), task) for task in scan.tasks]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Where a batch has no task at all, Spark makes up a partition of its own.
    return partition.scan.read(partition.task) if isinstance(partition, _Partition) else iter(())


class ChangeBatchReader(ForWorkers, DataSourceReader):
    """For ``spark.read``: the changes between two points, fixed when it is planned."""

    def __init__(self, table: Table, options: ChangeOptions, schema: StructType) -> None:
        """Plan the changes.

        Raises:
            InvalidInput: Options are those of a stream; or see `Table.changes`, also for further errors.
        """
        if options.changes_since is None:
            raise InvalidInput(
                "option 'starting' is for streams", hint="spark.read takes changes_since, and changes_until"
            )
        since = None if options.changes_since == EARLIEST else options.changes_since
        self._own = _partitions(_scan(table, options, schema, since, options.changes_until))

    def partitions(self) -> Sequence[InputPartition]:
        """A task each."""
        return self._own

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task."""
        return _read(partition)


class ChangeStreamReader(ForWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """For ``spark.readStream``: plans micro-batches in one process beside the driver."""

    def __init__(self, location: TableLocation, options: ChangeOptions | None, schema: StructType) -> None:
        """Nothing is opened yet: executors get a copy.

        Raises:
            InvalidInput: It is not said where the stream begins.
        """
        if options is None or options.starting is None:
            raise InvalidInput(
                "a stream of changes needs option 'starting'",
                hint="earliest (what is there comes as inserts), latest, a cut, a savepoint or a time",
            )
        self._location, self._options, self._schema = location, options, schema
        self._table: Table | None = None
        self._target: str | None = None
        self._latest: str | None = None

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """The same for every new query, because Spark does not write it down; see the module."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The option ``max_commits_per_trigger``: Spark has limits of its own kinds only, and counts nothing itself."""
        most = self._options.max_commits_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember the newest cut: the run ends there, whatever is written meanwhile."""
        self._target = str(self._opened().snapshot().cut)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 - Spark's name
        """End of the batch that begins at ``start``.

        Raises:
            OffsetExpired, OffsetInvalidated: The changes after ``start`` cannot be told completely.
        """
        self._check_table(start)
        assert isinstance(limit, ReadAllAvailable | ReadMaxFiles), f"Spark admits by a limit it was not given: {limit}"
        table = self._opened()
        newest = self._target or str(table.snapshot().cut)
        self._latest = newest
        if not start:
            return self._offset(self._first(newest))
        begin = str(start["cut"])
        if begin == newest or isinstance(limit, ReadAllAvailable):
            return self._offset(newest)
        with expiring():
            end = bounded_cut(table.snapshot(begin), table.snapshot(newest), limit.max_files)
        return self._offset(str(end))

    def _first(self, newest: str) -> str:
        starting = self._options.starting
        if starting in {EARLIEST, LATEST}:
            return newest
        with expiring():
            return str(self._opened().snapshot(starting).cut)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802 - Spark's name
        """The newest cut when the last batch was planned, for the query's progress."""
        return None if self._latest is None else self._offset(self._latest)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The changes between two offsets of the checkpoint: the same whenever they are planned."""
        if start == end or (not start and self._options.starting != EARLIEST):
            return []
        self._check_table(start)
        self._check_table(end)
        return _partitions(_scan(self._opened(), self._options, self._schema, start.get("cut"), end["cut"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task, on an executor."""
        return _read(partition)

    def _offset(self, cut: str) -> Json:
        return {"cut": cut, "table": self._opened().state().table_id}

    def _check_table(self, offset: Json) -> None:
        table_id = self._opened().state().table_id
        if offset.get("table", table_id) != table_id:
            raise OffsetInvalidated(
                f"the query has read another table at {self._location.uri}, which is gone",
                hint="start a query with a checkpoint of its own, and take everything anew (starting=earliest)",
            )

    def _opened(self) -> Table:
        if self._table is None:
            self._table = Table.open(self._location.uri, storage_options=self._location.storage_options)
        return self._table
