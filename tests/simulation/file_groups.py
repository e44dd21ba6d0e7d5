"""File groups with several numbers of buckets, told by the numbers in entries: which of them have keys in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

Group = tuple[str, int, int]
"""Partition folder, bits, bucket."""


def overlap(first: Group, second: Group) -> bool:
    """Whether keys of one file group may be in the other."""
    shared = 1 << min(first[1], second[1])
    return first[0] == second[0] and first[2] % shared == second[2] % shared


def others(group: Group, groups: Iterable[Group]) -> Iterator[Group]:
    """The other file groups that overlap one."""
    return (other for other in groups if other != group and overlap(group, other))


def is_filled(group: Group, parts: Iterable[Group]) -> bool:
    """Whether file groups that do not overlap each other have all keys of one."""
    return sum(Fraction(1, 1 << max(part[1] - group[1], 0)) for part in parts if overlap(group, part)) == 1


def reached(cuts: Mapping[Group, Mapping[str, int]], group: Group, lane: str, covered: int) -> int:
    """The last entry of a lane of which the slices with these cuts have all rows of a file group.

    A part without a slice may have had no row when its log files were folded. That there was none is what ``covered``
    says; it is believed only of such parts, and readers that skip the log files show whether it is true.
    """
    parts = [cut.get(lane, 0) for other, cut in cuts.items() if overlap(group, other)]
    if not is_filled(group, cuts):
        parts.append(covered if parts else 0)
    return min(parts)
