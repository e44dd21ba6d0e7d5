"""Base and shadow files: Parquet, sorted by key, one schema; written and read one row group at a time."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from storage.core import names
from storage.core.entries import FileRef, SliceFile
from storage.core.evolution import Adaptation
from storage.core.keys import one_array
from storage.core.names import Path
from storage.core.predicate import ColumnRange, Known
from storage.core.schema import TableSchema
from storage.encoding import choose_encodings
from storage.errors import CorruptData
from storage.footers import FOOTERS, Footer
from storage.object_store import ObjectStore, verify_tail

ROW_GROUP_ROWS: Final = 64 * 1024  # the unit of memory of a stitch, of pruning by statistics, and of a look-up by key


class SliceFileWriter:
    """Collects rows in key order into row groups of one Parquet file; the file exists once `close` returns a ref.

    An instance that was given no rows leaves nothing behind.
    """

    def __init__(self, store: ObjectStore, path: Path, schema: TableSchema) -> None:
        self._store, self._path, self._schema = store, path, schema.slice
        self._sort_column = schema.slice.get_field_index(schema.sort_column)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._rows = 0
        self._stack = contextlib.ExitStack()
        self._sink: _ChecksumFile | None = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: Mapping[str, pa.Array]) -> None:
        """Append rows; Requires all columns of the slice schema, keys above all earlier ones."""
        if not columns or len(next(iter(columns.values()))) == 0:
            return
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        self._pending.append(batch)
        self._pending_rows += len(batch)
        while self._pending_rows >= ROW_GROUP_ROWS:
            self._write_row_group(ROW_GROUP_ROWS)

    def close(self) -> FileRef | None:
        """Finish the file, durably; None if there were no rows."""
        if self._pending_rows:
            self._write_row_group(self._pending_rows)
        if self._writer is None or self._sink is None:
            return None
        self._sink.begin_tail()
        self._writer.close()
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
        """Leave nothing behind, because of ``error``."""
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
        self._stack.__exit__(type(error), error, error.__traceback__)

    def _write_row_group(self, rows: int) -> None:
        table = pa.Table.from_batches(self._pending, self._schema)
        if self._writer is None:
            encodings = choose_encodings(table.slice(0, rows))
            self._sink = _ChecksumFile(self._stack.enter_context(self._store.open_output(self._path)))
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                self._schema,
                compression="zstd",
                use_dictionary=encodings.use_dictionary,
                column_encoding=encodings.column_encoding,
                store_decimal_as_integer=True,
                sorting_columns=[pq.SortingColumn(self._sort_column)],
                write_page_index=True,
                write_page_checksum=True,
            )
        self._writer.write_table(table.slice(0, rows), row_group_size=rows)
        rest = table.slice(rows)
        self._pending = rest.to_batches()
        self._pending_rows = len(rest)
        self._rows += rows


class _ChecksumFile:
    """A write-only file that knows the size and checksum of what went through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = self.tail_size = 0
        self.crc32 = self.tail_crc32 = 0
        self.closed = False

    def begin_tail(self) -> None:
        """What is written from now on is the tail: indexes and footer."""
        self.tail_size = self.tail_crc32 = 0

    def write(self, data: bytes) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.tail_crc32 = zlib.crc32(data, self.tail_crc32)
        self.size += len(data)
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


