"""Fold of the table lane: entries to the state of the table.

A function of a contiguous prefix and of nothing else; folding a prefix in two steps gives the same (S2, S19). The state
holds what is *now*: one slice per file group, the folds on top of it, what is kept and what is rolled back. An older
state is the fold of a shorter prefix. So memory is proportional to what is live, not to what has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Annotated, Any

from storage.core.log import cut
from storage.core.log.cut import Cut, Span
from storage.core.log.entries import (
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
    Savepoint,
    Schema,
    TableEntry,
)
from storage.core.log.file_refs import FileGroup, LogFile, SliceFile
from storage.core.log.slice_list import NOTHING, SliceList, Slices, distinct_cuts
from storage.core.log.stored_as import stored_as
from storage.core.modes import known_features
from storage.core.names import LaneName
from storage.core.schema.table_schema import TableSchema
from storage.errors import CorruptData, UnsupportedFormat


@dataclass(frozen=True, slots=True)
class Lane:
    """A writer's lane as the table lane declares it; ``closed`` is its last entry for ever, None while it is open."""

    name: LaneName
    lane_id: int
    stream: str
    closed: int | None = None


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A compaction or fold that has begun and not ended: it keeps the files of its snapshot ``at``.

    ``slot`` is that of its PLAN, by which its files are named.
    """

    slot: int
    at: Cut
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class LiveFold:
    """A fold, and the file groups whose logs up to ``to`` are still read from it."""

    slot: int
    to: cut.Seqs
    files: tuple[LogFile, ...]
    groups: Annotated[frozenset[FileGroup], stored_as(list[FileGroup], frozenset, sorted)]


@dataclass(frozen=True, slots=True)
class LiveSavepoint:
    """A savepoint: its snapshot and what its maker said of it."""

    at: Cut
    note: str
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class TableState:
    """What a prefix of the table lane says. Checkpoints store every field, as it is declared here.

    Attributes:
        head: Length of the prefix (T).
        head_id: ``commit_id`` of its last entry.
        committed_at_ms: That of its last entry.
        stamp: Largest stamp.
        rev: Slot of the newest entry that changed the schema or what is rolled back.
        schema_rev: Slot of the newest entry that changed the schema.
        restored: Slot of the newest DONE of a restore; 0 if there is none.
        lanes: In the order in which they were added.
        slices: Per file group its newest slice.
        covered: Every row of an entry up to here is in a slice, whatever the slices' own cuts.
        folds: Oldest first. Per file group those that hold it cover, one after the other, what follows its slice.
        folded: Every row of an entry up to here is in a slice or in a fold.
        plans: By plan id.
        savepoints: By name.
        oldest_retained: Snapshots of shorter prefixes are given up, unless kept by name (S16 CleanSafe).
        intent: The barrier that has begun and is not complete.
        rolled_back: Per lane the spans (after, up to) that a restore has rolled back (S18 RolledBackNeverVisible).
        archived: Per lane, the table lane too, the last slot that may be archived; none of a lane that is not named.
        seen: Per lane the last entry that is known to have been there when the last entry of the prefix was published.
        first_mark: Slot of the oldest MARK; 0 if there is none.
        mark: Slot of the newest one; 0 if there is none.
        marked_at_ms: When that began; when the table was created if there is none.
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

    def folded_to(self, group: FileGroup) -> cut.Seqs:
        """Up to where slice and folds hold everything of a file group."""
        for fold in reversed(self.folds):
            if group in fold.groups:
                return fold.to
        return self.slices.cut_of(group)

    def log_start(self) -> dict[LaneName, int]:
        """Per lane the last entry of whose log files no file group needs any more."""
        return cut.highest(self.covered, self.folded)

    def keeps(self, at: Cut) -> bool:
        """Whether what the table lane says keeps a snapshot's files: it is new enough, or a savepoint."""
        return at.table >= self.oldest_retained or any(kept.at == at for kept in self.savepoints.values())

    def readable_at(self, lanes: cut.Seqs) -> bool:
        """Whether a snapshot that reaches to ``lanes`` has all that slices and folds hold (rule R3)."""
        return all(cut.within(own, lanes) for own in (self.covered, *self.reached()))

    def reached(self) -> Iterator[cut.Seqs]:
        """Cuts of slices, of those that are alike one, and how far folds reach."""
        yield from self.slices.cuts()
        yield from (fold.to for fold in self.folds)


