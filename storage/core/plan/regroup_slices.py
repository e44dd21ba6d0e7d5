"""Which file groups a compaction takes together to write slices of the table's number of bits (PROTOCOL.md, G2).

A file group with fewer bits is split: its parts are written together, because only together they may replace it. One
with more bits is merged with all others that are parts of the same bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from storage.core.log.file_refs import FileGroup
from storage.core.plan.slices import FileSlice


def other_bits(slices: Iterable[FileSlice], bits: int) -> frozenset[FileGroup]:
    """The file groups that are to be split or merged."""
    return frozenset(each.group for each in slices if each.group.bits != bits)


def merged_parts(
    slices: Iterable[FileSlice], chosen: Iterable[FileSlice], bits: int
) -> dict[FileGroup, list[FileSlice]]:
    """The file groups that become one with chosen file groups of more bits, by what they become.

    Args:
        slices: All slices of a snapshot, in order.
        chosen: File groups to compact.
        bits: The table's number of bits.
    """
    found: dict[FileGroup, list[FileSlice]] = {each.group.within(bits): [] for each in chosen if each.group.bits > bits}
    for each in slices:
        if each.group.bits > bits and (target := each.group.within(bits)) in found:
            found[target].append(each)
    return found


def as_targets(
    chosen: Sequence[FileSlice], parts: Mapping[FileGroup, Sequence[FileSlice]], bits: int
) -> list[FileSlice]:
    """The chosen file groups, with one in place of those that become one; in order of what they become.

    What stands for several has their size, and nothing else.
    """
    none = np.empty(0, np.int64)
    found: dict[FileGroup, FileSlice] = {}
    for each in chosen:
        target = each.group.within(bits) if each.group.bits > bits else each.group
        if target in parts and target not in found:
            size = sum(part.log_bytes + part.base_bytes for part in parts[target])
            found[target] = FileSlice(target, None, none, none, none, none, 0, size)
        found.setdefault(target, each)
    return [found[group] for group in sorted(found)]


def in_order(run: Iterable[FileSlice], bits: int) -> list[FileSlice]:
    """The file groups of a task in order of the (first) file group with ``bits`` that they become."""

    def first_target(group: FileGroup) -> FileGroup:
        return next(group.parts(bits)) if group.bits < bits else group.within(bits)

    return sorted(run, key=lambda each: (first_target(each.group), each.group))


def without(chosen: Iterable[FileSlice], taken: Collection[FileGroup], bits: int) -> list[FileSlice]:
    """The chosen file groups that do not become one of those that are taken."""
    return [each for each in chosen if each.group.bits <= bits or each.group.within(bits) not in taken]
