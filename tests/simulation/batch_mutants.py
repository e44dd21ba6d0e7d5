"""Mutants of batches that use lanes again (W10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.simulation.log_mutants import publishes, says
from tests.simulation.mutant import Mutant, always
from weft.storage.core.log.entries import Claim
from weft.storage.log import fencing_barrier, lane_ends
from weft.storage.log.commit_log import CommitLog
from weft.storage.read import lane_watermarks
from weft.storage.services.clean import clean
from weft.storage.write import batch_lanes, lane_claim
from weft.storage.write.lane_claim import LaneClaim

THEME: Final = "batches"


def all_lanes(_: Any) -> Any:
    def broken(table_log: Any, table: Any, stream: Any) -> Any:
        lanes = [lane for lane in batch_lanes.batch_lanes(table) if table.lanes[lane].stream == stream]
        yield from lane_ends.last_entries(table_log, table, lanes).items()

    return broken


def fences_the_winner(take: Any) -> Any:
    def broken(self: LaneClaim, lane: Any, last: Any, table: Any) -> bool:
        if take(self, lane, last, table):
            return True
        return bool(take(self, lane, lane_ends.last_entries(self._table_log, table, [lane])[lane], table))

    return broken


def keeps_promises(last_commits: Any) -> Any:
    return lambda log, rolled_back, lanes, _ended: last_commits(log, rolled_back, lanes, lanes)


def like_any_other(entry: Any) -> Any:
    """A claim for a batch that does not say so: whoever fences it does not finish the lane."""
    return entry.model_copy(update={"for_batch": False}) if isinstance(entry, Claim) else entry


BATCHES: Final[Mapping[str, Mutant]] = {
    "L5 a batch does not ask whether a lane is finished": Mutant(lane_claim, "free_lanes", all_lanes, THEME),
    "L5 a batch that lost a lane fences the winner": Mutant(LaneClaim, "_take", fences_the_winner, THEME),
    "W10 the commit of a batch does not finish its lane": Mutant(CommitLog, "publish", says(finishes=False), THEME),
    "W10 a batch without rows keeps its lane": Mutant(LaneClaim, "leave_batch_lane", always(None), THEME),
    "W10 the claim of a batch does not say so": Mutant(CommitLog, "publish", publishes(like_any_other), THEME),
    "W10 a fence of a finished lane opens it": Mutant(fencing_barrier, "stays_finished", always(False), THEME),
    "W10 a clean leaves the lanes of dead batches": Mutant(clean, "fence_dead_batches", always(None), THEME, rare=True),
    "R6 a finished lane holds back the watermark": Mutant(lane_watermarks, "finished_lanes", always(set()), THEME),
    "R6 a batch makes the promises of the one before": Mutant(lane_watermarks, "last_commits", keeps_promises, THEME),
}
