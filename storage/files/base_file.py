"""Base and shadow files: Parquet, sorted by key, one schema; written and read one row group at a time.

A file may hold several small file groups, one after the other and each sorted by key: what a file costs besides its
rows is felt where there are many. A row group of such a file may hold several of them too, for the same reason.
"""

from __future__ import annotations

import bisect
import contextlib
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.core import names
from storage.core.keys import one_array
from storage.core.log.file_refs import FilePart, FileRef, SliceFile
from storage.core.names import Path
from storage.core.predicate import ColumnRange, Known
from storage.core.schema.evolution import Adaptation
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.errors import CorruptData
from storage.files.column_encoding import choose_encodings
from storage.files.footers import FOOTERS, Footer
from storage.files.row_groups import LastRowGroups
from storage.store.object_store import tail_range, verify_tail


class SliceFileWriter:
    """Collects rows in key order into row groups of one Parquet file; the file exists once `close` returns a ref.

    An instance that was given no rows leaves nothing behind.

    Args:
        env: The table's.
        path: Of the file.
        schema: The rows'.
        shared: Several file groups are written, each ended by `end_part`.
    """

    def __init__(self, env: Environment, path: Path, schema: TableSchema, *, shared: bool = False) -> None:
        self._env, self._path, self._schema, self._shared = env, path, schema.slice, shared
        self._sort_column = schema.slice.get_field_index(schema.sort_column)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._rows = self._part_from = 0
        self._stack = contextlib.ExitStack()
        self._sink: _ChecksumFile | None = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, columns: Mapping[str, pa.Array]) -> None:
        """Append rows; Requires all columns of the slice schema, keys above all earlier ones of the part."""
        if not columns or len(next(iter(columns.values()))) == 0:
            return
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        self._pending.append(batch)
        self._pending_rows += len(batch)
        while self._pending_rows >= self._env.tuning.row_group_rows:
            self._write_row_group(self._env.tuning.row_group_rows)

    def end_part(self) -> FilePart | None:
        """End the rows of a file group: where they are; None if there are none."""
        first, end = self._part_from, self._rows + self._pending_rows
        self._part_from = end
        if self._pending_rows >= self._env.tuning.shared_row_group_rows:
            self._write_row_group(self._pending_rows)
        return FilePart(first=first, rows=end - first) if end > first else None

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
            self._sink = _ChecksumFile(self._stack.enter_context(self._env.store.open_output(self._path)))
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                self._schema,
                compression="zstd",
                use_dictionary=encodings.use_dictionary,
                column_encoding=encodings.column_encoding,
                store_decimal_as_integer=True,
                sorting_columns=None if self._shared else [pq.SortingColumn(self._sort_column)],
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
    env: Environment,
    schema: TableSchema,
    rev: int,
    file: FileRef,
    columns: Sequence[str],
    chosen: Callable[[Known], bool] = lambda _: True,
    parts: Sequence[FilePart] | None = None,
    last: LastRowGroups | None = None,
    slice_ordinals: Sequence[int] | None = None,
) -> Iterator[dict[str, pa.Array]]:
    """The rows of a base or shadow file, one row group at a time, each column one array.

    Everything that is read is verified: the footer against the entry, pages against their own checksums.

    Args:
        env: The table's.
        schema: What the rows are wanted for; the file may be of an older revision.
        rev: The revision that the file was written with.
        file: The file as its entry describes it.
        columns: Of the slice schema.
        chosen: Whether to read a row group, by what its statistics say of columns.
        parts: Rows to read, ascending and apart; None for all.
        last: Where to look first, and to keep what is decoded; all row groups are chosen then.
        slice_ordinals: Per part, or of the whole file, the value of ``names.SLICE_ORDINAL`` in its rows; None: without
            that column.

    Raises:
        CorruptData: The file is missing, truncated, damaged or does not decode.
    """
    known = last.rows(file, parts[0]) if last is not None and parts is not None and len(parts) == 1 else None
    if known is not None:
        yield known
        return
    try:
        with env.store.open_input(file.path, file.size, [tail_range(file)]) as source:
            footer = FOOTERS.get(env.store, file, lambda: _read_footer(source, file))
            older = Adaptation.of(schema, rev, columns, footer.schema.names)
            # Of an older file only keys are what they were: other columns may show another default now.
            told = footer.leaves.keys() if older is None else {schema.sort_column}
            spans = _spans(footer, file, parts)
            numbers = [
                number
                for number in spans
                if chosen(_Statistics(footer.metadata.row_group(number), schema, footer.leaves, told).known)
            ]
            if not numbers:
                return
            pre_buffer = not isinstance(source, pa.OSFile)
            with pq.ParquetFile(
                source, metadata=footer.metadata, pre_buffer=pre_buffer, page_checksum_verification=True
            ) as parquet:
                for together in _together(footer, numbers, env.tuning.row_group_rows):
                    if older is None:
                        rows = _decode(parquet, footer, together, columns)
                    else:
                        rows = _decode(parquet, footer, together, older.reads)
                        rows = older.apply(rows, _row_count(footer, together))
                    if last is not None and parts is not None:
                        last.keep(file, footer.starts[together[0]], footer.starts[together[-1] + 1], rows)
                    rows = _within(rows, _joined_spans(footer, spans, together), _row_count(footer, together))
                    if slice_ordinals is not None:
                        rows[names.SLICE_ORDINAL] = _slice_ordinals(footer, together, parts, slice_ordinals)
                    yield rows
    except (pa.ArrowException, OSError, KeyError) as error:
        # KeyError: a damaged name. A store that does not answer is StoreUnavailable, and passes.
        raise CorruptData(f"file {file.path} does not decode: {error}", hint="restore it from a copy") from error


