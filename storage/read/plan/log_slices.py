"""What was committed between two cuts: where the earlier one ends in each lane, and the log ranges of file groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan.slices import FileSlice, LiveFile, plan_slices


def start_of(since: Cut, state: TableState) -> cut.Seqs:
    """The last entry of an earlier cut in each lane, limited to the ends of the lanes that a later state knows.

    A closed lane may have a claim after its end, if the claim was published while the lane was being closed. A snapshot
    that was taken before the end of the closing includes the claim, later snapshots do not. The claim has no rows.
    A lane that was retired in between is left out: both cuts have all its entries (C6).
    """
    ends = {name: lane.closed for name, lane in state.lanes.items() if lane.closed is not None}
    return {lane: min(seq, ends.get(lane, seq)) for lane, seq in cut.only(since.lanes, state.lanes).items()}


def log_slices(state: TableState, files: Sequence[LiveFile]) -> Sequence[FileSlice]:
    """All log ranges of each file group in some log files, as if nothing had been compacted or folded."""
    return plan_slices(replace(state, slices=Slices(), covered={}, folds=(), folded={}), files)
