"""State of the table, computed from a prefix of the table lane.

The state is a function of a contiguous prefix; applying it in two steps gives the same state (PROTOCOL.md, S2, S19).
It has the newest slice of every file group and the folds on top of it, but no history: an older state is that of a
shorter prefix. So memory is proportional to the size of the table, not to the length of its history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Annotated, Any

from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut, Span
from weft.storage.core.log.entries import (
    Abort,
    Base,
    CleanDone,
    CleanIntent,
    Create,
    Done,
    Fold,
    Intent,
    KeptReference,
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
from weft.storage.core.log.file_refs import FileGroup, LogFile, SliceFile
from weft.storage.core.log.group_set import GroupSet, GroupUnion, StoredGroups
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.regroup import may_follow, overlapping
from weft.storage.core.log.slice_list import SliceList, StoredSlice, distinct_cuts
from weft.storage.core.log.stored_as import stored_as
from weft.storage.core.names import TABLE_LANE, LaneName
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import CorruptData, UnsupportedFormat


@dataclass(frozen=True, slots=True)
class Lane:
    """A writer's lane, as the table lane declares it.

    Attributes:
        name: Unique in the table.
        lane_id: 1, 2, ..., in the order in which lanes were added.
        stream: The stream whose events it has.
        closed: The last entry of a closed lane; None while it is open.
    """

    name: LaneName
    lane_id: int
    stream: str
    closed: int | None = None


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A compaction or fold that has begun and not ended. Cleaning keeps the files of its snapshot.

    Attributes:
        slot: Slot of its PLAN; it is part of the names of its files.
        at: Cut of its snapshot.
        committed_at_ms: Time of the PLAN.
        reserves_ms: Duration of its reservation from then on (`weft.storage.core.plan.reservation`); 0 for none.
    """

    slot: int
    at: Cut
    committed_at_ms: int
    reserves_ms: int = 0


@dataclass(frozen=True, slots=True)
class LiveFold:
    """A fold that readers use.

    Attributes:
        slot: Slot of its FOLD.
        to: Last entry of each lane that it contains.
        files: Its files.
        groups: File groups whose logs up to ``to`` are read from it.
    """

    slot: int
    to: cut.Seqs
    files: tuple[LogFile, ...]
    groups: Annotated[GroupSet, stored_as(StoredGroups, GroupSet, GroupSet.dump)]


