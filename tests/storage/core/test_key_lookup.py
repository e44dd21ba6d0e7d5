"""Looking keys up by a table gives the answers of a search, and is chosen only for dense integers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.storage.core import keys
from weft.storage.core.key_lookup import LARGEST_SPAN, KeyLookup

LEAST, LARGEST = -(2**63), 2**63 - 1
NUMBERS = st.integers(-20, 20) | st.integers(LEAST, LEAST + 20) | st.integers(LARGEST - 20, LARGEST)


def numbers(values: list[int]) -> keys.KeyVector:
    return np.array(values, np.int64)


@given(
    st.integers(LEAST, LARGEST - 40).flatmap(lambda low: st.sets(st.integers(low, low + 40))) | st.sets(NUMBERS),
    st.lists(NUMBERS),
    st.integers(0, 100),
    st.data(),
)
@example({LEAST, LEAST + 1}, [LARGEST, LEAST, LEAST + 1, 0], 100, None)
@example({LARGEST - 1, LARGEST}, [LEAST, LARGEST, LARGEST - 1, 0], 100, None)
@example({LEAST, LARGEST}, [LEAST, LARGEST, 0], 100, None)
def test_a_lookup_agrees_with_python(
    stored: set[int], others: list[int], searches: int, data: st.DataObject | None
) -> None:
    distinct = sorted(stored)
    known = data.draw(st.lists(st.sampled_from(distinct))) if data is not None and distinct else []
    wanted = others + known
    position, found = KeyLookup.of(numbers(distinct), searches).find(numbers(wanted))
    assert position.dtype == np.int64
    assert found.tolist() == [number in stored for number in wanted]
    assert [distinct[p] for p in position[found].tolist()] == [number for number in wanted if number in stored]
    assert not distinct or ((position >= 0) & (position < len(distinct))).all()


@pytest.mark.parametrize(
    ("vector", "searches", "by_table"),
    [
        (numbers(list(range(0, 1600, 16))), 100, True),
        (numbers([*range(99), 99 * LARGEST_SPAN + 1000]), 100, False),  # too far apart
        (numbers([LEAST, LARGEST]), 100, False),  # their distance does not fit into 64 bits
        (numbers(list(range(100))), 10, False),  # too few searches to pay for the table
        (numbers([]), 100, False),
        (pa.array([b"a", b"b"]), 100, False),
    ],
)
def test_dense_integers_that_are_searched_often_get_a_table(
    vector: keys.KeyVector, searches: int, *, by_table: bool
) -> None:
    lookup = KeyLookup.of(vector, searches)
    assert (lookup.table is not None) is by_table
    assert lookup.find(vector)[0].tolist() == list(range(len(vector)))
