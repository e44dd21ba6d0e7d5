"""Changes of a table as a stream or a batch: ``format("weft")`` with option ``starting``, or ``changes_since``.

Spark asks a Python source for its columns before it says whether the read is a stream. So an option decides: a stream
begins at ``starting`` (``earliest`` if it is left out, see `weft.streams.read.stream_mark`), a batch of changes at
``changes_since``. Options, columns and errors are those of `Table.changes`.

The offset of a query is a cut, which Spark stores in the checkpoint. Cuts never change, so a batch that is planned
again after a restart has exactly the same rows (PROTOCOL.md, S9, S21). The offset also has the id of the table, because
the cut may be valid, but wrong, in another table that is created later at the same URI. A new query begins with the
empty offset, which Spark does not store. Its first batch ends at the first cut; it has all rows as inserts if the query
starts at ``earliest``, otherwise no rows. If a table is compacted and nothing is written, batches have no rows, but the
offset advances and so does not expire. If the offset has expired or was invalidated by a restore, the query fails with
`OffsetExpired` or `OffsetInvalidated`; the hint says how to continue.

With columns of references the offset names the cuts of all tables, and a row whose referenced row has changed is in the
batch. ``max_commits_per_trigger`` counts the commits of the table alone: each batch ends at the newest cuts of the
referenced tables, so that a row is never delivered before the referenced rows that were committed before it.

A query keeps the columns that it started with. Columns that are added to the table later are read from its next start.
For a reference that is added, its first batch then has every row that has a referenced row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from weft.storage import Snapshot, Table
from weft.storage.core.merge.diff import BEFORE, CHANGE, CHANGED_GROUPS
from weft.storage.errors import InvalidInput, NotOneMoment, OffsetInvalidated
from weft.storage.operations.points import EARLIEST, Point, parse_point
from weft.storage.read.changes.change_scan import ChangeScan, expiring
from weft.storage.read.changes.consumer_cuts import advance_cut, follows, referenced_cuts
from weft.storage.read.changes.plan import change_schema as arrow_schema_of_changes
from weft.storage.read.changes.plan import plan_changes, shows_references
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.read.read_options import LOCATION_OPTIONS, split_names
from weft.streams.read.relation.task_reader import TaskPartition, TaskReader
from weft.streams.read.relation.worker import PlannedTask
from weft.streams.read.stream_mark import MARK
from weft.streams.spark.for_workers import ForWorkers

LATEST: Final = "latest"
_CHANGE_OPTIONS: Final = {"max_commits_per_trigger", "changes_until", "columns", "before"}  # invalid in other reads
_BEGIN_HINT: Final = "give the beginning of the changes: readStream takes starting, read takes changes_since"
Json = dict[str, Any]


_Point = Annotated[Point | None, BeforeValidator(parse_point)]
_Names = Annotated[tuple[str, ...] | None, BeforeValidator(split_names)]


class ChangeOptions(BaseModel):
    """Options of a read of changes. A point is a cut, a savepoint or a time (ISO 8601 with zone).

    Attributes:
        starting: Where a stream begins: ``earliest`` (existing rows are inserts), ``latest``, or a point.
        max_commits_per_trigger: The approximate maximum of commits per batch of a stream, after the first batch.
        changes_since: Where a batch begins: ``earliest`` or a point.
        changes_until: Where a batch ends; the newest snapshot by default.
        columns: Columns of the result besides the key, separated by commas; all by default, also those of references.
            Rows that differ only in other columns are not returned.
        require: Groups and references that must be present in a row, separated by commas; other rows count as not
            visible.
        before: Whether to add column ``_before`` with the row before the change.
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
    def of(cls, raw: Mapping[str, str]) -> ChangeOptions | None:
        """Parse the options of ``format("weft")``, except the location; None if the read is not one of changes.

        Raises:
            InvalidInput: An option is unknown, a value is invalid, or two options exclude each other.
        """
        values = {name.lower(): value for name, value in raw.items() if name.lower() not in LOCATION_OPTIONS}
        streams = values.pop(MARK, None) is not None
        if "starting" not in values and "changes_since" not in values:
            if not streams:
                misplaced = sorted(values.keys() & _CHANGE_OPTIONS)
                if misplaced:
                    raise InvalidInput(f"option {misplaced[0]!r} is for reading changes", hint=_BEGIN_HINT)
                return None
            values["starting"] = EARLIEST
        try:
            options = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidInput(
                f"option {first['loc'][0]!r} for reading changes: {first['msg']}",
                hint=f"options: {', '.join((*LOCATION_OPTIONS, *cls.model_fields))}",
            ) from None
        stream, batch = {"starting", "max_commits_per_trigger"}, {"changes_since", "changes_until"}
        if stream & options.model_fields_set and batch & options.model_fields_set:
            raise InvalidInput(
                f"options {', '.join(sorted((stream | batch) & options.model_fields_set))} do not go together",
                hint=_BEGIN_HINT,
            )
        return options


