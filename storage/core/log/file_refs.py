"""References to files in entries: where a file is, what it contains, and which parts of it a reader needs.

These are parts of entries, as they are stored (`weft.storage.core.log.entries`; FORMAT.md, "Entries").
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from weft.storage.core.names import LaneName, Path

Seqs = dict[LaneName, int]
"""The last entry of a prefix of each lane; lanes that are left out have no entry."""


class FileGroup(NamedTuple):
    """Where a key is stored: partition folder ("" for none), bucket bits and bucket number (PROTOCOL.md, S15).

    A tuple, because planning a read looks up every file group several times, and tuples hash quickly.
    """

    partition: str
    bits: int
    bucket: int

    def __str__(self) -> str:
        folder = f"b{self.bits:02d}-{self.bucket:05d}"
        return f"{self.partition}/{folder}" if self.partition else folder

    def within(self, bits: int) -> FileGroup:
        """The file group with fewer bits that this one is a part of."""
        return FileGroup(self.partition, bits, self.bucket & ((1 << bits) - 1))

    def parts(self, bits: int) -> Iterator[FileGroup]:
        """The file groups with more bits that this one consists of, ascending."""
        buckets = range(self.bucket, 1 << bits, 1 << self.bits)
        return (FileGroup(self.partition, bits, bucket) for bucket in buckets)


def _share(seqs: Seqs, info: pydantic.ValidationInfo) -> Seqs:
    """The first equal cut that was decoded with the same context, or this one."""
    cuts: dict[tuple[tuple[LaneName, int], ...], Seqs] | None = info.context
    return seqs if cuts is None else cuts.setdefault(tuple(seqs.items()), seqs)


SharedSeqs = Annotated[Seqs, pydantic.AfterValidator(_share)]
"""A cut that many file groups share. File groups that are decoded with one ``context={}`` get the same object:
otherwise memory would grow with groups times lanes."""


class Strict(BaseModel):
    """A part of an entry: immutable, and without unknown members."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRef(Strict):
    """One stored file.

    Attributes:
        path: Relative to the table's folder.
        size: In bytes.
        crc32: Checksum of all bytes.
        tail_size: Length of the footer in bytes, which says where everything else is.
        tail_crc32: Checksum of the footer; every reader verifies it.
        rows: Number of rows.
    """

    path: Path
    size: int
    crc32: int
    tail_size: int
    tail_crc32: int
    rows: int


class LogRanges(Strict):
    """Where the rows of every file group are: parallel lists, ordered by (partition, bucket, block).

    Attributes:
        partition: Position in `LogIndex.partitions`.
        bucket: Bucket number.
        block: Position in `LogIndex.blocks`.
        start: First row within the block.
        rows: Number of rows.
        deletes: How many of the rows are deletes.
    """

    partition: list[int]
    bucket: list[int]
    block: list[int]
    start: list[int]
    rows: list[int]
    deletes: list[int]

    @functools.cached_property
    def arrays(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """The lists as arrays: every plan needs them, and an index is read once."""
        return {name: np.array(getattr(self, name), np.int64) for name in type(self).model_fields}


class Blocks(Strict):
    """The record batches of a log file, in file order: parallel lists.

    Values are in JSON form (`weft.storage.core.types.encode_scalar`).

    Attributes:
        offset, length: Position in the file, in bytes.
        crc32: Checksum of the block.
        rows: Number of rows.
        key_min, key_max: Smallest and largest value of the sort column.
        ordering_min, ordering_max: Smallest and largest first ordering value, by group id; None: there is none.
    """

    offset: list[int]
    length: list[int]
    crc32: list[int]
    rows: list[int]
    key_min: list[Any]
    key_max: list[Any]
    ordering_min: dict[int, list[Any]]
    ordering_max: dict[int, list[Any]]


class LogIndex(Strict):
    """The index of a log file: which bytes hold the rows of which file groups."""

    partitions: list[str]
    ranges: LogRanges
    blocks: Blocks


class Sidecar(Strict):
    """A reference to an object with a part of an entry that is too large for the entry."""

    path: Path
    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, data: bytes) -> Sidecar:
        return cls(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())


