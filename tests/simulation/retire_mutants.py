"""Mutants of lanes that are retired (C6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tests.simulation.mutant import Mutant, always
from weft.storage.core.log.table_state import TableState
from weft.storage.log.table_log import TableLog
from weft.storage.read.changes import change_scan as changes
from weft.storage.services.clean import retire_lanes

THEME: Final = "retire"


def all_closed(_: Any) -> Any:
    return lambda _log, judged, _needed: {
        lane.name: lane.closed for lane in judged.lanes.values() if lane.closed is not None
    }


def by_the_newest_state(find_ends: Any) -> Any:
    """Older snapshots that are kept are not asked."""

    def broken(table_log: Any, judged: Any, needed: Any) -> Any:
        return find_ends(
            table_log, replace(judged, oldest_retained=judged.head), replace(needed, in_slices=judged.covered)
        )

    return broken


def forgets_the_end(_: Any) -> Any:
    return lambda since, _state: since.lanes


def with_all_lanes(_: Any) -> Any:
    """How far slices reach is compared in lanes that the state does not have."""

    def broken(self: TableState, lanes: Any) -> bool:
        return all(seq <= lanes.get(lane, 0) for end in (self.covered, *self.reached()) for lane, seq in end.items())

    return broken


RETIRING: Final[Mapping[str, Mutant]] = {
    "S32 a lane is retired whose rows are in the log": Mutant(retire_lanes, "_find_ends", all_closed, THEME),
    "S32 a lane is retired that older snapshots lack": Mutant(retire_lanes, "_find_ends", by_the_newest_state, THEME),
    "C6 the name of a retired lane is used again": Mutant(TableLog, "was_retired", always(False), THEME, rare=True),
    "C6 the id of a retired lane is used again": Mutant(
        TableState, "next_lane_id", lambda _: property(lambda self: len(self.lanes) + 1), THEME
    ),
    "C6 changes forget that a retired lane was read": Mutant(changes, "start_of", forgets_the_end, THEME),
    "C6 readers expect retired lanes in their cuts": Mutant(TableState, "readable_at", with_all_lanes, THEME),
    "R6 the largest promise is retired": Mutant(retire_lanes, "_leading", always(set()), THEME, rare=True),
}
