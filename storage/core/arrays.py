"""Operations on Arrow arrays: taking rows, changing a few rows of a long column, the elements of lists."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.keys import Indices, Mask

Arrays = Mapping[str, pa.Array]
"""Columns of equal length by name."""

_BYTE = 8
_SHARED_NULLS: Final = 1 << 16  # the number of rows of a row group


def take_rows(columns: Arrays, rows: Indices | Mask | pa.Array) -> dict[str, pa.Array]:
    """Select the same rows of every column, by position or by a mask without nulls."""
    selection = rows if isinstance(rows, pa.Array) else pa.array(rows)
    by_mask = pa.types.is_boolean(selection.type)
    count = selection.true_count if by_mask else len(selection)

    def select(column: pa.Array) -> pa.Array:
        if column.null_count == len(column):  # most of the hidden state
            return nulls(column.type, count)
        return column.filter(selection) if by_mask else column.take(selection)

    return {name: select(column) for name, column in columns.items()}


def nulls(arrow_type: pa.DataType, count: int) -> pa.Array:
    """``count`` nulls; up to a limit, a slice of one shared array per type."""
    return _many_nulls(arrow_type).slice(0, count) if count <= _SHARED_NULLS else pa.nulls(count, arrow_type)


@functools.lru_cache(maxsize=32)
def _many_nulls(arrow_type: pa.DataType) -> pa.Array:
    return pa.nulls(_SHARED_NULLS, arrow_type)


def scatter(column: pa.Array, rows: Indices, values: pa.Array) -> pa.Array:
    """Copy ``column`` with ``values``, in order, at the distinct positions ``rows``.

    This is the inner loop of every merge. Fixed-width columns are copied and written in place; others go through one
    `take` over both. Values of all rows in order are not copied.
    """
    if len(rows) == 0 or (column.null_count == len(column) and values.null_count == len(values)):
        return column
    if len(rows) == len(column) and bool((rows[1:] > rows[:-1]).all()):
        return values
    width = _byte_width(column.type)
    if width is None:
        positions = np.arange(len(column), dtype=np.int64)
        positions[rows] = np.arange(len(column), len(column) + len(values))
        return pa.concat_arrays([column, values]).take(pa.array(positions))
    # Arrow's allocator keeps its pages; NumPy gets new ones from the system for each long array, which costs ten times
    # as much as copying.
    memory = pa.allocate_buffer(len(column) * width)
    data = np.frombuffer(memory, _fixed_dtype(width))
    np.copyto(data, _decode_fixed(column, width))
    data[rows] = _decode_fixed(values, width)
    validity = None
    if column.null_count or values.null_count:
        valid = np.asarray(column.is_valid())
        valid = valid.copy()
        valid[rows] = np.asarray(values.is_valid())
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(column), [validity, memory])


def join_rows(parts: Sequence[Arrays]) -> Arrays:
    """The rows of several parts with the same columns, one after the other; without parts no columns."""
    if len(parts) == 1:
        return parts[0]
    return {name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]} if parts else {}


def nulls_or_default(field: pa.Field, count: int, default: Any) -> pa.Array:
    """``count`` values of a column whose group is absent."""
    if default is None:
        return nulls(field.type, count)
    return pa.repeat(pa.scalar(default, field.type), count)


def list_lengths(lists: pa.Array) -> Indices:
    """Number of elements of each list; 0 for NULL."""
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)


def list_rows(lists: pa.Array) -> Indices:
    """Row number of every element that `flatten` returns."""
    return np.repeat(np.arange(len(lists)), list_lengths(lists))


def _byte_width(arrow_type: pa.DataType) -> int | None:
    """Bytes per value of a type that is stored in one plain data buffer; None for other types."""
    if pa.types.is_primitive(arrow_type) or pa.types.is_decimal128(arrow_type):
        bits = int(arrow_type.bit_width)
        return bits // _BYTE if bits % _BYTE == 0 else None
    return None


def _decode_fixed(array: pa.Array, width: int) -> np.ndarray[Any, Any]:
    buffer = array.buffers()[1]
    if buffer is None:  # an all-null array may have no data
        return np.zeros(len(array), _fixed_dtype(width))
    return np.frombuffer(buffer, _fixed_dtype(width))[array.offset : array.offset + len(array)]


def _fixed_dtype(width: int) -> np.dtype[Any]:
    return np.dtype(f"V{width}") if width > _BYTE else np.dtype(f"u{width}")