def _spans(footer: Footer, file: FileRef, parts: Sequence[FilePart] | None) -> dict[int, list[tuple[int, int]]]:
    """Per row group, in order, what is wanted of it: (first row within it, end)."""
    starts = footer.starts
    if parts is None:
        return {number: [(0, starts[number + 1] - starts[number])] for number in range(len(starts) - 1)}
    joined: list[tuple[int, int]] = []
    for part in parts:
        first, end = part.first, part.first + part.rows
        if end > starts[-1]:
            raise CorruptData(
                f"file {file.path} has {starts[-1]} rows, and its entry wants rows {first} to {end} of it",
                hint="its writer was broken: report it",
            )
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    spans: dict[int, list[tuple[int, int]]] = {}
    for first, end in joined:
        number = bisect.bisect_right(starts, first) - 1
        while number < len(starts) - 1 and starts[number] < end:
            start = starts[number]
            spans.setdefault(number, []).append((max(first, start) - start, min(end, starts[number + 1]) - start))
            number += 1
    return spans


def _within(rows: dict[str, pa.Array], spans: Sequence[tuple[int, int]], count: int) -> dict[str, pa.Array]:
    """The rows of a row group of ``count`` rows that are wanted."""
    if spans == [(0, count)]:
        return rows
    if len(spans) == 1:
        ((first, end),) = spans
        return {name: column.slice(first, end - first) for name, column in rows.items()}
    return {
        name: pa.concat_arrays([column.slice(first, end - first) for first, end in spans])
        for name, column in rows.items()
    }


def _read_footer(source: pa.NativeFile, file: FileRef) -> pq.FileMetaData:
    # A damaged footer can end the process in Arrow's C++ code, so it is verified before it is parsed.
    verify_tail(source, file)
    return pq.read_metadata(source)


