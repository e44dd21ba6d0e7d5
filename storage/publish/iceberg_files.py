"""Base files as data files of Iceberg, with bounds from their footers, and unused rows as position deletes.

Source: Iceberg table specification, version 2: "Manifests", "Position Delete Files", "Appendix D".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
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

from storage.core.model import FIELD_ID
from storage.core.plan.current_files import CurrentFile
from storage.core.predicate import ColumnRange
from storage.core.schema.table_schema import TableSchema
from storage.files.base_file import column_ranges
from storage.files.footers import Footer
from storage.publish.upper_bound import cut_up

BOUND_LENGTH: Final = 16
"""Longest bound of a text or binary value, in characters or bytes; the default of Iceberg's own writers."""

FILE_PATH_ID: Final = 2147483546
POSITION_ID: Final = 2147483545
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
        bucket: The bucket of all its rows, if this is a spec of buckets.
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
        ranges = [found for found in column_ranges(footer, table_schema, field.name) if found is not None]
        if len(ranges) < len(groups) or any(found.nulls is None for found in ranges):
            continue
        nulls[field.field_id] = sum(found.nulls or 0 for found in ranges)
        least, largest = _bounds(field.field_type, ranges)
        if least is not None:
            lower[field.field_id] = least
        if largest is not None:
            upper[field.field_id] = largest
    made = DataFile.from_args(
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
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    made.spec_id = spec_id
    return made


def _bounds(kind: PrimitiveType, ranges: Sequence[ColumnRange]) -> tuple[bytes | None, bytes | None]:
    """A lower and an upper bound of the values of a column in a file; None where it is not known."""
    known = [found for found in ranges if found.nulls != found.rows]
    least = [found.least for found in known]
    largest = [found.largest for found in known]
    smallest = None if not least or None in least else to_bytes(kind, _cut(kind, min(least)))
    # Parquet's statistics leave NaN out, and some engines, such as Spark, order it after all numbers.
    unknown = not largest or None in largest or isinstance(kind, FloatType | DoubleType)
    longest = None if unknown else _cut_up(kind, max(largest))
    return smallest, None if longest is None else to_bytes(kind, longest)


def _cut(kind: PrimitiveType, value: Any) -> Any:
    return value[:BOUND_LENGTH] if isinstance(kind, StringType | BinaryType) else value


def _cut_up(kind: PrimitiveType, value: Any) -> Any:
    """A short value that is not smaller; None if there is none."""
    if isinstance(kind, StringType):
        return cut_up(value, BOUND_LENGTH)
    if isinstance(kind, BinaryType):
        return truncate_upper_bound_binary_string(value, BOUND_LENGTH)
    return value


def unused_rows(files: Iterable[tuple[str, CurrentFile]]) -> pa.Table:
    """The rows of base files that are not current: columns ``file_path`` and ``pos``, sorted by both."""
    found = sorted((url, span) for url, current in files for span in current.unused)
    paths = [np.full(end - first, number) for number, (_, (first, end)) in enumerate(found)]
    positions = [np.arange(first, end, dtype=np.int64) for _, (first, end) in found]
    urls = pa.array([url for url, _ in found], pa.string())
    numbers = pa.array(np.concatenate(paths) if paths else [], pa.int64())
    rows = pa.array(np.concatenate(positions) if positions else [], pa.int64())
    return pa.Table.from_arrays([urls.take(numbers), rows], schema=_DELETES)


def deletes_name(encoded: bytes) -> str:
    """How the name of a file of position deletes begins: the same for files with the same content."""
    return f"unused-rows-{hashlib.sha256(encoded).hexdigest()[:32]}"


def encode_deletes(rows: pa.Table) -> bytes:
    """A file of position deletes."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return bytes(sink.getvalue())


def deletes_file(url: str, size: int, rows: pa.Table) -> DataFile:
    """The entry of a file of position deletes in a manifest."""
    paths = rows["file_path"]
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={FILE_PATH_ID: paths[0].as_py().encode()},
        upper_bounds={FILE_PATH_ID: paths[-1].as_py().encode()},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
