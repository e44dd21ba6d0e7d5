"""Checks the contents of base and shadow files: rows, statistics, and which file group each row is of.

Reads one row group at a time, only the columns that are needed, and in addition all keys of the shadow file. Bytes are
checked first: the content of a damaged file is not checked. FORMAT.md, "Base and shadow files".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.core import keys, names
from storage.core.keys import KeyVector, Mask
from storage.core.log.file_refs import FilePart, FileRef, SliceFile
from storage.core.model import FIELD_ID, Group, Op
from storage.core.modes import mode_of
from storage.core.names import Path
from storage.core.schema.table_schema import TableSchema
from storage.core.types import encode_scalar
from storage.services.verify.check_rows import (
    UNREADABLE,
    OnArrivals,
    RowChecker,
    Rows,
    check_bytes,
    columns_to_read,
    in_file_group,
)
from storage.services.verify.findings import Findings, bad_content
from storage.store.object_store import ObjectStore


class SliceFiles:
    """Base and shadow files: checks the bytes of each once, and keeps the last row group of each kind.

    Slices that share a file are checked one after the other, and several of them may be in one row group.
    """

    def __init__(self, store: ObjectStore, findings: Findings) -> None:
        self.store, self._findings = store, findings
        self._intact: dict[Path, bool] = {}
        self._last: dict[bool, tuple[object, Rows]] = {}

    def are_intact(self, file: FileRef) -> bool:
        """Whether a file has the bytes that were written; a problem is reported the first time."""
        if file.path not in self._intact:
            self._intact[file.path] = check_bytes(self.store, file, self._findings)
        return self._intact[file.path]

    def row_group(
        self, file: FileRef, parquet: pq.ParquetFile, number: int, columns: Sequence[str], *, visible: bool
    ) -> Rows:
        """A row group of an open file; each column one array."""
        key = (file.path, number, tuple(columns))
        if visible not in self._last or self._last[visible][0] != key:
            table = parquet.read_row_group(number, columns=list(columns), use_threads=False)
            self._last[visible] = key, {name: keys.one_array(table.column(name)) for name in columns}
        return self._last[visible][1]


@dataclass(slots=True)
class SliceChecker:
    """Checks one slice: its base and its shadow.

    Attributes:
        files: Reads base and shadow files.
        schema: The schema that the slice was written with.
        file: The slice as its entry describes it.
        where: The slice, for findings.
        findings: Collects what is wrong.
        on_arrivals: Called with the arrivals of registers.
    """

    files: SliceFiles
    schema: TableSchema
    file: SliceFile
    where: str
    findings: Findings
    on_arrivals: OnArrivals
    _largest: dict[int, Any] = field(default_factory=dict)
    _overflows: dict[int, int] = field(default_factory=dict)
    _complete: bool = True

    def check(self) -> None:
        """Check all rows, and what the entry says of them."""
        file, schema = self.file, self.schema
        if sorted(file.groups) != sorted(group.id for group in schema.groups):
            self._report("S8", f"it has column groups {file.groups}, the schema has others: columns may be missing")
        hidden = list(self._parts(file.shadow, file.shadow_part, visible=False))
        shadow = keys.concat(hidden) if hidden else None
        for part in self._parts(file.base, file.base_part, visible=True):
            if shadow is not None:
                _, twice = keys.find(shadow, part)
                if twice.any():
                    self._report(
                        "S15", f"{int(twice.sum())} keys are both in base and in shadow: deleted rows may be visible"
                    )
        if not self._complete:
            return
        listed = {group.id: file.ordering_max.get(group.id) for group in schema.groups if group.ordering}
        largest = {group: encode_scalar(self._largest.get(group)) for group in listed}
        if listed != largest:
            self._report(
                "S12", f"its largest ordering values are {largest}, its entry says {listed}: filters may skip it"
            )
        if self._overflows != file.overflows:
            self._report("", f"overflowing rows per column are {self._overflows}, its entry says {file.overflows}")

    def _report(self, invariant: str, what: str, where: str = "") -> None:
        self.findings.add(bad_content(invariant, where or self.where, what))

    def _parts(self, file: FileRef | None, part: FilePart | None, *, visible: bool) -> Iterator[KeyVector]:
        """The keys of each row group, after all its other checks."""
        if file is None:
            return
        if not self.files.are_intact(file):
            self._complete = False
            return
        try:
            yield from self._row_groups(file, part, visible=visible)
        except UNREADABLE as error:
            self._complete = False
            self._report("S7", f"it cannot be decoded: {error}", str(file.path))

    def _row_groups(self, file: FileRef, part: FilePart | None, *, visible: bool) -> Iterator[KeyVector]:
        where = str(file.path) if part is None else f"{file.path}, rows of {self.where}"
        schema = self.schema
        checker = RowChecker(
            schema=schema,
            groups=schema.groups,
            distinct=True,
            where=where,
            findings=self.findings,
            on_arrivals=self.on_arrivals,
        )
        aggregated = [name for group in schema.groups if mode_of(group).may_overflow for name in group.values]
        columns = columns_to_read(schema, schema.groups, schema.slice.names, *aggregated)
        with (
            self.files.store.open_input(file.path, file.size) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as parquet,
        ):
            if _fields(parquet.schema_arrow) != _fields(schema.slice):
                self._complete = False
                self._report(
                    "S19", f"its columns are not those of schema revision {self.file.rev}: it cannot be read", where
                )
                return
            rows = parquet.metadata.num_rows
            first, end = (0, rows) if part is None else (part.first, part.first + part.rows)
            if rows != file.rows:
                self._report("S7", f"it has {rows} rows, its entry says {file.rows}", where)
            if end > rows:
                self._report("S7", f"it has {rows} rows, its entry names rows {first} to {end}", where)
            start = 0
            for number in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(number).num_rows
                low, high = max(first - start, 0), min(end - start, count)
                beside = [row - start for row in (first - 1, end) if start <= row < start + count]
                start += count
                if low >= high and not beside:
                    continue
                batch = self.files.row_group(file, parquet, number, columns, visible=visible)
                if self._are_here(batch, beside).any():
                    self._report("S7", "a row of its file group is outside the rows that its entry names", where)
                if low < high:
                    yield self._check_rows(checker, batch, slice(low, high), visible=visible)

    def _are_here(self, batch: Rows, rows: Sequence[int]) -> Mask:
        """Which of some rows belong to the slice's file group."""
        there = {name: batch[name].take(pa.array(rows, pa.int64())) for name in self.schema.key}
        return in_file_group(self.schema, there, [self.file.group], [len(rows)])

    def _check_rows(self, checker: RowChecker, batch: Rows, rows: slice, *, visible: bool) -> KeyVector:
        schema, count = self.schema, rows.stop - rows.start
        batch = {name: column.slice(rows.start, count) for name, column in batch.items()}
        shown = _visible(schema, batch)
        wrong = (
            ("S12", ~shown, "base rows are not visible: readers show them nevertheless")
            if visible
            else ("S12", shown, "shadow rows are visible: readers of base files alone miss them")
        )
        vector = checker.check(batch, [self.file.group], [count], wrong)
        self.findings.count("rows", count)
        for group in schema.groups:
            known = self._largest.get(group.id)
            largest = [value for value in (known, *_largest_versions(group, batch)) if value is not None]
            if largest:
                self._largest[group.id] = max(largest)
            for column, number in mode_of(group).overflows(group, schema.column_by_name, batch).items():
                self._overflows[column] = self._overflows.get(column, 0) + number
        return vector


def _fields(schema: pa.Schema) -> list[tuple[str, pa.DataType, object]]:
    return [(field.name, field.type, (field.metadata or {}).get(FIELD_ID)) for field in schema]


def _largest_versions(group: Group, batch: Rows) -> list[Any]:
    """Largest first ordering values: of rows where the group is present, and of floors."""
    if not group.ordering:
        return []
    column = batch[group.ordering[0]]
    present = pc.if_else(batch[names.arrival(group.id)].is_valid(), column, pa.scalar(None, column.type))
    floor = batch.get(names.floor_ordering(group.id, 0))
    return [pc.max(values).as_py() for values in (present, floor) if values is not None]


def _visible(schema: TableSchema, batch: Rows) -> Mask:
    """Which rows are visible: some group is present, and none is deleted together with its row."""
    rows = len(batch[schema.sort_column])
    present, hidden = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    for group in schema.groups:
        there = np.asarray(batch[names.arrival(group.id)].is_valid())
        present |= there
        kind = batch.get(names.floor_kind(group.id))
        if kind is not None:
            hidden |= ~there & np.asarray(pc.fill_null(pc.equal(kind, int(Op.DELETE_ROW)), False))
    return present & ~hidden
