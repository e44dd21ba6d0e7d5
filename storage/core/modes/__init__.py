"""Merge modes: they merge the events of one key in one group to one register, and registers with registers.

A new mode needs one module here and one line in `MODES`. Everything around a mode (sorting, lookup, visibility, files)
is the same for all modes.
"""

from __future__ import annotations

from typing import Final

from weft.storage.core.model import Group
from weft.storage.core.modes.aggregate import Aggregate
from weft.storage.core.modes.base import NO_MERGERS, GroupEvents, MergeMode, Merger, Mergers, Registers
from weft.storage.core.modes.custom import Custom
from weft.storage.core.modes.latest import Latest
from weft.storage.core.modes.partial import LatestNonNull

__all__ = [
    "MODES",
    "NO_MERGERS",
    "GroupEvents",
    "MergeMode",
    "Merger",
    "Mergers",
    "Registers",
    "find_mode",
    "known_features",
    "merging_mode",
    "mode_of",
    "spellings",
]

MODES: Final[tuple[MergeMode, ...]] = (
    Latest(),
    LatestNonNull(),
    Aggregate(),
    Custom(),
)


def find_mode(merge: str) -> MergeMode | None:
    """Look up the mode that a configuration names with ``merge``; None if it does not exist."""
    return next((mode for mode in MODES if mode.matches(merge)), None)


def mode_of(group: Group) -> MergeMode:
    """The mode of a group, for its properties; to merge, use `merging_mode`.

    Raises:
        KeyError: This version does not have the mode; tables that need it are refused earlier, by their features.
    """
    mode = find_mode(group.merge)
    if mode is None:
        raise KeyError(group.merge)
    return mode


def merging_mode(group: Group, mergers: Mergers) -> MergeMode:
    """The mode of a group, with the custom merger that the group names, if any."""
    return mode_of(group).with_merger(mergers.get(group.merge))


def spellings() -> tuple[str, ...]:
    """The texts that users write as ``merge``, one for each mode."""
    return tuple(mode.spelling for mode in MODES)


def known_features() -> frozenset[str]:
    """The reader features of all modes that this version supports."""
    return frozenset().union(*(mode.known_features for mode in MODES))
