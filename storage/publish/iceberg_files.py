"""Base files as data files of Iceberg, with bounds from their footers, and unused rows as position deletes.

Source: Iceberg table specification, version 2: "Manifests", "Position Delete Files", "Appendix D".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DoubleType, FloatType, PrimitiveType, StringType
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

from weft.storage.core.model import FIELD_ID
from weft.storage.core.plan.current_files import CurrentFile
from weft.storage.core.predicate import ColumnRange
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.files.footers import Footer
from weft.storage.files.row_group_statistics import column_ranges
from weft.storage.publish.upper_bound import cut_up

BOUND_LENGTH: Final = 16
"""Maximum length of a text or binary bound, in characters or bytes; the default of Iceberg's own writers."""

FILE_PATH_ID: Final = 2147483546
POSITION_ID: Final = 2147483545
_DELETES_PREFIX: Final = "unused-rows-"
_DIGEST_LENGTH: Final = 32
_DELETES: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(FILE_PATH_ID).encode()}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POSITION_ID).encode()}),
    ]
)


def data_file(
    url: str,
    current: CurrentFile,
    footer: Footer,
    table_schema: TableSchema,
    schema: Schema,
    spec_id: int,
    bucket: int | None,
) -> DataFile:
    """The entry of a base file in a manifest.

    Args:
        url: URL of the file, not percent-encoded.
        current: The file.
        footer: Its footer.
        table_schema: The schema of the weft table.
        schema: The schema of the published table.
        spec_id: Id of the partition spec of the file.
        bucket: The bucket of all its rows; None for the unpartitioned spec.
    """
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    groups = [footer.metadata.row_group(number) for number in range(footer.metadata.num_row_groups)]
    for field in schema.fields:
        leaf = footer.leaves.get(field.name)
        if leaf is None or not isinstance(field.field_type, PrimitiveType):
            continue
        sizes[field.field_id] = sum(group.column(leaf).total_compressed_size for group in groups)
        values[field.field_id] = current.file.rows
        ranges = [item for item in column_ranges(footer, table_schema, field.name) if item is not None]
        if len(ranges) < len(groups) or any(item.nulls is None for item in ranges):
            continue
        nulls[field.field_id] = sum(item.nulls or 0 for item in ranges)
        least, largest = _bounds(field.field_type, ranges)
        if least is not None:
            lower[field.field_id] = least
        if largest is not None:
            upper[field.field_id] = largest
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record() if bucket is None else Record(bucket),
        record_count=current.file.rows,
        file_size_in_bytes=current.file.size,
        column_sizes=sizes,
        value_counts=values,
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
    )
    entry.spec_id = spec_id
    return entry


def _bounds(kind: PrimitiveType, ranges: Sequence[ColumnRange]) -> tuple[bytes | None, bytes | None]:
    """A lower and an upper bound of the values of a column in a file; None for an unknown bound."""
    with_values = [column_range for column_range in ranges if column_range.nulls != column_range.rows]
    least = [column_range.least for column_range in with_values]
    largest = [column_range.largest for column_range in with_values]
    smallest = None if not least or None in least else to_bytes(kind, _cut(kind, min(least)))
    # Parquet's statistics leave NaN out, and some engines, such as Spark, order it after all numbers.
    is_unknown = not largest or None in largest or isinstance(kind, FloatType | DoubleType)
    longest = None if is_unknown else _cut_up(kind, max(largest))
    return smallest, None if longest is None else to_bytes(kind, longest)


def _cut(kind: PrimitiveType, value: Any) -> Any:
    return value[:BOUND_LENGTH] if isinstance(kind, StringType | BinaryType) else value


def _cut_up(kind: PrimitiveType, value: Any) -> Any:
    """A short value that is not smaller than another; None if there is none."""
    if isinstance(kind, StringType):
        return cut_up(value, BOUND_LENGTH)
    if isinstance(kind, BinaryType):
        return truncate_upper_bound_binary_string(value, BOUND_LENGTH)
    return value


def encode_deletes(url: str, current: CurrentFile) -> bytes:
    """Encode a file of position deletes: the rows of one base file that are not current.

    Columns are ``file_path`` and ``pos``, sorted by both. Each base file has its own delete file, as with Iceberg's own
    writers by default: some readers, such as Polars, apply no others, and delete files of other base files stay valid.
    """
    positions = np.concatenate([np.arange(first, end, dtype=np.int64) for first, end in sorted(current.unused)])
    rows = pa.Table.from_arrays([pa.repeat(url, len(positions)), pa.array(positions)], schema=_DELETES)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return bytes(sink.getvalue())


def deletes_name(content: bytes) -> str:
    """Prefix of the name of a file of position deletes; equal for equal content."""
    return f"{_DELETES_PREFIX}{hashlib.sha256(content).hexdigest()[:_DIGEST_LENGTH]}"


def name_of_deletes(url: str) -> str:
    """The prefix of the name in the URL of a delete file, see `deletes_name`."""
    return url.rpartition("/")[2][: len(_DELETES_PREFIX) + _DIGEST_LENGTH]


def deletes_file(url: str, size: int, data_url: str, current: CurrentFile) -> DataFile:
    """The entry of a file of position deletes in a manifest.

    Args:
        url: URL of the delete file.
        size: Its size in bytes.
        data_url: URL of the base file.
        current: The base file.
    """
    path = data_url.encode()
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=current.unused_rows,
        file_size_in_bytes=size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        # Equal bounds say that all deletes are of one data file.
        lower_bounds={FILE_PATH_ID: path},
        upper_bounds={FILE_PATH_ID: path},
    )
