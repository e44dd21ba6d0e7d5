"""Log files: plain Arrow IPC files that other software can read, and an index of their contents (FORMAT.md)."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from tests.storage.support.shop import SHOP, append, new_uri, orders
from tests.storage.support.world import World
from tests.strategies import Story, stories
from tests.tuning import tune
from weft import Table
from weft.storage.core import keys, names
from weft.storage.core.log.file_refs import LogFile, LogIndex
from weft.storage.core.merge.locate_keys import partition_text
from weft.storage.core.model import FIELD_ID
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import encode_scalar
from weft.storage.store.open_store import open_store


def live_files(table: Table) -> list[tuple[LogFile, LogIndex]]:
    return [(live.file, live.index) for live in table.snapshot().files]


def stored(table: Table, file: LogFile) -> bytes:
    data = open_store(table.uri).get(file.file.path)
    assert data is not None
    return data


def test_a_log_file_is_an_ipc_file_with_the_documented_columns_and_field_ids() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(3, 1, 2, 1))
    ((file, _),) = live_files(table)
    reader = pa.ipc.open_file(stored(table, file))
    assert reader.schema.names == ["id", "status", "ots", names.OP]
    ids = {field.name: int(field.metadata[FIELD_ID]) for field in reader.schema}
    assert ids == {"id": 1, "status": 2, "ots": 3, names.OP: 1_000_001}
    assert reader.schema.field(names.OP).type == pa.int8()
    assert not reader.schema.field("id").nullable
    assert sorted(reader.read_all().column("id").to_pylist()) == [1, 1, 2, 3]
    assert file.columns == reader.schema.names
    parsed = names.parse_path(file.file.path)
    assert parsed == names.ParsedPath(names.Kind.LOG, names.LaneName("orders"), epoch=1, slot=2)


def test_a_composite_key_has_its_hidden_column_first() -> None:
    config = {
        "key": ["a", "b"],
        "columns": {"a": "string", "b": "bigint", "v": "bigint"},
        "groups": {"g": {"columns": ["v"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    append(table, pa.table({"b": [1], "a": ["x"], "v": [1]}), "s")
    ((file, _),) = live_files(table)
    reader = pa.ipc.open_file(stored(table, file))
    assert reader.schema.names == [names.KEY, "a", "b", "v", names.OP]
    assert reader.schema.field(names.KEY).metadata[FIELD_ID] == b"1000000"


@pytest.mark.usefixtures("small_files")
@given(story=stories(max_steps=6))
def test_the_index_describes_the_content_of_the_file(story: Story) -> None:
    with World(story.config) as world:
        world.run(story.appends)
        for file, index in live_files(world.table):
            _check(world.table, world.table.schema, file, index)


def _check(table: Table, schema: TableSchema, file: LogFile, index: LogIndex) -> None:
    data = stored(table, file)
    assert (len(data), zlib.crc32(data)) == (file.file.size, file.file.crc32)
    reader = pa.ipc.open_file(data)
    whole = reader.read_all()
    assert len(whole) == file.file.rows
    assert file.deletes == sum(op != 0 for op in whole.column(names.OP).to_pylist()) == sum(index.ranges.deletes)
    assert sorted(file.groups) == [g.id for g in schema.groups if set(g.columns) & set(file.columns)]
    blocks = index.blocks
    assert reader.num_record_batches == len(blocks.rows)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        part = data[blocks.offset[number] : blocks.offset[number] + blocks.length[number]]
        assert zlib.crc32(part) == blocks.crc32[number]
        assert len(batch) == blocks.rows[number] > 0
        assert (blocks.key_min[number], blocks.key_max[number]) == _range(batch.column(schema.sort_column))
        for group in schema.groups:
            if group.id in file.groups and group.ordering:
                found = (blocks.ordering_min[group.id][number], blocks.ordering_max[group.id][number])
                assert found == _range(batch.column(group.ordering[0]))
    _check_pieces(schema, file, index, [reader.get_batch(i) for i in range(reader.num_record_batches)])


def _check_pieces(schema: TableSchema, file: LogFile, index: LogIndex, batches: list[pa.RecordBatch]) -> None:
    """The ranges cover every row once, in order, and each has the sorted keys of one file group."""
    ranges = index.ranges
    covered = []
    for i, block in enumerate(ranges.block):
        rows = batches[block].slice(ranges.start[i], ranges.rows[i])
        assert len(rows) == ranges.rows[i] > 0
        covered.append((block, ranges.start[i], ranges.rows[i]))
        assert ranges.deletes[i] == sum(op != 0 for op in rows.column(names.OP).to_pylist())
        bucket = keys.buckets([rows.column(name) for name in schema.key], file.bits)
        assert set(bucket.tolist()) == {ranges.bucket[i]}
        for row in range(len(rows)):
            folder = "/".join(
                names.encode_partition(name, partition_text(rows.column(name)[row])) for name in schema.partition_by
            )
            assert folder == index.partitions[ranges.partition[i]]
        order = keys.stable_order(keys.key_vector(rows.column(schema.sort_column)))
        assert order.tolist() == list(range(len(rows)))
    assert covered == sorted(covered)
    for block, batch in enumerate(batches):
        ranges_of_block = [(start, rows) for b, start, rows in covered if b == block]
        assert [start for start, _ in ranges_of_block] == np.cumsum([0, *(rows for _, rows in ranges_of_block)])[
            :-1
        ].tolist()
        assert sum(rows for _, rows in ranges_of_block) == len(batch)


def _range(column: pa.Array) -> tuple[Any, Any]:
    values = [value for value in column.to_pylist() if value is not None]
    if column.type == pa.string():
        low, high = (min(values, key=str.encode), max(values, key=str.encode)) if values else (None, None)
    else:
        low, high = (min(values), max(values)) if values else (None, None)
    return encode_scalar(low), encode_scalar(high)


def test_small_file_groups_share_a_block_and_a_large_one_has_several(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, block_min_bytes=1_000, block_max_bytes=2_000)
    table = Table.create(new_uri(), {**SHOP, "buckets": 16})
    append(table, orders(*range(30)))
    ((_, index),) = live_files(table)
    assert len(index.blocks.rows) == 1
    assert len(set(index.ranges.bucket)) > 8
    one = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(one, orders(*range(1_000)))
    ((_, index),) = live_files(one)
    assert len(index.blocks.rows) > 5
    assert index.ranges.block == list(range(len(index.blocks.rows)))
    assert one.snapshot().to_arrow(["id"]).sort_by("id").column("id").to_pylist() == list(range(1_000))
