"""Assigns log ranges that were written with another number of buckets to the file groups of a state (PROTOCOL.md, G3).

The file groups of a state are those with a slice or a fold. A key in none of them is in its bucket of the largest
number of bits in use. So each key has one file group, and log files of any number of bits can be read. A range of
fewer bits than the file groups is read by all file groups that are parts of it, and each of them filters by the hash of
the keys. A range of more bits belongs to one file group as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.table_state import TableState

Ints = npt.NDArray[np.int64]


def regroup_ranges(
    state: TableState, groups: Sequence[FileGroup], ranges: Mapping[str, Ints], only: Collection[FileGroup] | None
) -> tuple[list[FileGroup], dict[str, Ints]]:
    """Assign ranges to the file groups of a state.

    Args:
        state: The state.
        groups: The file groups of the ranges, and slices of the state.
        ranges: Columns of the ranges; ``group`` is a position in ``groups``.
        only: Keep only these file groups; None for all.

    Returns:
        File groups in order, and the ranges; a range occurs once for each file group that reads it, with a share of
        its bytes. The column ``shared`` is 1 if the range has rows of several file groups.
    """
    folded_groups, finest = state.folded_groups, max(state.levels)

    def exists(group: FileGroup) -> bool:
        return group in state.slices or group in folded_groups

    levels = sorted(state.levels)
    range_groups = np.unique(ranges["group"]).tolist()
    parts_of = {number: _file_groups(groups[number], levels, finest, exists) for number in range_groups}
    if only is not None:
        names = frozenset(only)
        parts_of = {number: [group for group in parts if group in names] for number, parts in parts_of.items()}
    slices = [group for group in groups if group in state.slices and (only is None or group in only)]
    file_groups = sorted({*slices, *(group for parts in parts_of.values() for group in parts)})
    position_of = {group: number for number, group in enumerate(file_groups)}
    copies = np.zeros(len(groups), np.int64)
    for number, parts in parts_of.items():
        copies[number] = len(parts)
    range_group = ranges["group"]
    repeats = copies[range_group] if len(range_group) else range_group
    result = {name: np.repeat(values, repeats) for name, values in ranges.items()}
    pieces = [parts_of[number] for number in range_group.tolist()]
    result["group"] = np.array([position_of[group] for parts in pieces for group in parts], np.int64)
    result["bytes"] = result["bytes"] // np.maximum(np.repeat(repeats, repeats), 1)
    bits = np.array([groups[number].bits for number in range_group.tolist()], np.int64)
    group_bits = np.array([group.bits for group in file_groups], np.int64)
    result["shared"] = (np.repeat(bits, repeats) < group_bits[result["group"]]).astype(np.int64)
    return file_groups, result


def _file_groups(
    group: FileGroup, levels: Sequence[int], finest: int, exists: Callable[[FileGroup], bool]
) -> list[FileGroup]:
    """The file groups of a state that have the keys of a bucket."""
    for bits in levels:
        if bits <= group.bits and exists(whole := group.within(bits)):
            return [whole]
    if group.bits >= finest:
        return [group.within(finest)]
    return [child for part in group.parts(group.bits + 1) for child in _file_groups(part, levels, finest, exists)]
