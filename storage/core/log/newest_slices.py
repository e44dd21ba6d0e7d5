"""The newest slice of every file group. Most of them are never looked at.

A process that opens a table gets the slices of its checkpoint *packed*: parts of about a thousand neighbouring file
groups, compressed, each with the range of its file groups (`weft.storage.core.log.slice_parts`). Those of a large table
stay in the store. A part is read and unpacked when one of its file groups is looked up. So the memory of a writer,
which looks up none, does not grow with the file groups, and a look-up reads the parts of its keys.

    parts     [a .. f][g .. m][n .. z]     packed: of the checkpoint, or of an earlier state
    newer          d        k              unpacked: slices of entries after that

New slices must be made from the newest ones (PROTOCOL.md, S10). If those are packed, the new ones are accepted at
first. They are checked when the part is unpacked, which happens before it is packed again.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.file_refs import FileGroup, SliceFile
from weft.storage.core.log.slice_list import NOTHING, SliceList, StoredSlice, distinct_cuts
from weft.storage.core.log.slice_parts import SlicePart, read_in_turn, read_parts
from weft.storage.errors import CorruptData

PART_SLICES: Final = 1024
"""File groups of a part. A larger one compresses no better, and a look-up of one key unpacks all of it."""

_NEWER_PARTS: Final = 8
"""Slices of so many parts, and an eighth of all, may be newer than the parts: packing all of 100,000 takes a second."""


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
        """By number of the part, the cuts that slices of packed file groups must have; empty if there must be none."""
        self._all: Mapping[FileGroup, StoredSlice] | None = None if parts else self._newer

    @classmethod
    def of(cls, slices: Sequence[SliceFile]) -> Slices:
        """The slices of a list, which has at most one for each file group."""
        return cls({item.group: item for item in SliceList.of(slices).stored})

    @property
    def stored(self) -> Mapping[FileGroup, StoredSlice]:
        """All slices; reads and unpacks all parts.

        Raises:
            CorruptData: Slices of later entries were not made from these; or see `PartSource.read`.
            StoreUnavailable: See `PartSource.read`.
        """
        if self._all is None:
            self._read(range(len(self.parts)))
            unpacked: dict[FileGroup, StoredSlice] = {}
            for number in range(len(self.parts)):
                unpacked.update(self._of_part(number))
            self._all = {**unpacked, **self._newer}
        return self._all

    @property
    def levels(self) -> frozenset[int]:
        """The numbers of bits of its file groups: several while file groups are being split or merged."""
        if self._all is None:
            levels = frozenset(group.bits for group in self._newer).union(*(part.levels for part in self.parts))
            if len(levels) == 1:
                return levels
        return frozenset(group.bits for group in self.stored)

    @property
    def has_many_newer(self) -> bool:
        """Whether so many slices are newer than the parts that they should be packed; not if all are in use anyway."""
        many = max(_NEWER_PARTS, len(self.parts) // _NEWER_PARTS) * PART_SLICES
        in_use = bool(self.parts) and self._all is not None
        return len(self._newer) > many and not in_use and len(self.levels) == 1

    @property
    def has_unread(self) -> bool:
        """Whether parts are only in the store, in a checkpoint that may be replaced and deleted."""
        return any(part.packed is None for part in self.parts)

    def find(self, group: FileGroup) -> StoredSlice | None:
        """The slice of a file group; unpacks at most one part. Raises as `stored`."""
        if self._all is not None:
            return self._all.get(group)
        number = self._part_of(group)
        if group in self._newer or number is None:
            return self._newer.get(group)
        return self._of_part(number).get(group)

    def find_all(self, groups: Iterable[FileGroup]) -> dict[FileGroup, StoredSlice]:
        """The slices of those file groups that have one. Raises as `stored`."""
        groups = list(groups)
        if self._all is None:
            numbers = (self._part_of(group) for group in groups if group not in self._newer)
            self._read({number for number in numbers if number is not None})
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
        names = frozenset(partitions)
        matches = {group for group in self._newer if group.partition in names}
        numbers = [
            number
            for number, part in enumerate(self.parts)
            if any(part.first.partition <= partition <= part.last.partition for partition in names)
        ]
        self._read(numbers)
        for number in numbers:
            matches.update(group for group in self._of_part(number) if group.partition in names)
        return sorted(matches)

    def __contains__(self, group: object) -> bool:
        return isinstance(group, FileGroup) and self.find(group) is not None

    def cut_of(self, group: FileGroup) -> cut.Seqs:
        """The cut of a file group's slice; empty if it has none."""
        item = self.find(group)
        return item.cut if item is not None else NOTHING

    def cuts(self) -> Collection[cut.Seqs]:
        """Cuts that together have the highest entry of each lane over all slices; with few duplicates."""
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
        self, slices: Iterable[StoredSlice] = (), assumed: Mapping[FileGroup, cut.Seqs] | None = None
    ) -> Slices:
        """These slices with newer ones.

        Args:
            slices: New slices, made from those that `expected` has returned.
            assumed: What `expected` has returned for other file groups.
        """
        new = {item.group: item for item in slices}
        successor = Slices({**self._newer, **new}, self.parts, self.reached)
        if self._all is None:
            successor._assumed = {number: dict(cuts) for number, cuts in self._assumed.items()}
            for group, at in {**{item.group: item.parent for item in new.values()}, **(assumed or {})}.items():
                number = self._part_of(group)
                if number is not None and group not in self._newer and not self.parts[number].is_unpacked:
                    successor._assumed.setdefault(number, {}).setdefault(group, at)
        elif self.parts:
            successor._all = {**self._all, **new}
        return successor

    def packed(self) -> Slices:
        """The same slices, all of them packed; parts without newer slices remain as they are.

        Raises:
            CorruptData, StoreUnavailable: See `stored`.
        """
        newer: dict[int, dict[FileGroup, StoredSlice]] = {}
        for group, item in self._newer.items():
            newer.setdefault(max(bisect.bisect_right(self._firsts, group) - 1, 0), {})[group] = item
        # They are not kept unpacked: a writer that writes a checkpoint does not need them afterwards.
        to_check = sorted(number for number in {*newer, *self._assumed} if number < len(self.parts))
        unpacked = zip(to_check, read_in_turn([self.parts[number] for number in to_check]), strict=True)
        parts: list[SlicePart] = []
        stop = 0
        for number, part in unpacked:
            parts += self.parts[stop:number]
            stored = self._check_assumed(number, part.stored())
            parts += _pack({**stored, **newer[number]}, first=False) if number in newer else [self.parts[number]]
            stop = number + 1
        parts += self.parts[stop:]
        if not self.parts and newer:
            parts = _pack(newer[0], first=True)
        return Slices(None, parts, reduce(cut.highest, distinct_cuts(self._newer.values()), self.reached))

    def _read(self, numbers: Iterable[int]) -> None:
        """Read parts into memory that are not there, with as few requests as possible."""
        unread = [part for part in (self.parts[number] for number in sorted(numbers)) if part.packed is None]
        for part, in_memory in zip(unread, read_parts(unread), strict=True):
            part.keep(in_memory)

    def _part_of(self, group: FileGroup) -> int | None:
        """The number of the part in whose range a file group is."""
        number = bisect.bisect_right(self._firsts, group) - 1
        return number if number >= 0 and group <= self.parts[number].last else None

    def _of_part(self, number: int) -> Mapping[FileGroup, StoredSlice]:
        return self._check_assumed(number, self.parts[number].stored())

    def _check_assumed(self, number: int, stored: Mapping[FileGroup, StoredSlice]) -> Mapping[FileGroup, StoredSlice]:
        """The slices of a part, if later entries were made from them."""
        for group, at in self._assumed.get(number, {}).items():
            item = stored.get(group)
            if (item.cut if item is not None else NOTHING) != at:
                raise CorruptData(
                    f"a later slice or fold of {group} is not made from the newest slice (S10 CutChain)",
                    hint="report this as a bug",
                )
        return stored


def _pack(slices: Mapping[FileGroup, StoredSlice], *, first: bool) -> list[SlicePart]:
    """Pack slices into parts of `PART_SLICES` slices; unless ``first``, one part may have up to twice as many."""
    items = [item for _, item in sorted(slices.items(), key=lambda pair: pair[0])]
    count = -(-len(items) // PART_SLICES) if len(items) > 2 * PART_SLICES or first else 1
    bounds = [len(items) * i // count for i in range(count + 1)]
    return [SlicePart.of(items[start:end]) for start, end in itertools.pairwise(bounds)]
