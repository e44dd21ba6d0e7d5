"""The newest slice of every file group, most of which nobody looks at.

A process that opens a table gets the slices of its checkpoint *packed*: parts of about a thousand neighbouring file
groups, compressed, each with the range of its file groups. A part is unpacked when one of its file groups is asked for.
So a writer, which asks for none, has 50 bytes in memory for each file group instead of a kilobyte, and a look-up
unpacks the parts of its keys.

    parts     [a .. f][g .. m][n .. z]     packed: of the checkpoint, or of an earlier state
    newer          d        k              unpacked: slices of entries after that

New slices must be made from the newest ones (S10 CutChain). If those are packed, the new ones are taken at their word,
and the check is made when the part is unpacked, which is before it is packed again.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa

from storage.core.log import cut
from storage.core.log.file_refs import FileGroup, SliceFile
from storage.core.log.slice_list import NOTHING, SliceList, StoredSlice, decode_list, distinct_cuts
from storage.errors import CorruptData

PART_SLICES: Final = 1024
"""File groups of a part. A larger one compresses no better, and a look-up of one key unpacks all of it."""

_NEWER_PARTS: Final = 8
"""Slices of so many parts, and an eighth of all, may be newer than the parts: packing all of 100,000 takes a second."""

_CODEC: Final = "zstd"


class SlicePart:
    """Slices of neighbouring file groups, packed.

    Attributes:
        first, last: The range of their file groups.
        levels: Their numbers of bits.
        slices: How many they are.
        packed: The compressed JSON list of the slices, in order of file group.
        size: Bytes of that list.
    """

    __slots__ = ("_stored", "first", "last", "levels", "packed", "size", "slices")

    def __init__(
        self, first: FileGroup, last: FileGroup, levels: Collection[int], slices: int, packed: bytes, size: int
    ) -> None:
        self.first, self.last, self.levels, self.slices = first, last, frozenset(levels), slices
        self.packed, self.size = packed, size
        self._stored: dict[FileGroup, StoredSlice] | None = None

    @classmethod
    def of(cls, slices: Sequence[StoredSlice]) -> SlicePart:
        """Pack slices: at least one, in order of file group."""
        text = f"[{','.join(item.text for item in slices)}]".encode()
        levels = {item.group.bits for item in slices}
        packed = pa.compress(text, codec=_CODEC, asbytes=True)
        return cls(slices[0].group, slices[-1].group, levels, len(slices), packed, len(text))

    @property
    def is_unpacked(self) -> bool:
        return self._stored is not None

    def stored(self) -> Mapping[FileGroup, StoredSlice]:
        """The slices; unpacked once.

        Raises:
            CorruptData: They do not unpack, although the digest of their checkpoint is right.
        """
        if self._stored is None:
            try:
                text = pa.decompress(self.packed, self.size, codec=_CODEC, asbytes=True)
                self._stored = {item.group: item for item in decode_list(text).stored}
            except (pa.ArrowException, OSError, ValueError) as error:
                raise CorruptData(
                    f"slices {self.first} to {self.last} of a checkpoint do not unpack: {error}",
                    hint="delete the checkpoints of the table lane: they only save reading",
                ) from error
        return self._stored


class Slices(Mapping[FileGroup, SliceFile]):
    """The newest slice of every file group that has one, by file group. Slices are decoded lazily.

    Attributes:
        parts: Packed slices, in order of file group; some may be replaced by newer ones.
        reached: The highest entry of each lane in a slice of ``parts``.
    """

    __slots__ = ("_all", "_assumed", "_firsts", "_newer", "parts", "reached")

    def __init__(
        self,
        newer: Mapping[FileGroup, StoredSlice] | None = None,
        parts: Sequence[SlicePart] = (),
        reached: cut.Seqs = NOTHING,
    ) -> None:
        self.parts, self.reached = tuple(parts), reached
        self._newer: Mapping[FileGroup, StoredSlice] = newer or {}
        self._firsts = [part.first for part in self.parts]
        self._assumed: dict[int, dict[FileGroup, cut.Seqs]] = {}
        """By number of the part, the cuts that slices of packed file groups must have; empty: that there is none."""
        self._all: Mapping[FileGroup, StoredSlice] | None = None if parts else self._newer

    @classmethod
    def of(cls, slices: Sequence[SliceFile]) -> Slices:
        """The slices of a list, which has at most one for each file group."""
        return cls({item.group: item for item in SliceList.of(slices).stored})

    @property
    def stored(self) -> Mapping[FileGroup, StoredSlice]:
        """All slices; unpacks all parts.

        Raises:
            CorruptData: Slices of later entries were not made from these.
        """
        if self._all is None:
            unpacked: dict[FileGroup, StoredSlice] = {}
            for number in range(len(self.parts)):
                unpacked.update(self._of_part(number))
            self._all = {**unpacked, **self._newer}
        return self._all

    @property
    def levels(self) -> frozenset[int]:
        """The numbers of bits of its file groups: several while file groups are being split or merged."""
        if self._all is None:
            found = frozenset(group.bits for group in self._newer).union(*(part.levels for part in self.parts))
            if len(found) == 1:
                return found
        return frozenset(group.bits for group in self.stored)

    @property
    def has_many_newer(self) -> bool:
        """Whether so many slices are newer than the parts that they should be packed; not if all are in use anyway."""
        many = max(_NEWER_PARTS, len(self.parts) // _NEWER_PARTS) * PART_SLICES
        in_use = bool(self.parts) and self._all is not None
        return len(self._newer) > many and not in_use and len(self.levels) == 1

    def find(self, group: FileGroup) -> StoredSlice | None:
        """The slice of a file group; unpacks at most one part. Raises as `stored`."""
        if self._all is not None:
            return self._all.get(group)
        number = self._part_of(group)
        if group in self._newer or number is None:
            return self._newer.get(group)
        return self._of_part(number).get(group)

    def some(self, groups: Iterable[FileGroup]) -> dict[FileGroup, StoredSlice]:
        """The slices of those file groups that have one. Raises as `stored`."""
        return {group: item for group in groups if (item := self.find(group)) is not None}

    def __getitem__(self, group: FileGroup) -> SliceFile:
        item = self.find(group)
        if item is None:
            raise KeyError(group)
        return item.file

    def __iter__(self) -> Iterator[FileGroup]:
        return iter(self.stored)

    def __len__(self) -> int:
        if self._all is not None:
            return len(self._all)
        return sum(part.slices for part in self.parts) + sum(not self._is_packed(group) for group in self._newer)

    def _is_packed(self, group: FileGroup) -> bool:
        """Whether the parts have a slice of a file group with newer ones; unpacks its part if that is not known."""
        number = self._part_of(group)
        if number is None:
            return False
        assumed = self._assumed.get(number, {}).get(group)
        return bool(assumed) or (assumed is None and group in self._of_part(number))

    def in_partitions(self, partitions: Iterable[str]) -> list[FileGroup]:
        """The file groups of some partitions; unpacks the parts that may have any. Raises as `stored`."""
        wanted = frozenset(partitions)
        found = {group for group in self._newer if group.partition in wanted}
        for number, part in enumerate(self.parts):
            if any(part.first.partition <= partition <= part.last.partition for partition in wanted):
                found.update(group for group in self._of_part(number) if group.partition in wanted)
        return sorted(found)

    def __contains__(self, group: object) -> bool:
        return isinstance(group, FileGroup) and self.find(group) is not None

    def cut_of(self, group: FileGroup) -> cut.Seqs:
        """The cut of a file group's slice; empty if it has none."""
        item = self.find(group)
        return item.cut if item is not None else NOTHING

    def cuts(self) -> Collection[cut.Seqs]:
        """Cuts of which the highest entry of each lane is that of all slices; with few duplicates."""
        if self._all is None:
            return [self.reached, *distinct_cuts(self._newer.values())]
        return distinct_cuts(self._all.values())

    def expected(self, group: FileGroup, parent: cut.Seqs) -> cut.Seqs:
        """The cut of a file group's slice, or ``parent`` as long as it is packed; see `continued`."""
        number = self._part_of(group) if self._all is None and group not in self._newer else None
        if number is None or self.parts[number].is_unpacked:
            return self.cut_of(group)
        return self._assumed.get(number, {}).get(group, parent)

    def continued(
        self, made: Iterable[StoredSlice] = (), assumed: Mapping[FileGroup, cut.Seqs] | None = None
    ) -> Slices:
        """These slices with newer ones.

        Args:
            made: New slices, made from those that `expected` has returned.
            assumed: What `expected` has returned for other file groups.
        """
        new = {item.group: item for item in made}
        found = Slices({**self._newer, **new}, self.parts, self.reached)
        if self._all is None:
            found._assumed = {number: dict(cuts) for number, cuts in self._assumed.items()}
            for group, at in {**{item.group: item.parent for item in new.values()}, **(assumed or {})}.items():
                number = self._part_of(group)
                if number is not None and group not in self._newer and not self.parts[number].is_unpacked:
                    found._assumed.setdefault(number, {}).setdefault(group, at)
        elif self.parts:
            found._all = {**self._all, **new}
        return found

    def packed(self) -> Slices:
        """The same slices, all of them packed; parts without newer slices remain as they are.

        Raises:
            CorruptData: See `stored`.
        """
        newer: dict[int, dict[FileGroup, StoredSlice]] = {}
        for group, item in self._newer.items():
            newer.setdefault(max(bisect.bisect_right(self._firsts, group) - 1, 0), {})[group] = item
        parts: list[SlicePart] = []
        for number in range(max(len(self.parts), 1)):
            changed = newer.get(number)
            before = self._of_part(number) if self.parts and (changed or number in self._assumed) else {}
            if changed is None:
                parts += self.parts[number : number + 1]
                continue
            items = [item for _, item in sorted({**before, **changed}.items(), key=lambda pair: pair[0])]
            count = -(-len(items) // PART_SLICES) if len(items) > 2 * PART_SLICES or not self.parts else 1
            bounds = [len(items) * i // count for i in range(count + 1)]
            parts += [SlicePart.of(items[first:end]) for first, end in itertools.pairwise(bounds)]
        return Slices(None, parts, reduce(cut.highest, distinct_cuts(self._newer.values()), self.reached))

    def _part_of(self, group: FileGroup) -> int | None:
        """The number of the part in whose range a file group is."""
        number = bisect.bisect_right(self._firsts, group) - 1
        return number if number >= 0 and group <= self.parts[number].last else None

    def _of_part(self, number: int) -> Mapping[FileGroup, StoredSlice]:
        stored = self.parts[number].stored()
        for group, at in self._assumed.get(number, {}).items():
            item = stored.get(group)
            if (item.cut if item is not None else NOTHING) != at:
                raise CorruptData(
                    f"a later slice or fold of {group} is not made from the newest slice (S10 CutChain)",
                    hint="report this as a bug",
                )
        return stored
