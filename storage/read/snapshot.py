"""Snapshot: one immutable state of the table, named by its cut; the same bytes of answer for ever (S8, S9)."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from storage import mergers
from storage.core.log.cut import Cut
from storage.core.log.table_state import TableState
from storage.core.merge.locate_keys import homes, key_columns
from storage.core.plan.completeness import check_complete
from storage.core.plan.slices import FileSlice, LiveFile, base_slices, plan_slices, whole_files
from storage.core.plan.watermarks import Value, Watermarks
from storage.core.schema.table_schema import TableSchema
from storage.log.pins import DEFAULT_PIN, pin, unpin
from storage.log.table_log import TableLog, check_promised
from storage.read.lane_watermarks import read_watermarks
from storage.read.missing_file import explain_missing_file
from storage.read.projection import make_projection
from storage.read.pruning import KeyRows, Keys, key_table, keys_in, matching
from storage.read.read_optimized import ReadOptimized
from storage.read.scan import Scan, make_tasks


class Snapshot:
    """A state of the table; get one from `storage.table.Table.snapshot`."""

    def __init__(self, table_log: TableLog, state: TableState, cut: Cut, *, settled: bool = True) -> None:
        self._table_log, self._state, self._cut, self._settled = table_log, state, cut, settled
        # Not cached properties: before Python 3.12 those hold a lock of the whole class while they read the store.
        self._files: list[LiveFile] | None = None
        self._slices: list[FileSlice] | None = None

    @property
    def cut(self) -> Cut:
        """Names the snapshot; `str` of it is accepted as ``as_of``."""
        return self._cut

    @property
    def settled(self) -> bool:
        """Whether whoever asks for the same ``as_of`` again gets this snapshot; of some times that is not so yet.

        The snapshot itself never changes; its cut names it for ever.
        """
        return self._settled

    @property
    def schema(self) -> pa.Schema:
        """The user's columns in table order, with Arrow types."""
        return pa.schema([field.remove_metadata() for field in self._state.schema.arrow])

    @property
    def state(self) -> TableState:
        """The table state of the snapshot."""
        return self._state

    @property
    def table_log(self) -> TableLog:
        """The table's: where snapshots are compared."""
        return self._table_log

    @property
    def table_schema(self) -> TableSchema:
        return self._state.schema

    @property
    def schema_rev(self) -> int:
        """Revision of the schema: slices of older ones are read through `storage.core.schema.evolution`."""
        return self._state.schema_rev

    def watermarks(self) -> Watermarks:
        """What every stream declares of its events to come, by stream and group, as of this snapshot."""
        return read_watermarks(self._table_log.commit_log, self._state, self._cut)

    def check_complete(self, through: Value | str, require: Sequence[str] | None = None) -> None:
        """Make sure that nothing up to ``through`` is still to come, as far as the streams declare.

        Args:
            through: Value of the first ordering columns (or its text form); itself included. A date: all of that day.
            require: Groups that matter; None for all.

        Raises:
            NotComplete: A stream that feeds one of these groups is not there yet; it is named.
            NotFound: The table has no such group.
            InvalidInput: ``through`` is not such a value, or a group can have no watermark.
        """
        check_complete(self.watermarks(), self._state.schema, through, require)

    def check_kept(self) -> None:
        """Make sure that nobody has given the snapshot up since it was taken; for whoever reads it again and again.

        Raises:
            SnapshotExpired: Cleaning has, and may have taken its files.
        """
        self._table_log.check_kept(self._cut)

    @contextlib.contextmanager
    def pinned(self, duration: dt.timedelta = DEFAULT_PIN) -> Iterator[Snapshot]:
        """Keep the snapshot's files from being cleaned while the block runs, for ``duration`` at most.

        Raises:
            SnapshotExpired: Cleaning was faster.
        """
        own = pin(self._table_log.store, self._table_log.clock, self._cut, duration)
        try:
            # Strictly after the pin is there (rule R4): a cleaner that this does not show will see the pin.
            check_promised(self._table_log.refresh(), self._cut)
            yield self
        finally:
            unpin(self._table_log.store, own)

    @property
    def files(self) -> list[LiveFile]:
        """Log files that some file group still needs, in version order.

        Raises:
            SnapshotExpired: Cleaning has given the snapshot up.
        """
        if self._files is None:
            with explain_missing_file(self._table_log.store, self._cut):  # an index may stand in a file of its own
                self._files = self._table_log.live_files(self._state, self._cut)
        return self._files

    @property
    def slices(self) -> list[FileSlice]:
        """Every file group that has rows: its base and shadow, and where its logs are."""
        if self._slices is None:
            self._slices = plan_slices(self._state, self.files)
        return self._slices

    def read_optimized(self) -> ReadOptimized:
        """The base files alone: what the last compaction has left, read without merging, and how stale that is."""
        return ReadOptimized(self, self._table_log)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's own word for it
        require: Sequence[str] | None = None,
        *,
        parallelism: int | None = None,
        arrivals: bool = False,
        keys: Keys | None = None,
        read_optimized: bool = False,
        slices: Sequence[FileSlice] | None = None,
    ) -> Scan:
        """Plan a read.

        Args:
            columns: Of the answer, in this order; None for all of the table. On request also ``_present_<group>``
                (boolean, never null) and ``_arrival_<group>`` (int64, null where the group is absent): larger for what
                was committed later.
            filter: pyarrow expression over any columns of the table, and over these.
            require: Groups that must be present in a row: one makes a left join, all an inner join.
            parallelism: At most so many tasks; None for one a core.
            arrivals: Append the arrival of every group that is read (`storage.core.names.arrival`): NULL where the
                group is absent.
            keys: Read these alone; None for all that ``filter`` allows.
            slices: Look at these file groups alone; None for all of the snapshot.
            read_optimized: Base files alone, see `read_optimized`.

        Raises:
            NotFound: A column or group that the table does not have.
        """
        schema = self._state.schema
        projection = make_projection(schema, columns, filter, require, arrivals=arrivals)
        wanted = keys if keys is not None else keys_in(schema, projection.predicate)
        if slices is not None:
            there, files = slices, self.files
        else:
            there, files = (base_slices(self._state), []) if read_optimized else (self.slices, self.files)
        chosen = matching(schema, there, projection.predicate, wanted)
        return Scan(
            store=self._table_log.store,
            schema=schema,
            projection=projection,
            tasks=tuple(make_tasks(chosen, files, parallelism or os.cpu_count() or 1)),
            mergers=mergers.allowed(),
            at=self._cut,
            keys=wanted,
            skipped=len(there) - len(chosen),
            whole=whole_files(there),
        )

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
        require: Sequence[str] | None = None,
        *,
        read_optimized: bool = False,
    ) -> pa.Table:
        """The answer as one table; rows in no particular order. Arguments and errors as in `scan`."""
        return _collect(self.scan(columns, filter, require, read_optimized=read_optimized))

    def get(
        self,
        keys: KeyRows,
        columns: Sequence[str] | None = None,
        require: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of some keys, those that there are; in no particular order. Only their file groups are read.

        Args:
            keys: Key values; of a key of several columns tuples in the order of the key. Or a table or batch that has
                the key columns.
            columns: Of the answer, in this order; None for all.
            require: Groups that must be present in a row.

        Raises:
            InvalidInput: A key is not of the type of the key columns, or NULL.
            NotFound: A column or group that the table does not have.
        """
        schema = self._state.schema
        wanted = homes(schema, key_columns(schema, key_table(schema, keys)))
        slices = plan_slices(self._state, self.files, only=wanted) if self._slices is None else None
        return _collect(self.scan(columns, None, require, keys=wanted, slices=slices))

    def to_reader(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
        require: Sequence[str] | None = None,
        *,
        read_optimized: bool = False,
    ) -> pa.RecordBatchReader:
        """The answer as a stream: memory is that of one file group's logs and one row group."""
        scan = self.scan(columns, filter, require, parallelism=1, read_optimized=read_optimized)

        def batches() -> Iterator[pa.RecordBatch]:
            for task in scan.tasks:
                yield from scan.read(task)

        return pa.RecordBatchReader.from_batches(scan.arrow, batches())


def _collect(scan: Scan) -> pa.Table:
    if len(scan.tasks) <= 1:
        parts = [list(scan.read(task)) for task in scan.tasks]
    else:
        with ThreadPoolExecutor(len(scan.tasks)) as pool:
            parts = list(pool.map(lambda task: list(scan.read(task)), scan.tasks))
    return pa.Table.from_batches([batch for part in parts for batch in part], scan.arrow)
