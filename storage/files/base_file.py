"""Reads base and shadow files: Parquet, sorted by key, one row group at a time.

A file may contain several small file groups one after the other, each sorted by key, because every file has a fixed
cost. For the same reason a row group of such a file may contain rows of several file groups.
`weft.storage.files.slice_file_writer` writes these files.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.core import names
from weft.storage.core.arrays import nulls
from weft.storage.core.keys import Indices, one_array
from weft.storage.core.log.file_refs import FilePart, FileRef, Overlay, SliceFile
from weft.storage.core.plan.overlaid import ReadFile, files_of_columns
from weft.storage.core.predicate import ColumnRange, RangeLookup
from weft.storage.core.schema.evolution import Adaptation
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment, Tuning
from weft.storage.errors import CorruptData
from weft.storage.files.bloom_filter import may_contain
from weft.storage.files.footers import FOOTERS, Footer
from weft.storage.files.row_groups import LastRowGroups
from weft.storage.files.text_columns import dictionary_columns, without_dictionary
from weft.storage.store.object_store import ReadRequest, check_tail, tail_range, verify_tail

_Stored = tuple[int, FileRef | None, FilePart | None, Sequence[Overlay]]
"""Base or shadow of a slice: revision of the schema, file (None: no rows), its rows in the file (None: all), and its
overlays."""


@dataclass(frozen=True, slots=True)
class SliceReader:
    """Reads the same columns of base and shadow files, in batches of about one row group, each column as one array.

    All bytes that are read are verified: the footer against the entry, pages by their checksums, and that the row
    groups of overlays have the same numbers of rows and ranges of keys as those of the base.

    Attributes:
        env: The environment of the table.
        schema: The schema that the rows are adapted to.
        columns: Names of columns of the slice schema.
        chosen: Whether to read a row group, given its statistics.
        last: Decoded rows of the last reads. They are used by reads of a single part that they contain, and updated
            otherwise. Requires that ``chosen`` accepts every row group.
    """

    env: Environment
    schema: TableSchema
    columns: Sequence[str]
    chosen: Callable[[RangeLookup], bool] = lambda _: True
    last: LastRowGroups | None = None

    def base(self, slices: Sequence[SliceFile | None]) -> Iterator[dict[str, pa.Array]]:
        """The visible rows of slices.

        Args:
            slices: The slices, in order of file group; None for a file group without slice.

        Yields:
            Columns by name. For several slices also ``names.SLICE_ORDINAL``, the position in ``slices`` of the slice of
            each row; slices that are neighbours in one file are read together.

        Raises:
            CorruptData: A file is missing, truncated or damaged, or does not decode.
        """
        return self._slices(
            [(made.rev, made.base, made.base_part, made.overlays) if made is not None else None for made in slices]
        )

    def shadow(self, slices: Sequence[SliceFile | None]) -> Iterator[dict[str, pa.Array]]:
        """The hidden rows of slices, otherwise as `base`."""
        return self._slices(
            [(made.rev, made.shadow, made.shadow_part, ()) if made is not None else None for made in slices]
        )

    def _slices(self, stored_files: Sequence[_Stored | None]) -> Iterator[dict[str, pa.Array]]:
        for (rev, file, overlays), parts, slice_ordinals in _by_file(stored_files):
            yield from self.file(rev, file, parts, slice_ordinals if len(stored_files) > 1 else None, overlays)

    def file(
        self,
        rev: int,
        file: FileRef,
        parts: Sequence[FilePart] | None = None,
        slice_ordinals: Sequence[int] | None = None,
        overlays: Sequence[Overlay] = (),
    ) -> Iterator[dict[str, pa.Array]]:
        """The rows of one file.

        Args:
            rev: The revision of the schema that the file was written with.
            file: The file as its entry describes it.
            parts: The rows to read, ascending and without overlap; None for all rows.
            slice_ordinals: Values of an additional column ``names.SLICE_ORDINAL``, one for each part, or one for the
                whole file; None to leave the column out.
            overlays: Overlays of the base file; ``last`` is not used if there are any.

        Raises:
            CorruptData: A file is missing, truncated or damaged, or does not decode; or an overlay does not fit the
                base.
        """
        env, schema, columns = self.env, self.schema, self.columns
        last = None if overlays else self.last
        cached = last.rows(file, parts[0]) if last is not None and parts is not None and len(parts) == 1 else None
        if cached is not None:
            yield cached
            return
        # Files of an older schema may have to be read for columns that are not wanted.
        reads_of = columns if rev >= schema.changed or not overlays else schema.slice.names
        files = files_of_columns(schema, file, overlays, reads_of)
        try:
            with contextlib.ExitStack() as stack:
                sources = [_Opened.of(env, read_file, stack) for read_file in files]
                footer = sources[0].footer
                older = Adaptation.of(schema, rev, columns, _stored_columns(sources, schema, overlays))
                # Statistics of an older file hold for keys only: other columns may have another default now.
                usable = None if older is None else {schema.sort_column}
                spans = _spans(footer, file, parts)
                ranges = (_Known(sources, i, schema, usable, not overlays) for i in _row_groups(footer, spans))
                numbers = [statistics.number for statistics in ranges if self.chosen(statistics.known)]
                _check_aligned(sources, schema, file)
                reads = columns if older is None else older.reads
                for coalesced in _coalesce(footer, numbers, env.tuning):
                    rows = _decode_all(sources, coalesced, reads)
                    begin, end = footer.starts[coalesced[0]], footer.starts[coalesced[-1] + 1]
                    if older is not None:
                        rows = older.apply(rows, end - begin)
                    if last is not None and parts is not None:
                        last.keep(file, begin, end, rows)
                    here = np.clip(spans, begin, end) - begin
                    rows = _within(rows, here[:, here[0] < here[1]])
                    if slice_ordinals is not None:
                        ordinals = np.array(slice_ordinals, np.int64)
                        rows[names.SLICE_ORDINAL] = pa.array(np.repeat(ordinals, here[1] - here[0]))
                    yield rows
        except (pa.ArrowException, OSError, KeyError) as error:
            # KeyError: a damaged column name. A store that does not answer raises StoreUnavailable, which passes.
            raise CorruptData(f"file {file.path} does not decode: {error}", hint="restore it from a copy") from error


@dataclass(slots=True)
class _Opened:
    """A file that is open for reading, and the columns to read from it.

    Attributes:
        read: The file and its columns.
        footer: Its footer.
        source: Its bytes.
        stack: Closes it.
    """

    read: ReadFile
    footer: Footer
    source: pa.NativeFile
    stack: contextlib.ExitStack
    _parquet: pq.ParquetFile | None = None
    _tail: pa.Buffer | None = None

    @classmethod
    def of(cls, env: Environment, read: ReadFile, stack: contextlib.ExitStack) -> _Opened:
        file = read.file
        source = stack.enter_context(env.store.open_input(file.path, file.size, [tail_range(file)]))
        return cls(read, FOOTERS.read(env.store, file, lambda: _read_footer(source, file)), source, stack)

    @property
    def parquet(self) -> pq.ParquetFile:
        if self._parquet is None:
            pre_buffer = not isinstance(self.source, pa.OSFile)
            parquet_file = pq.ParquetFile(
                self.source,
                metadata=self.footer.metadata,
                pre_buffer=pre_buffer,
                page_checksum_verification=True,
                read_dictionary=dictionary_columns(self.footer, self.read.columns),
            )
            self._parquet = self.stack.enter_context(parquet_file)
        return self._parquet

    def may_have(self, row_group: int, name: str, arrow_type: pa.DataType, values: Sequence[Any]) -> bool:
        """Whether a row group can have one of some values in a column, by its Bloom filter if there is one."""
        chunk = self.footer.metadata.row_group(row_group).column(self.footer.leaves[name])
        offset, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
        begin, size = tail_range(self.read.file)
        if offset is None or length is None or offset < begin:
            return True
        if self._tail is None:
            tail = self.source.read_at(size, begin)
            check_tail(tail, self.read.file)
            self._tail = pa.py_buffer(tail)
        return may_contain(self._tail.slice(offset - begin, length), values, arrow_type)


def _stored_columns(sources: Sequence[_Opened], schema: TableSchema, overlays: Sequence[Overlay]) -> list[str]:
    """The columns that files have; with overlays only those that are read from the file."""
    if not overlays:
        return list(sources[0].footer.schema.names)
    keys = {*schema.key, schema.sort_column}
    return [name for file in sources for name in file.footer.schema.names if name in keys.union(file.read.columns)]


def _decode_all(sources: Sequence[_Opened], numbers: Sequence[int], columns: Sequence[str]) -> dict[str, pa.Array]:
    """Columns of consecutive row groups, each from its file."""
    rows: dict[str, pa.Array] = {}
    for source in sources:
        here = frozenset(source.read.columns)
        file_columns = columns if len(sources) == 1 else [name for name in columns if name in here]
        rows |= _decode(source.parquet, source.footer, numbers, file_columns)
    return rows if len(sources) == 1 else {name: rows[name] for name in columns}


def _check_aligned(sources: Sequence[_Opened], schema: TableSchema, base: FileRef) -> None:
    """Check that files have the same row groups: the same numbers of rows, and the same ranges of keys.

    Raises:
        CorruptData: They differ, or a file does not have as many rows as the base.
    """
    first = sources[0].footer
    for source in sources:
        same = source.footer.starts == first.starts and source.read.file.rows == base.rows
        if not same or any(
            key_span(source.footer, schema, number) != key_span(first, schema, number)
            for number in (range(len(first.starts) - 1) if source is not sources[0] else ())
        ):
            raise CorruptData(
                f"the rows of {source.read.file.path} are not those of {base.path}",
                hint="restore both files from one copy, or report this if neither was changed",
            )


@dataclass(frozen=True, slots=True)
class _Known:
    """The statistics of a row group, each column's from the file that has it.

    Attributes:
        opened: The files.
        number: The row group.
        schema: The schema that the rows are adapted to.
        usable: Names of the columns whose statistics may be used; None for all.
        alone: Whether there is one file, without overlays: then it has all columns, and not only those that are read.
    """

    opened: Sequence[_Opened]
    number: int
    schema: TableSchema
    usable: Collection[str] | None
    alone: bool

    def known(self, name: str) -> ColumnRange | None:
        in_first = self.alone or name == self.schema.sort_column
        has = self.opened[0] if in_first else next((file for file in self.opened if name in file.read.columns), None)
        if has is None or (self.usable is not None and name not in self.usable):
            return None
        stats = _statistics(has.footer, self.schema, self.number, name)
        if stats is None or name not in self.schema.index:
            return stats
        return replace(stats, may_have=functools.partial(has.may_have, self.number, name, stats.type))


def read_footers(env: Environment, files: Sequence[FileRef]) -> list[Footer]:
    """The footers of base or shadow files, verified, in the given order. Those that are not cached are read at once.

    Raises:
        CorruptData: A file is missing, or its footer is damaged.
    """
    footers = {file.path: FOOTERS.find((env.store.uri, file)) for file in files}
    absent = [file for file in files if footers[file.path] is None]
    tails = env.store.read_ranges([ReadRequest(file.path, file.size, [tail_range(file)]) for file in absent])
    for file, (tail,) in zip(absent, tails, strict=True):
        check_tail(tail, file)
        footers[file.path] = FOOTERS.read(env.store, file, functools.partial(pq.read_metadata, pa.BufferReader(tail)))
    return [footer for file in files if (footer := footers[file.path]) is not None]


def key_span(footer: Footer, schema: TableSchema, row_group: int) -> tuple[Any, Any] | None:
    """A lower and an upper bound of the values of the sort column in a row group; None if there are no statistics.

    The row group may contain rows of several file groups. Long texts may be truncated.
    """
    span = _statistics(footer, schema, row_group, schema.sort_column)
    return None if span is None or span.least is None or span.largest is None else (span.least, span.largest)


def column_ranges(footer: Footer, schema: TableSchema, name: str) -> list[ColumnRange | None]:
    """The statistics of a user column in every row group of a file, as the file has them; None if it has none."""
    return [_statistics(footer, schema, number, name) for number in range(footer.metadata.num_row_groups)]


def _spans(footer: Footer, file: FileRef, parts: Sequence[FilePart] | None) -> Indices:
    """First row and end of each part, shape (2, parts); the whole file is one part."""
    if parts is None:
        return np.array([[0], [footer.starts[-1]]])
    spans = np.array([(part.first, part.first + part.rows) for part in parts]).T
    if spans[1, -1] > footer.starts[-1]:
        raise CorruptData(
            f"file {file.path} has {footer.starts[-1]} rows, but its entry refers to rows {spans[0, -1]} to "
            f"{spans[1, -1]}",
            hint="the entry was written incorrectly: please report this",
        )
    return spans


def _row_groups(footer: Footer, spans: Indices) -> list[int]:
    """The row groups that have rows of parts, ascending."""
    count = len(footer.starts)
    first = np.searchsorted(footer.starts, spans[0], "right") - 1
    end = np.searchsorted(footer.starts, spans[1])
    parts = np.cumsum(np.bincount(first, minlength=count) - np.bincount(end, minlength=count))
    return np.flatnonzero(parts).tolist()


def _within(rows: dict[str, pa.Array], spans: Indices) -> dict[str, pa.Array]:
    """The rows of parts, which are not empty."""
    first, end = spans
    gaps = np.flatnonzero(first[1:] != end[:-1])
    joined = list(zip(first[np.append(0, gaps + 1)].tolist(), end[np.append(gaps, -1)].tolist(), strict=True))
    slices = {name: [column.slice(begin, stop - begin) for begin, stop in joined] for name, column in rows.items()}
    return {name: pa.concat_arrays(several) if len(joined) > 1 else several[0] for name, several in slices.items()}


def _read_footer(source: pa.NativeFile, file: FileRef) -> pq.FileMetaData:
    # A damaged footer can end the process in Arrow's C++ code, so it is verified before it is parsed.
    verify_tail(source, file)
    return pq.read_metadata(source)


def _coalesce(footer: Footer, numbers: Sequence[int], tuning: Tuning) -> Iterator[list[int]]:
    """Row groups to decode at once: neighbours with the rows and bytes of one, because each call has a fixed cost."""
    numbers_together: list[int] = []
    size_together = 0
    for number in numbers:
        size = footer.metadata.row_group(number).total_byte_size
        rows = footer.starts[number + 1] - footer.starts[numbers_together[0]] if numbers_together else 0
        full = rows > tuning.row_group_rows or size_together + size > tuning.row_group_bytes
        if numbers_together and (number != numbers_together[-1] + 1 or full):
            yield numbers_together
            numbers_together, size_together = [], 0
        numbers_together.append(number)
        size_together += size
    if numbers_together:
        yield numbers_together


def _decode(
    parquet: pq.ParquetFile, footer: Footer, numbers: Sequence[int], columns: Sequence[str]
) -> dict[str, pa.Array]:
    """Columns of consecutive row groups, each as one array."""
    metadata = [footer.metadata.row_group(number) for number in numbers]
    # Hidden state is mostly null (no deletes, no floors), and decoding nulls costs nearly as much as decoding values.
    empty = {
        name
        for name in columns
        if name.startswith(names.HIDDEN_PREFIX)
        and name in footer.leaves
        and all(_is_null(row_group, footer.leaves[name]) for row_group in metadata)
    }
    stored_columns = [name for name in columns if name not in empty]
    table = parquet.read_row_groups(numbers, columns=stored_columns, use_threads=False)
    return {
        name: nulls(footer.schema.field(name).type, table.num_rows)
        if name in empty
        else one_array(without_dictionary(table.column(name)))
        for name in columns
    }


def _is_null(metadata: pq.RowGroupMetaData, leaf: int) -> bool:
    """Whether statistics say that a column of a row group contains only nulls."""
    statistics = metadata.column(leaf).statistics
    return statistics is not None and statistics.null_count == metadata.num_rows


def _statistics(footer: Footer, schema: TableSchema, row_group: int, name: str) -> ColumnRange | None:
    """The statistics of a column in a row group, as the file has them; None if it has none."""
    metadata = footer.metadata.row_group(row_group)
    found = metadata.column(footer.leaves[name]).statistics if name in footer.leaves else None
    if found is None:
        return None
    nulls = found.null_count if found.has_null_count else None
    try:
        least, largest = (found.min, found.max) if found.has_min_max else (None, None)
    except (ValueError, OverflowError):  # a time beyond the calendar of Python
        least = largest = None
    return ColumnRange(schema.slice.field(name).type, least, largest, nulls, metadata.num_rows)


def _by_file(
    stored_files: Iterable[_Stored | None],
) -> Iterator[tuple[tuple[int, FileRef, Sequence[Overlay]], list[FilePart] | None, list[int]]]:
    """Group adjacent slices of one file: yields (revision, file, overlays), their parts, and their positions in
    ``stored_files``.
    """
    last: tuple[int, FileRef, Sequence[Overlay]] | None = None
    parts: list[FilePart] = []
    slice_ordinals: list[int] = []
    for slice_ordinal, stored_file in enumerate(stored_files):
        if stored_file is None:
            continue
        rev, file, part, overlays = stored_file
        if file is None:
            continue
        follows = part is not None and bool(parts) and parts[-1].first + parts[-1].rows <= part.first
        if last is not None and not (follows and last[1].path == file.path):
            yield last, parts or None, slice_ordinals
            parts, slice_ordinals = [], []
        last = rev, file, overlays
        slice_ordinals.append(slice_ordinal)
        if part is not None:
            parts.append(part)
    if last is not None:
        yield last, parts or None, slice_ordinals
