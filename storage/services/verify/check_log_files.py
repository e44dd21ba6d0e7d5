"""Checks the contents of log files (events or registers) against their index and the rules of the format.

It reads one block at a time, and only the columns that it needs. It compares the index with the rows: the positions of
file groups, the range of keys and ordering values of each block, and the number of deletes. See FORMAT.md, "Log files";
rules such as S7 are in PROTOCOL.md, "Invariants".
"""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.checksum import crc32
from weft.storage.core.keys import Mask
from weft.storage.core.log import sidecar_codec
from weft.storage.core.log.file_refs import Blocks, FileGroup, LogFile, LogIndex, LogRanges, Sidecar
from weft.storage.core.model import Op
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import UnsupportedFormat
from weft.storage.files.log_file import open_columns, value_range, version_columns
from weft.storage.services.verify.check_rows import UNREADABLE, OnArrivals, RowChecker, check_bytes, columns_to_read
from weft.storage.services.verify.check_slots import read_sidecar
from weft.storage.services.verify.findings import Findings
from weft.storage.store.object_store import ObjectStore


class LogFileChecker:
    """Checks one log file."""

    def __init__(
        self, store: ObjectStore, schema: TableSchema, file: LogFile, findings: Findings, on_arrivals: OnArrivals
    ) -> None:
        """``schema``: the schema with which the file was written."""
        self._store, self._schema, self._file, self._findings = store, schema, file, findings
        self._place = findings.at(file.file.path)
        self._groups = [group for group in schema.groups if group.id in file.groups]
        self._rows = RowChecker(schema, self._groups, self._place, on_arrivals, distinct=file.form == "register")

    def check(self) -> None:
        """Check bytes, index and rows."""
        index = read_index(self._store, self._file.index, self._findings)
        if not check_bytes(self._store, self._file.file, self._findings) or index is None or not self._fits(index):
            return
        try:
            self._check_blocks(index)
        except UNREADABLE as error:
            self._place.bad_content("S7", f"it cannot be decoded: {error}")

    def _fits(self, index: LogIndex) -> bool:
        """Whether the index is consistent with the entry and the schema, so that the rows can be checked."""
        file, blocks, ranges = self._file, index.blocks, index.ranges
        ends = [start + length for start, length in zip(blocks.offset, blocks.length, strict=False)]
        follow = ends[:-1] == blocks.offset[1:] and ends[-1:] == [file.file.size - file.file.tail_size]
        sums = sum(ranges.rows) == sum(blocks.rows) == file.file.rows and sum(ranges.deletes) == file.deletes
        order = list(zip(ranges.partition, ranges.bucket, ranges.block, strict=False))
        if not (_are_parallel(blocks) and names_file_groups(index) and follow and sums):
            text = "its index and its entry do not agree on blocks, rows or deletes: readers may return wrong rows"
            self._place.bad_content("S7", text)
        elif (file.form == "event" and file.bits != self._schema.bucket_bits) or len(self._groups) != len(file.groups):
            text = "its bucket bits or column groups are not those of the schema that it was written with"
            self._place.bad_content("S19", text)
        elif order != sorted(order) or index.partitions != sorted(set(index.partitions)):
            self._place.bad_content("S15", "its index is not sorted by file group: readers return wrong rows")
        else:
            return True
        return False

    def _check_blocks(self, index: LogIndex) -> None:
        blocks, file = index.blocks, self._file
        with self._store.open_input(file.file.path, file.file.size) as source:
            reader = pa.ipc.open_file(source)
            if not self._has_schema(reader.schema):
                text = "its columns are not those that its entry and schema name: it cannot be read"
                self._place.bad_content("S19", text)
                return
            if reader.num_record_batches != len(blocks.rows):
                text = f"it has {reader.num_record_batches} blocks, its index says {len(blocks.rows)}"
                self._place.bad_content("S7", text)
                return
            columns = columns_to_read(self._schema, self._groups, file.columns, names.OP)
            reader = open_columns(source, columns)
            for number, (offset, length) in enumerate(zip(blocks.offset, blocks.length, strict=True)):
                if crc32(source.read_at(length, offset)) != blocks.crc32[number]:
                    text = f"the index has a wrong checksum for block {number}: readers reject the block"
                    self._place.bad_content("S7", text)
                    continue
                batch = reader.get_batch(number)
                if len(batch) != blocks.rows[number]:
                    text = f"block {number} has {len(batch)} rows, its index says {blocks.rows[number]}"
                    self._place.bad_content("S7", text)
                    continue
                self._check_block(index, number, batch)
                self._findings.count("rows", len(batch))

    def _has_schema(self, schema: pa.Schema) -> bool:
        columns = self._file.columns
        if self._file.form == "event":
            types = self._schema.event_schema(columns).types
        else:
            types = [self._schema.slice.field(name).type for name in columns]
        return bool(schema.names == columns and schema.types == types)

    def _check_block(self, index: LogIndex, number: int, batch: pa.RecordBatch) -> None:
        rows = dict(zip(batch.schema.names, batch.columns, strict=True))
        ranges, bits, prefix = index.ranges, self._file.bits, f"block {number}: "
        positions = [i for i, block in enumerate(ranges.block) if block == number]
        starts, counts = [ranges.start[i] for i in positions], [ranges.rows[i] for i in positions]
        if [*starts, len(batch)] != [0, *itertools.accumulate(counts)]:
            self._place.bad_content("S7", f"{prefix}its ranges do not cover its rows one after the other")
            return
        stored_for = [FileGroup(index.partitions[ranges.partition[i]], bits, ranges.bucket[i]) for i in positions]
        self._rows.check(rows, stored_for, counts, prefix=prefix)
        deletes = [int(part.sum()) for part in np.split(self._deletes(rows), starts[1:])]
        if positions and deletes != [ranges.deletes[i] for i in positions]:
            self._place.bad_content(
                "S14", f"{prefix}its index has wrong counts of deletes: readers may show deleted rows"
            )
        blocks = index.blocks
        ranges_of = {"key": ([self._schema.sort_column], blocks.key_min, blocks.key_max)}
        for group in (group for group in self._groups if group.ordering):
            low, high = blocks.ordering_min.get(group.id, []), blocks.ordering_max.get(group.id, [])
            ranges_of[f"ordering of {group.name!r}"] = version_columns(group, rows), low, high
        for name, (columns, low, high) in ranges_of.items():
            if value_range(batch, columns) != (*low[number : number + 1], *high[number : number + 1]):
                text = f"{prefix}its index has a wrong {name} range: readers may skip the block"
                self._place.bad_content("S12", text)

    def _deletes(self, rows: Arrays) -> Mask:
        if self._file.form == "event":
            return np.asarray(rows[names.OP]) != Op.UPSERT
        deletes = np.zeros(len(rows[self._schema.sort_column]), np.bool_)
        for group in self._groups:
            state = [rows[field.name] for field in self._schema.state_fields(group)]
            exists = np.logical_or.reduce([np.asarray(column.is_valid()) for column in state])
            deletes |= exists & ~np.asarray(rows[names.arrival(group.id)].is_valid())
            floor = rows.get(names.floor_arrival(group.id))
            if floor is not None:
                deletes |= np.asarray(floor.is_valid())
        return deletes


def read_index(store: ObjectStore, index: LogIndex | Sidecar, findings: Findings) -> LogIndex | None:
    """Read the index of a log file. None if its sidecar is missing, damaged or of a newer version; this is reported."""
    if isinstance(index, LogIndex):
        return index
    findings.count("sidecars")
    data = read_sidecar(store, index, findings, "the log file that it belongs to cannot be read")
    try:
        return sidecar_codec.decode_index(index, data) if data is not None else None
    except UnsupportedFormat as error:
        text = f"{error.message}: the log file that it belongs to cannot be checked"
        findings.at(index.path).warning(text, "verify with the version that wrote it")
        return None


def names_file_groups(index: LogIndex) -> bool:
    """Whether the ranges of an index are valid: lists of equal length, with only partitions that the index lists."""
    return _are_parallel(index.ranges) and set(index.ranges.partition) <= set(range(len(index.partitions)))


def _are_parallel(part: Blocks | LogRanges) -> bool:
    lists = [list(value.values()) if isinstance(value, dict) else [value] for _, value in part]
    return len({len(values) for values in itertools.chain(*lists)}) == 1
