"""Buckets of a weft table as a partition spec of Iceberg, so that engines read only the bucket of a key.

The bucket of a key of one column is Iceberg's transform ``bucket[N]`` of this column (FORMAT.md, "Buckets"). A file of
one file group has the rows of one bucket, and belongs to this spec. A shared file has several buckets; it belongs to
the unpartitioned spec, as do position deletes, which exist for shared files only. For a key of several columns there is
no such transform, so engines only prune by column bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform

from weft.storage.core.names import Path
from weft.storage.core.plan.slices import FileSlice
from weft.storage.core.schema.table_schema import TableSchema

_FIRST_FIELD_ID: Final = 1000  # ids of partition fields begin here


def bucket_spec(schema: TableSchema, published_schema: Schema, metadata: TableMetadata) -> PartitionSpec | None:
    """The partition spec of files with one bucket, with its present or future id in the Iceberg table.

    Args:
        schema: The schema of the weft table.
        published_schema: The schema of the published table.
        metadata: The metadata of the published table.

    Returns:
        None if the key has several columns, or the table has one bucket.
    """
    if len(schema.key) > 1 or not schema.bucket_bits:
        return None
    source = schema.column(schema.key[0]).id
    transform: BucketTransform[int] = BucketTransform(num_buckets=1 << schema.bucket_bits)
    for spec in metadata.partition_specs:
        if [(field.source_id, field.transform) for field in spec.fields] == [(source, transform)]:
            return spec
    names = {field.name for spec in metadata.partition_specs for field in spec.fields}
    name = f"{schema.key[0]}_bucket"
    if name in names:  # with the number of buckets before a split
        name += f"_{1 << schema.bucket_bits}"
    # A partition field must not have the name of a column, either.
    while name in published_schema.column_names or name in names:
        name += "_"
    field_id = max(_FIRST_FIELD_ID, (metadata.last_partition_id or 0) + 1)
    field = PartitionField(source_id=source, field_id=field_id, transform=transform, name=name)
    return PartitionSpec(field, spec_id=1 + max(spec.spec_id for spec in metadata.partition_specs))


def files_of_one_bucket(slices: Iterable[FileSlice], bits: int) -> Mapping[Path, int]:
    """The bucket of each base file that was written for one file group of this number of bits."""
    return {
        slice_file.base.path: file_slice.group.bucket
        for file_slice in slices
        if (slice_file := file_slice.slice) is not None
        and slice_file.base is not None
        and slice_file.base_part is None
        and slice_file.bits == bits
    }