def change_schema(table: Table, options: ChangeOptions) -> StructType:
    """Columns of the changes under the newest schema of the table, and of the tables that it refers to."""
    newest = table.snapshot(references=shows_references(table.state().schema, options.columns, options.require))
    return from_arrow_schema(
        arrow_schema_of_changes(newest, options.columns, options.require, before=options.before),
    )


def _columns(schema: StructType) -> list[str]:
    """Columns of the changes that are columns of the table or of a reference."""
    return [name for name in schema.names if name not in {CHANGE, CHANGED_GROUPS, BEFORE}]


def _scan(
    table: Table,
    options: ChangeOptions,
    schema: StructType,
    since: Point | None,
    until: Point | None,
    unseen: tuple[Collection[str], Collection[str]] = ((), ()),
) -> ChangeScan:
    """Plan the changes. Both snapshots are read under the newest schema, which may be newer than ``until``."""
    columns = _columns(schema)
    with_references = shows_references(table.state().schema, columns, options.require)
    with expiring():
        earlier = None if since is None else table.snapshot(since, references=with_references)
        later = table.snapshot(until, references=with_references)
    newest = table.snapshot(references=with_references)
    scan = plan_changes(earlier, later, columns, options.require, before=options.before, under=newest, unseen=unseen)
    scanned = from_arrow_schema(scan.arrow)
    if [(field.name, field.dataType) for field in scanned] != [(field.name, field.dataType) for field in schema]:
        raise InvalidInput(
            f"the query has columns {schema.simpleString()}, the changes of the table have {scanned.simpleString()}",
            hint="if the schema of the table has changed, restart the query: it continues from its checkpoint. "
            "If the query has a .schema(...), remove it",
        )
    return scan


def change_batch_reader(table: Table, options: ChangeOptions, schema: StructType) -> TaskReader:
    """For ``spark.read``: plan the changes between two points, which are resolved to cuts now.

    Raises:
        InvalidInput: The options are those of a stream.
        TableError: See `Table.changes`.
    """
    if options.changes_since is None:
        raise InvalidInput(
            "option 'starting' is for streams", hint="use changes_since and changes_until with spark.read"
        )
    since = None if options.changes_since == EARLIEST else options.changes_since
    scan = _scan(table, options, schema, since, options.changes_until)
    return TaskReader(scan.without_tasks().read, scan.tasks, schema)


