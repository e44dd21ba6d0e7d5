"""Which files are needed, and which can be deleted (PROTOCOL.md, C1 to C3; S16 CleanSafe, S17 OrphanSafe).

Whether a file can be deleted follows from its name and from what is needed, never from its age. The answer never
changes later: an entry that refers to an old file (a restore, a savepoint, a plan) is made from a snapshot that is
kept, so its files are needed already.

These files are needed for every state from ``oldest_retained`` on, for savepoints, open plans and pins, and for the
target of an open restore: base and shadow files of slices, fold files, and the log files of entries that are neither in
a slice nor rolled back. Event files stay needed when they are folded, because a restore ends all folds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.cut import Span
from weft.storage.core.log.entries import Base, Done, Fold, LaneAdd, TableEntry
from weft.storage.core.log.file_refs import LogFile, SliceFile
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName, ParsedPath, Path

ENDLESS: Final = 1 << 62
"""Larger than every slot: entries that will be published later are needed too."""
KEPT_CHECKPOINTS: Final = 2  # the newest one may be damaged, or contain entries that a restore has rolled back

Spans = tuple[Span, ...]
"""Spans (after, up to), ascending; neither overlapping nor adjacent."""


def union_spans(first: Sequence[Span], second: Sequence[Span]) -> Spans:
    """The union of two lists of spans."""
    result: list[Span] = []
    for after, until in sorted([*first, *second]):
        if result and after <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], until))
        elif after < until:
            result.append((after, until))
    return tuple(result)


def subtract_spans(spans: Sequence[Span], removed: Sequence[Span]) -> Spans:
    """The entries of the first list of spans that are not in the second."""
    remaining = list(spans)
    for low, high in removed:
        parts = [((after, min(until, low)), (max(after, high), until)) for after, until in remaining]
        remaining = [part for pair in parts for part in pair if part[0] < part[1]]
    return union_spans(remaining, ())


def touches(spans: Sequence[Span], after: int, until: int) -> bool:
    """Whether the span (``after``, ``until``) has an entry in common with one of the spans."""
    return any(low < until and after < high for low, high in spans)


def contains(spans: Sequence[Span], seq: int) -> bool:
    """Whether an entry is in one of the spans."""
    return cut.in_spans(spans, seq)


def changes_files(entry: TableEntry) -> bool:
    """Whether the state after an entry needs other files than the one before."""
    return isinstance(entry, Base | Fold | Done)


@dataclass(slots=True)
class Needed:
    """Files and entries that are needed.

    Attributes:
        files: Paths of base, shadow and fold files, and of fold files' sidecars.
        entries: Entries of each lane whose log files are needed.
        read: Entries of each lane that readers read: ``entries``, and rolled-back entries between them.
        in_slices: The cut of the entries that the slices of every added snapshot have; None before the first.
    """

    files: set[Path] = field(default_factory=set)
    entries: dict[LaneName, Spans] = field(default_factory=dict)
    read: dict[LaneName, Spans] = field(default_factory=dict)
    in_slices: cut.Seqs | None = None

    def add_state(self, state: TableState) -> None:
        """Add everything that is read by snapshots of a table state, including commits that may follow."""
        self.add_snapshot(state, dict.fromkeys(state.lanes, ENDLESS))

    def add_snapshot(self, state: TableState, lanes: cut.Seqs) -> None:
        """Add everything that the snapshot (``state``, ``lanes``) reads, and that a restore to it needs."""
        self._add_files(state.slices.values())
        for fold in state.folds:
            self._add_files(fold.files)
        self._add_entries(state.covered, lanes, state.rolled_back)

    def add_entry(self, entry: TableEntry, state: TableState) -> None:
        """Add what ``state``, the state after ``entry``, needs. The state before the entry must have been added."""
        match entry:
            case Base():
                self._add_files(entry.slices)
            case Fold():
                self._add_files(entry.files)
            case Done() | LaneAdd():
                # The states before a lane was added do not need its entries.
                self.add_state(state)

    def add_target(self, state: TableState) -> None:
        """Add what the table needs once the open restore of a state is complete."""
        restore = state.intent.restore if state.intent is not None else None
        if restore is None:
            return
        self._add_files(restore.slices)
        lanes = {lane: restore.last_kept.get(lane, ENDLESS) for lane in state.lanes}
        self._add_entries(restore.covered, lanes, {**state.rolled_back, **restore.rolled_back})

    def _add_files(self, files: Iterable[SliceFile | LogFile]) -> None:
        self.files.update(object_ref.path for file in files for object_ref in file.objects)

    def _add_entries(self, start: cut.Seqs, lanes: cut.Seqs, rolled_back: cut.SpansByLane) -> None:
        self.in_slices = start if self.in_slices is None else cut.lowest(self.in_slices, start)
        for lane, until in lanes.items():
            span = [(start.get(lane, 0), until)]
            self.read[lane] = union_spans(self.read.get(lane, ()), span)
            spans = subtract_spans(span, rolled_back.get(lane, ()))
            self.entries[lane] = union_spans(self.entries.get(lane, ()), spans)


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """The end of a lane, read at any time: a slot that is taken stays taken.

    Attributes:
        head: Its last entry.
        epoch: Number of its newest claim.
    """

    head: int
    epoch: int


def entry_may_come(parsed: ParsedPath, end: LaneEnd) -> bool:
    """Whether the commit that a log file was written for may still be published (PROTOCOL.md, S17 OrphanSafe)."""
    return parsed.slot > end.head and parsed.epoch >= end.epoch


def plan_may_publish(parsed: ParsedPath, head: int, open_plans: Collection[int]) -> bool:
    """Whether the plan that a file was written for may still publish the file (PROTOCOL.md, rule K3).

    Args:
        parsed: Path of the file.
        head: Length of the prefix of the table lane to judge by.
        open_plans: Slots of the plans that are open at ``head``.
    """
    return parsed.slot > head or parsed.slot in open_plans


def kept_checkpoints(heads: Collection[int], served: Iterable[int] = ()) -> frozenset[int]:
    """Heads of the checkpoints of a lane to keep: the newest ones, and the best one for each prefix in ``served``."""
    newest = sorted(set(heads), reverse=True)
    best = (next((head for head in newest if head <= prefix), None) for prefix in served)
    return frozenset([*newest[:KEPT_CHECKPOINTS], *(head for head in best if head is not None)])


def newest_heartbeat(beats: Mapping[Path, ParsedPath], end: LaneEnd) -> Path | None:
    """The newest heartbeat of the lane's newest claim; all others are garbage. None if that claim has none."""
    current = [path for path, parsed in beats.items() if parsed.epoch >= end.epoch]
    return max(current, key=lambda path: (beats[path].epoch, beats[path].at_ms), default=None)
