"""Checks the contents of base and shadow files: rows, statistics, and the file group of each row.

It reads one row group at a time, and only the columns that it needs; it keeps all keys of the shadow file. Bytes are
checked first: the content of a damaged file is not checked. See FORMAT.md, "Base and shadow files"; rules such as S29
are in PROTOCOL.md, "Invariants".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.core import keys
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import KeyVector, Mask
from weft.storage.core.log.file_refs import FilePart, FileRef, SliceFile
from weft.storage.core.merge.visibility import visible_rows
from weft.storage.core.model import FIELD_ID
from weft.storage.core.modes import mode_of
from weft.storage.core.names import Path
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.files.slice_statistics import SliceStatistics
from weft.storage.services.verify.check_index import check_index
from weft.storage.services.verify.check_rows import (
    UNREADABLE,
    OnArrivals,
    RowChecker,
    check_bytes,
    columns_to_read,
    in_file_group,
)
from weft.storage.services.verify.findings import Findings
from weft.storage.store.object_store import ObjectStore


class SliceFiles:
    """Base and shadow files: checks the bytes of each file once, and caches the last row group of each kind.

    Slices that share a file are checked one after the other, and several of them may be in one row group.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._intact: dict[Path, bool] = {}
        self._indexed: set[tuple[Path, int]] = set()
        self._last: dict[bool, tuple[object, Arrays]] = {}

    def are_intact(self, file: FileRef, findings: Findings) -> bool:
        """Whether a file has the bytes that were written. Reports a problem once."""
        if file.path not in self._intact:
            self._intact[file.path] = check_bytes(self.store, file, findings)
        return self._intact[file.path]

    def check_index(self, file: FileRef, parquet: pq.ParquetFile, number: int, findings: Findings) -> None:
        """Check the Bloom filters of a row group of an open file, once."""
        if (file.path, number) not in self._indexed:
            self._indexed.add((file.path, number))
            check_index(self.store, file, parquet, number, findings.at(file.path))

    def row_group(
        self, file: FileRef, parquet: pq.ParquetFile, number: int, columns: Sequence[str], *, visible: bool
    ) -> Arrays:
        """Read a row group of an open file; each column is one array."""
        key = (file.path, number, tuple(columns))
        if visible not in self._last or self._last[visible][0] != key:
            table = parquet.read_row_group(number, columns=list(columns), use_threads=False)
            self._last[visible] = key, {name: keys.one_array(table.column(name)) for name in columns}
        return self._last[visible][1]


_Overlay = tuple[FileRef, pq.ParquetFile, set[str]]
"""An open overlay: its file, its content, and the columns that it replaces."""


