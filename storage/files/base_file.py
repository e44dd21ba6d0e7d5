"""Reads base and shadow files: Parquet, sorted by key, one row group at a time.

A file may contain several small file groups one after the other, each sorted by key, because every file has a fixed
cost. For the same reason a row group of such a file may contain rows of several file groups.
`weft.storage.files.slice_file_writer` writes these files.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.core import names
from weft.storage.core.arrays import nulls
from weft.storage.core.keys import one_array
from weft.storage.core.log.file_refs import FilePart, FileRef, Overlay, SliceFile
from weft.storage.core.plan.overlaid import ReadFile, files_of_columns
from weft.storage.core.predicate import ColumnRange, RangeLookup
from weft.storage.core.schema.evolution import Adaptation
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData
from weft.storage.files.bloom_filter import may_contain
from weft.storage.files.file_parts import StoredRows, coalesce, group_by_file, row_groups_of, row_spans, rows_within
from weft.storage.files.footers import FOOTERS, Footer, read_metadata
from weft.storage.files.row_group_statistics import key_span, row_group_range
from weft.storage.files.row_groups import LastRowGroups
from weft.storage.files.text_columns import dictionary_columns, without_dictionary
from weft.storage.store.object_store import check_tail, tail_range


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
            [
                None if item is None else StoredRows(item.rev, item.base, item.base_part, item.overlays)
                for item in slices
            ]
        )

    def shadow(self, slices: Sequence[SliceFile | None]) -> Iterator[dict[str, pa.Array]]:
        """The hidden rows of slices, otherwise as `base`."""
        return self._slices(
            [None if item is None else StoredRows(item.rev, item.shadow, item.shadow_part) for item in slices]
        )

    def _slices(self, stored: Sequence[StoredRows | None]) -> Iterator[dict[str, pa.Array]]:
        for rev, file, overlays, parts, slice_ordinals in group_by_file(stored):
            yield from self.file(rev, file, parts, slice_ordinals if len(stored) > 1 else None, overlays)

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
        # Files of an older schema may have to be read for columns that are not in the result.
        source_columns = columns if rev >= schema.changed or not overlays else schema.slice.names
        files = files_of_columns(schema, file, overlays, source_columns)
        try:
            with contextlib.ExitStack() as stack:
                sources = [_OpenFile.of(env, read_file, stack) for read_file in files]
                footer = sources[0].footer
                older = Adaptation.of(schema, rev, columns, _stored_columns(sources, schema, overlays))
                # Statistics of an older file hold for keys only: other columns may have another default now.
                usable = None if older is None else {schema.sort_column}
                spans = row_spans(footer, file, parts)
                numbers = [
                    number
                    for number in row_groups_of(footer, spans)
                    if self.chosen(_Statistics(sources, number, schema, usable, not overlays).column_range)
                ]
                _check_aligned(sources, schema, file)
                reads = columns if older is None else older.reads
                for run in coalesce(footer, numbers, env.tuning):
                    rows = _decode_all(sources, run, reads)
                    begin, end = footer.starts[run[0]], footer.starts[run[-1] + 1]
                    if older is not None:
                        rows = older.apply(rows, end - begin)
                    if last is not None and parts is not None:
                        last.keep(file, begin, end, rows)
                    run_spans = np.clip(spans, begin, end) - begin
                    rows = rows_within(rows, run_spans[:, run_spans[0] < run_spans[1]])
                    if slice_ordinals is not None:
                        ordinals = np.array(slice_ordinals, np.int64)
                        rows[names.SLICE_ORDINAL] = pa.array(np.repeat(ordinals, run_spans[1] - run_spans[0]))
                    yield rows
        except (pa.ArrowException, OSError, KeyError) as error:
            # KeyError: a damaged column name. A store that does not answer raises StoreUnavailable, which passes.
            raise CorruptData(
                f"file {file.path} does not decode: {error}", hint="restore it from a copy of the store"
            ) from error


@dataclass(slots=True)
class _OpenFile:
    """A file that is open for reading, and the columns to read from it.

    Attributes:
        read_file: The file and its columns.
        footer: Its footer.
        source: Its bytes.
        stack: Closes it.
    """

    read_file: ReadFile
    footer: Footer
    source: pa.NativeFile
    stack: contextlib.ExitStack
    _parquet: pq.ParquetFile | None = None
    _tail: pa.Buffer | None = None

    @classmethod
    def of(cls, env: Environment, read_file: ReadFile, stack: contextlib.ExitStack) -> _OpenFile:
        file = read_file.file
        source = stack.enter_context(env.store.open_input(file.path, file.size, [tail_range(file)]))
        return cls(read_file, FOOTERS.read(env.store, file, lambda: read_metadata(source, file)), source, stack)

    @property
    def parquet(self) -> pq.ParquetFile:
        if self._parquet is None:
            pre_buffer = not isinstance(self.source, pa.OSFile)
            parquet_file = pq.ParquetFile(
                self.source,
                metadata=self.footer.metadata,
                pre_buffer=pre_buffer,
                page_checksum_verification=True,
                read_dictionary=dictionary_columns(self.footer, self.read_file.columns),
            )
            self._parquet = self.stack.enter_context(parquet_file)
        return self._parquet

    def may_have(self, row_group: int, name: str, arrow_type: pa.DataType, values: Sequence[Any]) -> bool:
        """Whether a row group can have one of some values in a column, by its Bloom filter if there is one."""
        chunk = self.footer.metadata.row_group(row_group).column(self.footer.leaves[name])
        offset, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
        begin, size = tail_range(self.read_file.file)
        if offset is None or length is None or offset < begin:
            return True
        if self._tail is None:
            tail = self.source.read_at(size, begin)
            check_tail(tail, self.read_file.file)
            self._tail = pa.py_buffer(tail)
        return may_contain(self._tail.slice(offset - begin, length), values, arrow_type)


def _stored_columns(sources: Sequence[_OpenFile], schema: TableSchema, overlays: Sequence[Overlay]) -> list[str]:
    """The columns that files have; with overlays only those that are read from the file."""
    if not overlays:
        return list(sources[0].footer.schema.names)
    keys = {*schema.key, schema.sort_column}
    return [name for file in sources for name in file.footer.schema.names if name in keys.union(file.read_file.columns)]


def _decode_all(sources: Sequence[_OpenFile], numbers: Sequence[int], columns: Sequence[str]) -> dict[str, pa.Array]:
    """Columns of consecutive row groups, each from its file."""
    rows: dict[str, pa.Array] = {}
    for source in sources:
        in_file = frozenset(source.read_file.columns)
        file_columns = columns if len(sources) == 1 else [name for name in columns if name in in_file]
        rows |= _decode(source.parquet, source.footer, numbers, file_columns)
    return rows if len(sources) == 1 else {name: rows[name] for name in columns}


def _check_aligned(sources: Sequence[_OpenFile], schema: TableSchema, base: FileRef) -> None:
    """Check that files have the same row groups: the same numbers of rows, and the same ranges of keys.

    Raises:
        CorruptData: They differ, or a file does not have as many rows as the base.
    """
    first = sources[0].footer
    for source in sources:
        has_same_rows = source.footer.starts == first.starts and source.read_file.file.rows == base.rows
        if not has_same_rows or any(
            key_span(source.footer, schema, number) != key_span(first, schema, number)
            for number in (range(len(first.starts) - 1) if source is not sources[0] else ())
        ):
            raise CorruptData(
                f"the rows of {source.read_file.file.path} are not those of {base.path}",
                hint="restore both files from one copy, or report this if neither was changed",
            )


@dataclass(frozen=True, slots=True)
class _Statistics:
    """The statistics of a row group, each column's from the file that has it.

    Attributes:
        sources: The files.
        number: The row group.
        schema: The schema that the rows are adapted to.
        usable: Names of the columns whose statistics may be used; None for all.
        alone: Whether there is one file, without overlays: then it has all columns, and not only those that are read.
    """

    sources: Sequence[_OpenFile]
    number: int
    schema: TableSchema
    usable: Collection[str] | None
    alone: bool

    def column_range(self, name: str) -> ColumnRange | None:
        in_first = self.alone or name == self.schema.sort_column
        source = self.sources[0] if in_first else next((s for s in self.sources if name in s.read_file.columns), None)
        if source is None or (self.usable is not None and name not in self.usable):
            return None
        values = row_group_range(source.footer, self.schema, self.number, name)
        if values is None or name not in self.schema.index:
            return values
        return replace(values, may_have=functools.partial(source.may_have, self.number, name, values.type))


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
