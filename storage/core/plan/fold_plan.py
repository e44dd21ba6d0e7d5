"""Decides which events to fold. Pure functions.

For every file group with waiting events, a fold usually contains only these events and adds to the existing folds. If
there are `MAX_CHAIN` folds, or if the waiting events are at least as large as the folds, the new fold contains
everything after the slice and replaces the existing folds. So no reader merges more than `MAX_CHAIN` folds of a file
group. The cost: the condition on size rewrites a row at most once for every doubling of the rows after the slice; the
condition on the number of folds, once in `MAX_CHAIN` folds. With n folds of equal size between two compactions a row is
written about 1 + n / (2 * MAX_CHAIN) times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.entries import FoldedGroup
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan.memory_cost import UNPACKED, cut_by_size, log_memory_bytes
from weft.storage.core.plan.slices import FileSlice, LiveFile, plan_slices
from weft.storage.core.schema.table_schema import TableSchema

MAX_CHAIN: Final = 4  # each fold of a file group is a range that every read of it fetches and merges


@dataclass(frozen=True, slots=True)
class GroupFold:
    """The part of a fold for one file group: where it begins, and the log ranges to merge."""

    folded: FoldedGroup
    ranges: FileSlice

    @property
    def group(self) -> FileGroup:
        return self.ranges.group


def plan_folds(state: TableState, files: Sequence[LiveFile]) -> list[GroupFold]:
    """The file groups with events that are in neither a slice nor a fold, in order of file group."""
    whole = {file_slice.group: file_slice for file_slice in plan_slices(state, files)}
    return [
        _plan(state, events, whole[events.group])
        for events in plan_slices(state, files, folds=False)
        if len(events.rows)
    ]


def _plan(state: TableState, events: FileSlice, whole: FileSlice) -> GroupFold:
    group = events.group
    parent = dict(events.slice.cut) if events.slice is not None else {}
    chain = sum(1 for fold in state.folds if group in fold.groups)
    replaces_folds = chain >= MAX_CHAIN or events.log_bytes >= whole.log_bytes - events.log_bytes
    group_fold = FoldedGroup(
        partition=group.partition,
        bits=group.bits,
        bucket=group.bucket,
        parent=parent,
        start=parent if replaces_folds else dict(state.folded_to(group)),
    )
    return GroupFold(group_fold, whole if replaces_folds else events)


def cut_runs(folds: Sequence[GroupFold], schema: TableSchema, run_bytes: int) -> Iterator[list[GroupFold]]:
    """Divide folds into runs of neighbouring file groups, one per file, of at most ``run_bytes``.

    A larger file group is a run by itself. The file groups of a run have the same bits. Logs that need much memory
    count as more bytes.
    """
    for _, same_bits in itertools.groupby(folds, key=lambda fold: fold.group.bits):
        group_folds = list(same_bits)
        memory = (log_memory_bytes(schema, fold.ranges.log_bytes, int(fold.ranges.rows.sum())) for fold in group_folds)
        yield from cut_by_size(group_folds, (size // UNPACKED for size in memory), run_bytes)


def may_publish(state: TableState, group_fold: FoldedGroup, to: cut.Seqs) -> bool:
    """Whether a file group's part of a fold up to ``to`` begins where its slice and folds end (PROTOCOL.md, F3).

    A fold of everything after the slice replaces the folds before it, so it must contain all of their events and more;
    otherwise it need not be published.
    """
    group = group_fold.group
    folded_end = state.folded_to(group)
    end, to = cut.only(folded_end, state.lanes), cut.only(to, state.lanes)
    return (
        group_fold.parent == state.slices.cut_of(group)
        and group_fold.start in (group_fold.parent, folded_end)
        and cut.within(end, to)
        and not cut.within(to, end)
    )


def still_covered(before: TableState, now: TableState, to: cut.Seqs) -> bool:
    """Whether slices and folds still contain the events up to ``to`` that they contained in the state ``before``.

    A compaction that began before a fold and ends after it ends the fold, and its slice may contain less.
    """
    to = cut.only(to, now.lanes)
    return all(
        cut.within(to, now.slices.cut_of(group))
        or (group in before.slices and before.slices.cut_of(group) == now.slices.cut_of(group))
        for group in now.slices
    )
