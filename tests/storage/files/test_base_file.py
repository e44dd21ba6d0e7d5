"""Base and shadow files: plain Parquet, sorted by key, with the state that FORMAT.md defines."""

from __future__ import annotations

import io
import zlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from tests.storage.support.shop import SHOP, append, new_uri, orders, payments
from tests.storage.support.world import World
from tests.strategies import EVERY_GROUP, Compact, Story, stories
from tests.tuning import tune
from weft import Table
from weft.storage.core import keys, names
from weft.storage.core.log.file_refs import FilePart, FileRef, SliceFile
from weft.storage.core.model import FIELD_ID
from weft.storage.core.types import encode_scalar
from weft.storage.files.base_file import SliceReader
from weft.storage.store.open_store import open_store


def slices(table: Table) -> list[SliceFile]:
    return [file_slice.slice for file_slice in table.snapshot().slices if file_slice.slice is not None]


def own_rows(table: Table, file: FileRef, part: FilePart | None) -> pa.Table:
    rows = parquet(table, file).read()
    assert len(rows) == file.rows
    return rows if part is None else rows.slice(part.first, part.rows)


def parquet(table: Table, file: FileRef) -> pq.ParquetFile:
    data = open_store(table.uri).get(file.path)
    assert data is not None
    assert (len(data), zlib.crc32(data)) == (file.size, file.crc32)
    return pq.ParquetFile(io.BytesIO(data))


def test_a_base_file_is_plain_parquet_with_the_visible_rows() -> None:
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(table, orders(*range(5, 0, -1)))
    append(table, payments(2, 9, paid=7.5), "payments")
    append(table, orders(4, op="D", ts=2))
    table.compact()
    (one,) = slices(table)
    assert one.base is not None
    base = parquet(table, one.base).read(columns=list(SHOP["columns"]))
    assert base.to_pylist() == table.snapshot().to_arrow().sort_by("id").to_pylist()
    assert base.column("id").to_pylist() == [1, 2, 3, 5, 9]
    assert one.shadow is not None
    shadow = parquet(table, one.shadow).read()
    assert shadow.column("id").to_pylist() == [4]
    assert shadow.column(names.floor_kind(1)).to_pylist() == [2]
    assert shadow.column(names.floor_ordering(1, 0)).to_pylist() == [2]


def test_base_and_shadow_have_field_ids_and_statistics() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(1))
    table.compact()
    (base,) = [parquet(table, one.base) for one in slices(table) if one.base is not None]
    ids = {field.name: int(field.metadata[FIELD_ID]) for field in base.schema_arrow}
    assert [ids[name] for name in SHOP["columns"]] == [1, 2, 3, 4, 5]
    assert ids[names.arrival(1)] == 2_010_000
    assert ids[names.floor_ordering(2, 0)] == 2_020_003
    assert len(set(ids.values())) == len(ids)
    group = base.metadata.row_group(0)
    assert group.column(0).statistics.min == group.column(0).statistics.max == 1
    assert group.column(0).compression == "ZSTD"
    assert group.sorting_columns == (pq.SortingColumn(0),)


def test_row_groups_have_the_configured_size(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, row_group_rows=10)
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(table, orders(*range(25)))
    table.compact()
    append(table, orders(*range(10, 31)))
    table.compact()
    (one,) = slices(table)
    assert one.base is not None
    metadata = parquet(table, one.base).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [10, 10, 10, 1]


@pytest.mark.parametrize(("together", "batch_count"), [(10, 8), (25, 5), (1000, 3)])
def test_only_chosen_row_groups_are_read_also_when_decoded_together(
    monkeypatch: pytest.MonkeyPatch, together: int, batch_count: int
) -> None:
    tune(monkeypatch, row_group_rows=10)
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(table, orders(*range(100)))
    table.compact()
    (one,) = slices(table)
    assert one.base is not None
    reader = SliceReader(
        table.env.tuned(row_group_rows=together),
        table.schema,
        ["id", "status"],
        lambda known: (span := known("id")) is not None and span.least not in (30, 60),
    )
    parts = [FilePart(first=5, rows=30), FilePart(first=40, rows=15), FilePart(first=58, rows=34)]
    found = reader.file(one.rev, one.base, parts)
    batches = [batch["id"].to_pylist() for batch in found]
    wanted = [*range(5, 30), *range(40, 55), 58, 59, *range(70, 92)]
    assert [key for batch in batches for key in batch] == wanted
    assert len(batches) == batch_count


