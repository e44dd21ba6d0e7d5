"""Footers of base and shadow files, kept: files never change, and of many small ones the footer is most of the work.

One per process, bounded by the stored bytes of the footers, least recently used first out. What is here was verified
against its entry when it was read; the rows of a file are verified each time.
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

MAX_BYTES: Final = 32 * 1024 * 1024  # decoded up to eight times as much


@dataclass(frozen=True, slots=True)
class Footer:
    """What the end of a Parquet file says.

    Attributes:
        metadata: All of it.
        schema: Its columns.
        leaves: Number of the Parquet leaf of every column that is not nested.
        starts: First row of every row group, and how many rows there are.
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
        # A part of a struct can have the path of another column, whose name has a dot.
        leaves = {
            path: i for i, path in enumerate(paths) if path in flat and ("." not in path or paths.count(path) == 1)
        }
        rows = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        return cls(metadata, schema, leaves, tuple(itertools.accumulate(rows, initial=0)))


class Footers:
    """See the module. Safe for use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, FileRef], Footer] = OrderedDict()

    def get(self, store: ObjectStore, file: FileRef, read: Callable[[], pq.FileMetaData]) -> Footer:
        """The footer of a file; ``read`` it if it is not here. No lock is held meanwhile."""
        key = (store.uri, file)
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        footer = Footer.of(read())
        with self._lock:
            if key not in self._known:
                self._known[key] = footer
                self._bytes += file.tail_size
            while self._bytes > self._max_bytes and len(self._known) > 1:
                (_, dropped), _ = self._known.popitem(last=False)
                self._bytes -= dropped.tail_size
        return footer


FOOTERS: Final = Footers(MAX_BYTES)
"""Those of this process."""
