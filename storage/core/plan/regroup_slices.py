"""Selects the file groups that a compaction splits or merges to the table's number of bits (PROTOCOL.md, G2).

A file group with fewer bits is split: its parts are written together, because only all parts together may replace it.
A file group with more bits is merged with all other parts of the same bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.plan.slices import FileSlice


def other_bits(slices: Iterable[FileSlice], bits: int) -> frozenset[FileGroup]:
    """The file groups to split or merge."""
    return frozenset(file_slice.group for file_slice in slices if file_slice.group.bits != bits)


def merged_parts(
    slices: Iterable[FileSlice], to_compact: Iterable[FileSlice], bits: int
) -> dict[FileGroup, list[FileSlice]]:
    """For each merged file group, the file groups of more bits that become it.

    Args:
        slices: All slices of a snapshot, in order.
        to_compact: File groups to compact.
        bits: The table's number of bits.
    """
    parts: dict[FileGroup, list[FileSlice]] = {
        item.group.within(bits): [] for item in to_compact if item.group.bits > bits
    }
    for item in slices:
        if item.group.bits > bits and (target := item.group.within(bits)) in parts:
            parts[target].append(item)
    return parts


def as_targets(
    slices: Sequence[FileSlice], parts: Mapping[FileGroup, Sequence[FileSlice]], bits: int
) -> list[FileSlice]:
    """Replace file groups to merge by the merged one, which has only their total size; in order of the result."""
    empty = np.empty(0, np.int64)
    targets: dict[FileGroup, FileSlice] = {}
    for item in slices:
        target = item.group.within(bits) if item.group.bits > bits else item.group
        if target in parts and target not in targets:
            size = sum(part.log_bytes + part.base_bytes for part in parts[target])
            targets[target] = FileSlice(target, None, empty, empty, empty, empty, 0, size)
        targets.setdefault(target, item)
    return [targets[group] for group in sorted(targets)]


def in_order(run: Iterable[FileSlice], bits: int) -> list[FileSlice]:
    """The file groups of a task in order of the first file group with ``bits`` that they become."""

    def first_target(group: FileGroup) -> FileGroup:
        return next(group.parts(bits)) if group.bits < bits else group.within(bits)

    return sorted(run, key=lambda file_slice: (first_target(file_slice.group), file_slice.group))


def without(slices: Iterable[FileSlice], targets: Collection[FileGroup], bits: int) -> list[FileSlice]:
    """The file groups that do not become one of ``targets``."""
    return [item for item in slices if item.group.bits <= bits or item.group.within(bits) not in targets]