@pytest.mark.usefixtures("small_files")
@given(story=stories())
def test_every_key_is_in_base_or_shadow_as_the_format_requires(story: Story) -> None:
    """S11, S15, and the table of states of FORMAT.md, for any history."""
    with World(story.config) as world:
        world.run(story.steps)
        world.compact(Compact(EVERY_GROUP))
        schema = world.table.schema
        stored_keys: list[Any] = []
        for one in slices(world.table):
            for file, part, visible in ((one.base, one.base_part, True), (one.shadow, one.shadow_part, False)):
                if file is None:
                    continue
                rows = own_rows(world.table, file, part)
                assert rows.schema.names == schema.slice.names
                assert len(rows) == (file.rows if part is None else part.rows) > 0
                vector = keys.key_vector(rows.column(schema.sort_column))
                assert keys.stable_order(vector).tolist() == list(range(len(rows)))
                assert len(keys.run_starts(vector)) == len(rows), "no key twice"
                key_columns = [keys.one_array(rows.column(name)) for name in schema.key]
                assert set(keys.buckets(key_columns, one.bits).tolist()) == {one.bucket}
                for row in rows.to_pylist():
                    stored_keys.append(repr([row[name] for name in schema.key]))
                    _check_row(world, row, visible=visible)
            _check_ordering_max(world, one)
        assert len(set(stored_keys)) == len(stored_keys)


def _check_row(world: World, row: dict[str, Any], *, visible: bool) -> None:
    schema = world.table.schema
    present = row_deleted = 0
    for group in schema.groups:
        # Modes without tombstones have no floor; in latest_non_null it stays below the upserts that survived it.
        arrival, floor = row[names.arrival(group.id)], row.get(names.floor_arrival(group.id))
        kind = row.get(names.floor_kind(group.id))
        if group.merge == "latest":
            assert arrival is None or floor is None, "a register is an upsert or a delete, never both"
        assert (floor is None) == (kind is None)
        if floor is None:
            assert all(row.get(names.floor_ordering(group.id, i)) is None for i in range(len(group.ordering)))
        if arrival is None:
            for name in group.columns:
                default = schema.column_by_name[name].default
                assert row[name] == default, "an absent group shows its defaults"
        present += arrival is not None
        row_deleted += kind == 2 and arrival is None
    assert visible == (present > 0 and not row_deleted)


def _check_ordering_max(world: World, one: SliceFile) -> None:
    """The largest first ordering value of all registers, deletes included."""
    for group in world.table.schema.groups:
        if not group.ordering:
            assert group.id not in one.ordering_max
            continue
        found = []
        overlaid = (overlay.file for overlay in one.overlays if group.id in overlay.groups)
        for file, part in ((next(overlaid, one.base), one.base_part), (one.shadow, one.shadow_part)):
            for row in own_rows(world.table, file, part).to_pylist() if file is not None else []:
                if row[names.arrival(group.id)] is not None:
                    found.append(row[group.ordering[0]])
                if row.get(names.floor_arrival(group.id)) is not None:
                    found.append(row[names.floor_ordering(group.id, 0)])
        known = [value for value in found if value is not None]
        largest = max(known, key=lambda v: v.encode() if isinstance(v, str) else v) if known else None
        assert one.ordering_max[group.id] == encode_scalar(largest)


def test_no_file_is_written_without_rows() -> None:
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(table, orders(1, op="D", ts=1))
    result = table.compact()
    assert result.rows == 0
    (one,) = slices(table)
    assert one.base is None
    assert one.shadow is not None
    assert table.snapshot().to_arrow() == pa.schema(table.snapshot().schema).empty_table()
