"""The contents of base and shadow files against what the log says of them, and against the rules of files.

One row group at a time, wanted columns only, and the keys of the shadow besides. Bytes are checked first: what a
damaged file holds says nothing more. Statistics are computed anew. FORMAT.md, "Base and shadow files".
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.core import keys, names
from storage.core.keys import KeyVector, Mask
from storage.core.log.file_refs import FilePart, FileRef, SliceFile
from storage.core.merge.locate_keys import buckets, folders, sort_keys
from storage.core.model import FIELD_ID, Group, Op
from storage.core.modes import mode_of
from storage.core.names import Path
from storage.core.schema.table_schema import TableSchema
from storage.core.types import encode_scalar
from storage.errors import CorruptData
from storage.services.verify.findings import FROM_COPY, Findings
from storage.store.object_store import ObjectStore

CHUNK_BYTES: Final = 8 * 1024 * 1024  # of a file in memory while its checksum is taken
SAMPLE: Final = 3  # keys that are shown
WRITTEN_SO: Final = "the file is what was written: report it, with the file; a compaction writes the file group anew"

Arrays = Mapping[str, pa.Array]
OnArrivals = Callable[[pa.Array, str], None]
"""Takes the arrivals that registers carry, and where."""


def check_bytes(store: ObjectStore, file: FileRef, findings: Findings) -> bool:
    """Whether a file is there with the bytes that were written; what is wrong is told."""
    findings.count("files")
    try:
        with store.open_input(file.path, file.size) as source:
            whole = position = 0
            while chunk := source.read_at(min(CHUNK_BYTES, file.size - position), position):
                whole = zlib.crc32(chunk, whole)
                position += len(chunk)
            tail = zlib.crc32(source.read_at(file.tail_size, file.size - file.tail_size))
    except (CorruptData, OSError) as error:
        message = error.message if isinstance(error, CorruptData) else str(error)
        findings.error("S7", str(file.path), f"{message}; whoever needs it gets an error", FROM_COPY)
        return False
    findings.count("bytes", file.size)
    if (position, whole, tail) == (file.size, file.crc32, file.tail_crc32):
        return True
    what = "its bytes are not those that were written: whoever reads the damaged part gets an error"
    findings.error("S7", str(file.path), what, FROM_COPY)
    return False


def sample(schema: TableSchema, columns: Arrays, rows: Mask) -> str:
    """A few of some rows' keys, in words."""
    shown = [
        "(" + ", ".join(f"{name}={columns[name][i].as_py()!r}" for name in schema.key) + ")"
        for i in np.flatnonzero(rows)[:SAMPLE].tolist()
    ]
    more = int(rows.sum()) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def misordered(vector: KeyVector, *, distinct: bool) -> Mask:
    """Which keys do not follow the one before them."""
    if len(vector) == 0:
        return np.zeros(0, np.bool_)
    before, after = keys.take(vector, slice(0, len(vector) - 1)), keys.take(vector, slice(1, len(vector)))
    if isinstance(vector, np.ndarray):
        wrong = after <= before if distinct else after < before
    else:
        compare = pc.less_equal if distinct else pc.less
        wrong = np.asarray(compare(after, before))
    return np.concatenate([np.zeros(1, np.bool_), np.asarray(wrong, np.bool_)])


def wrong_sort_key(schema: TableSchema, columns: Arrays) -> Mask:
    if not schema.has_sort_key:
        return np.zeros(len(columns[schema.key[0]]), np.bool_)
    return np.asarray(pc.not_equal(sort_keys(schema, columns), columns[names.KEY]))


class SliceFiles:
    """Base and shadow files: the bytes of each are checked once, and of each kind the last row group is kept.

    For slices that share files: they follow each other in a row group.
    """

    def __init__(self, store: ObjectStore, findings: Findings) -> None:
        self.store, self._findings = store, findings
        self._sound: dict[Path, bool] = {}
        self._last: dict[bool, tuple[object, dict[str, pa.Array]]] = {}

    def sound(self, file: FileRef) -> bool:
        """Whether its bytes are those that were written; what is wrong is told the first time."""
        if file.path not in self._sound:
            self._sound[file.path] = check_bytes(self.store, file, self._findings)
        return self._sound[file.path]

    def row_group(
        self, file: FileRef, parquet: pq.ParquetFile, number: int, columns: Sequence[str], *, visible: bool
    ) -> dict[str, pa.Array]:
        """A row group of a file that is open; each column one array."""
        key = (file.path, number, tuple(columns))
        if visible not in self._last or self._last[visible][0] != key:
            table = parquet.read_row_group(number, columns=list(columns), use_threads=False)
            self._last[visible] = key, {name: keys.one_array(table.column(name)) for name in columns}
        return self._last[visible][1]


