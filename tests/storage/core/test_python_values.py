"""Values for people: as pyarrow gives them, and as texts where Python has none."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from weft.storage.core.python_values import python_rows, python_values

MICROSECONDS = st.integers(-(2**63) + 1, 2**63 - 1)


@given(value=MICROSECONDS)
def test_times_of_any_year(value: int) -> None:
    expected = str(np.datetime64(value, "us"))
    (local,) = python_values(pa.array([value]).view(pa.timestamp("us")))
    (instant,) = python_values(pa.array([value]).view(pa.timestamp("us", tz="UTC")))
    assert np.datetime64(local if isinstance(local, str) else local.isoformat()) == np.datetime64(expected)
    if isinstance(local, str):
        assert instant == f"{local}+00:00"
    else:
        assert instant == local.replace(tzinfo=dt.UTC)


@given(value=st.integers(-(2**31), 2**31 - 1))
def test_dates_of_any_year(value: int) -> None:
    (date,) = python_values(pa.array([value], pa.int32()).view(pa.date32()))
    assert np.datetime64(str(date)) == np.datetime64(value, "D")


@given(values=st.lists(st.none() | MICROSECONDS, min_size=1, max_size=3), tagged=st.booleans())
def test_nested_values(values: list[int | None], *, tagged: bool) -> None:
    times = pa.array(values, pa.int64()).view(pa.timestamp("us", tz="UTC"))
    flat = python_values(times)
    struct = pa.StructArray.from_arrays([times], ["t"])
    assert python_values(struct) == [{"t": value} for value in flat]
    bounds = pa.array([0, len(values)], pa.int32())
    assert python_values(pa.ListArray.from_arrays(bounds, struct)) == [[{"t": value} for value in flat]]
    keys = pa.array([f"k{number}" for number in range(len(values))])
    pairs = list(zip(keys.to_pylist(), flat, strict=True))
    maps = pa.MapArray.from_arrays(bounds, keys, times)
    assert python_values(maps) == [dict(pairs)]
    assert python_values(maps, mappings=False) == [pairs]
    equal = pa.MapArray.from_arrays(bounds, pa.array(["k"] * len(values)), times)
    assert python_values(equal) == [
        dict(zip("k", flat, strict=True)) if len(flat) == 1 else [("k", time) for time in flat]
    ]
    column = pa.chunked_array([times, times]) if tagged else times
    assert python_values(column) == flat * (2 if tagged else 1)


def test_rows_keep_columns_of_equal_names() -> None:
    bad = pa.array([b"\xff", None]).view(pa.string())
    rows = pa.Table.from_arrays([pa.array([1, 2]), bad], ["a", "a"])
    assert python_rows(rows) == [(1, b"\xff"), (2, None)]
    assert python_rows(rows.select([])) == [(), ()]
