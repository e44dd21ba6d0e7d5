"""Writes base, shadow and overlay files: Parquet, sorted by key, one row group at a time.

`weft.storage.files.base_file` reads them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.core.checksum import crc32
from weft.storage.core.log.file_refs import FilePart, FileRef
from weft.storage.core.names import Path
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.bloom_filter import writer_options
from weft.storage.files.column_encoding import choose_encodings
from weft.storage.files.row_buffer import RowBuffer

_WRITE_BYTES: Final = 1024 * 1024  # pages have a few KiB, and each call of Python has a fixed cost


class SliceFileWriter:
    """Writes rows in key order into row groups of one Parquet file, which exists once `close` has returned.

    Without rows no file is written.

    Args:
        env: The environment of the table.
        path: Path of the file, which no other writer uses.
        schema: The schema of the table.
        shared: Whether the file has several file groups. `end_part` ends each of them.
        columns: Names of the columns of an overlay, in slice order; by default all of the slice schema.
        row_groups: Number of rows of each row group; by default those of `Tuning`.
        index: Columns that get Bloom filters, if the file has them.
    """

    def __init__(
        self,
        env: Environment,
        path: Path,
        schema: TableSchema,
        *,
        shared: bool = False,
        columns: Sequence[str] | None = None,
        row_groups: Sequence[int] = (),
        index: Sequence[str] = (),
    ) -> None:
        self._env, self._path, self._shared = env, path, shared
        self._schema = schema.slice if columns is None else pa.schema([schema.slice.field(name) for name in columns])
        self._row_groups = list(reversed(row_groups))
        self._index = index
        self._sort_column = self._schema.get_field_index(schema.sort_column)
        self._pending = RowBuffer()
        self._rows = self._part_from = 0
        self._stack = contextlib.ExitStack()
        self._sink: _ChecksumFile | None = None
        self._buffer: pa.BufferedOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: Mapping[str, pa.Array]) -> None:
        """Append rows with all columns of the file; keys must be greater than all earlier keys of the part."""
        if columns and len(next(iter(columns.values()))):
            self._append(self._batch(columns))

    def write_parts(self, columns: Mapping[str, pa.Array], sizes: Sequence[int]) -> list[FilePart | None]:
        """Append the rows of several file groups, and end each file group.

        Args:
            columns: All columns of the file, the rows of one file group after those of another; none without rows.
            sizes: Number of rows of each file group.

        Returns:
            The part of each file group, as `end_part` returns it.
        """
        first, batch = self._part_from, self._batch(columns) if columns else None
        parts: list[FilePart | None] = []
        begin = end = 0
        for size in sizes:
            parts.append(FilePart(first=first, rows=size) if size else None)
            first, end = first + size, end + size
            if batch is not None and self._pending.rows + end - begin >= self._env.tuning.shared_row_group_rows:
                self._append(batch.slice(begin, end - begin))
                self._write_pending()
                begin = end
        if batch is not None and end > begin:
            self._append(batch.slice(begin))
        self._part_from = first
        return parts

    def end_part(self) -> FilePart | None:
        """End the rows of a file group. Returns their position in the file; None if there are none."""
        first, end = self._part_from, self._rows + self._pending.rows
        self._part_from = end
        if self._pending.rows >= self._env.tuning.shared_row_group_rows:
            self._write_pending()
        return FilePart(first=first, rows=end - first) if end > first else None

    def close(self) -> FileRef | None:
        """Finish the file, durably. Returns None if there were no rows."""
        self._write_pending()
        if self._writer is None or self._sink is None or self._buffer is None:
            return None
        self._buffer.flush()
        self._sink.begin_tail()
        self._writer.close()
        self._buffer.close()
        self._stack.close()
        sink = self._sink
        return FileRef(
            path=self._path,
            size=sink.size,
            crc32=sink.crc32,
            tail_size=sink.tail_size,
            tail_crc32=sink.tail_crc32,
            rows=self._rows,
        )

    def discard(self, error: BaseException) -> None:
        """Discard the file, because of ``error``."""
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
        self._stack.__exit__(type(error), error, error.__traceback__)

    def _batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._pending.add(batch)
        while self._pending.rows >= self._next_rows():
            self._write_row_group(self._next_rows())

    def _write_pending(self) -> None:
        while self._pending.rows:
            self._write_row_group(min(self._next_rows(), self._pending.rows))

    def _next_rows(self) -> int:
        """Rows of the next row group."""
        if self._row_groups:
            return self._row_groups[-1]
        tuning, pending = self._env.tuning, self._pending
        if pending.bytes <= tuning.row_group_bytes:
            return tuning.row_group_rows
        return min(max(pending.rows * tuning.row_group_bytes // pending.bytes, 1), tuning.row_group_rows)

    def _write_row_group(self, rows: int) -> None:
        table = pa.Table.from_batches(self._pending.take(), self._schema)
        if self._writer is None:
            first = table.slice(0, rows)
            encodings = choose_encodings(first)
            self._sink = _ChecksumFile(self._stack.enter_context(self._env.store.open_output(self._path)))
            self._buffer = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), _WRITE_BYTES)
            self._writer = pq.ParquetWriter(
                self._buffer,
                self._schema,
                compression="zstd",
                use_dictionary=encodings.use_dictionary,
                column_encoding=encodings.column_encoding,
                store_decimal_as_integer=True,
                sorting_columns=None if self._shared else [pq.SortingColumn(self._sort_column)],
                write_page_index=True,
                write_page_checksum=True,
                bloom_filter_options=writer_options(first, self._index),
            )
        self._writer.write_table(table.slice(0, rows), row_group_size=rows)
        for batch in table.slice(rows).to_batches():
            self._pending.add(batch)
        self._rows += rows
        if self._row_groups:
            self._row_groups.pop()


class _ChecksumFile:
    """A write-only file that computes the size and checksum of what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = self.tail_size = 0
        self.crc32 = self.tail_crc32 = 0
        self.in_tail = self.closed = False

    def begin_tail(self) -> None:
        """Count everything that is written from now on as the tail: indexes and footer."""
        self.in_tail = True

    def write(self, data: bytes) -> int:
        self.crc32 = crc32(data, self.crc32)
        self.size += len(data)
        if self.in_tail:
            self.tail_crc32 = crc32(data, self.tail_crc32)
            self.tail_size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self.size

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
