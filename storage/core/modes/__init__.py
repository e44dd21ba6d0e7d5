"""Merge modes: how the events of one key in one group become one register, and how registers merge.

Adding a mode is one module here and one line in `MODES`. Everything around a mode (sorting, finding, visibility, files)
is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from storage.core.model import Group
from storage.core.modes.aggregate import Aggregate
from storage.core.modes.base import GroupEvents, MergeMode, Registers
from storage.core.modes.custom import Custom
from storage.core.modes.functions import FUNCTIONS
from storage.core.modes.latest import Latest
from storage.core.modes.partial import LatestNonNull

__all__ = ["MODES", "GroupEvents", "MergeMode", "Registers", "decided_by_arrival", "mode_name", "mode_of"]

MODES: Final[Mapping[str, MergeMode]] = {
    "latest": Latest(),
    "latest_non_null": LatestNonNull(),
    "aggregate": Aggregate(),
    "custom": Custom(),
}


def mode_name(group: Group) -> str:
    """Name of a group's mode; the configuration names a merger of the user's as ``module:function``."""
    return "custom" if ":" in group.merge else group.merge


def mode_of(group: Group) -> MergeMode:
    """The mode that merges a group."""
    return MODES[mode_name(group)]


def decided_by_arrival(group: Group) -> bool:
    """Whether the order in which commits arrive decides what a row shows, and not only between equal values."""
    if group.ordering:
        return False
    return mode_name(group) != "aggregate" or any(FUNCTIONS[own.name].ordered for own in group.functions)
