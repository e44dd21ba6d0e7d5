"""Checks that base, shadow and log files share: the bytes of the file, and the keys and arrivals of its rows."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.core import keys, names
from storage.core.keys import KeyVector, Mask
from storage.core.log.file_refs import FileRef
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
Location = tuple[str, int]
"""Partition folder and bucket of a file group."""

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


def in_file_group(schema: TableSchema, rows: Rows, locations: Sequence[Location], counts: Sequence[int]) -> Mask:
    """Which rows belong to the file group they are stored for: ``counts[i]`` rows for ``locations[i]``, in order."""
    number = np.repeat(np.arange(len(locations)), counts)
    partitions = pa.array([partition for partition, _ in locations], pa.string()).take(pa.array(number))
    bucket = np.array([bucket for _, bucket in locations], np.int64)[number]
    return np.asarray(pc.equal(folders(schema, rows), partitions)) & (buckets(schema, rows) == bucket)


def sample(schema: TableSchema, rows: Rows, chosen: Mask) -> str:
    """The keys of the first few chosen rows, and the number of the others."""
    shown = [
        "(" + ", ".join(f"{name}={rows[name][i].as_py()!r}" for name in schema.key) + ")"
        for i in np.flatnonzero(chosen)[:SAMPLE].tolist()
    ]
    more = int(chosen.sum()) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


class RowChecker:
    """Checks the rows of one file or part of a file, in the order in which they are stored."""

    def __init__(
        self,
        schema: TableSchema,
        groups: Sequence[Group],
        *,
        distinct: bool,
        where: str,
        findings: Findings,
        on_arrivals: OnArrivals,
    ) -> None:
        """Prepare for the first rows.

        Args:
            schema: Schema of the rows.
            groups: Column groups of the file.
            distinct: Each key has one row only.
            where: The file, for findings.
            findings: Collects what is wrong.
            on_arrivals: Called with the arrivals of registers.
        """
        self._schema, self._groups, self._distinct = schema, groups, distinct
        self._where, self._findings, self._on_arrivals = where, findings, on_arrivals
        self._last: tuple[Location, KeyVector] | None = None

    def check(
        self,
        rows: Rows,
        locations: Sequence[Location],
        counts: Sequence[int],
        *more: tuple[str, Mask, str],
        prefix: str = "",
    ) -> KeyVector:
        """Check the next rows, and return their keys.

        Args:
            rows: Columns by name.
            locations: File groups that follow each other in these rows.
            counts: How many of the rows each file group has.
            more: More checks: (invariant, rows that violate it, what is wrong).
            prefix: Of what findings say.
        """
        schema = self._schema
        vector = keys.key_vector(rows[schema.sort_column])
        misplaced = ~in_file_group(schema, rows, locations, counts)
        twice = ", or come twice" if self._distinct else ""
        checks = [
            ("S15", misplaced, "keys belong to another file group: readers look for them there"),
            ("S15", self._misordered(vector, locations, counts), f"keys are not ascending{twice}: readers miss some"),
            ("S15", _wrong_sort_key(schema, rows), "the sort key is not that of the key columns"),
        ]
        for invariant, wrong, what in (*checks, *more):
            if wrong.any():
                shown = sample(schema, rows, wrong)
                self._findings.add(bad_content(invariant, self._where, f"{prefix}{what}: {shown}"))
        for group in self._groups:
            for name in (names.arrival(group.id), names.floor_arrival(group.id), names.top_arrival(group.id)):
                if name in rows:
                    self._on_arrivals(rows[name], self._where)
        return vector

    def _misordered(self, vector: KeyVector, locations: Sequence[Location], counts: Sequence[int]) -> Mask:
        """Which keys do not follow the one before them in their file group."""
        masks = [np.zeros(0, np.bool_)]
        for location, (start, end) in zip(
            locations, itertools.pairwise([0, *itertools.accumulate(counts)]), strict=True
        ):
            part = keys.take(vector, slice(start, end))
            follows = self._last is not None and self._last[0] == location
            joined = keys.concat([self._last[1], part]) if self._last is not None and follows else part
            masks.append(_not_ascending(joined, distinct=self._distinct)[len(joined) - len(part) :])
            if len(part):
                self._last = location, keys.take(part, slice(len(part) - 1, len(part)))
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
