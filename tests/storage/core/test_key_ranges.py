"""Bounds of key ranges: about equal bytes per range, at row groups if possible, and few bytes are read twice."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.storage.core.keys import KeyVector
from weft.storage.core.plan.key_ranges import MAX_REPEATED, Extents, KeyRange, choose_bounds, ranges_of


def extents(*parts: tuple[int, int, int]) -> Extents:
    """Stored parts by least key, largest key and bytes."""
    columns = np.array(parts, np.int64).reshape(-1, 3)
    return Extents(columns[:, 0], columns[:, 1], columns[:, 2])


def row_groups(count: int, size: int = 100) -> Extents:
    return extents(*((10 * number, 10 * number + 9, size) for number in range(count)))


def bounds_of(base: Extents | None, logs: Extents | None, ranges: int) -> list[int]:
    found = choose_bounds(base, logs, ranges)
    return [] if found is None else np.asarray(found).tolist()


@pytest.mark.parametrize(("ranges", "expected"), [(2, [40]), (4, [20, 40, 60]), (8, list(range(10, 80, 10)))])
def test_row_groups_are_distributed_evenly(ranges: int, expected: list[int]) -> None:
    assert bounds_of(row_groups(8), None, ranges) == expected


def test_no_more_ranges_than_row_groups() -> None:
    assert bounds_of(row_groups(3), None, 1 << 40) == [10, 20]
    assert bounds_of(row_groups(1), None, 5) == []
    assert bounds_of(None, None, 5) == []
    assert bounds_of(extents(), extents(), 5) == []


def test_a_large_row_group_is_one_range() -> None:
    base = extents((0, 9, 10), (10, 19, 1_000), (20, 29, 10), (30, 39, 1_000))
    assert bounds_of(base, None, 2) == [20]


def test_log_bytes_count_in_the_range_of_their_keys() -> None:
    """800 bytes of logs at the end are as much as all row groups."""
    assert bounds_of(row_groups(8), extents((70, 79, 800)), 2) == [70]


def test_the_first_keys_of_blocks_are_bounds_where_row_groups_are_too_large() -> None:
    logs = extents(*((number, number + 9, 1_000) for number in range(0, 100, 10)))
    assert bounds_of(None, logs, 2) == [50]
    assert bounds_of(extents((0, 99, 100)), logs, 5) == [20, 40, 60, 80]


def test_row_groups_that_may_overlap_have_no_bound_between_them() -> None:
    base = extents((0, 10, 100), (10, 20, 100), (21, 30, 100))
    assert bounds_of(base, None, 3) == [21]


def test_bytes_that_every_range_reads_limit_the_ranges() -> None:
    """Blocks with keys from the whole file group, as in small commits, are read with each range."""
    everywhere = extents(*((0, 79, 10) for _ in range(80)))
    assert len(bounds_of(row_groups(8), everywhere, 8)) == 1
    assert len(bounds_of(row_groups(8, 1_000), everywhere, 8)) == 7


SPANS = st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 30), st.integers(0, 1_000)), max_size=12)


@pytest.mark.parametrize("as_text", [False, True])
@given(base=SPANS, logs=SPANS, ranges=st.integers(2, 20))
def test_bounds_are_distinct_and_repeated_bytes_are_limited(
    base: list[tuple[int, int, int]], logs: list[tuple[int, int, int]], ranges: int, *, as_text: bool
) -> None:
    """Bounds are distinct and ascending, there are not too many, and the bytes that all ranges read are limited."""
    ordered = sorted({least: (least, least + width, size) for least, width, size in base}.values())
    made = [extents(*ordered), extents(*((least, least + width, size) for least, width, size in logs))]
    parts = [Extents(text(part.least), text(part.largest), part.bytes) for part in made] if as_text else made
    bounds = choose_bounds(parts[0], parts[1], ranges)
    if bounds is None:
        return
    values = pa.array(bounds).to_pylist()
    assert values == sorted(set(values))
    assert 1 <= len(values) < ranges
    read = total = 0
    for part in parts:
        first, last = ranges_of(bounds, part)
        read += int((part.bytes * (last - first + 1)).sum())
        total += int(part.bytes.sum())
    assert len(values) == 1 or read <= MAX_REPEATED * total


@pytest.mark.parametrize("as_text", [False, True])
@given(
    keys=st.lists(st.integers(0, 30), unique=True).map(sorted),
    bounds=st.lists(st.integers(0, 30), min_size=1, unique=True).map(sorted),
)
def test_every_key_is_in_exactly_one_range(keys: list[int], bounds: list[int], *, as_text: bool) -> None:
    vector = text(np.array(keys, np.int64)) if as_text else np.array(keys, np.int64)
    edges = [None, *(text(np.array([key])) if as_text else np.array([key]) for key in bounds), None]
    ranges = [KeyRange(least, end, within_row_groups=True) for least, end in itertools.pairwise(edges)]
    positions = [key_range.positions(vector) for key_range in ranges]
    assert [position for first, end in positions for position in range(first, end)] == list(range(len(keys)))
    for key_range, (first, end) in zip(ranges, positions, strict=True):
        for position in range(len(keys)):
            bounds_of_key = vector.take(pa.array([position, position])) if as_text else vector[[position, position]]
            assert key_range.may_contain(bounds_of_key) == (first <= position < end)


_SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)).map(lambda span: (span[0], span[0] + span[1], 1)))


@pytest.mark.parametrize("as_text", [False, True])
@given(spans=_SPANS, others=_SPANS)
def test_parts_are_near_others_if_both_may_have_a_key(
    spans: list[tuple[int, int, int]], others: list[tuple[int, int, int]], *, as_text: bool
) -> None:
    numbered = [(least, largest, number) for number, (least, largest, _) in enumerate(spans)]
    first, second = extents(*numbered), extents(*others)
    if as_text:
        first, second = (Extents(text(part.least), text(part.largest), part.bytes) for part in (first, second))  # type: ignore[arg-type]
    expected = [n for low, high, n in numbered if any(low <= end and start <= high for start, end, _ in others)]
    found = first.near(second)
    assert found.bytes.tolist() == expected
    assert len(found.least) == len(found.largest) == len(expected)


def test_other_states_are_divided_at_the_same_bounds() -> None:
    """Their bytes count, and their first keys are bounds if those of the row groups are too far apart."""
    heavy = extents((70, 79, 800))
    assert np.asarray(choose_bounds(row_groups(8), None, 2, [heavy])).tolist() == [70]
    assert np.asarray(choose_bounds(None, None, 2, [row_groups(8)])).tolist() == [40]
    assert choose_bounds(None, None, 2, [extents()]) is None


def text(numbers: npt.NDArray[np.int64]) -> KeyVector:
    """Binary keys in the order of the numbers."""
    return pa.array([f"{number + 1_000:05d}".encode() for number in numbers.tolist()], pa.binary())
