"""Read-optimized: the base files of a snapshot and nothing else, and how stale that is.

Any Parquet reader is as fast as this and reads the same: nothing is merged. What it costs is freshness: a commit is in
the answer once a compaction has folded it into base files. Rules of this room:

- Each file group shows the slice that it has in the snapshot. File groups are compacted each in its own time, so the
  answer as a whole may be no snapshot: a row is never torn, but of two rows one may know later commits (`Compacted`).
- A file group that was never compacted shows nothing. Nothing else is left out, and nothing silently: `Staleness`.
- Other engines get the user's columns alone, and only files that say what the table says when they are read as they
  are: FORMAT.md, "Files of older schemas".
"""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from storage.core.log import cut as cuts
from storage.core.log.cut import Cut
from storage.core.log.entries import Data
from storage.core.log.file_refs import FilePart, FileRef
from storage.core.log.table_state import FileGroup
from storage.core.names import LaneName, Path
from storage.core.plan.slices import FileSlice, base_slices, whole_files
from storage.core.schema.evolution import reads_as_it_is
from storage.core.schema.table_schema import TableSchema
from storage.errors import InvalidInput
from storage.files.base_file import read_row_groups
from storage.log.table_log import TableLog
from storage.read.missing_file import explain_missing_file
from storage.store.object_store import ObjectStore, tail_range, verify_tail

