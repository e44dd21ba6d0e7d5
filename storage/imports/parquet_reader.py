"""Reads a Parquet file, or a folder of Parquet files. Folders like ``day=2024-01-31`` become columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds

from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import BATCH_ROWS, ForeignTable, refuse_version

_TABLES: Final = {
    "delta": "_delta_log",
    "hudi": ".hoodie",
    "iceberg": "metadata/*.metadata.json",
    "paimon": "schema/schema-*",
}
"""Paths that identify a table of each format, whose Parquet files also have rows that the table has deleted."""


def open_table(location: str, version: str | None, options: dict[str, Any]) -> ForeignTable:
    """Open the files at a location. ``options``: options of the fsspec file system."""
    refuse_version("parquet", version)
    files, path = fsspec.url_to_fs(location, **options)
    _refuse_table(files, path, location)
    dataset = ds.dataset(path, filesystem=files, format="parquet", partitioning="hive")
    if not dataset.files:
        raise InvalidInput(f"there is no Parquet file at {location}", hint="give a file, or a folder of files")

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # Without these limits the scanner reads many files and batches ahead.
        yield from dataset.to_batches(
            columns=list(columns), batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1
        )

    first = next(dataset.get_fragments())
    sizes = [f"{name} {files.info(name)['size']}" for name in dataset.files]
    return ForeignTable(
        kind="parquet",
        location=location,
        version=f"{len(sizes)} files, {hashlib.sha256(chr(10).join(sizes).encode()).hexdigest()[:16]}",
        schema=dataset.schema,
        batches=batches,
        rows=dataset.count_rows(),
        partition_by=list(ds.get_partition_keys(first.partition_expression)),
    )


def _refuse_table(files: fsspec.AbstractFileSystem, path: str, location: str) -> None:
    for kind, mark in _TABLES.items():
        folder, _, pattern = mark.partition("/")
        inside = f"{path.rstrip('/')}/{folder}"
        if files.glob(f"{inside}/{pattern}") if pattern else files.exists(inside):
            raise InvalidInput(
                f"{location} is a table of {kind}: its files also have rows that it has replaced or deleted",
                hint=f"read it with --from {kind}",
            )
