"""Checks that base, shadow and log files share: the bytes of the file, and the keys and arrivals of its rows."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import keys, names
from storage.core.keys import KeyVector, Mask
from storage.core.log.file_refs import FileGroup, FileRef
from storage.core.merge.locate_keys import buckets, folders, sort_keys
from storage.core.model import Group
from storage.core.schema.table_schema import TableSchema
from storage.errors import CorruptData
from storage.services.verify.findings import Findings, bad_content, damage
from storage.store.object_store import ObjectStore

CHUNK_BYTES: Final = 8 * 1024 * 1024  # of a file in memory while its checksum is computed
SAMPLE: Final = 3  # keys that a finding shows

UNREADABLE: Final = (pa.ArrowException, CorruptData, OSError, KeyError, IndexError)
"""Errors of decoding a file whose bytes are those that were written, but wrong."""

Rows = Mapping[str, pa.Array]
OnArrivals = Callable[[pa.Array, str], object]
"""Called with the arrivals of registers, and the file that they are in."""


def check_bytes(store: ObjectStore, file: FileRef, findings: Findings) -> bool:
    """Whether a file has the bytes that were written; a problem is reported."""
    findings.count("files")
    try:
        with store.open_input(file.path, file.size) as source:
            whole = position = 0
            while chunk := source.read_at(min(CHUNK_BYTES, file.size - position), position):
                whole = zlib.crc32(chunk, whole)
                position += len(chunk)
            tail = zlib.crc32(source.read_at(file.tail_size, file.size - file.tail_size))
    except (CorruptData, OSError) as error:
        message = error.message if isinstance(error, CorruptData) else str(error)
        findings.add(damage("S7", str(file.path), f"{message}; reading it fails"))
        return False
    findings.count("bytes", file.size)
    if (position, whole, tail) == (file.size, file.crc32, file.tail_crc32):
        return True
    what = "its checksum is not the one that was written: reading the damaged part fails"
    findings.add(damage("S7", str(file.path), what))
    return False


def columns_to_read(schema: TableSchema, groups: Iterable[Group], present: Iterable[str], *more: str) -> list[str]:
    """The present columns that checks need: keys, first ordering columns, hidden state, and ``more``."""
    wanted = {*schema.key, schema.sort_column, *more}
    for group in groups:
        wanted.update(group.ordering[:1], (field.name for field in schema.state_fields(group)))
    return [name for name in present if name in wanted]


def in_file_group(schema: TableSchema, rows: Rows, stored_for: Sequence[FileGroup], counts: Sequence[int]) -> Mask:
    """Which rows belong to the file group they are stored for: ``counts[i]`` rows for ``stored_for[i]``, in order."""
    number = np.repeat(np.arange(len(stored_for)), counts)
    partitions = pa.array([group.partition for group in stored_for], pa.string()).take(pa.array(number))
    bucket = np.array([group.bucket for group in stored_for], np.int64)[number]
    return np.asarray(pc.equal(folders(schema, rows), partitions)) & (buckets(schema, rows) == bucket)


def sample(schema: TableSchema, rows: Rows, chosen: Mask) -> str:
    """The keys of the first few chosen rows, and the number of the others."""
    shown = [
        "(" + ", ".join(f"{name}={rows[name][i].as_py()!r}" for name in schema.key) + ")"
        for i in np.flatnonzero(chosen)[:SAMPLE].tolist()
    ]
    more = int(chosen.sum()) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


@dataclass(slots=True, kw_only=True)
class RowChecker:
    """Checks the rows of one file or part of a file, in the order in which they are stored.

    Attributes:
        schema: Schema of the rows.
        groups: Column groups of the file.
        distinct: Each key has one row only.
        where: The file, for findings.
        findings: Collects what is wrong.
        on_arrivals: Called with the arrivals of registers.
    """

    schema: TableSchema
    groups: Sequence[Group]
    distinct: bool
    where: str
    findings: Findings
    on_arrivals: OnArrivals
    _last: tuple[FileGroup, KeyVector] | None = None

    def check(
        self,
        rows: Rows,
        stored_for: Sequence[FileGroup],
        counts: Sequence[int],
        *more: tuple[str, Mask, str],
        prefix: str = "",
    ) -> KeyVector:
        """Check the next rows, and return their keys.

        Args:
            rows: Columns by name.
            stored_for: File groups that follow each other in these rows.
            counts: How many of the rows each file group has.
            more: More checks: (invariant, rows that violate it, what is wrong).
            prefix: Of what findings say.
        """
        schema = self.schema
        vector = keys.key_vector(rows[schema.sort_column])
        misplaced = ~in_file_group(schema, rows, stored_for, counts)
        twice = ", or come twice" if self.distinct else ""
        checks = [
            ("S15", misplaced, "keys belong to another file group: readers look for them there"),
            ("S15", self._misordered(vector, stored_for, counts), f"keys are not ascending{twice}: readers miss some"),
            ("S15", _wrong_sort_key(schema, rows), "the sort key is not that of the key columns: readers miss some"),
        ]
        for invariant, wrong, what in (*checks, *more):
            if wrong.any():
                shown = sample(schema, rows, wrong)
                self.findings.add(bad_content(invariant, self.where, f"{prefix}{what}: {shown}"))
        for group in self.groups:
            for name in (names.arrival(group.id), names.floor_arrival(group.id), names.top_arrival(group.id)):
                if name in rows:
                    self.on_arrivals(rows[name], self.where)
        return vector

    def _misordered(self, vector: KeyVector, stored_for: Sequence[FileGroup], counts: Sequence[int]) -> Mask:
        """Which keys do not follow the one before them in their file group."""
        masks = [np.zeros(0, np.bool_)]
        for group, (start, end) in zip(stored_for, itertools.pairwise([0, *itertools.accumulate(counts)]), strict=True):
            part = keys.take(vector, slice(start, end))
            follows = self._last is not None and self._last[0] == group
            joined = keys.concat([self._last[1], part]) if self._last is not None and follows else part
            masks.append(_not_ascending(joined, distinct=self.distinct)[len(joined) - len(part) :])
            if len(part):
                self._last = group, keys.take(part, slice(len(part) - 1, len(part)))
        return np.concatenate(masks)


def _not_ascending(vector: KeyVector, *, distinct: bool) -> Mask:
    if len(vector) == 0:
        return np.zeros(0, np.bool_)
    before, after = keys.take(vector, slice(0, len(vector) - 1)), keys.take(vector, slice(1, len(vector)))
    if isinstance(vector, np.ndarray):
        wrong = after <= before if distinct else after < before
    else:
        wrong = np.asarray((pc.less_equal if distinct else pc.less)(after, before))
    return np.concatenate([np.zeros(1, np.bool_), np.asarray(wrong, np.bool_)])


def _wrong_sort_key(schema: TableSchema, rows: Rows) -> Mask:
    if not schema.has_sort_key:
        return np.zeros(len(rows[schema.key[0]]), np.bool_)
    return np.asarray(pc.not_equal(sort_keys(schema, rows), rows[names.KEY]))
