"""`check_merger` finds mergers whose result depends on how events are folded, and accepts others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tests.mergers import BALANCE_STATE, balance, failing, hiding, row_count
from weft.storage.errors import InvalidInput
from weft.storage.testing import MergerError, check_merger

COLUMNS = {"x_n": "bigint", "x_t": "string", "ts": "bigint"}


def newest(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
    """Returns the newest row, event or result; keeps nothing of deletes."""
    return rows.take(pa.array(offsets[1:] - 1))


@pytest.mark.slow
def test_a_correct_merger_passes() -> None:
    check_merger(balance, columns=COLUMNS, ordering=["ts"], state=BALANCE_STATE)
    check_merger(balance, columns={"x_n": "bigint", "x_t": "string"}, state=BALANCE_STATE)


def test_a_merger_that_counts_its_rows_is_found() -> None:
    with pytest.raises(MergerError, match="depends on how events are folded") as error:
        check_merger(row_count, columns={"x_n": "bigint"})
    assert "part 2" in str(error.value)
    assert "all at once" in str(error.value)


def test_a_merger_without_state_is_correct_only_without_deletes() -> None:
    check_merger(newest, columns={"x_t": "string"}, deletes=False)


def test_a_merger_that_ignores_versions_of_results_is_found() -> None:
    """Results are in the order of their largest versions, but their ranges of versions may overlap."""

    def first(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
        return rows.take(pa.array(offsets[:-1]))

    with pytest.raises(MergerError):
        check_merger(first, columns={"x_t": "string", "ts": "bigint"}, ordering=["ts"], deletes=False)


def test_the_same_seed_tries_the_same_histories() -> None:
    messages = []
    for _ in range(2):
        with pytest.raises(MergerError) as error:
            check_merger(row_count, columns={"x_n": "bigint"}, seed=3)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.slow
def test_a_merger_may_keep_nothing_of_deletes() -> None:
    """Empty registers are never passed to a merger."""

    def upserts(rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
        assert (np.diff(offsets) > 0).all(), "a key without rows"
        largest = []
        for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            events = rows.slice(start, stop - start).to_pylist()
            numbers = [row["x_n"] for row in events if row["_op"] != "delete" and row["x_n"] is not None]
            largest.append(max(numbers, default=None))
        return pa.table({"x_n": pa.array(largest, pa.int64())})

    check_merger(upserts, columns={"x_n": "bigint"})


def test_a_merger_that_fails_is_named() -> None:
    with pytest.raises(InvalidInput, match="failed for key"):
        check_merger(failing, columns={"x_n": "bigint"})


@pytest.mark.slow
def test_hiding_by_an_upsert_is_allowed() -> None:
    check_merger(hiding, columns={"x_t": "string"}, state={"word": "string"}, deletes=False)
