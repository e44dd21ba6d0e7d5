"""File groups that are divided by what logs touch have the same rows; the untouched part has rows of the base only."""

from __future__ import annotations

import decimal
import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.support.shop import SHOP, append, new_uri, orders, payments
from tests.tuning import tuned
from weft import Table
from weft.storage.read.plan.read_task import read_task
from weft.storage.read.plan.untouched_rows import byte_ranges, divide_by_touch

KEYS: dict[str, list[Any]] = {
    "bigint": list(range(-50, 450)),
    "string": [f"{number:05}" for number in range(500)],
    "decimal(9,2)": [decimal.Decimal(number) / 4 for number in range(500)],
}
MODES = ["latest", "latest_non_null", "aggregate"]


def random_table(source: random.Random, key_type: str) -> Table:
    """Base files, then commits to a window of the keys, new keys and deletes."""
    mode = source.choice(MODES)
    config: dict[str, Any] = {
        "key": source.choice([["id"], ["id", "part"]]),
        "buckets": source.choice([1, 2]),
        "columns": {"id": key_type, "part": "int", "a": "bigint", "at": "bigint", "b": "bigint", "bt": "bigint"},
        "groups": {
            "one": {"columns": ["a", "at"], "ordering": ["at"]},
            "two": {"columns": ["b"] if mode == "aggregate" else ["b", "bt"], "merge": mode},
        },
        "streams": {"ones": {"groups": ["one"], "on_delete": "row"}, "twos": {"groups": ["two"]}},
    }
    if config["key"] == ["id"]:
        config["groups"]["one"]["columns"].append("part")
    if mode == "aggregate":
        config["groups"]["two"]["functions"] = {"b": "sum"}
        del config["columns"]["bt"]
    else:
        config["groups"]["two"]["ordering"] = ["bt"]
    table = tuned(Table.create(new_uri(), config), row_group_rows=20, shared_row_group_rows=20, shared_file_bytes=1)
    everything = KEYS[key_type]
    _write(table, source, "ones", source.sample(everything[:400], 300))
    _write(table, source, "twos", source.sample(everything[:400], 300))
    table.compact()
    for _ in range(source.randrange(1, 4)):
        begin = source.choice([0, 200, 380, 420])
        window = everything[begin : begin + source.choice([5, 60])]
        _write(table, source, source.choice(["ones", "twos"]), source.sample(window, min(len(window), 20)))
        if source.random() < 0.3:
            table.fold()
    return table


def _write(table: Table, source: random.Random, stream: str, ids: list[Any]) -> None:
    schema = table.snapshot().schema
    columns = {"id": pa.array(ids, schema.field("id").type), "part": pa.array([1] * len(ids), pa.int32())}
    if stream == "twos" and "part" not in table.schema.key:
        del columns["part"]
    values, time = ("a", "at") if stream == "ones" else ("b", "bt")
    columns[values] = pa.array([source.randrange(100) for _ in ids], pa.int64())
    if time in schema.names:
        columns[time] = pa.array([source.randrange(10) for _ in ids], pa.int64())
    columns["_op"] = pa.array([source.choice(["upsert"] * 5 + ["delete"]) for _ in ids])
    append(table, pa.table(columns), stream)


@pytest.mark.parametrize("key_type", KEYS)
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.extended) for n in range(8, 60))])
def test_the_parts_have_the_rows_of_the_file_group(key_type: str, seed: int) -> None:
    source = random.Random(f"{key_type} {seed}")
    table = random_table(source, key_type)
    snapshot = table.snapshot()
    divided = divide_by_touch(table.env, table.schema, snapshot.slices, snapshot.files, least_bytes=1)
    scan = snapshot.scan(parallelism=1)
    for file_slice in snapshot.slices:
        right = pa.Table.from_batches(scan.read(read_task([file_slice], snapshot.files)), scan.arrow)
        found = divided.get(file_slice.group)
        if found is None:
            continue
        pieces = [[found.rest], list(found.untouched)]  # one run of several pieces, too
        batches = [batch for several in pieces for batch in scan.read(read_task(several, snapshot.files))]
        assert _rows(pa.Table.from_batches(batches, scan.arrow)) == _rows(right)
        assert found.untouched
        assert sum(piece.slice.base_rows for piece in found.untouched if piece.slice) > 0
        assert all(len(piece.rows) == 0 for piece in found.untouched)


def _rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def test_only_the_end_of_a_file_is_touched_by_newer_keys() -> None:
    table = tuned(Table.create(new_uri(), {**SHOP, "buckets": 1}), row_group_rows=100)
    append(table, orders(*range(1000)))
    table.compact()
    append(table, orders(*range(950, 1100), status="late", ts=2))
    append(table, payments(987, 2000), "payments")
    snapshot = table.snapshot()
    ((_, found),) = divide_by_touch(table.env, table.schema, snapshot.slices, snapshot.files, 1).items()
    (before,) = found.untouched
    assert before.slice is not None
    assert before.slice.base_part is not None
    assert (before.slice.base_part.first, before.slice.base_part.rows) == (0, 900)
    assert found.rest.slice is not None
    assert found.rest.slice.base_rows == 100
    base = before.slice.base
    assert base is not None
    ((offset, length),) = byte_ranges(table.env, base, [before.slice.base_part])
    metadata = pq.read_metadata(io.BytesIO(table.env.store.get(base.path) or b""))
    middles = []
    for number in range(metadata.num_row_groups):
        row_group = metadata.row_group(number)
        first = row_group.column(0).dictionary_page_offset or row_group.column(0).data_page_offset
        size = sum(row_group.column(i).total_compressed_size for i in range(row_group.num_columns))
        middles.append(first + size // 2)
    assert [offset <= middle < offset + length for middle in middles] == [True] * 9 + [False]
    append(table, orders(3, ts=3))  # the log then has keys of every row group
    snapshot = table.snapshot()
    assert divide_by_touch(table.env, table.schema, snapshot.slices, snapshot.files, 1) == {}


def test_new_keys_alone_touch_no_row_group() -> None:
    table = tuned(Table.create(new_uri(), {**SHOP, "buckets": 1}), row_group_rows=100)
    append(table, orders(*range(1000)))
    table.compact()
    append(table, orders(*range(1000, 1100)))
    snapshot = table.snapshot()
    ((_, found),) = divide_by_touch(table.env, table.schema, snapshot.slices, snapshot.files, 1).items()
    assert found.rest.slice is not None
    assert found.rest.slice.base is None
    assert [piece.slice.base_rows for piece in found.untouched if piece.slice] == [1000]
    assert divide_by_touch(table.env, table.schema, snapshot.slices, snapshot.files, 10**9) == {}