if TYPE_CHECKING:
    from storage.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Compacted:
    """How far the base of one file group goes.

    Attributes:
        cut: Per lane the last entry that is in it; None where the file group was never compacted.
        rows: Of its base.
        size_bytes: Of its base.
        commits_waiting: Commits of which rows wait for compaction; a fold of many counts as one.
        rows_waiting: Those rows: events, and registers of folds.
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
    """What a read-optimized answer lacks of its snapshot; nothing does if ``rows`` is 0.

    Attributes:
        since: When the oldest commit was made that is not wholly in it: everything before is. None if nothing is
            lacking. Of commits in a fold nobody knows any more which file groups they touched: the time may be earlier
            than it need be, never later.
        commits: So many commits are not wholly in it; a fold of many counts as one.
        rows: Log rows that wait for compaction: events, and registers of folds.
        size_bytes: Stored bytes of those rows, all columns.
        file_groups: File groups for which something waits.
        never_compacted: Those of them that show nothing at all.
    """

    since: dt.datetime | None
    commits: int
    rows: int
    size_bytes: int
    file_groups: int
    never_compacted: int


class ReadOptimized:
    """The base files of one snapshot; get one from `storage.read.snapshot.Snapshot.read_optimized`.

    Reading takes the arguments of the snapshot's own methods, and raises what they raise.
    """

    def __init__(self, snapshot: Snapshot, table_log: TableLog) -> None:
        self._snapshot, self._table_log = snapshot, table_log
        self._staleness: Staleness | None = None

    @property
    def cut(self) -> Cut:
        """Names the snapshot whose base files these are. What is in them, `file_groups` says."""
        return self._snapshot.cut

    @property
    def schema(self) -> pa.Schema:
        """The user's columns in table order, with Arrow types."""
        return self._snapshot.schema

    @property
    def file_groups(self) -> list[Compacted]:
        """Every file group that has rows, in order of file group."""
        return [self._compacted(file_slice) for file_slice in self._snapshot.slices]

    def _compacted(self, file_slice: FileSlice) -> Compacted:
        made = file_slice.slice
        return Compacted(
            file_group=file_slice.group,
            cut=made.cut if made is not None else None,
            rows=made.base_rows if made is not None else 0,
            size_bytes=made.base_bytes if made is not None else 0,
            commits_waiting=len(self._commits([file_slice])),
            rows_waiting=int(file_slice.rows.sum()),
            bytes_waiting=file_slice.log_bytes,
        )

    @property
    def staleness(self) -> Staleness:
        """What the answer lacks of the snapshot."""
        if self._staleness is None:
            behind = [file_slice for file_slice in self._snapshot.slices if len(file_slice.rows)]
            self._staleness = Staleness(
                since=self._oldest_waiting(behind),
                commits=len(self._commits(behind)),
                rows=sum(int(file_slice.rows.sum()) for file_slice in behind),
                size_bytes=sum(file_slice.log_bytes for file_slice in behind),
                file_groups=len(behind),
                never_compacted=sum(file_slice.slice is None for file_slice in behind),
            )
        return self._staleness

    def _commits(self, slices: Sequence[FileSlice]) -> set[tuple[LaneName, int]]:
        """(lane, seq) of the commits and folds that have rows for some of the file groups."""
        files = self._snapshot.files
        numbers = {number for file_slice in slices for number in file_slice.file.tolist()}
        return {(files[number].lane, files[number].seq) for number in numbers}

    def _oldest_waiting(self, behind: Sequence[FileSlice]) -> dt.datetime | None:
        """Commit time of the oldest commit with rows of these file groups that their slices do not hold."""
        oldest: dict[LaneName, int] = {}
        for file_slice in behind:
            held = file_slice.slice.cut if file_slice.slice is not None else {}
            for number in set(file_slice.file.tolist()):
                file = self._snapshot.files[number]
                # What a fold holds begins somewhere behind the slice.
                own = {lane: held.get(lane, 0) + 1 for lane in file.reach} if file.is_fold else {file.lane: file.seq}
                for lane, seq in own.items():
                    oldest[lane] = min(seq, oldest.get(lane, seq))
        times = [self._first_commit_ms(lane, seq) for lane, seq in oldest.items()]
        known = [time_ms for time_ms in times if time_ms is not None]
        return dt.datetime.fromtimestamp(min(known) / 1000, dt.UTC) if known else None

    def _first_commit_ms(self, lane: LaneName, seq: int) -> int | None:
        """Commit time of a lane's first live commit from ``seq`` on; times ascend within a lane."""
        rolled_back = self._snapshot.state.rolled_back.get(lane, ())
        for number in range(seq, self._snapshot.cut.lanes.get(lane, 0) + 1):
            entry = self._table_log.commit_log.entry(lane, number)
            if isinstance(entry, Data) and not cuts.in_spans(rolled_back, number):
                return entry.committed_at_ms
        return None

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's own word for it
        require: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of the base files as one table; in no particular order."""
        return self._snapshot.to_arrow(columns, filter, require, read_optimized=True)

    def to_reader(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
        require: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """The rows of the base files as a stream: memory is that of one row group."""
        return self._snapshot.to_reader(columns, filter, require, read_optimized=True)

    def dataset(self, columns: Sequence[str] | None = None) -> ds.Dataset:
        """The base files as a dataset of pyarrow, for engines that read those: DuckDB, Polars, Dask, ...

        It can be read again and again, in parallel and with pushed-down columns and filters, and holds what was there
        when it was made; pin the snapshot if that takes long. Everything that is read is verified, as always; a page
        that does not have its checksum is an OSError of Arrow's own.

        Args:
            columns: That it shall have; None for all of the table. Hidden ones it never has.

        Raises:
            NotFound: A column that the table does not have.
            InvalidInput: Some base files are of an older schema, and do not show what the table shows in these columns.
        """
        schema = self._snapshot.table_schema
        names = list(schema.arrow.names if columns is None else dict.fromkeys(columns))
        for name in names:
            schema.column(name)
        slices = base_slices(self._snapshot.state)
        files = [file_slice.slice for file_slice in slices]
        revs = {file.rev for file in files if file is not None}
        # Keys have no defaults: all that can differ is a narrower type, and datasets widen.
        values = [name for name in names if name not in schema.key]
        older = [name for name in values if not all(reads_as_it_is(schema, rev, (name,)) for rev in revs)]
        if older:
            raise InvalidInput(
                f"base files of an older schema do not show what the table shows in column {', '.join(older)}",
                hint="name the other columns; to_arrow and to_reader read files of every schema",
            )
        sources = _sources(slices, whole_files(slices))
        return _dataset(
            _BaseFiles(self._table_log.store, self._snapshot.cut, schema, names or schema.key, sources),
            pa.schema([schema.field(name).remove_metadata() for name in names]),
        )


@dataclass(frozen=True, slots=True)
class _Source:
    """A base file, or what of one is current.

    Attributes:
        file: The file.
        rev: Revision that it was written with.
        parts: Of a file that also holds rows which mean nothing any more: those that do; None: all do.
    """

    file: FileRef
    rev: int
    parts: tuple[FilePart, ...] | None

    @property
    def path(self) -> str:
        """What its fragment is called."""
        return str(self.file.path) if self.parts is None else f"{self.file.path}#current"


def _sources(slices: Iterable[FileSlice], whole: frozenset[Path]) -> list[_Source]:
    """Every base file once."""
    files: dict[Path, tuple[FileRef, int, list[FilePart]]] = {}
    for own in slices:
        if own.slice is not None and own.slice.base is not None:
            _, _, parts = files.setdefault(own.slice.base.path, (own.slice.base, own.slice.rev, []))
            if own.slice.base_part is not None:
                parts.append(own.slice.base_part)
    return [
        _Source(file, rev, None if file.path in whole else tuple(sorted(parts, key=lambda part: part.first)))
        for file, rev, parts in files.values()
    ]


def _dataset(files: _BaseFiles, schema: pa.Schema) -> ds.Dataset:
    """What `_BaseFiles` gives, as fragments of one dataset."""
    options = ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=options)
    file_system = pa_fs.PyFileSystem(files)
    fragments = [
        parquet.make_fragment(own.path, file_system, file_size=own.file.size if own.parts is None else None)
        for own in files.by_path.values()
    ]
    return ds.FileSystemDataset(fragments, schema, parquet, file_system)


class _BaseFiles(pa_fs.FileSystemHandler):  # type: ignore[misc] # pyarrow publishes no types
    """Base files through the table's store: read-only, and these alone. Verifies what every reader must (FORMAT.md).

    A file that file groups share, and that some have left, is shown as a file of those that are in it, made of their
    rows when it is opened; such files are small (`storage.services.compaction.SHARED_BYTES`).
    Can be pickled, as the store can: fragments may be read in other processes.
    """

    def __init__(
        self, store: ObjectStore, at: Cut, schema: TableSchema, columns: Sequence[str], sources: Iterable[_Source]
    ) -> None:
        self._store, self._at, self._schema, self._columns = store, at, schema, tuple(columns)
        self.by_path = {own.path: own for own in sources}

    def open_input_file(self, path: str) -> pa.NativeFile:
        own = self.by_path[path]
        file = own.file
        with explain_missing_file(self._store, self._at):
            if own.parts is not None:
                return self._excerpt(own)
            source = self._store.open_input(file.path, file.size, [tail_range(file)])
            # A damaged footer can end the process in Arrow's C++ code, so it is verified before it is parsed.
            verify_tail(source, file)
        return source

    def get_file_info(self, paths: Sequence[str]) -> list[pa_fs.FileInfo]:
        return [
            self._file_info(self.by_path[path])
            if path in self.by_path
            else pa_fs.FileInfo(path, pa_fs.FileType.NotFound)
            for path in paths
        ]

    def _file_info(self, own: _Source) -> pa_fs.FileInfo:
        size = own.file.size if own.parts is None else None
        return pa_fs.FileInfo(own.path, pa_fs.FileType.File, size=size)

    def _excerpt(self, own: _Source) -> pa.NativeFile:
        """The rows of some parts of a file as a Parquet file in memory."""
        fields = pa.schema([self._schema.field(name).remove_metadata() for name in self._columns])
        found = read_row_groups(self._store, self._schema, own.rev, own.file, self._columns, parts=own.parts)
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, fields, compression="none", write_page_checksum=True) as writer:
            for rows in found:
                writer.write_batch(pa.RecordBatch.from_arrays([rows[name] for name in self._columns], schema=fields))
        return pa.BufferReader(sink.getvalue())

    def get_type_name(self) -> str:
        return "weft"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: object) -> Never:
        raise io.UnsupportedOperation("base files of a table are read one by one, and never changed")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse

    open_input_stream = open_input_file
