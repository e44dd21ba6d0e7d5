"""Builds a `pyarrow.dataset.Dataset` of the base files of a snapshot, for engines that read datasets.

Other engines read the files as they are. So a dataset has only the columns of the user, and only files whose values
are those of the table (FORMAT.md, "Files of older schemas").
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Never

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from weft.storage.core.log.cut import Cut
from weft.storage.core.plan.current_files import CurrentFile, check_current_values, current_files
from weft.storage.core.plan.slices import base_slices
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.base_file import SliceReader
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.read.snapshot_files import SnapshotFiles
from weft.storage.store.object_store import tail_range, verify_tail


def base_dataset(snapshot: SnapshotFiles, columns: Sequence[str] | None) -> ds.Dataset:
    """Build a dataset of the base files of a snapshot, one fragment per file.

    Args:
        snapshot: The snapshot.
        columns: Columns of the dataset, in this order; None for all columns of the table.

    Raises:
        NotFound: A column does not exist.
        InvalidInput: Some base files have an older schema with other values in these columns, or overlays have newer
            values.
    """
    schema = snapshot.table_schema
    names = list(schema.arrow.names if columns is None else dict.fromkeys(columns))
    for name in names:
        schema.column(name)
    files = current_files(base_slices(snapshot.state))
    check_current_values(
        schema,
        files,
        names,
        overlaid_advice="; to_arrow and to_reader read overlays, too",
        older_advice="; to_arrow and to_reader read files of every schema",
    )
    handler = _BaseFiles(snapshot.table_log.env, snapshot.at, schema, names or schema.key, files)
    options = ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=options)
    file_system = pa_fs.PyFileSystem(handler)
    fragments = [parquet.make_fragment(path, file_system, file_size=handler.size(path)) for path in handler.sources]
    return ds.FileSystemDataset(fragments, _fields(schema, names), parquet, file_system)


def _fields(schema: TableSchema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name).remove_metadata() for name in names])


def _path(source: CurrentFile) -> str:
    """Path of the fragment of a file in the dataset."""
    return str(source.file.path) if source.parts is None else f"{source.file.path}#current"


class _BaseFiles(pa_fs.FileSystemHandler):  # type: ignore[misc] # pyarrow publishes no types
    """A read-only file system of these base files, through the store of the table. Footers are verified when opened.

    A file in which some file groups are not current is replaced by a file of the current rows, which is built in memory
    when it is opened; such files are small (`weft.storage.environment.Tuning.shared_file_bytes`). The file system can
    be pickled, because fragments may be read in other processes.
    """

    def __init__(
        self, env: Environment, at: Cut, schema: TableSchema, columns: Sequence[str], sources: Iterable[CurrentFile]
    ) -> None:
        self._env, self._at, self._schema, self._columns = env, at, schema, tuple(columns)
        self.sources = {_path(source): source for source in sources}

    def size(self, path: str) -> int | None:
        """Bytes of a file; None for a file that is built when it is opened."""
        source = self.sources[path]
        return source.file.size if source.parts is None else None

    def open_input_file(self, path: str) -> pa.NativeFile:
        source = self.sources[path]
        with explain_missing_file(self._env, self._at):
            if source.parts is not None:
                return self._excerpt(source)
            opened = self._env.store.open_input(source.file.path, source.file.size, [tail_range(source.file)])
            # A damaged footer can end the process in Arrow's C++ code, so it is verified before it is parsed.
            verify_tail(opened, source.file)
        return opened

    def get_file_info(self, paths: Sequence[str]) -> list[pa_fs.FileInfo]:
        return [
            pa_fs.FileInfo(path, pa_fs.FileType.File, size=self.size(path))
            if path in self.sources
            else pa_fs.FileInfo(path, pa_fs.FileType.NotFound)
            for path in paths
        ]

    def _excerpt(self, source: CurrentFile) -> pa.NativeFile:
        """The current rows of a file as a Parquet file in memory."""
        fields = _fields(self._schema, self._columns)
        reader = SliceReader(self._env, self._schema, self._columns)
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, fields, compression="none", write_page_checksum=True) as writer:
            for rows in reader.file(source.rev, source.file, source.parts):
                writer.write_batch(pa.RecordBatch.from_arrays([rows[name] for name in self._columns], schema=fields))
        return pa.BufferReader(sink.getvalue())

    def get_type_name(self) -> str:
        return "weft"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: object) -> Never:
        raise io.UnsupportedOperation("base files of a table can only be opened one by one, and cannot be changed")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse

    open_input_stream = open_input_file
