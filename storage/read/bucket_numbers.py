"""Computes the bucket of each row, for readers that show it."""

from __future__ import annotations

import pyarrow as pa

from weft.storage.core.merge.locate_keys import buckets, key_columns
from weft.storage.core.schema.table_schema import TableSchema


def bucket_numbers(schema: TableSchema, rows: pa.Table) -> pa.Array:
    """The bucket of each row, int64; ``rows`` has the key columns of the table."""
    return pa.array(buckets(schema, key_columns(schema, rows), schema.bucket_bits))
