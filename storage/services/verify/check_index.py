"""Checks the Bloom filters of base files and overlays: each has all values of its row group (PROTOCOL.md, S30)."""

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


def check_index(store: ObjectStore, file: FileRef, parquet: pq.ParquetFile, row_group: int, place: Place) -> None:
    """Check the filters of one row group of an open file, and report values that readers would not find."""
    footer = Footer.of(parquet.metadata)
    for name, leaf in footer.leaves.items():
        chunk = parquet.metadata.row_group(row_group).column(leaf)
        if chunk.bloom_filter_offset is None or not can_be_indexed(footer.schema.field(name).type):
            continue
        with store.open_input(file.path, file.size) as source:
            data = source.read_at(chunk.bloom_filter_length or 0, chunk.bloom_filter_offset)
        bloom_filter = BloomFilter.parse(data.to_pybytes() if hasattr(data, "to_pybytes") else data)
        values = one_array(parquet.read_row_group(row_group, columns=[name], use_threads=False).column(name))
        if bloom_filter is None or values.null_count == len(values):
            continue
        missing_values = int(np.sum(~bloom_filter.may_contain(hash_values(pc.unique(values.drop_null())))))
        if missing_values:
            text = f"the index of column {name!r} lacks {missing_values} values of row group {row_group}"
            place.bad_content("S30", f"{text}: reads by value miss rows")
