"""Keys of a run of file groups: ordered by file group, then by key, and equal only if both are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from weft.storage.core.keys import KeyVector
from weft.storage.core.merge.run_keys import RunKeys

LEAST, LARGEST = -(2**63), 2**63 - 1
NUMBERS = st.integers(-9, 9) | st.integers(LEAST, LARGEST) | st.sampled_from([LEAST, LEAST + 1, LARGEST - 1, LARGEST])
WORDS = st.binary(max_size=3) | st.sampled_from([b"", b"\x00", b"\xff" * 9])
PLACES = st.sampled_from([0, 1, 2, 255, 256, 1023])


def vector_of(values: list[Any]) -> KeyVector:
    return np.array(values, np.int64) if isinstance(values[0], int) else pa.array(values, pa.binary())


def rows(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[int, Any]]]:
    return st.lists(st.tuples(PLACES, values), min_size=1, max_size=12)


@given(st.one_of(*(st.tuples(rows(values), rows(values)) for values in (NUMBERS, st.integers(-9, 9), WORDS))))
@example(([(0, LEAST)], [(0, LEAST), (1, LARGEST)]))
@example(([(0, LEAST), (0, LARGEST)], [(0, 0), (1, LARGEST), (1, LARGEST - 1)]))
@example(([(0, 1), (0, 3)], [(0, 0), (0, 2), (0, 4), (1, 0)]))
@example(([(0, 1), (0, 2**61)], [(0, 0), (0, 2), (0, 2**61 + 1), (1, 0)]))
def test_a_run_is_ordered_by_file_group_and_then_by_key(
    case: tuple[list[tuple[int, Any]], list[tuple[int, Any]]],
) -> None:
    logs, base = case
    run_keys = RunKeys.of([vector_of([key for _, key in logs])], 1024)
    both = sorted([*logs, *base])
    found = run_keys.vector(
        vector_of([key for _, key in both]),
        np.array([ordinal for ordinal, _ in both], np.int64),
    )
    known = {key for _, key in logs}
    for (row, number), (after, next_number) in zip(
        zip(both, list(found), strict=True), zip(both[1:], list(found)[1:], strict=True), strict=False
    ):
        assert _plain(number) <= _plain(next_number)
        if row == after:
            assert _plain(number) == _plain(next_number)
        elif row[1] in known or after[1] in known or row[0] != after[0]:
            assert _plain(number) < _plain(next_number), "no other key is mistaken for a key of the logs"


def _plain(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value
