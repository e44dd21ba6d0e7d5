"""Snapshot: one immutable state of the table, named by its cut; the same bytes of answer for ever (S8, S9)."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence

import pyarrow as pa

from storage.core.log.cut import Cut
from storage.core.log.table_state import TableState
from storage.core.merge.locate_keys import key_columns, locate_keys
from storage.core.plan.completeness import check_complete
from storage.core.plan.slices import FileSlice, LiveFile
from storage.core.plan.watermarks import Value, Watermarks
from storage.core.schema.table_schema import TableSchema
from storage.log.pins import DEFAULT_PIN, pin, unpin
from storage.log.table_log import TableLog, check_promised
from storage.read.filter_input import Filter
from storage.read.lane_watermarks import read_watermarks
from storage.read.plan_scan import plan_scan
from storage.read.pruning import KeyRows, key_table
from storage.read.read_optimized import ReadOptimized
from storage.read.scan import Scan
from storage.read.scan_request import ScanRequest
from storage.read.snapshot_files import SnapshotFiles


class Snapshot:
    """A state of the table; get one from `storage.table.Table.snapshot`."""

    def __init__(self, table_log: TableLog, state: TableState, cut: Cut, *, settled: bool = True) -> None:
        self._table_log, self._state, self._cut, self._settled = table_log, state, cut, settled
        self._files = SnapshotFiles(table_log, state, cut)

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
        return self._files.user_schema

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
        own = pin(self._table_log.env, self._cut, duration)
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
        return self._files.log_files

    @property
    def slices(self) -> list[FileSlice]:
        """Every file group that has rows: its base and shadow, and where its logs are."""
        return self._files.slices

    def read_optimized(self) -> ReadOptimized:
        """The base files alone: what the last compaction has left, read without merging, and how stale that is."""
        return ReadOptimized(self._files)

    def plan_scan(self, request: ScanRequest) -> Scan:
        """Plan the read that a request describes; for readers inside weft. Raises what `scan` raises."""
        return plan_scan(self._files, request)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002 - pyarrow's own word for it
        require: Sequence[str] | None = None,
        *,
        parallelism: int | None = None,
        read_optimized: bool = False,
    ) -> Scan:
        """Plan a read.

        Args:
            columns: Columns of the answer, in this order; None for all columns of the table. On request also
                ``_present_<group>`` (boolean, never null) and ``_arrival_<group>`` (int64, null where the group is
                absent): larger for what was committed later.
            filter: pyarrow expression over any columns of the table, and over these.
            require: Names of groups that must be present in a row: one group gives a left join, all an inner join.
            parallelism: Upper limit of the number of tasks; None for the number of cores.
            read_optimized: Read the base files only, see `read_optimized`.

        Raises:
            NotFound: The table has no such column or group.
            InvalidInput: The filter is not a condition.
        """
        return self.plan_scan(
            ScanRequest(columns, filter, require, parallelism=parallelism, read_optimized=read_optimized)
        )

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002
        require: Sequence[str] | None = None,
        *,
        read_optimized: bool = False,
    ) -> pa.Table:
        """The answer as one table; rows in no particular order. Arguments and errors as in `scan`."""
        return self.scan(columns, filter, require, read_optimized=read_optimized).to_arrow()

    def get(
        self,
        keys: KeyRows,
        columns: Sequence[str] | None = None,
        require: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of some keys, in no particular order. Only the file groups of these keys are read.

        Args:
            keys: Key values; for a key of several columns tuples in the order of the key. Or a table or batch that has
                the key columns. Keys without a row are left out of the answer.
            columns: Columns of the answer, in this order; None for all.
            require: Names of groups that must be present in a row.

        Raises:
            InvalidInput: A key is null, or not of the type of the key columns.
            NotFound: The table has no such column or group.
        """
        schema = self._state.schema
        wanted = locate_keys(schema, key_columns(schema, key_table(schema, keys)))
        return self.plan_scan(ScanRequest(columns, None, require, keys=wanted)).to_arrow()

    def to_reader(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002
        require: Sequence[str] | None = None,
        *,
        read_optimized: bool = False,
    ) -> pa.RecordBatchReader:
        """The answer as a stream of batches; needs memory for the logs of one file group and one row group.

        Arguments and errors as in `scan`. The stream can be read once.
        """
        return self.scan(columns, filter, require, parallelism=1, read_optimized=read_optimized).to_reader()
