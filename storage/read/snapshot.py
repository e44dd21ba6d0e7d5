"""Snapshot: one immutable state of the table, identified by its cut (PROTOCOL.md, S8 and S9).

A snapshot of a table with references contains a snapshot of each referenced table. The methods that return rows take
columns, filters and required groups of all these tables. The methods for readers inside weft (`choose_slices`, `files`,
`slices`) and `at` are about the table alone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from weft.storage import shown
from weft.storage.core.log.cut import Cut, JoinedCut
from weft.storage.core.log.table_state import TableState, check_promised
from weft.storage.core.merge.locate_keys import key_columns, locate_keys
from weft.storage.core.model import Group
from weft.storage.core.plan.completeness import check_complete
from weft.storage.core.plan.watermarks import Value, Watermarks
from weft.storage.core.types import format_type
from weft.storage.log import snapshot_cut
from weft.storage.log.pins import DEFAULT_PIN, pin, unpin
from weft.storage.log.table_log import TableLog
from weft.storage.read.base_files.read_optimized import ReadOptimized
from weft.storage.read.explain.explanation import Explanation
from weft.storage.read.explain.references import explain_references
from weft.storage.read.explain.row import explain_row
from weft.storage.read.lane_watermarks import read_watermarks
from weft.storage.read.plan.pruning import KeyRows, key_table
from weft.storage.read.references.joined_scan import JoinedScan, joined_fields, plan_read
from weft.storage.read.references.referenced_table import ReferencedTable
from weft.storage.read.request.filter_input import Filter, parse_filter
from weft.storage.read.request.scan_request import ScanRequest
from weft.storage.read.scan.plan_scan import choose_slices
from weft.storage.read.scan.scan import Scan
from weft.storage.read.snapshot_files import SnapshotFiles


class Snapshot(SnapshotFiles):
    """A state of the table; get one from `weft.storage.table.Table.snapshot`."""

    def __init__(
        self,
        table_log: TableLog,
        state: TableState,
        at: Cut,
        is_moment: bool = False,  # noqa: FBT001, FBT002 - as the cut and the state, from `TableLog.newest_cut`
        *,
        settled: bool = True,
        references: Sequence[ReferencedTable] = (),
        together: bool = False,
    ) -> None:
        """Initialise a snapshot; use `weft.storage.table.Table.snapshot` to take one.

        Args:
            table_log: The log of the table.
            state: The table state.
            at: The cut of the table alone.
            is_moment: Whether the cut is certainly the table alone at one moment.
            settled: See `settled`.
            references: The snapshots of the referenced tables.
            together: Whether all these snapshots are certainly of one moment.
        """
        super().__init__(table_log, state, at)
        self._settled, self._is_moment, self._together = settled, is_moment, together
        self._references = tuple(references)

    def __repr__(self) -> str:
        return f"Snapshot({str(self.cut)!r} of {self.table_log.store.uri!r})"

    def _repr_html_(self) -> str:
        """Show the cut and the columns in notebooks. Reads nothing."""
        groups = self.table_schema.group_of_column
        columns = [(field.name, format_type(field.type), _group_name(groups, field.name)) for field in self.schema]
        about = {"table": self.table_log.store.uri, "cut": self.cut, "settled": self.settled}
        return shown.facts("Snapshot", about) + shown.rows("", ("column", "type", "group"), columns)

    @property
    def cut(self) -> Cut:
        """The cut of the snapshot with those of the referenced tables; ``as_of`` accepts `str` of it.

        A referenced table whose snapshot could not be taken is left out.
        """
        if not self._references:
            return self.at
        snapshots = {table.reference.name: table.snapshot_or_error for table in self._references}
        cuts = {name: snapshot.at for name, snapshot in snapshots.items() if isinstance(snapshot, SnapshotFiles)}
        return JoinedCut(self.at.table, self.at.lanes, cuts)

    @property
    def settled(self) -> bool:
        """Whether the same ``as_of`` always returns this snapshot; false for a time whose cut may still change.

        The snapshot itself never changes, and its cut always identifies it.
        """
        return self._settled

    @property
    def is_moment(self) -> bool:
        """Whether the snapshot is certainly the table, and the tables that it refers to, at one moment.

        Then it has every commit that was visible before another one of its commits began. False means that this is
        unknown: lanes committed while they were read; the snapshot was taken as of a time, for which clocks decide, or
        as of a savepoint or a cut, which do not record it; or it has references, and was not taken by `Table.snapshot`
        with ``moment``.
        """
        return self._is_moment and (not self._references or self._together)

    @property
    def table_is_moment(self) -> bool:
        """`is_moment` of the table alone."""
        return self._is_moment

    def committed_at_ms(self) -> int:
        """Time of the newest entry in the snapshot, Unix milliseconds. It needs one round of requests.

        Raises:
            CorruptData: An entry is missing or damaged.
        """
        last = {lane: (seq - 1, seq) for lane, seq in self.at.lanes.items() if seq}
        entries = (entry for tail in self.table_log.commit_log.read_tails(last).values() for entry in tail)
        return max([self.state.committed_at_ms, *(entry.committed_at_ms for entry in entries)])

    @property
    def schema(self) -> pa.Schema:
        """The columns of the user in table order, then those of the references, with Arrow types.

        Raises:
            TableError: A snapshot of a referenced table could not be taken.
        """
        return joined_fields(self.table_schema, self._references)

    @property
    def references(self) -> tuple[ReferencedTable, ...]:
        """The references, with the snapshots of the referenced tables; empty if only the table itself was requested."""
        return self._references

    def of_reference(self, name: str) -> Snapshot:
        """The snapshot of a referenced table that belongs to this one.

        Raises:
            NotFound: The snapshot does not have this reference.
            TableError: The snapshot of the referenced table could not be taken.
        """
        self.table_schema.reference(name)
        snapshot = next(table.files for table in self._references if table.reference.name == name)
        assert isinstance(snapshot, Snapshot)
        return snapshot

    @property
    def schema_rev(self) -> int:
        """Revision of the schema; files of older revisions are adapted (`weft.storage.core.schema.evolution`)."""
        return self.state.schema_rev

    def watermarks(self) -> Watermarks:
        """The watermarks of this snapshot: up to which value every stream and group is complete."""
        return read_watermarks(self.table_log.commit_log, self.state, self.at)

    def check_complete(self, through: Value | str, complete_groups: Sequence[str] | None = None) -> None:
        """Check that all events up to ``through`` have arrived, according to the watermarks of the streams.

        Args:
            through: Value of the first ordering columns, inclusive, or its text form. A date means all of that day.
            complete_groups: Names of the groups and references to check; None for all. For a reference, the groups of
                its columns in the referenced table are checked.

        Raises:
            NotComplete: The watermark of a stream of one of these groups is not above ``through``; the message names
                the stream.
            NotFound: A group does not exist.
            InvalidInput: ``through`` is not a value of the type, or a group cannot have a watermark.
        """
        names = {table.reference.name for table in self._references}
        groups = [name for name in complete_groups or () if name not in names]
        if groups or not complete_groups:
            check_complete(self.watermarks(), self.table_schema, through, groups)
        for table in self._references:
            if not complete_groups or table.reference.name in complete_groups:
                table.check_complete(through)

    def check_kept(self) -> None:
        """Check that the snapshot is still retained, for example before it is read again after some time.

        Raises:
            SnapshotExpired: The snapshot has expired, and cleaning may have removed its files.
        """
        for snapshot in (self, *self._referenced()):
            snapshot_cut.check_kept(snapshot.table_log, snapshot.at)

    def _referenced(self) -> list[SnapshotFiles]:
        """The snapshots of the referenced tables, without duplicates."""
        snapshots = [
            table.snapshot_or_error for table in self._references if isinstance(table.snapshot_or_error, SnapshotFiles)
        ]
        return list({id(snapshot): snapshot for snapshot in snapshots}.values())

    @contextlib.contextmanager
    def pinned(self, duration: dt.timedelta = DEFAULT_PIN) -> Iterator[Snapshot]:
        """Retain the files of the snapshot, and of those of referenced tables, while the block runs.

        Args:
            duration: The pins expire after this time even if the block still runs.

        Raises:
            SnapshotExpired: The snapshot has already expired.
        """
        with contextlib.ExitStack() as pins:
            for snapshot in (self, *self._referenced()):
                table_log = snapshot.table_log
                pins.callback(unpin, table_log.store, pin(table_log.env, snapshot.at, duration))
                # The pin was written before (PROTOCOL.md, R4): a clean that this check does not see will see the pin.
                check_promised(table_log.refresh(), snapshot.at)
            yield self

    def read_optimized(self) -> ReadOptimized:
        """The base files only, read without merging: the table as of its last compactions, and how stale it is."""
        return ReadOptimized(self, self._references)

    def choose_slices(self, request: ScanRequest) -> Scan:
        """Plan a read of the table without tasks; for readers inside weft. Reads no file of the snapshot."""
        return choose_slices(self, request)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002 - pyarrow uses this name
        require: Sequence[str] | None = None,
        *,
        parallelism: int | None = None,
        task_bytes: int | None = None,
        read_optimized: bool = False,
    ) -> Scan | JoinedScan:
        """Plan a read.

        Args:
            columns: Columns of the result, in this order; None for all columns of the table and its references. The
                names of referenced columns have the prefix of their reference. On request also
                ``_present_<group>`` (boolean, never null) and ``_arrival_<group>`` (int64, null where the group is
                absent; later commits have larger values).
            filter: Condition on merged rows, over all these columns: a pyarrow expression, or tuples
                as in `pyarrow.parquet.read_table` (`weft.storage.read.request.filter_input`).
            require: Names of groups that must be present in a row: one group makes a left join, all groups make an
                inner join. Also names of references whose row must exist.
            parallelism: Number of tasks that run at the same time; None for the number of cores. There are more tasks
                if ``task_bytes`` requires it.
            task_bytes: Largest number of stored bytes of the columns that a task decodes. It is estimated from the
                number of columns, so a task has at least this many bytes of files, and at most 8 times as many. By
                default 128 MiB. A larger file group is divided into several tasks by key range.
            read_optimized: Read the base files only, see `read_optimized`.

        Raises:
            NotFound: A column or group does not exist.
            InvalidInput: The filter is not a condition.
            SnapshotExpired: The snapshot has expired.
            CorruptData: The base file of a large file group is missing, or its footer is damaged.
        """
        request = ScanRequest(
            columns,
            parse_filter(filter),
            require,
            parallelism=parallelism,
            task_bytes=task_bytes,
            read_optimized=read_optimized,
        )
        return plan_read(self, self._references, request)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002
        require: Sequence[str] | None = None,
        *,
        read_optimized: bool = False,
    ) -> pa.Table:
        """The result as one table, in no particular order, read with one thread per core.

        Arguments and errors as in `scan`; also `CorruptData` if a file is missing or damaged.
        """
        return self.scan(columns, filter, require, read_optimized=read_optimized).to_arrow()

    def get(
        self,
        keys: KeyRows,
        columns: Sequence[str] | None = None,
        require: Sequence[str] | None = None,
    ) -> pa.Table:
        """Look up the rows of some keys, in no particular order. Reads only the file groups of these keys.

        Args:
            keys: Key values; for a key of several columns, tuples in the order of the key. Or a table or batch with
                the key columns. Keys without a row are left out.
            columns: Columns of the result, in this order; None for all.
            require: Names of groups that must be present in a row.

        Raises:
            InvalidInput: A key is null, or does not have the type of the key columns.
            NotFound: A column or group does not exist.
        """
        schema = self.table_schema
        located_keys = locate_keys(schema, key_columns(schema, key_table(schema, keys)), self.state.levels)
        return plan_read(self, self._references, ScanRequest(columns, None, require, keys=located_keys)).to_arrow()

    def explain(self, key: Any, *, history: bool = False) -> Explanation:
        """Explain the values of a row: for each group all stored versions, which one wins, and why the others lose.

        Reads only the blocks of the key. The rows of referenced tables are explained, too.

        Args:
            key: Value of the key column; a tuple in the order of the key, or a mapping, if it has several columns.
            history: Explain all events of the key in the retained log, also those that were merged already. The
                history begins with the merged row of the oldest retained state, if there is one.

        Raises:
            InvalidInput: The key is null, or does not have the type of the key columns.
            NotFound: The snapshot has no version of the key, not even a delete.
            SnapshotExpired: The snapshot has expired.
            CorruptData: A file is missing or damaged.
        """
        explanation = explain_row(self, key, history=history)
        with_references = explain_references(explanation, self.table_schema, self._references, history=history)
        return replace(with_references, cut=str(self.cut))

    def to_reader(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002
        require: Sequence[str] | None = None,
        *,
        read_optimized: bool = False,
    ) -> pa.RecordBatchReader:
        """The result as a stream of batches; needs memory for a row group and the logs of one task (see `scan`).

        Arguments and errors as in `scan`. The stream can be read once.
        """
        return self.scan(columns, filter, require, parallelism=1, read_optimized=read_optimized).to_reader()


def _group_name(groups: Mapping[str, Group], column: str) -> str:
    return groups[column].name if column in groups else ""
