"""Bloom filters of indexed columns: reads by value skip row groups, never rows of the answer."""

from __future__ import annotations

import datetime as dt
import io
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.storage.support.damage import Damage, wrong
from tests.storage.support.shop import append, contents, new_uri
from tests.tuning import tuned
from weft import Table
from weft.storage.config.table_properties import schema_properties
from weft.storage.errors import CorruptData, InvalidInput
from weft.storage.files import base_file
from weft.storage.files.bloom_filter import BloomFilter, hash_values, writer_options, xxh64

VALUES: dict[str, list[Any]] = {
    "email": [*(f"user{number}@example.com" for number in range(400)), "", "ü" * 40, None],
    "phone": [*range(-200, 200), 2**63 - 1, -(2**63), None],
    "tiny": [*range(-128, 128), None],
    "born": [*(dt.date(1500, 1, 1) + dt.timedelta(days=97 * number) for number in range(400)), None],
    "token": [*(bytes([number % 256, number // 256]) for number in range(400)), b"", None],
}
CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 2,
    "columns": {
        "id": "bigint",
        "email": {"type": "string", "default": "nobody"},
        "phone": "bigint",
        "tiny": "tinyint",
        "born": "date",
        "token": "binary",
        "ats": "bigint",
        "bts": "bigint",
        "clicks": "bigint",
    },
    "groups": {
        "a": {"columns": ["email", "phone", "ats"], "ordering": ["ats"]},
        "b": {"columns": ["tiny", "born", "token", "bts"], "ordering": ["bts"], "merge": "latest_non_null"},
        "c": {"columns": ["clicks"], "merge": "aggregate", "functions": {"clicks": "sum"}},
    },
    "streams": {
        "as": {"groups": ["a"]},
        "bs": {"groups": ["b"], "on_delete": "row"},
        "cs": {"groups": ["c"]},
    },
    "index": ["token", "email", "phone", "tiny", "born", "clicks"],
}


@pytest.fixture
def row_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The row groups that are decoded."""
    decode, found = base_file._decode, list[int]()

    def count(parquet: pq.ParquetFile, footer: Any, together: Any, columns: Any) -> Any:
        found.extend(together)
        return decode(parquet, footer, together, columns)

    monkeypatch.setattr(base_file, "_decode", count)
    return found


def write_random(table: Table, source: random.Random, stream: str, ids: list[int]) -> None:
    columns = {"as": ("email", "phone"), "bs": ("tiny", "born", "token"), "cs": ()}[stream]
    types = {field.name: field.type for field in table.snapshot().schema}
    rows: dict[str, Any] = {"id": ids}
    for name in columns:
        rows[name] = pa.array([source.choice(VALUES[name]) for _ in ids], types[name])
    if stream == "cs":
        rows["clicks"] = pa.array([source.randrange(7) for _ in ids], pa.int64())
    else:
        rows[f"{stream[0]}ts"] = pa.array([source.randrange(6) for _ in ids], pa.int64())
        rows["_op"] = [source.choice(["upsert"] * 8 + ["delete"]) for _ in ids]
    append(table, pa.table(rows), stream)


def random_filter(source: random.Random) -> pc.Expression:
    name = source.choice([*VALUES, "clicks", "clicks"])
    kind = {field: pa.type_for_alias("int64") for field in ("phone", "clicks")}
    kind |= {"email": pa.string(), "tiny": pa.int8(), "born": pa.date32(), "token": pa.binary()}
    known = [value for value in VALUES.get(name, range(12)) if value is not None]
    field, chosen = pc.field(name), pa.array(source.sample(known, 3), kind[name])
    match source.randrange(7):
        case 0:
            return field.isin(chosen)
        case 1:
            return (field == chosen[0]) & (pc.field("bts") > 2)
        case 2:
            return (field == chosen[0]) | (pc.field("email") == source.choice(VALUES["email"][:-1]))
        case 3:
            return ~(field == chosen[0])
        case 4 if name == "email":
            return field == "nobody"
        case 5:
            return field.is_null()
        case _:
            return field == chosen[0]


@pytest.mark.parametrize(
    "seed",
    [
        *range(4),
        *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(4, 8)),
        *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(8, 30)),
    ],
)
def test_reads_by_value_give_every_row(seed: int) -> None:
    source = random.Random(seed)
    table = tuned(Table.create(new_uri(), CONFIG), row_group_rows=16, shared_row_group_rows=16)
    for stream in ("as", "bs", "cs"):
        write_random(table, source, stream, source.sample(range(300), 250))
    table.compact()
    for _ in range(source.randrange(1, 5)):
        write_random(
            table, source, source.choice(["as", "bs", "cs"]), source.sample(range(300), source.choice([3, 60]))
        )
        if source.random() < 0.2:
            table.compact() if source.random() < 0.5 else table.fold()
    snapshot = table.snapshot()
    whole = snapshot.to_arrow()
    for _ in range(30):
        condition = random_filter(source)
        found, right = snapshot.to_arrow(filter=condition), whole.filter(condition)
        assert found.sort_by("id").to_pylist() == right.sort_by("id").to_pylist(), condition
    assert wrong(table) == []


def emails(ids: Iterable[int], texts: Sequence[str], at: int) -> pa.Table:
    count = len(texts)
    return pa.table({"id": ids, "email": texts, "phone": pa.array([at] * count, pa.int64()), "ats": [at] * count})


EMAILS = [f"{number * 7919 % 1000:05}@x" for number in range(1000)]


def people(config: dict[str, Any] = CONFIG) -> Table:
    table = tuned(Table.create(new_uri(), config), row_group_rows=100, scan_run_bytes=1)
    append(table, emails(range(1000), EMAILS, 1), "as")
    table.compact()
    return table


def test_only_row_groups_that_can_have_the_value_are_read(row_groups: list[int]) -> None:
    table = people()
    row_groups.clear()
    condition = pc.field("email") == "00500@x"
    assert len(contents(table, ["id"])) == 1000
    every = len(row_groups)
    row_groups.clear()
    assert table.snapshot().to_arrow(["email"], filter=condition).to_pylist() == [{"email": "00500@x"}]
    assert 1 <= len(row_groups) <= 2 < every
    row_groups.clear()
    assert table.snapshot().to_arrow(filter=pc.field("email").isin(["00500@y", "00501@y"])).num_rows == 0
    assert len(row_groups) <= 1


def test_pending_logs_do_not_make_every_row_group_read(row_groups: list[int]) -> None:
    table = people()
    append(table, emails(range(0, 1000, 2), [f"new{n}" for n in range(500)], 2), "as")  # keys of every row group
    append(table, emails([3, 2000], ["00500@x"] * 2, 3), "as")
    row_groups.clear()
    found = table.snapshot().to_arrow(["id"], filter=pc.field("email") == "00500@x")["id"].to_pylist()
    of_base = [n for n in range(1000) if n * 7919 % 1000 == 500 and n % 2 and n != 3]
    assert sorted(found) == sorted([3, 2000, *of_base])
    assert len(row_groups) <= 3


def test_hashes_are_those_of_the_specification() -> None:
    def of(text: bytes) -> int:
        return int(xxh64(np.frombuffer(text, np.uint8).reshape(1, -1))[0])

    known = {b"": 0xEF46DB3751D8E999, b"a": 0xD24EC4F1A98C6E5B, b"abc": 0x44BC2CF5AD770999}
    assert {text: of(text) for text in known} == known
    assert of(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1  # longer than 32 bytes


@pytest.mark.parametrize("name", VALUES)
def test_filters_of_pyarrow_have_all_values_and_few_others(name: str) -> None:
    kind = {"email": pa.string(), "phone": pa.int64(), "tiny": pa.int8(), "born": pa.date32(), "token": pa.binary()}[
        name
    ]
    values = pa.array(VALUES[name][::2], kind).drop_null()
    sink, rows = io.BytesIO(), pa.table({name: values})
    pq.write_table(rows, sink, bloom_filter_options=writer_options(rows, [name]))
    chunk = pq.read_metadata(io.BytesIO(sink.getvalue())).row_group(0).column(0)
    found = BloomFilter.parse(sink.getvalue()[chunk.bloom_filter_offset :][: chunk.bloom_filter_length])
    assert found is not None
    assert found.may_contain(hash_values(values)).all()
    others = pa.array(VALUES[name][1::2], kind).drop_null()
    assert found.may_contain(hash_values(others)).mean() < 0.2
    assert found.may_contain(hash_values(values.slice(3, 5))).all()


def test_other_readers_read_the_files(tmp_path: Any) -> None:
    table = Table.create(tmp_path / "t", CONFIG)
    append(table, emails(range(100), [f"u{n}" for n in range(100)], 1), "as")
    table.compact()
    files = f"{tmp_path}/t/base/**/*.parquet"
    assert duckdb.sql(f"SELECT id FROM '{files}' WHERE email = 'u7'").fetchall() == [(7,)]
    assert duckdb.sql(f"SELECT count(*) FROM '{files}' WHERE email = 'none'").fetchall() == [(0,)]


def test_an_index_can_be_set_later_and_ended(row_groups: list[int]) -> None:
    table = people({**CONFIG, "index": []})
    assert table.set_index(["email"]).changed
    assert not table.set_index(["email"]).changed
    assert schema_properties(table.snapshot().table_schema)["index"] == "email"
    condition = pc.field("email") == "00500@x"
    row_groups.clear()
    assert table.snapshot().to_arrow(filter=condition).num_rows == 1
    assert len(row_groups) >= 8  # the files are older
    append(table, emails(range(1000), EMAILS, 2), "as")
    table.compact()
    row_groups.clear()
    assert table.snapshot().to_arrow(filter=condition).num_rows == 1
    assert len(row_groups) <= 2
    table.set_index([])
    row_groups.clear()
    assert table.snapshot().to_arrow(filter=condition).num_rows == 1
    assert len(row_groups) >= 8


@pytest.mark.parametrize(
    ("index", "words"),
    [(["id"], "is the key"), (["nothing"], "no column 'nothing'"), (["price"], "is double")],
)
def test_what_cannot_be_indexed_is_refused(index: list[str], words: str) -> None:
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", "price": "double"},
        "groups": {"g": {"columns": ["price"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    with pytest.raises(InvalidInput, match=words):
        Table.create(new_uri(), {**config, "index": index})
    table = Table.create(new_uri(), config)
    with pytest.raises(InvalidInput, match=words):
        table.set_index(index)


def _with_empty_filter(damage: Damage, *, fix_checksums: bool) -> None:
    """Clear the filter of the first row group's column email."""
    paths: list[str] = []
    damage.edit_slice(lambda made: paths.append(made["base"]["path"]))
    data = bytearray(damage.content(paths[0]))
    metadata = pq.read_metadata(io.BytesIO(data))
    leaf = metadata.schema.to_arrow_schema().names.index("email")
    chunk = metadata.row_group(0).column(leaf)
    end = chunk.bloom_filter_offset + chunk.bloom_filter_length
    size = chunk.bloom_filter_length - chunk.bloom_filter_length % 32
    data[end - size : end] = bytes(size)
    damage.overwrite(paths[0], bytes(data))
    if fix_checksums:

        def change(made: Any) -> None:
            file = made["base"]
            file["crc32"], file["tail_crc32"] = zlib.crc32(data), zlib.crc32(data[-file["tail_size"] :])

        damage.edit_slice(change)


def test_verify_finds_a_filter_that_lacks_values() -> None:
    table = people()
    _with_empty_filter(Damage(table), fix_checksums=True)
    (found,) = wrong(table)
    assert found.invariant == "S30"
    assert "email" in found.what


def test_a_damaged_filter_is_noticed_when_it_is_used() -> None:
    table = people()
    assert len(contents(table, ["email"])) == 1000  # the footer is known from now on
    _with_empty_filter(Damage(table), fix_checksums=False)
    with pytest.raises(CorruptData, match="footer"):
        table.snapshot().to_arrow(filter=pc.field("email").isin(EMAILS[:20]))
