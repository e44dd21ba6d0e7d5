"""Estimates the memory that file groups need, from their rows, stored bytes and the schema.

Stored bytes alone are a bad estimate: repeated integers are stored in a bit and need eight bytes each in memory, and
each separate column in memory needs kilobytes, even with few rows. So a file group costs

    rows x width of the columns of fixed width    (exact)
    stored bytes x `UNPACKED`                     (an estimate, for texts)

and code that holds file groups, blocks or batches separately needs `APART_BYTES` for each column of each of them.
`tests/benchmarks/memory.py` measures both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from weft.storage.core.plan.slices import FileSlice, LiveFile
from weft.storage.core.schema.table_schema import TableSchema

T = TypeVar("T")

UNPACKED: Final = 4
"""Estimate of the bytes in memory for each stored byte."""

APART_BYTES: Final = 2 * 1024
"""Memory of a column of a few rows: objects of Arrow and Python, and rounded buffers. Measured: 1.2 to 2 KiB."""

_BATCHES: Final = 16


def group_bytes(schema: TableSchema, file_slice: FileSlice) -> int:
    """Estimate of the memory for all rows of a file group, before they are merged."""
    size_bytes = file_slice.base_bytes + file_slice.log_bytes
    return max(UNPACKED * size_bytes, file_slice.stored_rows * schema.row_bytes)


def log_memory_bytes(schema: TableSchema, log_bytes: int, log_rows: int) -> int:
    """Estimate of the memory for some rows of logs."""
    return max(UNPACKED * log_bytes, log_rows * schema.row_bytes)


def merging_bytes(schema: TableSchema) -> int:
    """Memory for the columns of a merge, without their rows: some batches each to read, merge and write."""
    return _BATCHES * APART_BYTES * len(schema.slice)


def block_bytes(slices: Iterable[FileSlice], files: Sequence[LiveFile]) -> int:
    """Memory for the columns of the log blocks of file groups, without their rows: each block is held separately."""
    blocks = {pair for item in slices for pair in zip(item.file.tolist(), item.block.tolist(), strict=True)}
    return APART_BYTES * sum(len(files[number].file.columns) for number, _ in blocks)


def cut_by_size(items: Sequence[T], sizes: Iterable[float], limit: float) -> Iterator[list[T]]:
    """Divide items into runs of neighbours with a total size up to ``limit``; a larger item is alone."""
    run: list[T] = []
    filled = 0.0
    for item, size in zip(items, sizes, strict=True):
        if run and filled + size > limit:
            yield run
            run, filled = [], 0.0
        run.append(item)
        filled += size
    if run:
        yield run
