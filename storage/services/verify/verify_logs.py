"""The contents of log files, of events and of registers, against their index and the rules of files.

One block at a time, wanted columns only. The index is computed anew: where file groups stand, what range of keys and
versions each block has, which rows count as deletes. FORMAT.md, "Log files".
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import keys, names
from storage.core.keys import KeyVector, Mask
from storage.core.log.file_refs import LogFile, LogIndex, Sidecar
from storage.core.merge.locate_keys import buckets, folders
from storage.core.model import Group, Op
from storage.core.schema.table_schema import TableSchema
from storage.core.types import encode_scalar
from storage.errors import CorruptData
from storage.services.verify.findings import FROM_COPY, Findings
from storage.services.verify.verify_files import (
    WRITTEN_SO,
    Arrays,
    OnArrivals,
    check_bytes,
    misordered,
    sample,
    wrong_sort_key,
)
from storage.store.object_store import ObjectStore, normalise_errors


class LogVerifier:
    """Checks one log file."""

    def __init__(
        self,
        store: ObjectStore,
        schema: TableSchema,
        file: LogFile,
        findings: Findings,
        *,
        found: OnArrivals,
    ) -> None:
        """Say what to expect.

        Args:
            store: The table's.
            schema: That it was written with.
            file: As its entry describes it.
            findings: Told of what is wrong.
            found: Takes the arrivals of registers.
        """
        self._store, self._schema, self._file, self._findings = store, schema, file, findings
        self._found = found
        self._where = str(file.file.path)
        self._groups = [group for group in schema.groups if group.id in file.groups]

    def check(self) -> None:
        """Bytes, index, and all rules of its rows."""
        index = self._index()
        if not check_bytes(self._store, self._file.file, self._findings) or index is None:
            return
        if not self._fits(index):
            return
        try:
            self._check_blocks(index)
        except (pa.ArrowException, CorruptData, OSError, KeyError, IndexError) as error:
            self._wrong("S7", f"it does not decode: {error}")

    def _wrong(self, invariant: str, what: str) -> None:
        self._findings.error(invariant, self._where, what, WRITTEN_SO)

    def _index(self) -> LogIndex | None:
        there = self._file.index
        if isinstance(there, LogIndex):
            return there
        self._findings.count("sidecars")
        with normalise_errors(there.path):
            data = self._store.get(there.path)
        if data is None or Sidecar.of(there.path, data) != there:
            what = f"it is {'missing' if data is None else 'damaged'}: its log file cannot be read"
            self._findings.error("S7", str(there.path), what, FROM_COPY)
            return None
        return LogIndex.model_validate_json(data)

    def _fits(self, index: LogIndex) -> bool:
        """Whether the index is one of this file at all."""
        file, blocks, ranges = self._file, index.blocks, index.ranges
        lists = [blocks.offset, blocks.length, blocks.crc32, blocks.rows, blocks.key_min, blocks.key_max]
        lists += [*blocks.ordering_min.values(), *blocks.ordering_max.values()]
        parallel = (
            len({len(values) for values in lists}) == 1 and len({len(v) for v in ranges.model_dump().values()}) == 1
        )
        ends = [start + length for start, length in zip(blocks.offset, blocks.length, strict=False)]
        follow = [*ends[:-1]] == blocks.offset[1:] and ends[-1:] == [file.file.size - file.file.tail_size]
        rows = sum(ranges.rows) == sum(blocks.rows) == file.file.rows
        if not (parallel and follow and rows and sum(ranges.deletes) == file.deletes):
            self._wrong("S7", "its index and its entry do not agree on blocks, rows or deletes")
            return False
        if file.bits != self._schema.bucket_bits or len(self._groups) != len(file.groups):
            self._wrong("S19", "its bucket bits or groups are not those of the schema it was written with")
            return False
        homes = list(zip(ranges.partition, ranges.bucket, ranges.block, strict=True))
        if homes != sorted(homes) or index.partitions != sorted(set(index.partitions)):
            self._wrong("S15", "its index is not in order of file group: readers take other rows than they should")
            return False
        return True

    def _check_blocks(self, index: LogIndex) -> None:
        columns = self._columns()
        with self._store.open_input(self._file.file.path, self._file.file.size) as source:
            reader = pa.ipc.open_file(source)
            if not self._check_schema(reader.schema) or reader.num_record_batches != len(index.blocks.rows):
                if reader.num_record_batches != len(index.blocks.rows):
                    self._wrong("S7", f"it has {reader.num_record_batches} blocks, its index {len(index.blocks.rows)}")
                return
            included = pa.ipc.IpcReadOptions(
                included_fields=sorted(reader.schema.get_field_index(name) for name in columns), use_threads=False
            )
            reader = pa.ipc.open_file(source, options=included)
            state = _Order()
            for number, (offset, length) in enumerate(zip(index.blocks.offset, index.blocks.length, strict=True)):
                if zlib.crc32(source.read_at(length, offset)) != index.blocks.crc32[number]:
                    self._wrong("S7", f"the checksum of block {number} in its index is wrong: readers refuse the block")
                    continue
                batch = reader.get_batch(number)
                rows = dict(zip(batch.schema.names, batch.columns, strict=True))
                if len(batch) != index.blocks.rows[number]:
                    self._wrong(
                        "S7", f"block {number} has {len(batch)} rows, its index says {index.blocks.rows[number]}"
                    )
                    continue
                self._check_block(index, number, rows, state)
                self._findings.count("rows", len(batch))

    def _check_schema(self, schema: pa.Schema) -> bool:
        file = self._file
        expected = (
            self._schema.event_schema(file.columns)
            if file.form == "event"
            else pa.schema([self._schema.slice.field(name) for name in file.columns])
        )
        if schema.names == file.columns and schema.types == expected.types:
            return True
        self._wrong("S19", "its columns are not those that its entry and schema say")
        return False

    def _columns(self) -> list[str]:
        wanted = {*self._schema.key, self._schema.sort_column}
        for group in self._groups:
            wanted.update(self._version_columns(group))
            if self._file.form == "register":
                wanted.update(field.name for field in self._schema.state_fields(group))
        if self._file.form == "event":
            wanted.add(names.OP)
        return [name for name in self._file.columns if name in wanted]

    def _version_columns(self, group: Group) -> list[str]:
        """Where first ordering values stand."""
        hidden = [names.floor_ordering(group.id, 0), names.top_ordering(group.id, 0)]
        known = hidden if self._file.form == "register" else []
        return [*group.ordering[:1], *(name for name in known if group.ordering and name in self._file.columns)]

    def _check_block(self, index: LogIndex, number: int, rows: Arrays, state: _Order) -> None:
        schema, ranges = self._schema, index.ranges
        vector = keys.key_vector(rows[schema.sort_column])
        own = [i for i, block in enumerate(ranges.block) if block == number]
        starts = [ranges.start[i] for i in own]
        counts = [ranges.rows[i] for i in own]
        if starts != [0, *itertools.accumulate(counts)][:-1] or sum(counts) != len(vector):
            self._wrong("S7", f"block {number}: its ranges do not cover its rows one after the other")
            return
        partition, bucket = folders(schema, rows), buckets(schema, rows)
        told = pa.array(np.repeat([ranges.partition[i] for i in own], counts))
        strangers = np.asarray(pc.not_equal(partition, pa.array(index.partitions, pa.string()).take(told)))
        strangers |= bucket != np.repeat([ranges.bucket[i] for i in own], counts)
        disorder = np.concatenate(list(self._disorder(index, own, vector, state)))
        deletes = self._deletes(rows)
        for invariant, wrong, what in (
            ("S15", strangers, "keys stand in a range of another file group: readers look for them elsewhere"),
            ("S15", disorder, "keys are not in order within their file group: merging may miss them"),
            ("S15", wrong_sort_key(schema, rows), "the sort key is not that of the key columns"),
        ):
            if wrong.any():
                self._wrong(invariant, f"block {number}: {what}: {sample(schema, rows, wrong)}")
        found = [int(part.sum()) for part in np.split(deletes, np.cumsum(counts)[:-1])] if own else []
        if found != [ranges.deletes[i] for i in own]:
            self._wrong("S14", f"block {number}: its index counts deletes wrongly: readers may show what is deleted")
        self._check_ranges(index, number, rows)
        for group in self._groups if self._file.form == "register" else ():
            for name in (names.arrival(group.id), names.floor_arrival(group.id), names.top_arrival(group.id)):
                if name in rows:
                    self._found(rows[name], self._where)

    def _disorder(
        self, index: LogIndex, own: Sequence[int], vector: KeyVector, state: _Order
    ) -> Iterator[npt.NDArray[np.bool_]]:
        distinct = self._file.form == "register"
        for i in own:
            home = (index.ranges.partition[i], index.ranges.bucket[i])
            start = index.ranges.start[i]
            part = keys.take(vector, slice(start, start + index.ranges.rows[i]))
            yield state.disorder(home, part, distinct=distinct)

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

    def _check_ranges(self, index: LogIndex, number: int, rows: Arrays) -> None:
        blocks = index.blocks
        ranges = [("key", [self._schema.sort_column], blocks.key_min, blocks.key_max)]
        for group in self._groups:
            if group.ordering:
                low, high = blocks.ordering_min.get(group.id), blocks.ordering_max.get(group.id)
                ranges.append((f"ordering of {group.name!r}", self._version_columns(group), low or [], high or []))
        for what, columns, low, high in ranges:
            extremes = pc.min_max(pa.chunked_array([rows[name] for name in columns]))
            found = [encode_scalar(extremes[end].as_py()) for end in ("min", "max")]
            if found != [*low[number : number + 1], *high[number : number + 1]]:
                self._wrong(
                    "S12", f"block {number}: the {what} range in its index is wrong: readers may skip the block"
                )


class _Order:
    """The last key of the file group that is being read."""

    def __init__(self) -> None:
        self._home: tuple[int, int] | None = None
        self._last: KeyVector | None = None

    def disorder(self, home: tuple[int, int], part: KeyVector, *, distinct: bool) -> npt.NDArray[np.bool_]:
        """Which keys of the next range do not follow the one before them."""
        last = self._last if home == self._home else None
        joined = part if last is None else keys.concat([last, part])
        if len(part):
            self._home, self._last = home, keys.take(part, slice(len(part) - 1, len(part)))
        return misordered(joined, distinct=distinct)[len(joined) - len(part) :]