def fold_table(state: TableState | None, entries: Iterable[TableEntry]) -> TableState | None:
    """State after further entries of the table lane; None while there is none.

    Raises:
        UnsupportedFormat: The table needs a feature that this version does not know.
        CorruptData: Entries contradict each other.
    """
    for entry in entries:
        if isinstance(entry, Create):
            state = _created(entry, state)
        elif state is None:
            raise CorruptData(f"the table lane starts with {entry.kind}", hint="its first entry was replaced")
        else:
            if entry.seq != state.head + 1 or entry.prev_id != state.head_id:
                raise CorruptData(
                    f"entry {entry.seq} of the table lane does not follow entry {state.head}",
                    hint="an object was replaced: restore it from a copy of the store",
                )
            state = replace(
                _applied(state, entry),
                head=entry.seq,
                head_id=entry.commit_id,
                committed_at_ms=entry.committed_at_ms,
                stamp=max(state.stamp, entry.stamp),
                seen=_seen(state, entry),
            )
    return state


def _created(entry: Create, before: TableState | None) -> TableState:
    _check_features(entry)
    if before is not None or entry.seq != 1:
        raise CorruptData(f"entry {entry.seq} of the table lane is a second CREATE", hint="restore it from a copy")
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
    unknown = sorted(set(entry.reader_features) - known_features())
    if unknown:
        raise UnsupportedFormat(
            f"the table uses features that this version cannot read: {', '.join(unknown)}", hint="upgrade weft"
        )


def _applied(state: TableState, entry: TableEntry) -> TableState:
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
            plan = OpenPlan(entry.seq, Cut(entry.table, entry.cut), entry.committed_at_ms)
            return replace(state, plans={**state.plans, entry.plan_id: plan})
        case Abort():
            return _closed(state, entry.plan_id)
        case Base():
            return _with_slices(state, entry)
        case Fold():
            return _closed(_with_fold(state, entry), entry.plan_id)
        case Savepoint():
            kept = LiveSavepoint(Cut(entry.table, entry.lanes), entry.note, entry.committed_at_ms)
            return replace(state, savepoints={**state.savepoints, entry.name: kept})
        case Release():
            return replace(state, savepoints={n: kept for n, kept in state.savepoints.items() if n != entry.name})
        case Intent():
            if state.intent is not None:
                raise CorruptData(f"entry {entry.seq} begins a second barrier", hint="report it")
            # What compactions have read may be rolled back: every open plan ends.
            return replace(state, intent=entry, plans={} if entry.restore else state.plans)
        case Done():
            return _done(state, entry)
        case Mark():
            first = state.first_mark or entry.seq
            return replace(state, first_mark=first, mark=entry.seq, marked_at_ms=entry.began_at_ms)
        case CleanIntent():
            archived = cut.highest(state.archived, entry.archived)
            return replace(state, oldest_retained=max(state.oldest_retained, entry.oldest_retained), archived=archived)
        case CleanDone():
            return state
        case _:
            raise CorruptData(f"entry {entry.seq} of the table lane is {entry.kind}", hint="report it")


def _closed(state: TableState, plan_id: str) -> TableState:
    return replace(state, plans={plan: own for plan, own in state.plans.items() if plan != plan_id})


