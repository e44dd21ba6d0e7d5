"""A cache of the footers of base and shadow files, which never change and are costly to read for small files.

There is one cache per process. It is limited by the stored bytes of the footers and evicts the least recently used.
Footers are verified against their entry when they are read; the rows of a file are verified each time.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from storage.core.log.file_refs import FileRef
from storage.store.object_store import ObjectStore

MAX_BYTES: Final = 32 * 1024 * 1024  # decoded footers take up to eight times as much


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a Parquet file, decoded.

    Attributes:
        metadata: The metadata as pyarrow decodes it.
        schema: The Arrow schema of the file.
        leaves: Number of the Parquet leaf of every column that is not nested, by name.
        starts: First row of every row group, then the number of rows.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    leaves: Mapping[str, int]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, metadata: pq.FileMetaData) -> Footer:
        schema = metadata.schema.to_arrow_schema()
        flat = {field.name for field in schema if not pa.types.is_nested(field.type)}
        paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        # A field of a struct can have the path of another column, whose name has a dot.
        leaves = {
            path: i for i, path in enumerate(paths) if path in flat and ("." not in path or paths.count(path) == 1)
        }
        rows = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        return cls(metadata, schema, leaves, tuple(itertools.accumulate(rows, initial=0)))


class Footers:
    """The cache. Safe for use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._cached: OrderedDict[tuple[str, FileRef], Footer] = OrderedDict()

    def cached(self, store: ObjectStore, file: FileRef) -> Footer | None:
        """The footer of a file if it is in the cache."""
        key = (store.uri, file)
        with self._lock:
            footer = self._cached.get(key)
            if footer is not None:
                self._cached.move_to_end(key)
        return footer

    def get(self, store: ObjectStore, file: FileRef, read: Callable[[], pq.FileMetaData]) -> Footer:
        """The footer of a file; calls ``read`` if it is not in the cache, without holding a lock."""
        cached = self.cached(store, file)
        if cached is not None:
            return cached
        key = (store.uri, file)
        footer = Footer.of(read())
        with self._lock:
            if key not in self._cached:
                self._cached[key] = footer
                self._bytes += footer.metadata.serialized_size
            while self._bytes > self._max_bytes and len(self._cached) > 1:
                _, evicted = self._cached.popitem(last=False)
                self._bytes -= evicted.metadata.serialized_size
        return footer


FOOTERS: Final = Footers(MAX_BYTES)
"""The cache of this process."""
