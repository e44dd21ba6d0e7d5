"""The cut up to which every row is in a slice, once new slices are published (PROTOCOL.md, K3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from weft.storage.core.log import cut
from weft.storage.core.log.file_refs import FileGroup, SliceFile
from weft.storage.core.log.regroup import overlapping, reached
from weft.storage.core.log.slice_list import NOTHING
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName


def covered_up_to(
    state: TableState, new: Mapping[FileGroup, SliceFile], with_logs: Sequence[FileGroup], target: cut.Seqs
) -> dict[LaneName, int]:
    """A cut up to which every row is in a slice once ``new`` are the newest slices; empty if the state has it already.

    Args:
        state: The newest state.
        new: Slices that are published on top of it.
        with_logs: The file groups that had log files in the snapshot. All rows of other file groups were in their
            slices.
        target: Cut of the snapshot.
    """
    if {group.bits for group in (*new, *with_logs)} | state.slices.levels == state.levels and len(state.levels) == 1:
        cuts = [new[group].cut if group in new else state.slices.cut_of(group) for group in with_logs]
    else:
        cuts = _cuts_of(state, new, with_logs)
    covered = reduce(cut.lowest, {id(group_cut): group_cut for group_cut in cuts}.values(), target)
    return {} if cut.within(covered, state.covered) else dict(covered)


def _cuts_of(state: TableState, new: Mapping[FileGroup, SliceFile], groups: Sequence[FileGroup]) -> list[cut.Seqs]:
    """The cuts of the slices that have the keys of these file groups; an empty cut for keys that are in no slice."""
    newest = {group: state.slices.cut_of(group) for group in state.slices}
    levels = state.slices.levels | {group.bits for group in new}
    for group, file_slice in new.items():
        for old_group in list(overlapping(group, levels, newest.__contains__)):
            del newest[old_group]
        newest[group] = file_slice.cut
    return [group_cut for group in groups for group_cut in reached(newest, levels, group) or [NOTHING]]