def read_row_groups(
    store: ObjectStore,
    schema: TableSchema,
    rev: int,
    file: FileRef,
    columns: Sequence[str],
    chosen: Callable[[Known], bool] = lambda _: True,
) -> Iterator[dict[str, pa.Array]]:
    """The rows of a base or shadow file, one row group at a time, each column one array.

    Everything that is read is verified: the footer against the entry, pages against their own checksums.

    Args:
        store: The table's store.
        schema: What the rows are wanted for; the file may be of an older revision.
        rev: The revision that the file was written with.
        file: The file as its entry describes it.
        columns: Of the slice schema.
        chosen: Whether to read a row group, by what its statistics say of columns.

    Raises:
        CorruptData: The file is missing, truncated, damaged or does not decode.
    """
    try:
        with store.open_input(file.path, file.size, [(file.size - file.tail_size, file.tail_size)]) as source:
            footer = FOOTERS.get(store, file, lambda: _read_footer(source, file))
            older = Adaptation.of(schema, rev, columns, footer.schema.names)
            # Of an older file only keys are what they were: other columns may show another default now.
            told = footer.leaves.keys() if older is None else {schema.sort_column}
            numbers = [
                number
                for number in range(footer.metadata.num_row_groups)
                if chosen(_Statistics(footer.metadata.row_group(number), schema, footer.leaves, told).known)
            ]
            if not numbers:
                return
            pre_buffer = not isinstance(source, pa.OSFile)
            with pq.ParquetFile(
                source, metadata=footer.metadata, pre_buffer=pre_buffer, page_checksum_verification=True
            ) as parquet:
                for number in numbers:
                    if older is None:
                        yield _row_group(parquet, footer, number, columns)
                    else:
                        rows = _row_group(parquet, footer, number, older.reads)
                        yield older.apply(rows, footer.metadata.row_group(number).num_rows)
    except (pa.ArrowException, OSError, KeyError) as error:
        # KeyError: a damaged name. A store that does not answer is StoreUnavailable, and passes.
        raise CorruptData(f"file {file.path} does not decode: {error}", hint="restore it from a copy") from error


def _read_footer(source: pa.NativeFile, file: FileRef) -> pq.FileMetaData:
    # A damaged footer can end the process in Arrow's C++ code, so it is verified before it is parsed.
    verify_tail(source, file)
    return pq.read_metadata(source)


def _row_group(parquet: pq.ParquetFile, footer: Footer, number: int, columns: Sequence[str]) -> dict[str, pa.Array]:
    metadata = footer.metadata.row_group(number)
    # Hidden state is mostly NULL (no deletes, no floors), and decoding NULLs costs nearly as much as decoding values.
    empty = {
        name
        for name in columns
        if name.startswith(names.HIDDEN_PREFIX)
        and name in footer.leaves
        and (statistics := metadata.column(footer.leaves[name]).statistics) is not None
        and statistics.null_count == metadata.num_rows
    }
    table = parquet.read_row_group(number, columns=[name for name in columns if name not in empty], use_threads=False)
    return {
        name: pa.nulls(metadata.num_rows, footer.schema.field(name).type)
        if name in empty
        else one_array(table.column(name))
        for name in columns
    }


@dataclass(frozen=True, slots=True)
class _Statistics:
    """What the footer says of the columns of a row group; of those alone that ``told`` names."""

    metadata: pq.RowGroupMetaData
    schema: TableSchema
    leaves: Mapping[str, int]
    told: Collection[str]

    def known(self, name: str) -> ColumnRange | None:
        if name not in self.told or name not in self.leaves:
            return None
        found = self.metadata.column(self.leaves[name]).statistics
        if found is None:
            return None
        arrow_type, rows = self.schema.slice.field(name).type, self.metadata.num_rows
        nulls = found.null_count if found.has_null_count else None
        try:
            least, largest = (found.min, found.max) if found.has_min_max else (None, None)
        except (ValueError, OverflowError):  # a moment that Python's calendar does not reach
            least = largest = None
        return ColumnRange(arrow_type, least, largest, nulls, rows)


def read_base(
    store: ObjectStore,
    schema: TableSchema,
    file: SliceFile | None,
    columns: Sequence[str],
    chosen: Callable[[Known], bool] = lambda _: True,
) -> Iterator[dict[str, pa.Array]]:
    """Row groups of a slice's base file, those ``chosen`` by their statistics; none where it has none."""
    if file is not None and file.base is not None:
        yield from read_row_groups(store, schema, file.rev, file.base, columns, chosen)


def read_shadow(
    store: ObjectStore, schema: TableSchema, file: SliceFile | None, columns: Sequence[str]
) -> dict[str, pa.Array] | None:
    """A slice's whole shadow file; None where it has none."""
    if file is None or file.shadow is None:
        return None
    parts = list(read_row_groups(store, schema, file.rev, file.shadow, columns))
    return {name: pa.concat_arrays([part[name] for part in parts]) for name in columns}
