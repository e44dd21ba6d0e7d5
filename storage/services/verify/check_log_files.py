"""Checks the contents of log files, of events and of registers, against their index and the rules of the format.

Reads one block at a time, only the columns that are needed, and compares the index with the rows: where file groups
are, the range of keys and ordering values of each block, and how many rows are deletes. FORMAT.md, "Log files".
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import names
from storage.core.keys import Mask
from storage.core.log import sidecar_codec
from storage.core.log.file_refs import FileGroup, LogFile, LogIndex
from storage.core.model import Group, Op
from storage.core.schema.table_schema import TableSchema
from storage.core.types import encode_scalar
from storage.services.verify.check_rows import UNREADABLE, OnArrivals, RowChecker, Rows, check_bytes, columns_to_read
from storage.services.verify.check_slots import read_sidecar
from storage.services.verify.findings import Findings, bad_content, damage
from storage.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class LogFileChecker:
    """Checks one log file.

    Attributes:
        store: The table's store.
        schema: The schema that the file was written with.
        file: As its entry describes it.
        findings: Collects what is wrong.
        on_arrivals: Called with the arrivals of registers.
    """

    store: ObjectStore
    schema: TableSchema
    file: LogFile
    findings: Findings
    on_arrivals: OnArrivals

    @property
    def _groups(self) -> list[Group]:
        return [group for group in self.schema.groups if group.id in self.file.groups]

    def check(self) -> None:
        """Check bytes, index and rows."""
        index = self._index()
        if not check_bytes(self.store, self.file.file, self.findings) or index is None:
            return
        if not self._fits(index):
            return
        try:
            self._check_blocks(index)
        except UNREADABLE as error:
            self._report("S7", f"it cannot be decoded: {error}")

    def _report(self, invariant: str, what: str) -> None:
        self.findings.add(bad_content(invariant, str(self.file.file.path), what))

    def _index(self) -> LogIndex | None:
        if isinstance(self.file.index, LogIndex):
            return self.file.index
        self.findings.count("sidecars")
        data, problem = read_sidecar(self.store, self.file.index)
        if data is None:
            what = f"it is {problem}: the log file that it belongs to cannot be read"
            self.findings.add(damage("S7", str(self.file.index.path), what))
            return None
        return sidecar_codec.decode_index(data)

    def _fits(self, index: LogIndex) -> bool:
        """Whether the index can be one of this file at all."""
        file, blocks, ranges = self.file, index.blocks, index.ranges
        lists = [blocks.offset, blocks.length, blocks.crc32, blocks.rows, blocks.key_min, blocks.key_max]
        lists += [*blocks.ordering_min.values(), *blocks.ordering_max.values()]
        parallel = all(
            len({len(values) for values in parallel_lists}) == 1
            for parallel_lists in (lists, ranges.model_dump().values())
        )
        ends = [start + length for start, length in zip(blocks.offset, blocks.length, strict=False)]
        follow = ends[:-1] == blocks.offset[1:] and ends[-1:] == [file.file.size - file.file.tail_size]
        rows = sum(ranges.rows) == sum(blocks.rows) == file.file.rows
        if not (parallel and follow and rows and sum(ranges.deletes) == file.deletes):
            self._report(
                "S7", "its index and its entry do not agree on blocks, rows or deletes: readers may take wrong rows"
            )
            return False
        if file.bits != self.schema.bucket_bits or len(self._groups) != len(file.groups):
            self._report("S19", "its bucket bits or column groups are not those of the schema that it was written with")
            return False
        order = list(zip(ranges.partition, ranges.bucket, ranges.block, strict=True))
        if order != sorted(order) or index.partitions != sorted(set(index.partitions)):
            self._report("S15", "its index is not in order of file group: readers take wrong rows")
            return False
        return True

    def _check_blocks(self, index: LogIndex) -> None:
        columns = columns_to_read(self.schema, self._groups, self.file.columns, names.OP)
        with self.store.open_input(self.file.file.path, self.file.file.size) as source:
            reader = pa.ipc.open_file(source)
            if not self._has_schema(reader.schema):
                self._report("S19", "its columns are not those that its entry and schema name: it cannot be read")
                return
            if reader.num_record_batches != len(index.blocks.rows):
                what = f"it has {reader.num_record_batches} blocks, its index says {len(index.blocks.rows)}"
                self._report("S7", what)
                return
            included = sorted(reader.schema.get_field_index(name) for name in columns)
            options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
            reader = pa.ipc.open_file(source, options=options)
            checker = RowChecker(
                schema=self.schema,
                groups=self._groups,
                distinct=self.file.form == "register",
                where=str(self.file.file.path),
                findings=self.findings,
                on_arrivals=self.on_arrivals,
            )
            for number, (offset, length) in enumerate(zip(index.blocks.offset, index.blocks.length, strict=True)):
                if zlib.crc32(source.read_at(length, offset)) != index.blocks.crc32[number]:
                    self._report("S7", f"the index has a wrong checksum of block {number}: readers refuse the block")
                    continue
                batch = reader.get_batch(number)
                rows = dict(zip(batch.schema.names, batch.columns, strict=True))
                if len(batch) == index.blocks.rows[number]:
                    self._check_block(checker, index, number, rows, len(batch))
                    self.findings.count("rows", len(batch))
                else:
                    what = f"block {number} has {len(batch)} rows, its index says {index.blocks.rows[number]}"
                    self._report("S7", what)

    def _has_schema(self, schema: pa.Schema) -> bool:
        columns = self.file.columns
        expected = (
            self.schema.event_schema(columns)
            if self.file.form == "event"
            else pa.schema([self.schema.slice.field(name) for name in columns])
        )
        return bool(schema.names == columns and schema.types == expected.types)

    def _check_block(self, checker: RowChecker, index: LogIndex, number: int, rows: Rows, length: int) -> None:
        ranges = index.ranges
        here = [i for i, block in enumerate(ranges.block) if block == number]
        starts, counts = [ranges.start[i] for i in here], [ranges.rows[i] for i in here]
        if [*starts, length] != [0, *itertools.accumulate(counts)]:
            self._report("S7", f"block {number}: its ranges do not cover its rows one after the other")
            return
        stored_for = [FileGroup(index.partitions[ranges.partition[i]], self.file.bits, ranges.bucket[i]) for i in here]
        checker.check(rows, stored_for, counts, prefix=f"block {number}: ")
        deletes = [int(part.sum()) for part in np.split(self._deletes(rows), starts[1:])]
        if here and deletes != [ranges.deletes[i] for i in here]:
            what = f"block {number}: its index has wrong counts of deletes: readers may show deleted rows"
            self._report("S14", what)
        self._check_ranges(index, number, rows)

    def _deletes(self, rows: Rows) -> Mask:
        if self.file.form == "event":
            return np.asarray(rows[names.OP]) != Op.UPSERT
        deletes = np.zeros(len(rows[self.schema.sort_column]), np.bool_)
        for group in self._groups:
            state = [rows[field.name] for field in self.schema.state_fields(group)]
            exists = np.logical_or.reduce([np.asarray(column.is_valid()) for column in state])
            deletes |= exists & ~np.asarray(rows[names.arrival(group.id)].is_valid())
            floor = rows.get(names.floor_arrival(group.id))
            if floor is not None:
                deletes |= np.asarray(floor.is_valid())
        return deletes

    def _check_ranges(self, index: LogIndex, number: int, rows: Rows) -> None:
        blocks = index.blocks
        ranges = [("key", [self.schema.sort_column], blocks.key_min, blocks.key_max)]
        for group in self._groups:
            if group.ordering:
                hidden = (names.floor_ordering(group.id, 0), names.top_ordering(group.id, 0))
                columns = [group.ordering[0], *(name for name in hidden if name in rows)]
                low, high = blocks.ordering_min.get(group.id, []), blocks.ordering_max.get(group.id, [])
                ranges.append((f"ordering of {group.name!r}", columns, low, high))
        for what, columns, low, high in ranges:
            extremes = pc.min_max(pa.chunked_array([rows[name] for name in columns]))
            found = [encode_scalar(extremes[end].as_py()) for end in ("min", "max")]
            if found != [*low[number : number + 1], *high[number : number + 1]]:
                self._report("S12", f"block {number}: its index has a wrong {what} range: readers may skip the block")
