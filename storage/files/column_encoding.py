"""Encodings for the columns of a base file, chosen from its first row group.

A dictionary suits values that repeat. For other values it would double the size and the cost of reading. They get an
encoding by type, which is smaller and faster to read for Arrow and for Spark (`tests/benchmarks/layout.py`). All
current Parquet libraries support these encodings. The vectorized reader of Spark 4.1 lacks that of floats; 4.3 has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SAMPLE_ROWS: Final = 4096
_INT64_DIGITS: Final = 18  # decimals of up to this many digits are stored as integers
REPEATS_BELOW: Final = 1 / 4  # distinct values per row of the sample; below this a dictionary stays small


@dataclass(frozen=True, slots=True)
class Encodings:
    """Arguments of `pyarrow.parquet.ParquetWriter`: leaf columns with a dictionary, and encodings of other columns."""

    use_dictionary: list[str]
    column_encoding: dict[str, str]


def choose_encodings(rows: pa.Table) -> Encodings:
    """The encodings for a file that begins with these rows; at least one row is required."""
    sample = rows.take(pa.array(np.unique(np.linspace(0, len(rows) - 1, SAMPLE_ROWS, dtype=np.int64))))
    repeated: list[str] = []
    other: dict[str, str] = {}
    for name, column in zip(rows.schema.names, sample.columns, strict=True):
        if pa.types.is_nested(column.type):
            repeated.extend(_leaves(name, column.type))
        elif pc.count_distinct(column, mode="all").as_py() < len(sample) * REPEATS_BELOW:
            repeated.append(name)
        elif _is_whole_number(column.type):
            other[name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(column.type):
            other[name] = "BYTE_STREAM_SPLIT"
    # Encodings are given by path, and a field of a struct can have the path of a column whose name has a dot.
    dictionary_columns = set(repeated)
    return Encodings(repeated, {path: encoding for path, encoding in other.items() if path not in dictionary_columns})


def _is_whole_number(arrow_type: pa.DataType) -> bool:
    """Whether Parquet stores values of this type as integers."""
    return bool(
        pa.types.is_integer(arrow_type)
        or pa.types.is_date(arrow_type)
        or pa.types.is_timestamp(arrow_type)
        or (pa.types.is_decimal(arrow_type) and arrow_type.precision <= _INT64_DIGITS)
    )


def _leaves(path: str, arrow_type: pa.DataType) -> Iterator[str]:
    """Parquet paths of the leaf columns of a nested column."""
    if pa.types.is_struct(arrow_type):
        for field in arrow_type:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(arrow_type):
        yield from _leaves(f"{path}.key_value.key", arrow_type.key_type)
        yield from _leaves(f"{path}.key_value.value", arrow_type.item_type)
    elif pa.types.is_list(arrow_type):
        yield from _leaves(f"{path}.list.element", arrow_type.value_type)
    else:
        yield path
