"""Reads the footers of base and shadow files, and caches them: they never change, and are costly for small files.

There is one cache per process. It is limited by the stored bytes of the footers and evicts the least recently used.
Footers are verified against their entry when they are read; the rows of a file are verified each time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.bounded_cache import BoundedCache
from weft.storage.core.log.file_refs import FileRef
from weft.storage.environment import Environment
from weft.storage.store.object_store import ObjectStore, ReadRequest, check_tail, tail_range, verify_tail

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


class Footers(BoundedCache[tuple[str, FileRef], Footer]):
    """The cache. Safe for use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, lambda footer: footer.metadata.serialized_size, keeps_newest=True)

    def read(self, store: ObjectStore, file: FileRef, load: Callable[[], pq.FileMetaData]) -> Footer:
        """The footer of a file; calls ``load`` if it is not in the cache, without holding a lock."""
        return self.get((store.uri, file), lambda: Footer.of(load()))


FOOTERS: Final = Footers(MAX_BYTES)
"""The cache of this process."""


def read_metadata(source: pa.NativeFile, file: FileRef) -> pq.FileMetaData:
    """Read the footer of an open file.

    Raises:
        CorruptData: It is damaged.
    """
    # A damaged footer can end the process in Arrow's C++ code, so it is verified before it is parsed.
    verify_tail(source, file)
    return pq.read_metadata(source)


def read_footers(env: Environment, files: Sequence[FileRef]) -> list[Footer]:
    """The footers of base or shadow files, verified, in the given order. Those that are not cached are read at once.

    Raises:
        CorruptData: A file is missing, or its footer is damaged.
    """
    footers = {file.path: FOOTERS.find((env.store.uri, file)) for file in files}
    absent = [file for file in files if footers[file.path] is None]
    tails = env.store.read_ranges([ReadRequest(file.path, file.size, [tail_range(file)]) for file in absent])
    for file, (tail,) in zip(absent, tails, strict=True):
        check_tail(tail, file)
        footers[file.path] = FOOTERS.read(env.store, file, functools.partial(pq.read_metadata, pa.BufferReader(tail)))
    return [footer for file in files if (footer := footers[file.path]) is not None]
