"""Read-optimized reads: the base files of a snapshot without its logs, and how stale they are.

They are as fast as any Parquet reader, because nothing is merged. The price is freshness: a commit becomes visible when
a compaction has merged it into base files.

- Each file group shows the slice that it has in the snapshot. File groups are compacted independently, so the result
  may not correspond to any single snapshot: a row is never torn, but of two rows one may be newer (`Compacted`).
- A file group that was never compacted shows no rows. `Staleness` says how much a result lacks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds

from weft.storage.core.log import cut as cuts
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import Data
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.names import LaneName
from weft.storage.core.plan.slices import FileSlice, log_rows
from weft.storage.read.base_files.base_dataset import base_dataset
from weft.storage.read.references.joined_scan import joined_fields, plan_read
from weft.storage.read.references.referenced_table import ReferencedTable
from weft.storage.read.request.filter_input import Filter, parse_filter
from weft.storage.read.request.scan_request import ScanRequest
from weft.storage.read.snapshot_files import SnapshotFiles
from weft.storage.times import moment_of


@dataclass(frozen=True, slots=True)
class Compacted:
    """The commits that the base file of one file group contains.

    Attributes:
        file_group: The file group.
        cut: Last entry of each lane whose rows the base file contains; None if the file group was never compacted.
        rows: Number of rows of the base file that belong to the file group.
        size_bytes: Stored bytes of these rows.
        commits_waiting: Number of commits with rows that wait for compaction; a fold of many commits counts as one.
        rows_waiting: Number of those rows: events, and registers of folds.
        bytes_waiting: Stored bytes of those rows, all columns.
    """

    file_group: FileGroup
    cut: Mapping[LaneName, int] | None
    rows: int
    size_bytes: int
    commits_waiting: int
    rows_waiting: int
    bytes_waiting: int


@dataclass(frozen=True, slots=True)
class Staleness:
    """What is missing from a read-optimized result; it is complete if ``rows`` is 0.

    Attributes:
        since: Time (UTC) of the oldest commit that is not completely in the result; all earlier commits are. None if
            the result is complete. A fold does not say which file groups its commits touched, so the time may be too
            early, never too late.
        commits: Number of commits that are not completely in the result; a fold of many commits counts as one.
        rows: Number of log rows that wait for compaction: events, and registers of folds.
        size_bytes: Stored bytes of those rows, all columns.
        file_groups: Number of file groups with such rows.
        never_compacted: Number of these file groups that were never compacted, and so show no rows.
    """

    since: dt.datetime | None
    commits: int
    rows: int
    size_bytes: int
    file_groups: int
    never_compacted: int


class ReadOptimized:
    """The base files of one snapshot; get one from `weft.storage.read.snapshot.Snapshot.read_optimized`.

    The methods that read take the arguments of the methods of the snapshot, and raise the same errors. They also show
    columns of references, from the base files of the referenced tables. `dataset` and `staleness` are of the table
    alone.
    """

    def __init__(self, snapshot: SnapshotFiles, references: Sequence[ReferencedTable] = ()) -> None:
        self._snapshot = snapshot
        self._references = references
        self._staleness: Staleness | None = None

    @property
    def cut(self) -> Cut:
        """Cut of the snapshot whose base files these are; `file_groups` has the cut of each base file."""
        return self._snapshot.at

    @property
    def schema(self) -> pa.Schema:
        """The columns of the user in table order, then those of the references, with Arrow types.

        Raises:
            TableError: A snapshot of a referenced table could not be taken.
        """
        return joined_fields(self._snapshot.table_schema, self._references)

    @property
    def file_groups(self) -> list[Compacted]:
        """Every file group that has rows, in order of file group."""
        return [self._compacted(file_slice) for file_slice in self._snapshot.slices]

    @property
    def staleness(self) -> Staleness:
        """The commits of the snapshot that the result leaves out."""
        if self._staleness is None:
            waiting = [file_slice for file_slice in self._snapshot.slices if len(file_slice.rows)]
            self._staleness = Staleness(
                since=self._oldest_waiting(waiting),
                commits=len(self._commits(waiting)),
                rows=log_rows(waiting),
                size_bytes=sum(file_slice.log_bytes for file_slice in waiting),
                file_groups=len(waiting),
                never_compacted=sum(file_slice.slice is None for file_slice in waiting),
            )
        return self._staleness

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002 - pyarrow uses this name
        require: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of the base files as one table, in no particular order."""
        request = ScanRequest(columns, parse_filter(filter), require, read_optimized=True)
        return plan_read(self._snapshot, self._references, request).to_arrow()

    def to_reader(
        self,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002
        require: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """The rows of the base files as a stream of batches; needs memory for one row group."""
        request = ScanRequest(columns, parse_filter(filter), require, parallelism=1, read_optimized=True)
        return plan_read(self._snapshot, self._references, request).to_reader()

    def dataset(self, columns: Sequence[str] | None = None) -> ds.Dataset:
        """The base files as a pyarrow dataset, for engines that read datasets: DuckDB, Polars, Dask, ...

        The dataset can be read several times, in parallel, and with columns and filters pushed down. It contains the
        files of this snapshot; pin the snapshot if reading takes long. Everything that is read is verified; a page with
        a wrong checksum raises Arrow's OSError.

        Args:
            columns: Columns of the dataset, in this order; None for all columns of the table.

        Raises:
            NotFound: A column does not exist.
            InvalidInput: Some base files have an older schema with other values in these columns, or overlays have
                newer values.
        """
        return base_dataset(self._snapshot, columns)

    def _compacted(self, file_slice: FileSlice) -> Compacted:
        slice_file = file_slice.slice
        return Compacted(
            file_group=file_slice.group,
            cut=slice_file.cut if slice_file is not None else None,
            rows=slice_file.base_rows if slice_file is not None else 0,
            size_bytes=slice_file.base_bytes if slice_file is not None else 0,
            commits_waiting=len(self._commits([file_slice])),
            rows_waiting=int(file_slice.rows.sum()),
            bytes_waiting=file_slice.log_bytes,
        )

    def _commits(self, slices: Sequence[FileSlice]) -> set[tuple[LaneName, int]]:
        """(lane, seq) of the commits and folds that have rows in the logs of these file groups."""
        files = self._snapshot.files
        positions = {position for file_slice in slices for position in file_slice.file.tolist()}
        return {(files[position].lane, files[position].seq) for position in positions}

    def _oldest_waiting(self, waiting: Sequence[FileSlice]) -> dt.datetime | None:
        """Time of the oldest commit with rows in the logs of these file groups; None without logs."""
        oldest: dict[LaneName, int] = {}
        for file_slice in waiting:
            compacted = file_slice.slice.cut if file_slice.slice is not None else {}
            for position in set(file_slice.file.tolist()):
                file = self._snapshot.files[position]
                # A fold does not record its commits. The oldest one is at or after the first commit after the slice.
                first = {lane: compacted.get(lane, 0) + 1 for lane in file.reach}
                for lane, seq in (first if file.is_fold else {file.lane: file.seq}).items():
                    oldest[lane] = min(seq, oldest.get(lane, seq))
        times = [self._first_commit_ms(lane, seq) for lane, seq in oldest.items()]
        commit_times = [time_ms for time_ms in times if time_ms is not None]
        return moment_of(min(commit_times)) if commit_times else None

    def _first_commit_ms(self, lane: LaneName, seq: int) -> int | None:
        """Commit time of the first commit of a lane at or after ``seq`` that is not rolled back; None without one."""
        rolled_back = self._snapshot.state.rolled_back.get(lane, ())
        for number in range(seq, self._snapshot.at.lanes.get(lane, 0) + 1):
            entry = self._snapshot.table_log.commit_log.entry(lane, number)
            if isinstance(entry, Data) and not cuts.in_spans(rolled_back, number):
                return entry.committed_at_ms
        return None
