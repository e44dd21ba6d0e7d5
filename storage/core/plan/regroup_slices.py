"""Which file groups a compaction takes together to write slices of the table's number of bits (PROTOCOL.md, G2).

A file group with fewer bits is split: its parts are written together, because only together they may replace it. One
with more bits is merged with all others that are parts of the same bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.plan.slices import FileSlice


def other_bits(slices: Iterable[FileSlice], bits: int) -> frozenset[FileGroup]:
    """The file groups that are to be split or merged."""
    return frozenset(file_slice.group for file_slice in slices if file_slice.group.bits != bits)


def merged_parts(
    slices: Iterable[FileSlice], chosen: Iterable[FileSlice], bits: int
) -> dict[FileGroup, list[FileSlice]]:
    """The file groups that become one with chosen file groups of more bits, by what they become.

    Args:
        slices: All slices of a snapshot, in order.
        chosen: File groups to compact.
        bits: The table's number of bits.
    """
    parts: dict[FileGroup, list[FileSlice]] = {item.group.within(bits): [] for item in chosen if item.group.bits > bits}
    for item in slices:
        if item.group.bits > bits and (target := item.group.within(bits)) in parts:
            parts[target].append(item)
    return parts


def as_targets(
    slices: Sequence[FileSlice], parts: Mapping[FileGroup, Sequence[FileSlice]], bits: int
) -> list[FileSlice]:
    """The chosen file groups, with one in place of those that become one; in order of what they become.

    What stands for several has their size, and nothing else.
    """
    none = np.empty(0, np.int64)
    targets: dict[FileGroup, FileSlice] = {}
    for item in slices:
        target = item.group.within(bits) if item.group.bits > bits else item.group
        if target in parts and target not in targets:
            size = sum(part.log_bytes + part.base_bytes for part in parts[target])
            targets[target] = FileSlice(target, None, none, none, none, none, 0, size)
        targets.setdefault(target, item)
    return [targets[group] for group in sorted(targets)]


def in_order(run: Iterable[FileSlice], bits: int) -> list[FileSlice]:
    """The file groups of a task in order of the (first) file group with ``bits`` that they become."""

    def first_target(group: FileGroup) -> FileGroup:
        return next(group.parts(bits)) if group.bits < bits else group.within(bits)

    return sorted(run, key=lambda file_slice: (first_target(file_slice.group), file_slice.group))


def without(slices: Iterable[FileSlice], targets: Collection[FileGroup], bits: int) -> list[FileSlice]:
    """The chosen file groups that do not become one of those that are taken."""
    return [item for item in slices if item.group.bits <= bits or item.group.within(bits) not in targets]