def _together(footer: Footer, numbers: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Row groups that are decoded at once: small neighbours, up to ``limit`` rows.

    What a row group costs besides its rows is felt where they are small.
    """
    found: list[int] = []
    for number in numbers:
        if found and (number != found[-1] + 1 or footer.starts[number + 1] - footer.starts[found[0]] > limit):
            yield found
            found = []
        found.append(number)
    if found:
        yield found


def _row_count(footer: Footer, together: Sequence[int]) -> int:
    return footer.starts[together[-1] + 1] - footer.starts[together[0]]


def _joined_spans(
    footer: Footer, spans: Mapping[int, Sequence[tuple[int, int]]], together: Sequence[int]
) -> list[tuple[int, int]]:
    """What is wanted of row groups that follow each other, as of one."""
    joined: list[tuple[int, int]] = []
    for number in together:
        shift = footer.starts[number] - footer.starts[together[0]]
        for first, end in spans[number]:
            if joined and joined[-1][1] == first + shift:
                joined[-1] = (joined[-1][0], end + shift)
            else:
                joined.append((first + shift, end + shift))
    return joined


def _slice_ordinals(
    footer: Footer, together: Sequence[int], parts: Sequence[FilePart] | None, slice_ordinals: Sequence[int]
) -> pa.Array:
    """Per row that is wanted of row groups that follow each other the place of its part."""
    begin, end = footer.starts[together[0]], footer.starts[together[-1] + 1]
    if parts is None:
        return pa.array(np.full(end - begin, slice_ordinals[0], np.int64))
    first = np.array([part.first for part in parts], np.int64)
    rows = np.array([part.rows for part in parts], np.int64)
    here = np.minimum(first + rows, end) - np.maximum(first, begin)
    return pa.array(np.repeat(np.array(slice_ordinals, np.int64), np.maximum(here, 0)))


def _decode(
    parquet: pq.ParquetFile, footer: Footer, together: Sequence[int], columns: Sequence[str]
) -> dict[str, pa.Array]:
    """Columns of row groups that follow each other, each as one array."""
    metadata = [footer.metadata.row_group(number) for number in together]
    # Hidden state is mostly NULL (no deletes, no floors), and decoding NULLs costs nearly as much as decoding values.
    empty = {
        name
        for name in columns
        if name.startswith(names.HIDDEN_PREFIX)
        and name in footer.leaves
        and all(_is_null(own, footer.leaves[name]) for own in metadata)
    }
    wanted = [name for name in columns if name not in empty]
    table = parquet.read_row_groups(together, columns=wanted, use_threads=False)
    return {
        name: pa.nulls(_row_count(footer, together), footer.schema.field(name).type)
        if name in empty
        else one_array(table.column(name))
        for name in columns
    }


def _is_null(metadata: pq.RowGroupMetaData, leaf: int) -> bool:
    """Whether statistics say that a column of a row group is NULL throughout."""
    statistics = metadata.column(leaf).statistics
    return statistics is not None and statistics.null_count == metadata.num_rows


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
    env: Environment,
    schema: TableSchema,
    files: Sequence[SliceFile | None],
    columns: Sequence[str],
    chosen: Callable[[Known], bool] = lambda _: True,
    last: LastRowGroups | None = None,
) -> Iterator[dict[str, pa.Array]]:
    """Visible rows of slices, a row group of a file at a time, of those that are ``chosen`` by their statistics.

    Slices that follow each other in one file are read as one: their rows may come together, and
    ``names.SLICE_ORDINAL`` says which of several slices they are of.
    """
    own = [(made.rev, made.base, made.base_part) if made is not None else None for made in files]
    yield from _read_parts(env, schema, own, columns, chosen, last)


def read_shadow(
    env: Environment,
    schema: TableSchema,
    files: Sequence[SliceFile | None],
    columns: Sequence[str],
    last: LastRowGroups | None = None,
) -> dict[str, pa.Array] | None:
    """All other rows of slices, as in `read_base`, at once; None where they have none."""
    own = [(made.rev, made.shadow, made.shadow_part) if made is not None else None for made in files]
    found = list(_read_parts(env, schema, own, columns, lambda _: True, last))
    return {name: pa.concat_arrays([part[name] for part in found]) for name in found[0]} if found else None


_Stored = tuple[int, FileRef | None, FilePart | None]
"""Base or shadow of a slice: schema revision, file, and which rows of it are the slice's; no file: no rows."""


def _read_parts(
    env: Environment,
    schema: TableSchema,
    wanted: Sequence[_Stored | None],
    columns: Sequence[str],
    chosen: Callable[[Known], bool],
    last: LastRowGroups | None,
) -> Iterator[dict[str, pa.Array]]:
    """Rows of one slice, or of several, which know then which of them they are of."""
    for (rev, file), parts, slice_ordinals in _by_file(wanted):
        known = slice_ordinals if len(wanted) > 1 else None
        yield from read_row_groups(env, schema, rev, file, columns, chosen, parts, last, known)


def _by_file(
    wanted: Iterable[_Stored | None],
) -> Iterator[tuple[tuple[int, FileRef], list[FilePart] | None, list[int]]]:
    """Parts of one file that follow each other in it, together; and where each of them stands among what is wanted."""
    last: tuple[int, FileRef] | None = None
    parts: list[FilePart] = []
    slice_ordinals: list[int] = []
    for slice_ordinal, own in enumerate(wanted):
        if own is None:
            continue
        rev, file, part = own
        if file is None:
            continue
        follows = part is not None and bool(parts) and parts[-1].first + parts[-1].rows <= part.first
        if last is not None and not (follows and last[1].path == file.path):
            yield last, parts or None, slice_ordinals
            parts, slice_ordinals = [], []
        last = rev, file
        slice_ordinals.append(slice_ordinal)
        if part is not None:
            parts.append(part)
    if last is not None:
        yield last, parts or None, slice_ordinals