class SliceChecker:
    """Checks one slice: its base and its shadow."""

    def __init__(
        self, files: SliceFiles, schema: TableSchema, file: SliceFile, on_arrivals: OnArrivals, findings: Findings
    ) -> None:
        """``schema``: the schema with which the slice was written."""
        self._files, self._schema, self._file, self._on_arrivals = files, schema, file, on_arrivals
        self._findings = findings
        self._place = findings.at(f"slice of {file.group}")
        self._statistics = SliceStatistics(schema)
        self._complete = True

    def check(self) -> None:
        """Check all rows, and the statistics in the entry."""
        file, schema = self._file, self._schema
        if sorted(file.groups) != sorted(group.id for group in schema.groups):
            text = f"it has column groups {file.groups}, the schema has others: columns may be missing"
            self._place.bad_content("S8", text)
        hidden = list(self._parts(file.shadow, file.shadow_part, visible=False))
        shadow = keys.concat(hidden) if hidden else None
        for part in self._parts(file.base, file.base_part, visible=True):
            twice = int(keys.find(shadow, part)[1].sum()) if shadow is not None else 0
            if twice:
                text = f"{twice} keys are both in base and in shadow: deleted rows may be visible"
                self._place.bad_content("S15", text)
        if not self._complete:
            return
        largest, overflows = self._statistics.ordering_max, self._statistics.overflows
        if largest != file.ordering_max:
            text = f"its largest ordering values are {largest}, not {file.ordering_max}: reads may show older values"
            self._place.bad_content("S12", text)
        if overflows != file.overflows:
            text = f"overflowing rows per column are {overflows}, its entry says {file.overflows}"
            self._place.bad_content("", text)

    def _parts(self, file: FileRef | None, part: FilePart | None, *, visible: bool) -> Iterator[KeyVector]:
        """Check each row group, and yield its keys."""
        if file is None:
            return
        overlays = [overlay.file for overlay in self._file.overlays] if visible else []
        intact = [self._files.are_intact(stored_file, self._findings) for stored_file in (file, *overlays)]
        if not all(intact):
            self._complete = False
            return
        try:
            yield from self._row_groups(file, part, visible=visible)
        except UNREADABLE as error:
            self._complete = False
            self._findings.at(file.path).bad_content("S7", f"it cannot be decoded: {error}")

    def _row_groups(self, file: FileRef, part: FilePart | None, *, visible: bool) -> Iterator[KeyVector]:
        schema = self._schema
        place = self._findings.at(file.path if part is None else f"{file.path}, rows of {self._place.where}")
        checker = RowChecker(schema, schema.groups, place, self._on_arrivals, distinct=True)
        aggregate_columns = [name for group in schema.groups if mode_of(group).may_overflow for name in group.values]
        columns = columns_to_read(schema, schema.groups, schema.slice.names, *aggregate_columns)
        with contextlib.ExitStack() as stack:
            parquet = self._open(stack, file)
            if _fields(parquet.schema_arrow) != _fields(schema.slice):
                self._complete = False
                text = f"its columns are not those of schema revision {self._file.rev}: it cannot be read"
                place.bad_content("S19", text)
                return
            overlays = self._overlays(stack, parquet) if visible else []
            rows = parquet.metadata.num_rows
            first, end = (0, rows) if part is None else (part.first, part.first + part.rows)
            if rows != file.rows:
                place.bad_content("S7", f"it has {rows} rows, its entry says {file.rows}")
            if end > rows:
                place.bad_content("S7", f"it has {rows} rows, its entry names rows {first} to {end}")
            start = 0
            for number in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(number).num_rows
                low, high = max(first - start, 0), min(end - start, count)
                beside = [row - start for row in (first - 1, end) if start <= row < start + count]
                start += count
                if low >= high and not beside:
                    continue
                batch = self._files.row_group(file, parquet, number, columns, visible=visible)
                self._files.check_index(file, parquet, number, self._findings)
                for overlay in overlays:
                    self._files.check_index(overlay[0], overlay[1], number, self._findings)
                    batch = self._overlaid(overlay, batch, number, columns)
                if self._are_in_file_group(batch, beside).any():
                    place.bad_content("S7", "a row of its file group is outside the rows that its entry names")
                if low < high:
                    yield self._check_rows(checker, batch, slice(low, high), visible=visible)

    def _open(self, stack: contextlib.ExitStack, file: FileRef) -> pq.ParquetFile:
        source = stack.enter_context(self._files.store.open_input(file.path, file.size))
        return stack.enter_context(pq.ParquetFile(source, page_checksum_verification=True))

    def _overlays(self, stack: contextlib.ExitStack, base: pq.ParquetFile) -> list[_Overlay]:
        """Open the overlays of the slice that can be read, each with the columns that it replaces."""
        schema, overlays = self._schema, []
        groups = {group.id: group for group in schema.groups}
        for overlay in self._file.overlays:
            parquet, place = self._open(stack, overlay.file), self._findings.at(overlay.file.path)
            replaced_columns = {name for group in overlay.groups for name in schema.group_columns(groups[group])}
            fields = {name: (kind, number) for name, kind, number in _fields(parquet.schema_arrow)}
            required = {*schema.key, schema.sort_column, *replaced_columns}
            required_fields = {name: (kind, number) for name, kind, number in _fields(schema.slice) if name in required}
            if not required_fields.items() <= fields.items():
                self._complete = False
                text = f"its columns are not those of schema revision {self._file.rev}: it cannot be read"
                place.bad_content("S19", text)
            elif _row_counts(parquet) != _row_counts(base):
                self._complete = False
                place.bad_content("S29", "its row groups have other numbers of rows than those of the base")
            else:
                overlays.append((overlay.file, parquet, replaced_columns))
        return overlays

    def _overlaid(self, overlay: _Overlay, rows: Arrays, number: int, columns: Sequence[str]) -> Arrays:
        """Rows of a row group of the base, with the columns of an overlay."""
        file, parquet, replaced_columns = overlay
        in_key = {*self._schema.key, self._schema.sort_column}
        read_columns = [name for name in columns if name in replaced_columns or name in in_key]
        table = parquet.read_row_group(number, columns=read_columns, use_threads=False)
        overlay_columns = {name: keys.one_array(table.column(name)) for name in read_columns}
        if any(not overlay_columns[name].equals(rows[name]) for name in in_key):
            self._findings.at(file.path).bad_content("S29", "its keys are not those of the base, in the same order")
        return {**rows, **overlay_columns}

    def _are_in_file_group(self, batch: Arrays, rows: Sequence[int]) -> Mask:
        """Mask of the rows at some positions that belong to the slice's file group."""
        key_columns = {name: batch[name].take(pa.array(rows, pa.int64())) for name in self._schema.key}
        return in_file_group(self._schema, key_columns, [self._file.group], [len(rows)])

    def _check_rows(self, checker: RowChecker, batch: Arrays, rows: slice, *, visible: bool) -> KeyVector:
        schema, count = self._schema, rows.stop - rows.start
        batch = {name: column[rows] for name, column in batch.items()}
        is_visible = visible_rows(batch, schema)
        wrong = (
            ("S12", ~is_visible, "base rows are not visible: readers return them nevertheless")
            if visible
            else ("S12", is_visible, "shadow rows are visible: readers of base files alone miss them")
        )
        vector = checker.check(batch, [self._file.group], [count], wrong)
        self._findings.count("rows", count)
        self._statistics.add(batch)
        return vector


def _row_counts(parquet: pq.ParquetFile) -> list[int]:
    return [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]


def _fields(schema: pa.Schema) -> list[tuple[str, pa.DataType, object]]:
    return [(field.name, field.type, (field.metadata or {}).get(FIELD_ID)) for field in schema]
