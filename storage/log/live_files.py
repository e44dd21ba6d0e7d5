"""The log files of a snapshot, with their indexes: of folds, and of commits that are not in slices or folds."""

from __future__ import annotations

from weft.storage.clock import arrival
from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import Data
from weft.storage.core.log.file_refs import LogFile
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import TABLE_LANE
from weft.storage.core.plan.slices import LiveFile
from weft.storage.log.table_log import TableLog


def live_files(table_log: TableLog, state: TableState, at: Cut) -> list[LiveFile]:
    """Files of folds, and of live commits that are not in slices or folds for all file groups, in version order.

    Files of folds come first; their registers contain their versions, so their position does not matter.
    """
    return [*_fold_files(table_log, state), *committed_files(table_log, state, state.log_start(), at.lanes)]


def committed_files(table_log: TableLog, state: TableState, after: cut.Seqs, until: cut.Seqs) -> list[LiveFile]:
    """Files of all live commits after one cut, up to another, in version order."""
    tails = table_log.commit_log.read_tails({lane: (after.get(lane, 0), last) for lane, last in until.items()})
    live: list[tuple[Data, LogFile]] = []
    for lane, tail in tails.items():
        spans = state.rolled_back.get(lane, ())
        for entry in tail:
            if isinstance(entry, Data) and not cut.in_spans(spans, entry.seq):
                live.extend((entry, file) for file in entry.files)
    indexes = table_log.commit_log.sidecars.indexes([file for _, file in live])
    files = [
        LiveFile(entry.lane, entry.seq, arrival(entry.stamp, state.lanes[entry.lane].lane_id), file, index)
        for (entry, file), index in zip(live, indexes, strict=True)
    ]
    # The sort is stable: files of one commit keep their order.
    return sorted(files, key=lambda file: file.arrival)


def _fold_files(table_log: TableLog, state: TableState) -> list[LiveFile]:
    live = [(fold, file) for fold in state.folds for file in fold.files]
    indexes = table_log.commit_log.sidecars.fold_indexes([file for _, file in live])
    return [
        LiveFile(TABLE_LANE, fold.slot, 0, file, index, fold.to)
        for (fold, file), index in zip(live, indexes, strict=True)
    ]