class LogFile(Strict):
    """One log file of a DATA entry.

    Attributes:
        file: Where it is.
        form: ``event``: rows are events and have the arrival of the commit. ``register``: the file of a fold; rows
            are registers, one per key, with the hidden state columns of slices.
        groups: Ids of its groups.
        columns: Names of its columns, in file order.
        deletes: How many of its rows are deletes.
        bits: Bucket bits of the file groups in its index.
        index: The index, or the sidecar that holds it.
    """

    file: FileRef
    form: Literal["event", "register"]
    groups: list[int]
    columns: list[str]
    deletes: int
    bits: int
    index: LogIndex | Sidecar

    @property
    def objects(self) -> tuple[FileRef | Sidecar, ...]:
        """The stored objects: the file, and the sidecar with its index, if there is one."""
        return (self.file, self.index) if isinstance(self.index, Sidecar) else (self.file,)


class FilePart(Strict):
    """The rows of one file group in a file of several file groups: ``rows`` rows, starting at row ``first``."""

    first: int = Field(ge=0)
    rows: int = Field(ge=1)


class Overlay(Strict):
    """A file with newer values of some column groups of a base file: a row for each of its rows, in the same order.

    Attributes:
        file: Where it is.
        groups: Ids of the column groups that are read from it, ascending. It may have others, which a newer overlay
            replaces.
    """

    file: FileRef
    groups: list[int] = Field(min_length=1)


class Replaced(Strict):
    """A slice with other bits, in the same partition, that a slice was made from, and that it ends."""

    bits: int
    bucket: int
    cut: SharedSeqs


class SliceFile(Strict):
    """One slice of a file group: the result of merging its logs up to ``cut``.

    Attributes:
        partition: Folder of the partition, "" for none.
        bits: Bucket bits.
        bucket: Bucket number.
        rev: Slot of the CREATE or SCHEMA entry whose columns and types its files have.
        parent: Cut of the slice that this one was made from; empty for the first.
        cut: Last entry of each lane that is in it.
        groups: Ids of the groups it covers.
        base: File of the visible rows; None if there are none.
        shadow: File of the rows without a visible group, or hidden; None if there are none.
        ordering_max: Largest first ordering value in base and shadow, by group id, in JSON form.
        overflows: Number of rows in which an aggregate does not fit its column and is shown as NULL, by column id;
            columns without such rows are not listed.
        base_part, shadow_part: Which rows of the file belong to this file group; None: all of them.
        overlays: Files that replace column groups of the base; no two have the same group. Base and shadow are then
            those of an earlier slice.
        replaces: The slices with other bits that it was made from, if a split or a merge of file groups made it. It
            has no parent then.
    """

    partition: str
    bits: int
    bucket: int
    rev: int
    parent: SharedSeqs
    cut: SharedSeqs
    groups: list[int]
    base: FileRef | None
    shadow: FileRef | None
    ordering_max: dict[int, Any]
    overflows: dict[int, int]
    base_part: FilePart | None = None
    shadow_part: FilePart | None = None
    overlays: list[Overlay] = []
    replaces: list[Replaced] = []

    @property
    def group(self) -> FileGroup:
        """The file group that it is a slice of."""
        return FileGroup(self.partition, self.bits, self.bucket)

    @property
    def objects(self) -> tuple[FileRef, ...]:
        """The stored objects: base, shadow and overlays, if it has them. Several slices may share a file."""
        overlays = (overlay.file for overlay in self.overlays)
        return tuple(file for file in (self.base, self.shadow, *overlays) if file is not None)

    @property
    def base_rows(self) -> int:
        return _rows_in(self.base, self.base_part)

    @property
    def shadow_rows(self) -> int:
        return _rows_in(self.shadow, self.shadow_part)

    @property
    def base_bytes(self) -> int:
        """Stored bytes of its visible rows, overlays included; of a shared file a share in proportion to the rows."""
        size_bytes = _bytes_in(self.base, self.base_part)
        if self.overlays:
            size_bytes += sum(_bytes_in(overlay.file, self.base_part) for overlay in self.overlays)
        return size_bytes

    @property
    def shadow_bytes(self) -> int:
        return _bytes_in(self.shadow, self.shadow_part)

    @pydantic.model_serializer(mode="wrap")
    def _without_null_parts(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = dump(self)
        optional = ("base_part", "shadow_part", "overlays", "replaces")
        absent = {name for name in optional if not values.get(name)}
        return {name: value for name, value in values.items() if name not in absent}


def _rows_in(file: FileRef | None, part: FilePart | None) -> int:
    return 0 if file is None else file.rows if part is None else part.rows


def _bytes_in(file: FileRef | None, part: FilePart | None) -> int:
    return 0 if file is None else file.size if part is None else file.size * part.rows // file.rows
