"""Decodes columns of texts by way of their dictionary, which takes about half the time of decoding value by value."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa

from weft.storage.files.footers import Footer

_LONGEST_DICTIONARY: Final = 1024 * 1024  # bytes; a column chunk whose dictionary gets longer goes on with plain values


def dictionary_columns(footer: Footer, columns: Collection[str]) -> list[str]:
    """Names of those columns of a file that Parquet should decode as dictionaries.

    These are texts whose first row group is stored as a dictionary and positions in it. Plain values are left out: a
    dictionary of them would have to be made first.
    """
    if footer.metadata.num_row_groups == 0:
        return []
    first = footer.metadata.row_group(0)
    texts = [name for name in columns if name in footer.leaves and _is_text(footer.schema.field(name).type)]
    chunks = {name: first.column(footer.leaves[name]) for name in texts}
    return [
        name
        for name, chunk in chunks.items()
        if chunk.has_dictionary_page and chunk.total_uncompressed_size < _LONGEST_DICTIONARY
    ]


def without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a column that was decoded as a dictionary; any other column as it is."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type))
