"""Home of a key: the one file group in which all of its rows are (S15 KeySingleHome)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import keys, names
from storage.core.keys import Indices, KeyVector
from storage.core.schema import TableSchema
from storage.core.timeline import FileGroup


def partition_folders(schema: TableSchema, rows: pa.Table) -> tuple[list[str], Indices]:
    """Distinct partition folders in order, and the number of each row's. Requires the partition columns."""
    if not schema.partition_by:
        return [""], np.zeros(len(rows), np.int64)
    folders = []
    for name in schema.partition_by:
        distinct = keys.one_array(rows.column(name)).dictionary_encode()
        texts = [names.encode_partition(name, partition_text(value)) for value in distinct.dictionary]
        folders.append(pa.array(texts, pa.string()).take(distinct.indices))
    encoded = pc.binary_join_element_wise(*folders, "/").dictionary_encode()
    known = encoded.dictionary.to_pylist()
    ordered = sorted(known)
    number = np.array([ordered.index(text) for text in known], np.int64)
    return ordered, number[np.asarray(encoded.indices)]


def partition_text(value: pa.Scalar) -> str:
    """Text of a partition value before encoding: what SQL prints; binaries in hexadecimal."""
    plain = value.as_py()
    return plain.hex() if isinstance(plain, bytes) else str(plain)


def sort_keys(schema: TableSchema, rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """The sort column of rows that have the key columns."""
    columns = [keys.one_array(rows.column(name)) for name in schema.key]
    return keys.encode_sort_key(columns) if schema.has_sort_key else columns[0]


def homes(schema: TableSchema, rows: pa.Table) -> Mapping[FileGroup, KeyVector]:
    """Per file group the keys among ``rows``, sorted and distinct. Requires key columns of the table's types."""
    folders, partition = partition_folders(schema, rows)
    columns = [keys.one_array(rows.column(name)) for name in schema.key]
    bucket = keys.buckets(columns, schema.bucket_bits).astype(np.int64)
    vector = keys.key_vector(sort_keys(schema, rows))
    found = {}
    place = (partition << schema.bucket_bits) | bucket
    for value in np.unique(place).tolist():
        own = keys.take(vector, place == value)
        group = FileGroup(folders[value >> schema.bucket_bits], schema.bucket_bits, value % (1 << schema.bucket_bits))
        found[group] = keys.union([own])
    return found
