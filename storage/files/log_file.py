"""Log files: writes sorted rows with an index, and decodes the blocks of a file.

A log file is an Arrow IPC file with lz4 buffers, sorted by (file group, key). It is divided into blocks by size, not by
file group: small file groups share a block, large ones have several. FORMAT.md, "Log files".
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, names
from weft.storage.core.checksum import crc32
from weft.storage.core.keys import Indices, Mask
from weft.storage.core.log import sidecar_codec
from weft.storage.core.log.file_refs import Blocks, FileRef, LogFile, LogIndex, LogRanges, Sidecar
from weft.storage.core.merge.events import EventBatch
from weft.storage.core.merge.locate_keys import buckets, key_columns, partition_folders, sort_keys
from weft.storage.core.model import Group, Op
from weft.storage.core.names import LaneName, Path
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import encode_scalar
from weft.storage.environment import Environment, Tuning
from weft.storage.errors import CorruptData
from weft.storage.store.object_store import ObjectStore, check_tail, damaged

_MAGIC: Final = pa.py_buffer(b"ARROW1\0\0")
_WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def write_log_file(
    env: Environment, schema: TableSchema, batch: EventBatch, *, lane: LaneName, epoch: int, seq: int, task: int
) -> LogFile | None:
    """Write the events of one task as one log file, durably. Returns None if there are no events.

    Args:
        env: The environment of the table.
        schema: The schema of the table.
        batch: Events in input order, which decides between equal versions.
        lane: The lane of the writer.
        epoch: The epoch of the writer.
        seq: The slot of the entry that will refer to the file.
        task: Number of the file within the commit.
    """
    if len(batch.rows) == 0:
        return None
    rows, partitions, partition, bucket = _sort_rows(schema, batch.rows)
    sorted_rows = SortedRows(
        form="event",
        groups=batch.groups,
        rows=rows.cast(schema.event_schema(rows.schema.names)),
        partitions=partitions,
        bits=schema.bucket_bits,
        partition=partition,
        bucket=bucket,
        deletes=np.asarray(rows.column(names.OP)) != Op.UPSERT,
    )
    return put_log_file(env, schema, names.log_path(lane, epoch, seq, task, env.ids.new()), sorted_rows)


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The rows of one log file (at least one), by (partition, bucket, key).

    Attributes:
        form: See `LogFile`.
        groups: The groups whose columns are in the file.
        rows: The rows, with the schema of the file.
        partitions: Distinct partition folders, ascending.
        bits: Bits of its buckets.
        partition, bucket: For each row the position of its partition folder in ``partitions``, and its bucket.
        deletes: For each row whether it counts as a delete.
    """

    form: Literal["event", "register"]
    groups: Sequence[Group]
    rows: pa.Table
    partitions: list[str]
    bits: int
    partition: Indices
    bucket: Indices
    deletes: Mask


def put_log_file(env: Environment, schema: TableSchema, path: Path, content: SortedRows) -> LogFile:
    """Write one log file, durably, with a sidecar for a large index. Returns the description for the entry."""
    data, index = _encode(schema, content, env.tuning)
    footer = index.blocks.offset[-1] + index.blocks.length[-1]
    env.store.put(path, data)
    return LogFile(
        file=FileRef(
            path=path,
            size=data.size,
            crc32=crc32(data),
            tail_size=data.size - footer,
            tail_crc32=crc32(memoryview(data)[footer:]),
            rows=len(content.rows),
        ),
        form=content.form,
        groups=[group.id for group in content.groups],
        columns=content.rows.schema.names,
        deletes=sum(index.ranges.deletes),
        bits=content.bits,
        index=_inline_or_sidecar(env, path, index),
    )


def remove_log_file(store: ObjectStore, file: LogFile) -> None:
    """Remove a log file that no entry refers to. Errors are ignored: cleaning removes the file later."""
    for object_ref in file.objects:
        with contextlib.suppress(OSError):
            store.delete(object_ref.path)


def _inline_or_sidecar(env: Environment, log_file: Path, index: LogIndex) -> LogIndex | Sidecar:
    data = sidecar_codec.encode_list(index)
    if len(data) <= env.tuning.inline_index_bytes:
        return index
    path = names.log_index_path(log_file)
    env.store.put(path, data)
    return Sidecar.of(path, data)


