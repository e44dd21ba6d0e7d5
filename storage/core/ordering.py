"""Ordering tuples as comparable numbers.

`ranks` returns numbers that compare like the tuples: left to right, NULLS FIRST. A version is ``(ordering values,
arrival, position)`` (MERGE.md, "Versions"); callers compare arrival and position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ranks = npt.NDArray[Any]
"""int64 or float64, one per row."""


def ranks(columns: Sequence[pa.Array]) -> Ranks:
    """Rank the ordering tuple of every row.

    Args:
        columns: One or more arrays of equal length.

    Returns:
        int64 or float64, one per row; comparable only with numbers of the same call.
    """
    first = columns[0]
    if len(columns) == 1 and first.null_count == 0:
        values = native(first)
        if values is not None:
            return values
    result = np.zeros(len(first), np.int64)
    for column in columns:
        dense = np.asarray(pc.rank(column, sort_keys=[("", "ascending", "at_start")], tiebreaker="dense"))
        # Ranks are made dense again after each column. Otherwise the product of several ranks would overflow.
        result = result * (len(first) + 1) + dense.astype(np.int64)
        if len(columns) > 1:
            result = np.unique(result, return_inverse=True)[1]
    return result


def native(array: pa.Array) -> Ranks | None:
    """The values of a column without nulls as numbers that compare like them; None if its type has no such form."""
    arrow_type = array.type
    if pa.types.is_int64(arrow_type) or pa.types.is_timestamp(arrow_type):
        return np.asarray(array.view(pa.int64()))
    if pa.types.is_date32(arrow_type):
        return np.asarray(array.view(pa.int32()))
    if pa.types.is_integer(arrow_type) or pa.types.is_float64(arrow_type):
        return np.asarray(array)
    return None


def all_null(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
    """Mask of the rows whose ordering values are all NULL; None without such rows."""
    if any(column.null_count == 0 for column in columns):
        return None
    mask = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        mask &= np.asarray(column.is_null())
    return mask if mask.any() else None