class ChangeStreamReader(ForWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """For ``spark.readStream``: plans micro-batches, in the Python process that Spark starts beside the driver."""

    def __init__(self, location: TableLocation, options: ChangeOptions | None, schema: StructType) -> None:
        """Do not open the table yet, because Spark also sends copies of the reader to executors.

        Raises:
            InvalidInput: The options do not say where the stream begins.
        """
        if options is None or options.starting is None:
            raise InvalidInput(
                "a stream of changes needs option 'starting'",
                hint="give earliest (existing rows are inserts), latest, a cut, a savepoint or a time",
            )
        self._location, self._options, self._schema = location, options, schema
        self._table: Table | None = None
        self._target: Snapshot | None = None
        self._latest: str | None = None

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """The empty offset, for every new query, because Spark does not store the initial offset."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The option ``max_commits_per_trigger``, passed as a number of files: Spark has no limit of commits."""
        most = self._options.max_commits_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember the newest cut, where the run ends. Later commits are not read."""
        self._target = self._newest()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 - Spark's name
        """The end of the batch that begins at ``start``.

        Raises:
            OffsetExpired, OffsetInvalidated: The changes after ``start`` cannot be given completely.
        """
        self._check_table(start)
        assert isinstance(limit, ReadAllAvailable | ReadMaxFiles), (
            f"Spark passed a limit that this reader did not return: {limit}"
        )
        table = self._open_table()
        target = self._target or self._newest()
        newest = self._latest = str(target.cut)
        if not start:
            return self._offset(self._first(newest))
        begin = str(start["cut"])
        # The moment of the newest entry of the table lane may be before that of the last batch: there is nothing new.
        if not follows(begin, target) and follows(begin, self._take_snapshot(None)):
            newest = begin
        if begin == newest or isinstance(limit, ReadAllAvailable):
            return self._offset(newest)
        with expiring():
            since = table.snapshot(begin, references=False)
            end = advance_cut(since, table.snapshot(newest, references=self._uses_references()), limit.max_files)
        return self._offset(str(end))

    def _uses_references(self) -> bool:
        """Whether the query reads columns of references, so that its offsets name the cuts of all tables."""
        return shows_references(self._open_table().state().schema, _columns(self._schema), self._options.require)

    def _newest(self) -> Snapshot:
        """The newest snapshot that is one moment; the newest of all while an earlier version of weft commits."""
        try:
            return self._take_snapshot(None, moment=True)
        except NotOneMoment:
            return self._take_snapshot(None)

    def _take_snapshot(self, at: Point | None, *, moment: bool = False) -> Snapshot:
        """A snapshot.

        Raises:
            TableError: There is no such snapshot of the table, or of one that the query needs.
        """
        snapshot = self._open_table().snapshot(at, references=self._uses_references(), moment=moment)
        names = {*_columns(self._schema), *(self._options.require or ())}
        for referenced in snapshot.references:
            if not names.isdisjoint({referenced.reference.name, *referenced.reference.shown_names}):
                _ = referenced.files  # raises the error of taking it; the cut would leave it out
        return snapshot

    def _first(self, newest: str) -> str:
        starting = self._options.starting
        if starting in {EARLIEST, LATEST}:
            return newest
        with expiring():
            return str(self._take_snapshot(starting).cut)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802 - Spark's name
        """The newest cut when the last batch was planned; Spark shows it in the progress of the query."""
        return None if self._latest is None else self._offset(self._latest)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The changes between two offsets of the checkpoint. They are the same whenever they are planned."""
        if start == end or (not start and self._options.starting != EARLIEST):
            return []
        self._check_table(start)
        self._check_table(end)
        since = start.get("cut")
        table = self._open_table()
        # A reference whose cut an offset does not name was added later, or the query did not read its columns.
        names = {reference.name for reference in table.state().schema.references}
        unseen = (names.difference(referenced_cuts(since) if since else ()), names - referenced_cuts(end["cut"]))
        scan = _scan(table, self._options, self._schema, since, end["cut"], unseen)
        read = scan.without_tasks().read
        return [TaskPartition(PlannedTask(read, task)) for task in scan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one task, on an executor."""
        # If a batch has no task, Spark adds a partition of another type.
        return partition.value.read(partition.value.task) if isinstance(partition, TaskPartition) else iter(())

    def _offset(self, cut: str) -> Json:
        return {"cut": cut, "table": self._open_table().state().table_id}

    def _check_table(self, offset: Json) -> None:
        table_id = self._open_table().state().table_id
        if offset.get("table", table_id) != table_id:
            raise OffsetInvalidated(
                f"the table at {self._location.uri} is not the one that the query has read: it was created anew",
                hint="start a query with a new checkpoint, and read the whole table (starting=earliest)",
            )

    def _open_table(self) -> Table:
        if self._table is None:
            self._table = Table.open(self._location.uri, storage_options=self._location.storage_options)
        return self._table
