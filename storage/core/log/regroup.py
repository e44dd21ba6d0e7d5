"""Which new slices may follow the slices and folds of a state, when file groups are split or merged (PROTOCOL.md, G2).

The file groups of a state, those with a slice or a fold, never overlap: a key is in at most one of them. File groups
with different bits overlap if one is a part of the other. A slice that replaces slices with other bits names them all,
and together with the other slices of its entry it has all keys of each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

from weft.storage.core.log.cut import Seqs
from weft.storage.core.log.file_refs import FileGroup, Replaced
from weft.storage.core.log.group_set import GroupUnion
from weft.storage.core.log.newest_slices import Slices


class NewSlice(Protocol):
    """A new slice: `weft.storage.core.log.file_refs.SliceFile`."""

    @property
    def group(self) -> FileGroup: ...
    @property
    def parent(self) -> Seqs: ...
    @property
    def replaces(self) -> Sequence[Replaced]: ...


AnySlice = TypeVar("AnySlice", bound=NewSlice)


def overlapping(group: FileGroup, levels: Iterable[int], has: Callable[[FileGroup], bool]) -> Iterator[FileGroup]:
    """The file groups with other bits that overlap a file group.

    Args:
        group: The file group.
        levels: The bits of the file groups to look for.
        has: Whether a file group exists.
    """
    for bits in levels:
        if bits < group.bits:
            if has(whole := group.within(bits)):
                yield whole
        elif bits > group.bits:
            yield from filter(has, group.parts(bits))


def may_follow(slices: Slices, folded: GroupUnion, new_slices: Sequence[AnySlice]) -> list[AnySlice]:
    """The new slices that may become the newest ones of their file groups, if one entry publishes all of them.

    Args:
        slices: The newest slices.
        folded: File groups that have folds.
        new_slices: The slices of the entry.
    """
    groups = {item.group for item in new_slices}
    levels = slices.levels | folded.levels | {group.bits for group in groups}
    if len(levels) <= 1:
        return [item for item in new_slices if not item.replaces and item.parent == slices.cut_of(item.group)]
    accepted = {
        item.group: item
        for item in new_slices
        if _continues(slices, levels, item) and not any(overlapping(item.group, levels, groups.__contains__))
    }
    wholes = {
        whole
        for group in accepted
        for whole in overlapping(group, levels, lambda other: other in slices or other in folded)
        if whole.bits < group.bits
    }
    for whole in wholes:
        parts = [group for group in accepted if group.bits > whole.bits and group.within(whole.bits) == whole]
        if not fill(whole, parts):
            for group in parts:
                del accepted[group]
    return list(accepted.values())


def _continues(slices: Slices, levels: Iterable[int], item: NewSlice) -> bool:
    """Whether a slice names exactly the newest slices that overlap it."""
    current = {group: slices.cut_of(group) for group in overlapping(item.group, levels, slices.__contains__)}
    expected = {
        FileGroup(item.group.partition, replaced.bits, replaced.bucket): replaced.cut for replaced in item.replaces
    }
    return current == expected and item.parent == slices.cut_of(item.group)


def fill(whole: FileGroup, parts: Iterable[FileGroup]) -> bool:
    """Whether parts of a file group that do not overlap have all of its keys."""
    return sum(Fraction(1, 1 << part.bits - whole.bits) for part in parts) == 1


def reached(slices: Mapping[FileGroup, Seqs], levels: Iterable[int], group: FileGroup) -> list[Seqs]:
    """The cuts of the slices that together have all keys of a file group; empty if a part of it has no slice.

    Args:
        slices: The cuts of the slices.
        levels: Their bits.
        group: The file group.
    """
    if group in slices:
        return [slices[group]]
    parts = list(overlapping(group, levels, slices.__contains__))
    whole = next((other for other in parts if other.bits < group.bits), None)
    if whole is not None:
        return [slices[whole]]
    return [slices[part] for part in parts] if fill(group, parts) else []
