"""Parts of the slices of a table: neighbouring file groups, packed, in memory or in a stored checkpoint.

A part in a checkpoint is read when it is needed. If the checkpoint is lost by then, its source replays the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.packed_json import pack, unpack
from weft.storage.core.log.slice_list import StoredSlice, decode_list

_PARTS_AT_ONCE: Final = 16
"""Parts in memory while all are read one after the other: about a megabyte, and few requests."""


class PartSource(Protocol):
    """A stored checkpoint, from which parts are read when they are needed."""

    def read(self, parts: Sequence[SlicePart]) -> list[SlicePart]:
        """The same slices in memory, in the order of ``parts``, whose places are in this checkpoint.

        Raises:
            StoreUnavailable: The store did not answer; a later call may succeed.
            CorruptData: The checkpoint is damaged, or was deleted, and the log does not give the slices either.
        """
        ...


class Place(NamedTuple):
    """Where a part is stored.

    Attributes:
        source: Its checkpoint.
        offset, length: Its bytes in the object.
        sha256: Their digest, in hexadecimal digits.
    """

    source: PartSource
    offset: int
    length: int
    sha256: str


class SlicePart:
    """Slices of neighbouring file groups, packed, in memory or in the store.

    Attributes:
        first, last: The range of their file groups.
        levels: The numbers of bucket bits of the file groups.
        slices: Number of slices.
        packed: The compressed JSON list of the slices, in order of file group; None as long as it was not read.
        size: Bytes of that list.
        place: Where it is stored; None if it is only in memory.
    """

    __slots__ = ("_stored", "first", "last", "levels", "packed", "place", "size", "slices")

    def __init__(
        self,
        first: FileGroup,
        last: FileGroup,
        levels: Collection[int],
        slices: int,
        packed: bytes | None,
        size: int,
        place: Place | None = None,
    ) -> None:
        """Requires: ``packed`` or ``place`` is not None."""
        self.first, self.last, self.levels, self.slices = first, last, frozenset(levels), slices
        self.packed, self.size, self.place = packed, size, place
        self._stored: dict[FileGroup, StoredSlice] | None = None

    @classmethod
    def of(cls, slices: Sequence[StoredSlice]) -> SlicePart:
        """Pack slices: at least one, in order of file group."""
        text = f"[{','.join(item.text for item in slices)}]".encode()
        levels = {item.group.bits for item in slices}
        return cls(slices[0].group, slices[-1].group, levels, len(slices), pack(text), len(text))

    @property
    def source(self) -> PartSource | None:
        """The checkpoint that it has to be read from; None if it is in memory."""
        return self.place.source if self.packed is None and self.place is not None else None

    def keep(self, part: SlicePart) -> None:
        """Keep the packed slices of an equal part that was read."""
        # Several threads may do this at once, with equal values: `size` first, since `packed` says that it was read.
        self.size = part.size
        self.packed = part.packed

    @property
    def is_unpacked(self) -> bool:
        return self._stored is not None

    def stored(self) -> Mapping[FileGroup, StoredSlice]:
        """The slices; read and unpacked once.

        Raises:
            CorruptData: They do not unpack, although their digest is right; or see `PartSource.read`.
            StoreUnavailable: See `PartSource.read`.
        """
        if self._stored is None:
            if self.packed is None:
                self.keep(read_parts([self])[0])
            assert self.packed is not None, "it was read"
            slices = unpack(self.packed, self.size, decode_list, f"slices {self.first} to {self.last}")
            self._stored = {item.group: item for item in slices.stored}
        return self._stored


def read_parts(parts: Sequence[SlicePart]) -> list[SlicePart]:
    """The same parts in memory, in that order; changes none of ``parts``. Raises as `PartSource.read`."""
    contents: list[SlicePart] = []
    for source, group in itertools.groupby(parts, key=lambda part: part.source):
        run = list(group)
        contents += run if source is None else source.read(run)
    return contents


def read_in_turn(parts: Sequence[SlicePart]) -> Iterator[SlicePart]:
    """`read_parts`, with few of them in memory at a time."""
    for start in range(0, len(parts), _PARTS_AT_ONCE):
        yield from read_parts(parts[start : start + _PARTS_AT_ONCE])