class SliceVerifier:
    """Checks one slice: its base and its shadow."""

    def __init__(
        self,
        files: SliceFiles,
        schema: TableSchema,
        file: SliceFile,
        where: str,
        findings: Findings,
        found: OnArrivals,
    ) -> None:
        self._files, self._schema, self._file, self._findings = files, schema, file, findings
        self._where, self._found = where, found
        self._group = (file.partition, file.bucket)
        self._largest: dict[int, Any] = {}
        self._overflows: dict[int, int] = {}
        self._sound = True

    def check(self) -> None:
        """Everything that the entry says of the slice, and all rules of its rows."""
        if sorted(self._file.groups) != sorted(group.id for group in self._schema.groups):
            self._wrong("S8", self._where, f"it covers groups {self._file.groups}, the schema has others")
        hidden = list(self._parts(self._file.shadow, self._file.shadow_part, visible=False))
        shadow = keys.concat(hidden) if hidden else None
        for part in self._parts(self._file.base, self._file.base_part, visible=True):
            if shadow is not None:
                _, twice = keys.find(shadow, part)
                if twice.any():
                    self._wrong("S15", self._where, f"{int(twice.sum())} keys are in base and shadow both")
        if self._sound:
            self._check_statistics()

    def _wrong(self, invariant: str, where: str, what: str) -> None:
        self._findings.error(invariant, where, what, WRITTEN_SO)

    def _parts(self, file: FileRef | None, part: FilePart | None, *, visible: bool) -> Iterator[KeyVector]:
        """The keys of each row group, after everything else of it was checked."""
        if file is None:
            return
        if not self._files.sound(file):
            self._sound = False
            return
        try:
            yield from self._row_groups(file, part, visible=visible)
        except (pa.ArrowException, CorruptData, OSError, KeyError, IndexError) as error:
            self._sound = False
            self._wrong("S7", str(file.path), f"it does not decode: {error}")

    def _row_groups(self, file: FileRef, part: FilePart | None, *, visible: bool) -> Iterator[KeyVector]:
        where = str(file.path) if part is None else f"{file.path}, rows of {self._where}"
        first, end = (0, file.rows) if part is None else (part.first, part.first + part.rows)
        start, last = 0, None
        with (
            self._files.store.open_input(file.path, file.size) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as parquet,
        ):
            if _fields(parquet.schema_arrow) != _fields(self._schema.slice):
                self._sound = False
                self._wrong("S19", where, f"its columns are not those of schema revision {self._file.rev}")
                return
            if parquet.metadata.num_rows != file.rows:
                self._wrong("S7", where, f"it has {parquet.metadata.num_rows} rows, its entry says {file.rows}")
                first, end = (0, parquet.metadata.num_rows) if part is None else (first, end)
            if end > parquet.metadata.num_rows:
                self._wrong("S7", where, f"it has {parquet.metadata.num_rows} rows, a slice is rows {first} to {end}")
            columns = self._columns()
            for number in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(number).num_rows
                own = slice(max(first - start, 0), min(end - start, count))
                beside = [row - start for row in (first - 1, end) if start <= row < start + count]
                start += count
                if own.start >= own.stop and not beside:
                    continue
                found = self._files.row_group(file, parquet, number, columns, visible=visible)
                if self._are_own(found, beside).any():
                    self._wrong("S7", where, "a row of its file group stands beside its part, and is not read")
                if own.start >= own.stop:
                    continue
                batch = {name: column.slice(own.start, own.stop - own.start) for name, column in found.items()}
                vector = keys.key_vector(batch[self._schema.sort_column])
                self._check_rows(batch, vector, last, where, visible=visible)
                self._findings.count("rows", len(vector))
                last = keys.take(vector, slice(len(vector) - 1, len(vector)))
                yield vector

    def _columns(self) -> list[str]:
        """Keys, what decides visibility, arrivals, and what statistics are of."""
        schema = self._schema
        wanted = {*schema.key, schema.sort_column, *(group.ordering[0] for group in schema.groups if group.ordering)}
        for group in schema.groups:
            wanted.update(field.name for field in schema.state_fields(group))
            if mode_of(group).may_overflow:
                wanted.update(group.values)
        return [name for name in schema.slice.names if name in wanted]

    def _check_rows(
        self, batch: Arrays, vector: KeyVector, last: KeyVector | None, where: str, *, visible: bool
    ) -> None:
        schema = self._schema
        joined = vector if last is None else keys.concat([last, vector])
        wrong = misordered(joined, distinct=True)[len(joined) - len(vector) :]
        checks = [
            ("S15", wrong, "keys are not in ascending order, or come twice: a search may miss them"),
            ("S15", wrong_sort_key(schema, batch), "the sort key is not that of the key columns"),
        ]
        strangers = ~self._are_own(batch)
        checks.append(("S15", strangers, "keys belong to another file group: readers look for them there"))
        shown = visibility(schema, batch)
        if visible:
            checks.append(("S12", ~shown, "base rows are not visible: they are shown nevertheless"))
        else:
            checks.append(("S12", shown, "shadow rows are visible: clean reads miss them"))
        for invariant, rows, what in checks:
            if rows.any():
                self._wrong(invariant, where, f"{what}: {sample(schema, batch, rows)}")
        self._note(batch)
        for group in schema.groups:
            for name in (names.arrival(group.id), names.floor_arrival(group.id), names.top_arrival(group.id)):
                if name in batch:
                    self._found(batch[name], where)

    def _are_own(self, batch: Arrays, rows: Sequence[int] | None = None) -> Mask:
        """Which rows, or which of some, belong to the slice's file group."""
        if rows is not None:
            batch = {name: batch[name].take(pa.array(rows, pa.int64())) for name in self._schema.key}
        partition, bucket = folders(self._schema, batch), buckets(self._schema, batch)
        return (bucket == self._group[1]) & np.asarray(pc.equal(partition, self._group[0]))

    def _note(self, batch: Arrays) -> None:
        for group in self._schema.groups:
            largest = [value for value in _versions(group, batch) if value is not None]
            known = self._largest.get(group.id)
            if largest or known is not None:
                self._largest[group.id] = max([*largest, *([known] if known is not None else [])])
            for column, count in mode_of(group).overflows(group, self._schema.column_by_name, batch).items():
                self._overflows[column] = self._overflows.get(column, 0) + count

    def _check_statistics(self) -> None:
        said = {group.id: self._file.ordering_max.get(group.id) for group in self._schema.groups if group.ordering}
        found = {group: encode_scalar(self._largest.get(group)) for group in said}
        if said != found:
            self._wrong("S12", self._where, f"its largest ordering values are {found}, its entry says {said}")
        if self._overflows != self._file.overflows:
            self._wrong("", self._where, f"{self._overflows} rows overflow, its entry says {self._file.overflows}")


def _fields(schema: pa.Schema) -> list[tuple[str, pa.DataType, object]]:
    return [(field.name, field.type, (field.metadata or {}).get(FIELD_ID)) for field in schema]


def _versions(group: Group, batch: Arrays) -> list[Any]:
    """Largest first ordering values: of what is present, and of floors."""
    if not group.ordering:
        return []
    column = batch[group.ordering[0]]
    present = pc.if_else(batch[names.arrival(group.id)].is_valid(), column, pa.scalar(None, column.type))
    floor = batch.get(names.floor_ordering(group.id, 0))
    return [pc.max(values).as_py() for values in (present, floor) if values is not None]


def visibility(schema: TableSchema, batch: Arrays) -> Mask:
    """Some group is present, and none is deleted together with its row."""
    rows = len(batch[schema.sort_column])
    present, hidden = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    for group in schema.groups:
        there = np.asarray(batch[names.arrival(group.id)].is_valid())
        present |= there
        kind = batch.get(names.floor_kind(group.id))
        if kind is not None:
            hidden |= ~there & np.asarray(pc.fill_null(pc.equal(kind, int(Op.DELETE_ROW)), False))
    return present & ~hidden