def _sort_rows(schema: TableSchema, rows: pa.Table) -> tuple[pa.Table, list[str], Indices, Indices]:
    """The rows, stably sorted by (partition, bucket, key); all partition folders; partition and bucket of each row."""
    row_keys = key_columns(schema, rows)
    if schema.has_sort_key:
        rows = rows.add_column(0, schema.event_schema([names.KEY]).field(0), sort_keys(schema, row_keys))
    bucket = buckets(schema, row_keys, schema.bucket_bits)
    partitions, partition = partition_folders(schema, row_keys)
    order = keys.stable_order(keys.key_vector(rows.column(schema.sort_column)))
    file_group = (partition << schema.bucket_bits) | bucket
    order = order[np.argsort(file_group[order], kind="stable")]
    return rows.take(pa.array(order)), partitions, partition[order], bucket[order]


def _encode(schema: TableSchema, content: SortedRows, tuning: Tuning) -> tuple[pa.Buffer, LogIndex]:
    (batch,) = content.rows.combine_chunks().to_batches()
    file_group = (content.partition << content.bits) | content.bucket
    group_starts = np.append(keys.run_starts(file_group), len(batch))
    bounds = _block_bounds(group_starts, max(batch.nbytes // len(batch), 1), tuning)
    sink = pa.BufferOutputStream()
    offsets = []
    with pa.ipc.new_file(sink, batch.schema, options=_WRITE_OPTIONS) as writer:
        for start, stop in itertools.pairwise(bounds):
            offsets.append(sink.tell())
            writer.write_batch(batch.slice(start, stop - start))
        offsets.append(sink.tell())
    data = sink.getvalue()
    index = LogIndex(
        partitions=content.partitions,
        ranges=_ranges(group_starts, np.array(bounds), content),
        blocks=_blocks(schema, content.groups, batch, bounds, data, offsets),
    )
    return data, index


def _block_bounds(group_starts: Indices, row_bytes: int, tuning: Tuning) -> list[int]:
    """First row of every block, then the number of rows. Blocks end between file groups, large ones also within one."""
    bounds = [0]
    for start, stop in zip(group_starts[:-1].tolist(), group_starts[1:].tolist(), strict=True):
        if (start - bounds[-1]) * row_bytes >= tuning.block_min_bytes:
            bounds.append(start)
        while (stop - bounds[-1]) * row_bytes > tuning.block_max_bytes:
            bounds.append(bounds[-1] + max(tuning.block_max_bytes // row_bytes, 1))
    end = int(group_starts[-1])
    return bounds if bounds[-1] == end else [*bounds, end]


def _ranges(group_starts: Indices, bounds: Indices, content: SortedRows) -> LogRanges:
    """One range for every pair of file group and block with common rows."""
    edges = np.union1d(group_starts, bounds)
    first, rows = edges[:-1], np.diff(edges)
    block = np.searchsorted(bounds, first, side="right") - 1
    return LogRanges(
        partition=content.partition[first].tolist(),
        bucket=content.bucket[first].tolist(),
        block=block.tolist(),
        start=(first - bounds[block]).tolist(),
        rows=rows.tolist(),
        deletes=np.add.reduceat(content.deletes.astype(np.int64), first).tolist(),
    )


def _blocks(
    schema: TableSchema,
    groups: Iterable[Group],
    batch: pa.RecordBatch,
    bounds: Sequence[int],
    data: pa.Buffer,
    offsets: Sequence[int],
) -> Blocks:
    spans = list(itertools.pairwise(bounds))
    parts = [batch.slice(start, stop - start) for start, stop in spans]
    key_ranges = [value_range(part, [schema.sort_column]) for part in parts]
    versions = {group.id: version_columns(group, batch.schema.names) for group in groups if group.ordering}
    ordering = {group: [value_range(part, columns) for part in parts] for group, columns in versions.items()}
    view = memoryview(data)
    return Blocks(
        offset=list(offsets[:-1]),
        length=[end - start for start, end in itertools.pairwise(offsets)],
        crc32=[crc32(view[start:end]) for start, end in itertools.pairwise(offsets)],
        rows=[stop - start for start, stop in spans],
        key_min=[low for low, _ in key_ranges],
        key_max=[high for _, high in key_ranges],
        ordering_min={group: [low for low, _ in ranges] for group, ranges in ordering.items()},
        ordering_max={group: [high for _, high in ranges] for group, ranges in ordering.items()},
    )


def version_columns(group: Group, columns: Collection[str]) -> list[str]:
    """The columns of a log file with first ordering values of a group: that of users, of floors, of a custom merger."""
    hidden = (names.floor_ordering(group.id, 0), names.top_ordering(group.id, 0))
    return [name for name in (*group.ordering[:1], *hidden) if name in columns]


def value_range(rows: pa.RecordBatch, columns: Iterable[str]) -> tuple[Any, Any]:
    """Least and largest value of columns of one type, in JSON form; None if all values are null."""
    extremes = pc.min_max(pa.chunked_array([rows.column(name) for name in columns]))
    return encode_scalar(extremes["min"].as_py()), encode_scalar(extremes["max"].as_py())


def open_columns(source: pa.NativeFile, columns: Iterable[str]) -> pa.ipc.RecordBatchFileReader:
    """A reader of some columns of a log file, for checks: it trusts the file, not its index."""
    included = sorted(map(pa.ipc.open_file(source).schema.get_field_index, columns))
    return pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=included, use_threads=False))


_MESSAGE_BYTES: Final = 256  # upper bound of the bytes of a schema message besides the schema; usually 50


def block_lead(file: FileRef) -> int:
    """Free bytes needed before a block, for the schema that the decoder puts there; the tail contains it."""
    return file.tail_size + _MESSAGE_BYTES


class BlockDecoder:
    """Verifies blocks of one log file, and decodes some of its columns.

    A block is decoded in place, without a copy: the schema of the tail is put before it, which makes an Arrow stream of
    one batch. So the buffers of the tail and of blocks must have `block_lead` free bytes before their content.
    """

    def __init__(self, file: LogFile, blocks: Blocks, columns: Collection[str], tail: pa.Buffer) -> None:
        """Verify the tail, which has the schema.

        Args:
            file: The file as its entry describes it.
            blocks: The blocks from the index of the file.
            columns: Names of the columns to decode; names that are not in ``file.columns`` are ignored.
            tail: The bytes of `tail_range` of the file.

        Raises:
            CorruptData: The tail is damaged, or its columns are not those of the entry.
        """
        self._file, self._blocks = file, blocks
        included = [position for position, name in enumerate(file.columns) if name in columns]
        self._options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
        self._lead = block_lead(file.file)
        tail = tail.slice(self._lead)
        check_tail(tail, file.file)
        try:
            schema = pa.ipc.open_file(tail).schema
            if schema.names != file.columns:
                raise pa.ArrowInvalid(f"its columns are {', '.join(schema.names)}")
            self._schema = schema.serialize()
        except (pa.ArrowException, OSError) as error:
            raise self._undecodable(error) from error

    def decode(self, number: int, block: pa.Buffer) -> pa.RecordBatch:
        """The rows of a block.

        Raises:
            CorruptData: The block is damaged, or does not decode.
        """
        content = block.slice(self._lead)
        if crc32(content) != self._blocks.crc32[number]:
            raise damaged(self._file.file.path, f"block {number}")
        # The first block contains the beginning of the file, with the schema.
        is_first = content.slice(0, _MAGIC.size).equals(_MAGIC)
        stream = content.slice(_MAGIC.size) if is_first else self._with_schema(block)
        try:
            return pa.ipc.open_stream(stream, options=self._options).read_next_batch()
        except StopIteration:
            raise self._undecodable(f"block {number} has no rows") from None
        except (pa.ArrowException, OSError) as error:
            raise self._undecodable(error) from error

    def _with_schema(self, block: pa.Buffer) -> pa.Buffer:
        start = self._lead - self._schema.size
        np.frombuffer(block, np.uint8)[start : self._lead] = np.frombuffer(self._schema, np.uint8)
        return block.slice(start)

    def _undecodable(self, reason: object) -> CorruptData:
        return CorruptData(
            f"log file {self._file.file.path} does not decode: {reason}", hint="restore it from a copy of the store"
        )