@dataclass(frozen=True, slots=True)
class LiveSavepoint:
    """A savepoint that is not released.

    Attributes:
        at: Cut of its snapshot.
        note: Text of the user.
        committed_at_ms: Time of the SAVEPOINT.
        references: Snapshots of the referenced tables, by the name of the reference.
    """

    at: Cut
    note: str
    committed_at_ms: int
    references: Mapping[str, KeptReference] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a prefix of the table lane. Checkpoints store every field, as it is declared here.

    Attributes:
        head: Length of the prefix (T).
        head_id: ``commit_id`` of its last entry.
        committed_at_ms: ``committed_at_ms`` of its last entry.
        stamp: Largest stamp.
        rev: Slot of the newest CREATE, SCHEMA or DONE of a restore.
        schema_rev: Slot of the newest CREATE or SCHEMA.
        restored: Slot of the newest DONE of a restore; 0 if there is none.
        lanes: In the order in which they were added, without those that were retired (PROTOCOL.md, C6).
        slices: The newest slice of each file group.
        covered: For each lane, an entry up to which every row is in a slice, even if the cuts of some slices are older.
        folds: Oldest first. The folds of a file group follow its slice without gaps.
        folded: For each lane, an entry up to which every row is in a slice or in a fold.
        plans: Open compactions and folds, by plan id.
        savepoints: Savepoints by name.
        oldest_retained: Snapshots of shorter prefixes are expired, except savepoints (PROTOCOL.md, S16 CleanSafe).
        intent: The INTENT of the fencing barrier that is open; None if there is none.
        rolled_back: Spans (after, up to) that restores have rolled back, by lane (S18 RolledBackNeverVisible).
        archived: Last slot of each lane that may be archived ("" is the table lane); lanes without one are left out.
        seen: Last entry of each lane that certainly existed when the last entry of the prefix was published.
        first_mark: Slot of the oldest MARK; 0 if there is none.
        mark: Slot of the newest MARK; 0 if there is none.
        marked_at_ms: ``began_at_ms`` of that MARK; the time of CREATE if there is none.
        rewritten: Slot of the newest BASE that rewrites; 0 if there is none. A snapshot of a shorter prefix has rows
            that the table lost, so no plan may begin from it.
        complete_from: Every snapshot of this prefix or a longer one, and every other one that is kept, has all entries
            of the retired lanes; 0 if none was retired.
        retired_id: The largest id of a retired lane; 0 if none was retired.
    """

    head: int
    head_id: str
    committed_at_ms: int
    stamp: int
    rev: int
    schema_rev: int
    table_id: str
    schema: Annotated[TableSchema, stored_as(dict[str, Any], TableSchema.from_json, TableSchema.to_json)]
    writer_features: Annotated[frozenset[str], stored_as(list[str], frozenset, sorted)]
    marked_at_ms: int
    restored: int = 0
    lanes: Mapping[LaneName, Lane] = field(default_factory=dict)
    slices: Annotated[Slices, stored_as(list[SliceFile], Slices.of, lambda slices: list(slices.values()))] = field(
        default_factory=Slices
    )
    covered: cut.Seqs = field(default_factory=dict)
    folds: tuple[LiveFold, ...] = ()
    folded: cut.Seqs = field(default_factory=dict)
    plans: Mapping[str, OpenPlan] = field(default_factory=dict)
    savepoints: Mapping[str, LiveSavepoint] = field(default_factory=dict)
    oldest_retained: int = 1
    intent: Intent | None = None
    rolled_back: Mapping[LaneName, tuple[Span, ...]] = field(default_factory=dict)
    archived: cut.Seqs = field(default_factory=dict)
    seen: cut.Seqs = field(default_factory=dict)
    first_mark: int = 0
    mark: int = 0
    rewritten: int = 0
    complete_from: int = 0
    retired_id: int = 0

    @property
    def next_lane_id(self) -> int:
        """The id of the next lane: larger than that of every lane that there ever was."""
        return 1 + max([self.retired_id, *(lane.lane_id for lane in self.lanes.values())])

    @property
    def has_had_lanes(self) -> bool:
        """Whether anybody has ever written to the table. If all lanes were retired, it has rows and lists no lane."""
        return bool(self.lanes) or self.retired_id > 0

    @property
    def oldest_continued(self) -> int:
        """Snapshots of shorter prefixes have rows that are gone since: no compaction or fold may begin from them."""
        return max(self.oldest_retained, self.restored, self.rewritten)

    @property
    def folded_groups(self) -> GroupUnion:
        """The file groups that have folds."""
        return GroupUnion(fold.groups for fold in self.folds)

    @property
    def levels(self) -> frozenset[int]:
        """The bits of its file groups. The largest is that of keys in no slice and no fold."""
        levels = self.slices.levels | self.folded_groups.levels
        return levels | {max((self.schema.bucket_bits, *levels))}

    def overlapped(self, groups: Collection[FileGroup]) -> set[FileGroup]:
        """Those file groups that overlap one with other bits, which is among them too, or has a slice or a fold."""
        levels = self.levels | {group.bits for group in groups}
        if len(levels) == 1:
            return set()
        candidates, folded_groups = frozenset(groups), self.folded_groups

        def has(group: FileGroup) -> bool:
            return group in candidates or group in folded_groups or group in self.slices

        return {group for group in groups if any(overlapping(group, levels, has))}

    def folded_to(self, group: FileGroup) -> cut.Seqs:
        """The last entry of each lane that is in the slice or the folds of a file group."""
        for fold in reversed(self.folds):
            if group in fold.groups:
                return fold.to
        return self.slices.cut_of(group)

    def log_start(self) -> dict[LaneName, int]:
        """The last entry of each lane whose log files no file group reads any more."""
        return cut.highest(self.covered, self.folded)

    def keeps(self, at: Cut) -> bool:
        """Whether the files of a snapshot are kept: it is not older than ``oldest_retained``, or it is a savepoint."""
        return at.table >= self.oldest_retained or any(savepoint.at == at for savepoint in self.savepoints.values())

    def readable_at(self, lanes: cut.Seqs) -> bool:
        """Whether a snapshot up to ``lanes`` contains every entry that slices and folds contain (PROTOCOL.md, R3)."""
        return all(cut.within(cut.only(end, self.lanes), lanes) for end in (self.covered, *self.reached()))

    def complete(self, lanes: cut.Seqs) -> dict[LaneName, int]:
        """A cut of a later state in the lanes of this one. Lanes that the later one has retired are at their ends.

        Lanes that are open in this state, and not in the cut, are without entries: this state has expired (C6).
        """
        return {lane.name: lanes.get(lane.name, lane.closed or 0) for lane in self.lanes.values()}

    def reached(self) -> Iterator[cut.Seqs]:
        """The cuts of all slices, with few duplicates, and the ends of all folds; they may name retired lanes."""
        yield from self.slices.cuts()
        yield from (fold.to for fold in self.folds)


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
                seen=_entries_proved(state, entry),
            )
    return state


def _create(entry: Create, before: TableState | None) -> TableState:
    _check_features(entry)
    if before is not None or entry.seq != 1:
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
                raise CorruptData(f"lane {entry.name!r} is added twice (entry {entry.seq})", hint="restore from a copy")
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
    before = state.slices
    replaced_groups = {item.group for item in slices}
    if len(replaced_groups) < len(slices):
        raise _not_from_newest(entry.seq, Counter(item.group for item in slices).most_common(1)[0][0])
    levels = before.levels | state.folded_groups.levels | {group.bits for group in replaced_groups}
    if len(levels) > 1:
        remaining = dict(before.stored)
        replaced_groups |= _regroup(state, slices, levels, remaining, entry.seq)
        before = Slices(remaining)
    for item in slices:
        newest = before.expected(item.group, item.parent)
        # Most slices share one cut object, which has a number for every lane.
        if item.parent is not newest and item.parent != newest:
            raise _not_from_newest(entry.seq, item.group)
    # A new slice ends all folds of its file group, even folds of later entries.
    folded = reduce(cut.lowest, distinct_cuts(slices), state.folded)
    folds = (replace(fold, groups=fold.groups.without(replaced_groups)) for fold in state.folds)
    state = replace(
        state,
        slices=before.continued(slices),
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
    offered = [item.file for item in stored_slices]
    fits = {offer.group for offer in may_follow(state.slices, state.folded_groups, offered)}
    for offer in offered:
        if offer.group not in fits:
            raise _not_from_newest(seq, offer.group)
    replaced_groups: set[FileGroup] = set()
    folded = state.folded_groups
    for group in fits:
        replaced_groups |= set(overlapping(group, levels, lambda other: other in state.slices or other in folded))
    for group in replaced_groups:
        slices.pop(group, None)
    return replaced_groups


def _not_from_newest(seq: int, group: FileGroup) -> CorruptData:
    return CorruptData(
        f"entry {seq} of the table lane: the new slice of {group} is not made from the newest one (S10 CutChain)",
        hint="report this as a bug",
    )


def _entries_proved(state: TableState, entry: TableEntry) -> cut.Seqs:
    """``seen`` after an entry: an entry that names entries of other lanes proves that they exist."""
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
    anew: set[FileGroup] = set()
    for group in state.overlapped(groups):
        raise _not_at_end(entry.seq, group)
    # Thousands of file groups share a few cut objects, each with a number for every lane: each is compared once.
    starts_anew: dict[tuple[int, ...], bool] = {}
    bases: dict[FileGroup, cut.Seqs] = {}
    for group_fold in entry.file_groups:
        group = group_fold.group
        base = bases[group] = state.slices.expected(group, group_fold.parent)
        ends = (fold.to for fold in reversed(state.folds) if group in fold.groups)
        folded_end = next(ends, base)
        cuts = (id(group_fold.parent), id(group_fold.start), id(base), id(folded_end))
        if cuts not in starts_anew:
            goes_back = not cut.within(cut.only(folded_end, state.lanes), entry.to)
            if group_fold.parent != base or group_fold.start not in (base, folded_end) or goes_back:
                raise _not_at_end(entry.seq, group)
            starts_anew[cuts] = group_fold.start == group_fold.parent
        if starts_anew[cuts]:
            anew.add(group)
    folds = tuple(f for f in (replace(fold, groups=fold.groups.without(anew)) for fold in state.folds) if f.groups)
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
