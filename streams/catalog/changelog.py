"""Spark's CHANGES clause: ``SELECT * FROM t CHANGES FROM VERSION 'first' EXCLUSIVE TO VERSION 'second'``.

Its rows are those of `weft.Table.changes` in the form that Spark prescribes: the columns of the table, and

    _change_type        string       insert, delete, update_preimage (the row before), update_postimage (the row after)
    _commit_version     string       the cut at which the changes end
    _commit_timestamp   timestamp    the time of the newest commit in that cut

They are the net changes of the whole range: a row that changed several times occurs once, with one image before and
one image after. `TableChangelog` declares this to Spark, so that Spark does not compute net changes again.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from weft.storage import Snapshot
from weft.storage.core.merge.diff import BEFORE, CHANGE, CHANGED_GROUPS
from weft.storage.core.predicate import Condition
from weft.storage.errors import InvalidInput
from weft.storage.operations.points import EARLIEST
from weft.streams.catalog.catalog_jvm import ChangesRange
from weft.streams.catalog.changes import SINCE, UNTIL, PinnedChanges
from weft.streams.read.relation.callbacks import Callback
from weft.streams.read.relation.planner_interface import Part, PinnedPlanner, ReadPlan
from weft.streams.read.relation.spark_scan import LiveView, PruningScanBuilder

CHANGELOG: Final = "changes"
"""The part of a `weft.streams.catalog.relations.Reading` that stands for a changelog."""

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
_ADDED: Final = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(COMMIT_VERSION, pa.string(), nullable=False),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
_TYPES_BEFORE: Final = {"delete": "delete", "update": "update_preimage"}
_TYPES_AFTER: Final = {"insert": "insert", "update": "update_postimage"}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

_Read = Callable[[Any], Iterator[pa.RecordBatch]]


def range_options(bounds: ChangesRange, created_at_ms: int) -> dict[str, str]:
    """Translate the range of a CHANGES clause to the options `SINCE` and `UNTIL`.

    A time is the time of commits, so it can be included or excluded. A version is a state of the table, and not a
    single commit: the changes begin after it, and end with it.

    Args:
        bounds: Bounds of the range.
        created_at_ms: Time at which the table was created, Unix milliseconds. A range that begins before has all rows.

    Raises:
        InvalidInput: The range begins with a version that is part of it, or ends with one that is not.
    """
    options = {SINCE: EARLIEST}
    if isinstance(bounds.start, int):
        since = bounds.start - 1 if bounds.with_start else bounds.start
        if since >= created_at_ms * 1000:
            options[SINCE] = _format_time(since)
    elif bounds.start is not None:
        if bounds.with_start and bounds.start != EARLIEST:
            raise InvalidInput(
                f"CHANGES FROM VERSION '{bounds.start}': a version is a state of the table, and has no changes itself",
                hint=f"write FROM VERSION '{bounds.start}' EXCLUSIVE for the changes after it, or FROM VERSION "
                "'earliest' for all changes",
            )
        options[SINCE] = bounds.start
    if isinstance(bounds.end, int):
        options[UNTIL] = _format_time(bounds.end if bounds.with_end else bounds.end - 1)
    elif bounds.end is not None:
        if not bounds.with_end:
            raise InvalidInput(
                f"CHANGES TO VERSION '{bounds.end}' EXCLUSIVE: a version is a state of the table, not one commit",
                hint=f"write TO VERSION '{bounds.end}' for the changes up to it",
            )
        options[UNTIL] = bounds.end
    return options


def _format_time(microseconds: int) -> str:
    return (_EPOCH + dt.timedelta(microseconds=microseconds)).isoformat()


def changelog_schema(changes: pa.Schema) -> pa.Schema:
    """Build the schema of a changelog.

    Args:
        changes: The schema of `weft.Table.changes`.

    Raises:
        InvalidInput: A column of the table has the name of a column that a changelog adds.
    """
    fields = [field for field in changes if field.name not in (CHANGE, CHANGED_GROUPS, BEFORE)]
    clash = [field.name for field in fields if field.name.lower() in _ADDED.names]
    if clash:
        raise InvalidInput(
            f"column {clash[0]!r} of the table has the same name as a column that CHANGES adds",
            hint="read weft_changes('<table>', since, until), whose columns have other names",
        )
    return pa.schema([*fields, *_ADDED])


def changelog_rows(changes: pa.RecordBatch, version: str, committed_at_ms: int) -> Iterator[pa.RecordBatch]:
    """Convert changes to the rows of a changelog: one row for an insert or delete, two rows for an update.

    Args:
        changes: Rows of `weft.Table.changes` with the column ``_before``.
        version: Value of ``_commit_version``.
        committed_at_ms: Value of ``_commit_timestamp``, Unix milliseconds.

    Yields:
        Batches with the schema `changelog_schema`, without empty ones.
    """
    schema = changelog_schema(changes.schema)
    names = [name for name in schema.names if name not in _ADDED.names]
    images = {field.name for field in changes.schema.field(BEFORE).type}
    for types in (_TYPES_BEFORE, _TYPES_AFTER):
        rows = changes.filter(pc.is_in(changes.column(CHANGE), pa.array(list(types))))
        if not rows.num_rows:
            continue
        columns = [
            pc.struct_field(rows.column(BEFORE), name)
            if types is _TYPES_BEFORE and name in images
            else rows.column(name)
            for name in names
        ]
        kinds = rows.column(CHANGE)
        position = pc.index_in(kinds, pa.array(list(types)))
        added = [
            pa.array(list(types.values())).take(position),
            pa.repeat(pa.scalar(version), rows.num_rows),
            pa.repeat(pa.scalar(committed_at_ms * 1000, _ADDED.field(COMMIT_TIMESTAMP).type), rows.num_rows),
        ]
        yield pa.RecordBatch.from_arrays([*columns, *added], schema=schema)


@dataclass(frozen=True)
class PinnedChangelog(PinnedPlanner):
    """The planned changelog of one query.

    Attributes:
        changes: The changes, with the rows before them.
        version: The cut at which the changes end.
        committed_at_ms: Time of the newest commit in the cut, Unix milliseconds.
    """

    changes: PinnedChanges
    version: str
    committed_at_ms: int

    @classmethod
    def between(cls, earlier: Snapshot | None, later: Snapshot) -> PinnedChangelog:
        """Plan the changelog between two states. Raises as `plan_changes`."""
        return cls(PinnedChanges.between(earlier, later, before=True), str(later.cut), later.committed_at_ms())

    def schema(self) -> StructType:
        return from_arrow_schema(changelog_schema(self.changes.scan.arrow))

    def plan(self, columns: Sequence[str], filters: Sequence[Condition], part: Part) -> ReadPlan:
        plan = self.changes.plan(columns, filters, part)
        read = functools.partial(_read, plan.read, self.version, self.committed_at_ms)
        return ReadPlan(plan.description, plan.tasks, read)


def _read(changes: _Read, version: str, committed_at_ms: int, task: Any) -> Iterator[pa.RecordBatch]:
    for batch in changes(task):
        yield from changelog_rows(batch, version, committed_at_ms)


class TableChangelog(
    Callback,
    java=("org.apache.spark.sql.connector.catalog.Changelog",),
    answers={
        "containsCarryoverRows": False,
        "containsIntermediateChanges": False,
        "representsUpdateAsDeleteAndInsert": False,
        "rowVersion": None,
    },
):
    """Spark's `Changelog`: the object that the catalog returns for a CHANGES clause."""

    def __init__(self, view: LiveView, identity: str) -> None:
        """Take the columns of the state that the query on this thread reads.

        Args:
            view: Live view of the changes.
            identity: Text that identifies the table and the range.
        """
        super().__init__(view.jvm, f"weft changes {identity}")
        self._view = view
        self._columns = view.pins.current().state.schema()

    def name(self) -> str:
        return self._view.name

    def columns(self) -> Any:
        return self.jvm.columns(self._columns)

    def rowId(self) -> Any:  # noqa: N802
        return self.jvm.array(self.jvm.NamedReference)

    def newScanBuilder(self, _options: Any) -> PruningScanBuilder:  # noqa: N802
        return PruningScanBuilder(self._view, self._columns, Part.WHOLE, self._view.pins.current())
