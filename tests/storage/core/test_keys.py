"""Keys: memcomparable encoding, buckets, search. The vectors are normative (FORMAT.md, "Key order" and "Buckets")."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.storage.core import keys
from weft.storage.core.types import parse_type

TYPES = ["bigint", "int", "string", "binary", "date", "timestamp", "timestamp_ntz", "decimal(12,2)", "decimal(38,10)"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text("\x00a\x01\xff", max_size=4),
    "binary": st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 255]), max_size=4).map(bytes),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(12,2)": st.decimals(-(10**10) + 1, 10**10 - 1, places=2),
    "decimal(38,10)": st.decimals(-(10**27), 10**27, places=10),
}


def comparable(value: Any) -> Any:
    """Strings are ordered by their UTF-8 bytes, which is also the order of code points."""
    return value.encode() if isinstance(value, str) else value


@st.composite
def composite_keys(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(VALUES[name] for name in types)), min_size=2, max_size=12))
    return types, rows


def arrays(types: list[str], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array(column, parse_type(name)) for name, column in zip(types, zip(*rows, strict=True), strict=True)]


NEAR = st.integers(-3, 3) | st.integers(-(2**63), -(2**63) + 3) | st.integers(2**63 - 4, 2**63 - 1)


@given(st.lists(NEAR) | st.lists(st.integers(-5, 5)) | st.lists(st.integers(2**63 - 4, 2**63 - 1)))
@example([0, -(2**63), 2**63 - 1, 0, -(2**63)])
@example([2, 1, 2, 1])
@example([0, 2**61 - 1, 0, 5])  # just close enough to be packed
@example([0, 2**61, 0, 5])  # just too far apart to be packed
def test_equal_keys_keep_their_order(numbers: list[int]) -> None:
    expected = sorted(range(len(numbers)), key=numbers.__getitem__)
    binary = pa.array([keys.encode_sort_key([pa.array([number])])[0].as_py() for number in numbers], pa.binary())
    for vector in (np.array(numbers, np.int64), binary):
        order, ordered = keys.in_order(vector)
        assert order.tolist() == expected
        assert list(ordered) == [vector[i] for i in expected]


@given(composite_keys())
def test_encoded_keys_compare_as_the_tuples_do(case: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    types, rows = case
    encoded = keys.encode_sort_key(arrays(types, rows)).to_pylist()
    plain = [tuple(comparable(value) for value in row) for row in rows]
    for a, x in zip(plain, encoded, strict=True):
        for b, y in zip(plain, encoded, strict=True):
            assert (a < b) == (x < y), (a, b)
            assert (a == b) == (x == y), (a, b)


@given(composite_keys(), st.integers(1, 5))
def test_encoding_does_not_depend_on_chunks(case: tuple[list[str], list[tuple[Any, ...]]], offset: int) -> None:
    types, rows = case
    whole = keys.encode_sort_key(arrays(types, rows)).to_pylist()
    sliced = [array.slice(offset) for array in arrays(types, rows)]
    assert keys.encode_sort_key(sliced).to_pylist() == whole[offset:]


@pytest.mark.parametrize(
    ("types", "row", "expected"),
    [
        (["bigint", "bigint"], (0, -1), "80000000000000007fffffffffffffff"),
        (["int", "bigint"], (1, -(2**63)), "80000000000000010000000000000000"),
        (["string", "string"], ("", "a"), "0000610000"),
        (["string", "binary"], ("a\x00b", b"\x00"), "6100ff62000000ff0000"),
        (["date", "int"], (dt.date(1970, 1, 2), 0), "80000000000000018000000000000000"),
        (
            ["timestamp", "int"],
            (dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), 0),
            "80000000000f42408000000000000000",
        ),
        (["decimal(12,2)"], (Decimal("1.50"),), "80000000000000000000000000000096"),
        (["decimal(12,2)"], (Decimal("-0.01"),), "7fffffffffffffffffffffffffffffff"),
    ],
)
def test_vectors_of_the_key_encoding(types: list[str], row: tuple[Any, ...], expected: str) -> None:
    (encoded,) = keys.encode_sort_key(arrays(types, [row])).to_pylist()
    assert encoded.hex() == expected


@pytest.mark.parametrize(
    ("type_name", "value", "hashed"),
    [  # Iceberg, "Appendix B: 32-bit Hash Requirements"
        ("int", 34, 2017239379),
        ("bigint", 34, 2017239379),
        ("decimal(4,2)", Decimal("14.20"), -500754589),
        ("date", dt.date(2017, 11, 16), -653330422),
        ("timestamp_ntz", dt.datetime(2017, 11, 16, 22, 31, 8), -2047944441),  # noqa: DTZ001
        ("timestamp", dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=dt.UTC), -2047944441),
        ("string", "iceberg", 1210000089),
        ("binary", b"\x00\x01\x02\x03", -188683207),
    ],
)
def test_a_single_key_has_icebergs_bucket(type_name: str, value: Any, hashed: int) -> None:
    column = pa.array([value], parse_type(type_name))
    for bits in (0, 1, 3, 10):
        assert keys.buckets([column], bits).tolist() == [(hashed & 0x7FFFFFFF) % (1 << bits)]


def composite_formula(parts: list[int], bits: int) -> int:
    """The definition of the format, in plain Python."""
    mixed = 0
    for part in parts:
        mixed = (mixed * 31 + part) % 2**32
    mixed ^= mixed >> 15
    return mixed % (1 << bits)


@pytest.mark.parametrize(
    ("types", "row", "hashes"),
    [
        (["string", "int"], ("iceberg", 34), [1210000089, 2017239379]),
        (["int", "string"], (34, "iceberg"), [2017239379, 1210000089]),
        (
            ["date", "binary", "bigint"],
            (dt.date(2017, 11, 16), b"\x00\x01\x02\x03", 34),
            [-653330422, -188683207, 2017239379],
        ),
    ],
)
def test_a_composite_key_mixes_the_buckets_of_its_columns(
    types: list[str], row: tuple[Any, ...], hashes: list[int]
) -> None:
    parts = [(hashed & 0x7FFFFFFF) % (2**31 - 1) for hashed in hashes]
    for bits in (0, 3, 8, 16):
        assert keys.buckets(arrays(types, [row]), bits).tolist() == [composite_formula(parts, bits)]


@pytest.mark.parametrize(
    ("types", "row", "encoded", "bucket"),
    [  # The table of FORMAT.md. It must never change, because the keys of existing tables depend on it.
        (["bigint"], (34,), None, 3),
        (["string"], ("iceberg",), None, 9),
        (["decimal(9,2)"], (Decimal("14.20"),), "8000000000000000000000000000058c", 3),
        (["string", "string"], ("t", "11"), "74000031310000", 4),
        (["bigint", "string"], (-1, "a\x00b"), "7fffffffffffffff6100ff620000", 9),
        (
            ["date", "decimal(9,2)"],
            (dt.date(1970, 1, 2), Decimal("-0.01")),
            "80000000000000017fffffffffffffffffffffffffffffff",
            11,
        ),
    ],
)
def test_vectors_of_buckets(types: list[str], row: tuple[Any, ...], encoded: str | None, bucket: int) -> None:
    columns = arrays(types, [row])
    assert keys.buckets(columns, 4).tolist() == [bucket]
    if encoded is not None:
        assert keys.encode_sort_key(columns).to_pylist()[0].hex() == encoded
    text = (Path(keys.__file__).parents[1] / "FORMAT.md").read_text(encoding="utf-8")
    assert f"| {encoded or 'none'} | {bucket} |" in text


def test_vectors_of_composite_buckets() -> None:
    tenants, ids = pa.array(["t1", "t1", "t", ""]), pa.array([1, 2, 11, 0], pa.int64())
    assert keys.buckets([tenants, ids], 3).tolist() == [2, 5, 1, 6]
    assert keys.buckets([tenants, ids], 16).tolist() == [14866, 34485, 26017, 60918]


@given(composite_keys())
def test_equal_keys_have_the_same_bucket_in_any_batch(case: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    types, rows = case
    together = keys.buckets(arrays(types, rows), 6).tolist()
    alone = [keys.buckets(arrays(types, [row]), 6).tolist()[0] for row in rows]
    assert together == alone
    assert all(0 <= bucket < 64 for bucket in together)


def test_more_bucket_bits_split_buckets() -> None:
    """So a later split b -> {b, b + N} can be an ordinary compaction."""
    columns = [pa.array(range(1_000), pa.int64()), pa.array([str(i) for i in range(1_000)])]
    for chosen in (columns[:1], columns[1:], columns):
        few, many = keys.buckets(chosen, 3), keys.buckets(chosen, 4)
        assert ((many == few) | (many == few + 8)).all()
        assert len(set(many.tolist())) == 16


VECTOR_KINDS = st.sampled_from(["numbers", "bytes"])


def vector(kind: str, numbers: list[int]) -> keys.KeyVector:
    if kind == "numbers":
        return np.array(numbers, np.int64)
    return pa.array([number.to_bytes(2, "big") for number in numbers], pa.binary())


@given(VECTOR_KINDS, st.lists(st.integers(0, 40), max_size=20), st.lists(st.integers(0, 40), max_size=10))
def test_searching_agrees_with_python(kind: str, stored: list[int], wanted: list[int]) -> None:
    distinct = sorted(set(stored))
    position, found = keys.find(vector(kind, distinct), vector(kind, wanted))
    assert found.tolist() == [number in distinct for number in wanted]
    assert [distinct[p] for p, there in zip(position.tolist(), found.tolist(), strict=True) if there] == [
        number for number in wanted if number in distinct
    ]
    if distinct and wanted:
        below = [sum(x < number for x in distinct) for number in wanted]
        assert keys.lower_bound(vector(kind, distinct), vector(kind, wanted)).tolist() == below
        upto = [sum(x <= number for x in distinct) for number in wanted]
        assert keys.upper_bounds(vector(kind, distinct), vector(kind, wanted)).tolist() == upto
        assert keys.upper_bound(vector(kind, distinct), vector(kind, wanted)[0]) == upto[0]


@given(VECTOR_KINDS, st.lists(st.integers(0, 12), max_size=20), st.sets(st.integers(0, 12), max_size=6))
def test_positions_include_repeated_keys(kind: str, stored: list[int], wanted: set[int]) -> None:
    ordered = sorted(stored)
    found = keys.positions(vector(kind, ordered), vector(kind, sorted(wanted)))
    assert found.tolist() == [i for i, number in enumerate(ordered) if number in wanted]


@given(VECTOR_KINDS, st.lists(st.integers(0, 12), max_size=6), st.integers(0, 12), st.integers(0, 12))
def test_bounds_of_keys_are_inclusive(kind: str, stored: list[int], one: int, other: int) -> None:
    low, high = sorted((one, other))
    within = keys.any_within(vector(kind, sorted(stored)), vector(kind, [low, high]))
    assert within is any(low <= number <= high for number in stored)


@given(VECTOR_KINDS, st.lists(st.integers(0, 10), max_size=20))
def test_sorting_is_stable_and_finds_runs_of_equal_keys(kind: str, numbers: list[int]) -> None:
    order = keys.stable_order(vector(kind, numbers)).tolist()
    assert order == sorted(range(len(numbers)), key=lambda i: numbers[i])
    ordered = [numbers[i] for i in order]
    starts = keys.run_starts(vector(kind, ordered)).tolist()
    assert starts == [i for i in range(len(ordered)) if i == 0 or ordered[i] != ordered[i - 1]]
