"""Checks the Bloom filters of base files and overlays: each contains all values of its row group (S30)."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weft.storage.core.keys import one_array
from weft.storage.core.log.file_refs import FileRef
from weft.storage.core.types import can_be_indexed
from weft.storage.files.bloom_filter import BloomFilter, hash_values
from weft.storage.files.footers import Footer
from weft.storage.services.verify.findings import Place
from weft.storage.store.object_store import ObjectStore


def check_index(store: ObjectStore, file: FileRef, parquet: pq.ParquetFile, row_group: int, at: Place) -> None:
    """Check the filters of one row group of an open file, and report values that readers would not find."""
    footer = Footer.of(parquet.metadata)
    for name, leaf in footer.leaves.items():
        chunk = parquet.metadata.row_group(row_group).column(leaf)
        if chunk.bloom_filter_offset is None or not can_be_indexed(footer.schema.field(name).type):
            continue
        with store.open_input(file.path, file.size) as source:
            stored = source.read_at(chunk.bloom_filter_length or 0, chunk.bloom_filter_offset)
        found = BloomFilter.parse(stored.to_pybytes() if hasattr(stored, "to_pybytes") else stored)
        values = one_array(parquet.read_row_group(row_group, columns=[name], use_threads=False).column(name))
        if found is None or values.null_count == len(values):
            continue
        lost = int(np.sum(~found.may_contain(hash_values(pc.unique(values.drop_null())))))
        if lost:
            what = (
                f"the index of column {name!r} lacks {lost} values of row group {row_group}: reads by value miss rows"
            )
            at.bad_content("S30", what)
