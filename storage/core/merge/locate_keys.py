"""Finds the file group of a key: each key has exactly one (PROTOCOL.md, S15 KeySingleHome).

``rows`` have the key columns, and possibly others, with the types of the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import Indices, KeyVector
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.schema.table_schema import TableSchema


def folders(schema: TableSchema, rows: Arrays) -> pa.Array:
    """Partition folder of every row; "" if the table has no partitions."""
    parts = []
    for name in schema.partition_by:
        distinct = rows[name].dictionary_encode()
        texts = [names.encode_partition(name, partition_text(value)) for value in distinct.dictionary]
        parts.append(pa.array(texts, pa.string()).take(distinct.indices))
    if not parts:
        return pa.repeat(pa.scalar("", pa.string()), len(rows[schema.key[0]]))
    return pc.binary_join_element_wise(*parts, "/")


def partition_folders(schema: TableSchema, rows: Arrays) -> tuple[list[str], Indices]:
    """Distinct partition folders, sorted, and for each row the number of its folder."""
    if not schema.partition_by:
        return [""], np.zeros(len(rows[schema.key[0]]), np.int64)
    dictionary_array = folders(schema, rows).dictionary_encode()
    distinct_folders = dictionary_array.dictionary.to_pylist()
    sorted_folders = sorted(distinct_folders)
    number_of = {text: number for number, text in enumerate(sorted_folders)}
    number = np.array([number_of[text] for text in distinct_folders], np.int64)
    return sorted_folders, number[np.asarray(dictionary_array.indices)]


def buckets(schema: TableSchema, rows: Arrays, bits: int) -> Indices:
    """Bucket of every row, int64."""
    return keys.buckets([rows[name] for name in schema.key], bits).astype(np.int64)


def in_bucket(schema: TableSchema, rows: Arrays, group: FileGroup) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a partition that are in the bucket of a file group."""
    return buckets(schema, rows, group.bits) == group.bucket


def partition_text(value: pa.Scalar) -> str:
    """Text of a partition value before it is encoded: as SQL prints it, binaries in hexadecimal."""
    plain = value.as_py()
    return plain.hex() if isinstance(plain, bytes) else str(plain)


def sort_keys(schema: TableSchema, rows: Arrays) -> pa.Array:
    """The sort column of rows, built from their key columns."""
    columns = [rows[name] for name in schema.key]
    return keys.encode_sort_key(columns) if schema.has_sort_key else columns[0]


def key_columns(schema: TableSchema, rows: pa.Table) -> dict[str, pa.Array]:
    """The key columns of a table, each as one array."""
    return {name: keys.one_array(rows.column(name)) for name in schema.key}


def locate_keys(schema: TableSchema, rows: Arrays, levels: Collection[int]) -> dict[FileGroup, KeyVector]:
    """Assign keys to file groups; the keys of each are sorted and distinct.

    Args:
        schema: The schema of the table.
        rows: The keys.
        levels: The bits of the file groups. The result has each key in one file group per level; at most one of these
            file groups exists in the table.
    """
    partitions, partition = partition_folders(schema, rows)
    vector = keys.key_vector(sort_keys(schema, rows))
    keys_by_group = {}
    for bits in levels:
        number = (partition << bits) | buckets(schema, rows, bits)
        order = np.argsort(number, kind="stable")
        values, starts = np.unique(number[order], return_index=True)
        bounds = itertools.pairwise([*starts.tolist(), len(order)])
        for value, (start, end) in zip(values.tolist(), bounds, strict=True):
            group = FileGroup(partitions[value >> bits], bits, value % (1 << bits))
            keys_by_group[group] = keys.union([keys.take(vector, order[start:end])])
    return keys_by_group
