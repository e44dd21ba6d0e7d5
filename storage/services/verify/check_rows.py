"""Checks for base, shadow and log files: the bytes of the file, and the keys and arrivals of its rows.

Rules such as S15 are in PROTOCOL.md, "Invariants".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays
from weft.storage.core.checksum import crc32
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.log.file_refs import FileGroup, FileRef
from weft.storage.core.merge.locate_keys import buckets, folders, sort_keys
from weft.storage.core.model import Group
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import CorruptData
from weft.storage.services.verify.findings import Findings, Place
from weft.storage.store.object_store import ObjectStore

CHUNK_BYTES: Final = 8 * 1024 * 1024  # of a file in memory while its checksum is computed
SAMPLE: Final = 3  # keys that a finding shows

UNREADABLE: Final = (pa.ArrowException, CorruptData, OSError, KeyError, IndexError)
"""Errors of decoding a file whose bytes are intact, so that it was already wrong when it was written."""

OnArrivals = Callable[[pa.Array, Place], object]
"""Called with the arrivals of registers, and the place of their file."""


def check_bytes(store: ObjectStore, file: FileRef, findings: Findings) -> bool:
    """Whether a file has the bytes that were written. Reports a problem."""
    findings.count("files")
    place = findings.at(file.path)
    try:
        with store.open_input(file.path, file.size) as source:
            checksum = position = 0
            while chunk := source.read_at(min(CHUNK_BYTES, file.size - position), position):
                checksum = crc32(chunk, checksum)
                position += len(chunk)
            tail = crc32(source.read_at(file.tail_size, file.size - file.tail_size))
    except (CorruptData, OSError) as error:
        place.damage("S7", f"{error.message if isinstance(error, CorruptData) else error}; reading it fails")
        return False
    findings.count("bytes", file.size)
    intact = (position, checksum, tail) == (file.size, file.crc32, file.tail_crc32)
    if not intact:
        place.damage("S7", "its checksum is not the one that was written: reading the damaged part fails")
    return intact


def columns_to_read(schema: TableSchema, groups: Iterable[Group], existing: Iterable[str], *extra: str) -> list[str]:
    """The existing columns that checks need: keys, first ordering columns, hidden state, and ``extra``."""
    needed_columns = {*schema.key, schema.sort_column, *extra}
    for group in groups:
        needed_columns.update(group.ordering[:1], (field.name for field in schema.state_fields(group)))
    return [name for name in existing if name in needed_columns]


def in_file_group(schema: TableSchema, rows: Arrays, stored_for: Sequence[FileGroup], counts: Sequence[int]) -> Mask:
    """Mask of rows that belong to their file group: ``counts[i]`` rows are stored for ``stored_for[i]``, in order."""
    number = np.repeat(np.arange(len(stored_for)), counts)
    partitions = pa.array([group.partition for group in stored_for], pa.string()).take(pa.array(number))
    home = np.asarray(pc.equal(folders(schema, rows), partitions))
    bits = np.array([group.bits for group in stored_for], np.int64)[number]
    bucket = np.array([group.bucket for group in stored_for], np.int64)[number]
    for level in np.unique(bits).tolist():
        home &= (bits != level) | (buckets(schema, rows, level) == bucket)
    return home


def sample(schema: TableSchema, rows: Arrays, mask: Mask) -> str:
    """Describe the rows in a mask: the keys of the first few, and the number of the others."""
    examples = [
        "(" + ", ".join(f"{name}={rows[name][i].as_py()!r}" for name in schema.key) + ")"
        for i in np.flatnonzero(mask)[:SAMPLE].tolist()
    ]
    others = int(mask.sum()) - len(examples)
    return ", ".join(examples) + (f" and {others} more" if others else "")


class RowChecker:
    """Checks the rows of one file or part of a file, in the order in which they are stored."""

    def __init__(
        self, schema: TableSchema, groups: Sequence[Group], place: Place, on_arrivals: OnArrivals, *, distinct: bool
    ) -> None:
        """``groups``: column groups of the file; ``distinct``: each key has only one row."""
        self._schema, self._groups, self._place, self._on_arrivals = schema, groups, place, on_arrivals
        self._distinct = distinct
        self._numbers: dict[FileGroup, int] = {}
        self._last: tuple[KeyVector, Indices] | None = None

    def check(
        self,
        rows: Arrays,
        stored_for: Sequence[FileGroup],
        counts: Sequence[int],
        *other_checks: tuple[str, Mask, str],
        prefix: str = "",
    ) -> KeyVector:
        """Check the next rows, and return their keys.

        Args:
            rows: Columns by name.
            stored_for: File groups of these rows, in order.
            counts: Number of rows of each file group.
            other_checks: Further checks: (invariant, mask of rows that violate it, message).
            prefix: Start of each finding's text.
        """
        schema = self._schema
        vector = keys.key_vector(rows[schema.sort_column])
        is_misplaced = ~in_file_group(schema, rows, stored_for, counts)
        twice = ", or come twice" if self._distinct else ""
        checks = [
            ("S15", is_misplaced, "keys belong to another file group: readers look for them there"),
            ("S15", self._misordered(vector, stored_for, counts), f"keys are not ascending{twice}: readers miss some"),
            ("S15", _wrong_sort_key(schema, rows), "the sort key is not that of the key columns: readers miss some"),
        ]
        for invariant, is_wrong, text in (*checks, *other_checks):
            if is_wrong.any():
                self._place.bad_content(invariant, f"{prefix}{text}: {sample(schema, rows, is_wrong)}")
        for group in self._groups:
            for name in (names.arrival(group.id), names.floor_arrival(group.id), names.top_arrival(group.id)):
                if name in rows:
                    self._on_arrivals(rows[name], self._place)
        return vector

    def _misordered(self, vector: KeyVector, stored_for: Sequence[FileGroup], counts: Sequence[int]) -> Mask:
        """Mask of keys that are not larger than the previous key of their file group, also across calls."""
        numbers = [self._numbers.setdefault(group, len(self._numbers)) for group in stored_for]
        number, start = np.repeat(np.array(numbers, np.int64), counts), 0
        if self._last is not None:
            last_key, last_number = self._last
            vector, number = keys.concat([last_key, vector]), np.concatenate([last_number, number])
            start = len(last_number)
        is_wrong = np.zeros(len(number), np.bool_)
        compare = pc.less_equal if self._distinct else pc.less
        is_wrong[1:] = np.asarray(compare(vector[1:], vector[:-1])) & (number[1:] == number[:-1])
        self._last = vector[-1:], number[-1:]
        return is_wrong[start:]


def _wrong_sort_key(schema: TableSchema, rows: Arrays) -> Mask:
    if not schema.has_sort_key:
        return np.zeros(len(rows[schema.key[0]]), np.bool_)
    return np.asarray(pc.not_equal(sort_keys(schema, rows), rows[names.KEY]))