def _with_slices(state: TableState, entry: Base) -> TableState:
    made = SliceList.of(entry.slices).stored
    slices = dict(state.slices.stored)
    done = set()
    for item in made:
        newest = slices[item.group].cut if item.group in slices else NOTHING
        # Most cuts are one object, and have a number for every lane.
        if item.parent is not newest and item.parent != newest:
            raise CorruptData(
                f"entry {entry.seq}: the new slice of {item.group} is not made from the newest one (CutChain)",
                hint="a compactor broke the protocol: report it",
            )
        slices[item.group] = item
        done.add(item.group)
    # Folds that reach beyond a new slice are given up with the others of this file group.
    folded = reduce(cut.lowest, distinct_cuts(made), state.folded)
    folds = (replace(fold, groups=fold.groups - done) for fold in state.folds)
    state = replace(
        state,
        slices=Slices(slices),
        covered=cut.highest(state.covered, entry.covered),
        folds=tuple(fold for fold in folds if fold.groups),
        folded=folded,
    )
    state = _ended(state, distinct_cuts(made))
    return _closed(state, entry.plan_id) if entry.last else state


def _seen(state: TableState, entry: TableEntry) -> cut.Seqs:
    """An entry that names other lanes' entries shows that these are there. What a restore reads is not new."""
    match entry:
        case Mark() | Savepoint():
            return cut.highest(state.seen, entry.lanes)
        case Plan():
            return cut.highest(state.seen, entry.cut)
        case Done():
            return cut.highest(state.seen, entry.heads)
    return state.seen


def _ended(state: TableState, reached: Iterable[cut.Seqs]) -> TableState:
    """Closed lanes end no earlier than slices and folds reach.

    Behind the end there may be claims, which say nothing, and a compaction that began before may have seen one.
    """
    if all(lane.closed is None for lane in state.lanes.values()):
        return state
    furthest: cut.Seqs = {}
    for own in reached:
        furthest = cut.highest(furthest, own)
    lanes = {
        name: lane if lane.closed is None else replace(lane, closed=max(lane.closed, furthest.get(name, 0)))
        for name, lane in state.lanes.items()
    }
    return replace(state, lanes=lanes)


def _with_fold(state: TableState, entry: Fold) -> TableState:
    groups: set[FileGroup] = set()
    anew: set[FileGroup] = set()
    # Thousands of file groups have the same few cuts, one object each with a number for every lane: compared once.
    starts_anew: dict[tuple[int, ...], bool] = {}
    for folded in entry.file_groups:
        group = folded.group
        groups.add(group)
        base, reached = state.slices.cut_of(group), state.folded_to(group)
        cuts = (id(folded.parent), id(folded.start), id(base), id(reached))
        if cuts not in starts_anew:
            if folded.parent != base or folded.start not in (base, reached) or not cut.within(reached, entry.to):
                raise CorruptData(
                    f"entry {entry.seq}: the fold of {group} does not go on where slice and folds end "
                    "(ExactlyOnceFold)",
                    hint="a compactor broke the protocol: report it",
                )
            starts_anew[cuts] = folded.start == folded.parent
        if starts_anew[cuts]:
            anew.add(group)
    folds = tuple(f for f in (replace(fold, groups=fold.groups - anew) for fold in state.folds) if f.groups)
    live = LiveFold(entry.seq, entry.to, tuple(entry.files), frozenset(groups))
    state = replace(state, folds=(*folds, live), folded=cut.highest(state.folded, entry.covered))
    return _ended(state, [entry.to])


def _done(state: TableState, entry: Done) -> TableState:
    intent = state.intent
    if intent is None or intent.seq != entry.intent or set(entry.heads) != set(intent.lanes):
        raise CorruptData(f"entry {entry.seq} ends a barrier that is not open", hint="report it")
    if intent.restore is None:
        lanes = {name: replace(lane, closed=entry.heads.get(name, lane.closed)) for name, lane in state.lanes.items()}
        return _ended(replace(state, lanes=lanes, intent=None), state.reached())
    target = intent.restore
    rolled_back = {**state.rolled_back, **{lane: tuple(spans) for lane, spans in target.rolled_back.items()}}
    for lane, head in entry.heads.items():
        rolled_back[lane] = (*target.rolled_back.get(lane, ()), (target.last_kept.get(lane, 0), head))
    return replace(
        state,
        rev=entry.seq,
        restored=entry.seq,
        slices=Slices.of(target.slices),
        covered=target.covered,
        folds=(),
        folded={},
        plans={},
        intent=None,
        rolled_back=rolled_back,
    )
