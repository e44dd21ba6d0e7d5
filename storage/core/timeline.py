"""Fold of the timeline: entries of the table lane to table state, entries of a writer's lane to writer state.

Both are functions of a contiguous prefix and of nothing else; folding a prefix in two steps gives the same (S2, S19).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from storage.core import cut
from storage.core.entries import (
    READER_FEATURES,
    Abort,
    Base,
    Claim,
    Create,
    Data,
    LaneAdd,
    LaneEntry,
    Plan,
    Sidecar,
    SliceFile,
    TableEntry,
)
from storage.core.names import LaneName
from storage.core.schema import TableSchema
from storage.errors import CorruptData, UnsupportedFormat


@dataclass(frozen=True, slots=True, order=True)
class FileGroup:
    """Where a key lives: partition folder ("" for none), bucket bits and bucket number (S15 KeySingleHome)."""

    partition: str
    bits: int
    bucket: int

    def __str__(self) -> str:
        own = f"b{self.bits:02d}-{self.bucket:05d}"
        return f"{self.partition}/{own}" if self.partition else own


@dataclass(frozen=True, slots=True)
class Lane:
    """A writer's lane as the table lane declares it."""

    name: LaneName
    lane_id: int
    stream: str


@dataclass(frozen=True, slots=True)
class SliceVersion:
    """A slice, and the slot of the table lane from which on it is live."""

    since: int
    file: SliceFile


@dataclass(frozen=True, slots=True)
class TableState:
    """What a prefix of the table lane says.

    Attributes:
        head: Length of the prefix (T).
        rev: Slot of the newest entry that changed schema or layout.
        slices: Per file group its slices, oldest first; their cuts ascend (S10 CutChain).
        covered: Per BASE entry that states one, (slot, cut); oldest first.
        plans: Open compactions: plan id to the cut they aim at.
    """

    head: int
    rev: int
    table_id: str
    schema: TableSchema
    writer_features: frozenset[str]
    lanes: Mapping[LaneName, Lane]
    slices: Mapping[FileGroup, tuple[SliceVersion, ...]]
    covered: tuple[tuple[int, cut.Seqs], ...]
    plans: Mapping[str, cut.Seqs]


def fold_table(state: TableState | None, entries: Iterable[TableEntry]) -> TableState | None:
    """State after further entries of the table lane; None while there is none.

    Requires lists of BASE entries in place, not in sidecars.

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
            state = replace(_applied(state, entry), head=entry.seq)
    return state


def _created(entry: Create, before: TableState | None) -> TableState:
    unknown = sorted(set(entry.reader_features) - READER_FEATURES)
    if unknown:
        raise UnsupportedFormat(
            f"the table uses features that this version cannot read: {', '.join(unknown)}", hint="upgrade weft"
        )
    if before is not None or entry.seq != 1:
        raise CorruptData(f"entry {entry.seq} of the table lane is a second CREATE", hint="restore it from a copy")
    return TableState(
        head=entry.seq,
        rev=entry.seq,
        table_id=entry.table_id,
        schema=TableSchema.from_json(entry.table_schema),
        writer_features=frozenset(entry.writer_features),
        lanes={},
        slices={},
        covered=(),
        plans={},
    )


def _applied(state: TableState, entry: LaneAdd | Plan | Abort | Base) -> TableState:
    if isinstance(entry, LaneAdd):
        if entry.name in state.lanes:
            raise CorruptData(f"lane {entry.name!r} is added twice (entry {entry.seq})", hint="restore from a copy")
        return replace(state, lanes={**state.lanes, entry.name: Lane(entry.name, entry.lane_id, entry.stream)})
    if isinstance(entry, Plan):
        return replace(state, plans={**state.plans, entry.plan_id: entry.cut})
    if isinstance(entry, Abort):
        return replace(state, plans={plan: aim for plan, aim in state.plans.items() if plan != entry.plan_id})
    assert not isinstance(entry.slices, Sidecar)
    slices = dict(state.slices)
    for file in entry.slices:
        group = FileGroup(file.partition, file.bits, file.bucket)
        chain = slices.get(group, ())
        if file.parent != (chain[-1].file.cut if chain else {}):
            raise CorruptData(
                f"entry {entry.seq}: the new slice of {group} is not made from the newest one (CutChain)",
                hint="a compactor broke the protocol: report it",
            )
        slices[group] = (*chain, SliceVersion(entry.seq, file))
    covered = (*state.covered, (entry.seq, entry.covered)) if entry.covered else state.covered
    plans = {plan: aim for plan, aim in state.plans.items() if not (entry.last and plan == entry.plan_id)}
    return replace(state, slices=slices, covered=covered, plans=plans)


RECENT_COMMITS: Final = 10_000  # a source replays its last batch; whoever asks for an older one waits for a look-up


@dataclass(frozen=True, slots=True)
class Committed:
    """What a replayed batch needs to know of the commit that is there."""

    seq: int
    rows: int
    rows_ignored: int


@dataclass(slots=True)
class LaneState:
    """What a prefix of a writer's lane says.

    Attributes:
        head: Length of the prefix.
        head_id: ``commit_id`` of its last entry, "" if empty.
        epoch: Of the newest claim.
        owner: Who made it.
        stamp: Largest stamp.
        committed_at_ms: That of the last entry.
        query_id: The query that committed last, "" before the first commit with a batch.
        batches: Per query its last batch.
        source: Where the last commit left its source, as the sink recorded it.
        recent: The newest commits with a batch, by batch; `RECENT_COMMITS` at most.
    """

    head: int = 0
    head_id: str = ""
    epoch: int = 0
    owner: str = ""
    stamp: int = 0
    committed_at_ms: int = 0
    query_id: str = ""
    batches: dict[str, int] = field(default_factory=dict)
    source: dict[str, object] = field(default_factory=dict)
    recent: dict[tuple[str, int], Committed] = field(default_factory=dict)

    def add(self, entry: LaneEntry) -> None:
        """Fold the next entry in.

        Raises:
            CorruptData: It does not follow the last one (S2 LaneContiguous, S3 EpochMonotone).
        """
        claim = isinstance(entry, Claim)
        if entry.seq != self.head + 1 or entry.prev_id != self.head_id or entry.epoch != self.epoch + claim:
            raise CorruptData(
                f"entry {entry.seq} of lane {entry.lane!r} does not follow entry {self.head} (epoch {self.epoch})",
                hint="an object was replaced, or a writer broke the protocol: report it",
            )
        self.head, self.head_id, self.epoch = entry.seq, entry.commit_id, entry.epoch
        self.stamp = max(self.stamp, entry.stamp)
        self.committed_at_ms = entry.committed_at_ms
        if isinstance(entry, Claim):
            self.owner = entry.owner
        elif isinstance(entry, Data) and entry.query_id:
            self.query_id = entry.query_id
            self.batches[entry.query_id] = entry.batch
            self.source = entry.source
            self.recent[entry.query_id, entry.batch] = Committed(entry.seq, entry.rows, entry.rows_ignored)
            if len(self.recent) > RECENT_COMMITS:
                del self.recent[next(iter(self.recent))]
