"""Applies entries of the table lane to the table state, and refuses entries that contradict it.

The state is a function of a contiguous prefix; applying it in two steps gives the same state (PROTOCOL.md, S2, S19).
An entry that could not have been published after the ones before it is corrupt: then an object of the log was replaced,
or a version of weft has a bug.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import (
    Abort,
    Base,
    CleanDone,
    CleanIntent,
    Create,
    Done,
    Fold,
    Intent,
    LaneAdd,
    Mark,
    Plan,
    Release,
    Retire,
    Savepoint,
    Schema,
    TableEntry,
)
from weft.storage.core.log.features import readable_features
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.group_set import GroupSet
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.regroup import may_follow, overlapping
from weft.storage.core.log.slice_list import SliceList, StoredSlice, distinct_cuts
from weft.storage.core.log.table_state import Lane, LiveFold, LiveSavepoint, OpenPlan, TableState
from weft.storage.core.names import TABLE_LANE
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import CorruptData, UnsupportedFormat


def apply_entries(state: TableState | None, entries: Iterable[TableEntry]) -> TableState | None:
    """State after further entries of the table lane; None before the first entry.

    Raises:
        UnsupportedFormat: The table needs a feature that this version does not know.
        CorruptData: Entries contradict each other.
    """
    for entry in entries:
        if isinstance(entry, Create):
            state = _create(entry, state)
        elif state is None:
            raise CorruptData(
                f"the table lane starts with {entry.kind}",
                hint="its first entry was replaced: restore it from a copy of the store",
            )
        else:
            if entry.seq != state.head + 1 or entry.prev_id != state.head_id:
                raise CorruptData(
                    f"entry {entry.seq} of the table lane does not follow entry {state.head}",
                    hint="an object was replaced: restore it from a copy of the store",
                )
            state = replace(
                _apply(state, entry),
                head=entry.seq,
                head_id=entry.commit_id,
                committed_at_ms=entry.committed_at_ms,
                stamp=max(state.stamp, entry.stamp),
                seen=_existing_entries(state, entry),
            )
    return state


def _create(entry: Create, previous: TableState | None) -> TableState:
    _check_features(entry)
    if previous is not None or entry.seq != 1:
        raise CorruptData(
            f"entry {entry.seq} of the table lane is a second CREATE",
            hint="an object was replaced: restore it from a copy of the store",
        )
    return TableState(
        head=entry.seq,
        head_id=entry.commit_id,
        committed_at_ms=entry.committed_at_ms,
        stamp=entry.stamp,
        rev=entry.seq,
        schema_rev=entry.seq,
        table_id=entry.table_id,
        schema=TableSchema.from_json(entry.table_schema),
        writer_features=frozenset(entry.writer_features),
        marked_at_ms=entry.committed_at_ms,
    )


def _check_features(entry: Create | Schema) -> None:
    unknown = sorted(set(entry.reader_features) - readable_features())
    if unknown:
        raise UnsupportedFormat(
            f"the table uses features that this version cannot read: {', '.join(unknown)}", hint="upgrade weft"
        )


def _apply(state: TableState, entry: TableEntry) -> TableState:
    match entry:
        case LaneAdd():
            if entry.name in state.lanes:
                raise CorruptData(
                    f"entry {entry.seq} of the table lane adds lane {entry.name!r} again",
                    hint="an object was replaced: restore it from a copy of the store",
                )
            return replace(state, lanes={**state.lanes, entry.name: Lane(entry.name, entry.lane_id, entry.stream)})
        case Schema():
            _check_features(entry)
            features = state.writer_features | set(entry.writer_features)
            schema = TableSchema.from_json(entry.table_schema)
            return replace(state, schema=schema, writer_features=features, rev=entry.seq, schema_rev=entry.seq)
        case Plan():
            plan = OpenPlan(entry.seq, Cut(entry.table, entry.cut), entry.committed_at_ms, entry.reserves_ms)
            return replace(state, plans={**state.plans, entry.plan_id: plan})
        case Abort():
            return _close_plan(state, entry.plan_id)
        case Base():
            return _with_slices(state, entry)
        case Fold():
            return _close_plan(_with_fold(state, entry), entry.plan_id)
        case Savepoint():
            at = Cut(entry.table, entry.lanes)
            value = LiveSavepoint(at, entry.note, entry.committed_at_ms, entry.references)
            return replace(state, savepoints={**state.savepoints, entry.name: value})
        case Release():
            return replace(state, savepoints={n: value for n, value in state.savepoints.items() if n != entry.name})
        case Intent():
            if state.intent is not None:
                raise CorruptData(
                    f"entry {entry.seq} of the table lane begins a second fencing barrier", hint="report this as a bug"
                )
            # Entries that open compactions have read may be rolled back, so their plans end.
            return replace(state, intent=entry, plans={} if entry.restore else state.plans)
        case Done():
            return _done(state, entry)
        case Mark():
            first = state.first_mark or entry.seq
            return replace(state, first_mark=first, mark=entry.seq, marked_at_ms=entry.began_at_ms)
        case CleanIntent():
            # A clean that began before a lane was retired may announce it after that.
            archived = cut.highest(state.archived, cut.only(entry.archived, {TABLE_LANE, *state.lanes}))
            return replace(state, oldest_retained=max(state.oldest_retained, entry.oldest_retained), archived=archived)
        case CleanDone():
            return state
        case Retire():
            return _retire_lanes(state, entry)
        case _:
            raise CorruptData(f"entry {entry.seq} of the table lane is {entry.kind}", hint="report this as a bug")


def _close_plan(state: TableState, plan_id: str) -> TableState:
    return replace(state, plans={name: plan for name, plan in state.plans.items() if name != plan_id})


def _with_slices(state: TableState, entry: Base) -> TableState:
    slices = SliceList.of(entry.slices).stored
    previous = state.slices
    replaced_groups = {item.group for item in slices}
    if len(replaced_groups) < len(slices):
        raise _not_from_newest(entry.seq, Counter(item.group for item in slices).most_common(1)[0][0])
    levels = previous.levels | state.folded_groups.levels | {group.bits for group in replaced_groups}
    if len(levels) > 1:
        remaining = dict(previous.stored)
        replaced_groups |= _regroup(state, slices, levels, remaining, entry.seq)
        previous = Slices(remaining)
    for item in slices:
        newest = previous.expected(item.group, item.parent)
        # Most slices share one cut object, which has a number for every lane.
        if item.parent is not newest and item.parent != newest:
            raise _not_from_newest(entry.seq, item.group)
    # A new slice ends all folds of its file group, even folds of later entries.
    folded = reduce(cut.lowest, distinct_cuts(slices), state.folded)
    folds = (replace(fold, groups=fold.groups.without(replaced_groups)) for fold in state.folds)
    state = replace(
        state,
        slices=previous.continued(slices),
        covered=cut.highest(state.covered, cut.only(entry.covered, state.lanes)),
        folds=tuple(fold for fold in folds if fold.groups),
        folded=folded,
    )
    state = _extend_closed_lanes(state, distinct_cuts(slices))
    if entry.rewrites:
        # A slice may have the cut of its parent, so comparing cuts would not detect that an open plan has read rows
        # that are gone.
        return replace(state, plans={}, rewritten=entry.seq)
    return _close_plan(state, entry.plan_id) if entry.last else state


def _regroup(
    state: TableState,
    stored_slices: Sequence[StoredSlice],
    levels: Iterable[int],
    slices: dict[FileGroup, StoredSlice],
    seq: int,
) -> set[FileGroup]:
    """Check new slices in a state with several bits. Removes what they replace from ``slices``, and returns it.

    Raises:
        CorruptData: They do not continue the newest slices.
    """
    groups = [item.group for item in stored_slices]
    followers = may_follow(state.slices, state.folded_groups, [item.file for item in stored_slices])
    accepted = {item.group for item in followers}
    for group in groups:
        if group not in accepted:
            raise _not_from_newest(seq, group)
    replaced_groups: set[FileGroup] = set()
    folded = state.folded_groups
    for group in accepted:
        replaced_groups |= set(overlapping(group, levels, lambda other: other in state.slices or other in folded))
    for group in replaced_groups:
        slices.pop(group, None)
    return replaced_groups


def _not_from_newest(seq: int, group: FileGroup) -> CorruptData:
    return CorruptData(
        f"entry {seq} of the table lane: the new slice of {group} is not made from the newest one (S10 CutChain)",
        hint="report this as a bug",
    )


def _existing_entries(state: TableState, entry: TableEntry) -> cut.Seqs:
    """`TableState.seen` after an entry: the entries of other lanes that it names exist."""
    match entry:
        case Mark() | Savepoint():
            heads = entry.lanes
        case Plan():
            heads = entry.cut
        case Done():
            heads = entry.heads
        case Retire():
            return {lane: seq for lane, seq in state.seen.items() if lane not in entry.lanes}
        case _:
            return state.seen
    return cut.highest(state.seen, cut.only(heads, state.lanes))


def _retire_lanes(state: TableState, entry: Retire) -> TableState:
    """The state without lanes. The cuts of its slices and folds still name them, so that they can be compared (S10)."""
    closed = {name: state.lanes[name].closed if name in state.lanes else None for name in entry.lanes}
    if closed != entry.lanes or state.intent is not None:
        raise CorruptData(
            f"entry {entry.seq} of the table lane retires lanes that are in use (S32 RetiredWhole)",
            hint="report this as a bug",
        )
    lanes = {name: lane for name, lane in state.lanes.items() if name not in entry.lanes}
    return replace(
        state,
        lanes=lanes,
        covered=cut.only(state.covered, lanes),
        folded=cut.only(state.folded, lanes),
        archived=cut.only(state.archived, {TABLE_LANE, *lanes}),
        rolled_back={lane: spans for lane, spans in state.rolled_back.items() if lane in lanes},
        complete_from=state.oldest_retained,
        retired_id=max(state.retired_id, *(state.lanes[name].lane_id for name in entry.lanes)),
    )


def _extend_closed_lanes(state: TableState, ends: Iterable[cut.Seqs]) -> TableState:
    """The state with closed lanes that end no earlier than slices and folds.

    Claims may follow the end of a closed lane, and a compaction that began before may have read one.
    """
    if all(lane.closed is None for lane in state.lanes.values()):
        return state
    furthest: cut.Seqs = {}
    for end in ends:
        furthest = cut.highest(furthest, end)
    lanes = {
        name: lane if lane.closed is None else replace(lane, closed=max(lane.closed, furthest.get(name, 0)))
        for name, lane in state.lanes.items()
    }
    return replace(state, lanes=lanes)


def _with_fold(state: TableState, entry: Fold) -> TableState:
    groups = {group_fold.group for group_fold in entry.file_groups}
    restarted: set[FileGroup] = set()
    for group in state.overlapped(groups):
        raise _not_at_end(entry.seq, group)
    # Thousands of file groups share a few cut objects, each with a number for every lane: each is compared once.
    restarts: dict[tuple[int, ...], bool] = {}
    bases: dict[FileGroup, cut.Seqs] = {}
    for group_fold in entry.file_groups:
        group = group_fold.group
        base = bases[group] = state.slices.expected(group, group_fold.parent)
        ends = (fold.to for fold in reversed(state.folds) if group in fold.groups)
        folded_end = next(ends, base)
        cuts = (id(group_fold.parent), id(group_fold.start), id(base), id(folded_end))
        if cuts not in restarts:
            goes_back = not cut.within(cut.only(folded_end, state.lanes), entry.to)
            if group_fold.parent != base or group_fold.start not in (base, folded_end) or goes_back:
                raise _not_at_end(entry.seq, group)
            restarts[cuts] = group_fold.start == group_fold.parent
        if restarts[cuts]:
            restarted.add(group)
    folds = tuple(f for f in (replace(fold, groups=fold.groups.without(restarted)) for fold in state.folds) if f.groups)
    live = LiveFold(entry.seq, entry.to, tuple(entry.files), GroupSet.of(groups))
    slices = state.slices.continued(assumed=bases)
    folded_to = cut.highest(state.folded, cut.only(entry.covered, state.lanes))
    state = replace(state, slices=slices, folds=(*folds, live), folded=folded_to)
    return _extend_closed_lanes(state, [entry.to])


def _not_at_end(seq: int, group: FileGroup) -> CorruptData:
    return CorruptData(
        f"entry {seq} of the table lane: the fold of {group} does not begin where its folds end (S11 ExactlyOnceFold)",
        hint="report this as a bug",
    )


def _done(state: TableState, entry: Done) -> TableState:
    intent = state.intent
    if intent is None or intent.seq != entry.intent or set(entry.heads) != set(intent.lanes):
        raise CorruptData(
            f"entry {entry.seq} of the table lane completes a fencing barrier that is not open",
            hint="report this as a bug",
        )
    if intent.restore is None:
        lanes = {name: replace(lane, closed=entry.heads.get(name, lane.closed)) for name, lane in state.lanes.items()}
        return _extend_closed_lanes(replace(state, lanes=lanes, intent=None), state.reached())
    target = intent.restore
    rolled_back = {**state.rolled_back, **{lane: tuple(spans) for lane, spans in target.rolled_back.items()}}
    for lane, head in entry.heads.items():
        rolled_back[lane] = (*target.rolled_back.get(lane, ()), (target.last_kept.get(lane, 0), head))
    return replace(
        state,
        rev=entry.seq,
        restored=entry.seq,
        slices=Slices.of(target.slices),
        covered=cut.only(target.covered, state.lanes),
        folds=(),
        folded={},
        plans={},
        intent=None,
        rolled_back=rolled_back,
    )
