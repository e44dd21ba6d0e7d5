"""Fold of a writer's lane: what its next incarnation must know (S2 LaneContiguous, S3 EpochMonotone, S6).

A function of a contiguous prefix and of the spans that restores have rolled back; folding in two steps gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from storage.core.log.cut import Span, in_spans
from storage.core.log.entries import Claim, Data, LaneEntry, Promise
from storage.core.log.stored_as import stored_as
from storage.errors import CorruptData

RECENT_COMMITS: Final = 1_000  # a source replays its last batch; whoever asks for an older one waits for a look-up


@dataclass(frozen=True, slots=True)
class Committed:
    """What a replayed batch needs to know of the commit that is there."""

    seq: int
    rows: int
    rows_ignored: int


Recent = Annotated[
    dict[tuple[str, int], Committed],
    stored_as(
        list[tuple[str, int, Committed]],
        lambda items: {(query, batch): committed for query, batch, committed in items},
        lambda recent: [(*key, committed) for key, committed in recent.items()],
    ),
]


@dataclass(slots=True)
class LaneState:
    """What a prefix of a writer's lane says. Checkpoints store every field, as it is declared here.

    Attributes:
        rolled_back: Spans of the lane that mean nothing: what was committed there counts as never sent.
        head: Length of the prefix.
        head_id: ``commit_id`` of its last entry, "" if empty.
        epoch: Of the newest claim.
        owner: Who made it.
        intent: The INTENT that it served; 0 for a writer's own.
        stamp: Largest stamp.
        committed_at_ms: That of the last entry.
        table_rev: Largest schema revision (S19).
        query_id: The query that committed last, "" before the first commit with a batch.
        batches: Per query its last batch.
        rolled_back_from: Per query that has a batch that was rolled back, the first of those before any live one: its
            source must go back that far, and no further on.
        source: Where the last commit left its source, as the sink recorded it.
        recent: The newest commits with a batch, by batch; as many as `add` was told to keep.
        watermarks: By group id what the last live commit says that the lane has promised.
    """

    rolled_back: tuple[Span, ...] = ()
    head: int = 0
    head_id: str = ""
    epoch: int = 0
    owner: str = ""
    intent: int = 0
    stamp: int = 0
    committed_at_ms: int = 0
    table_rev: int = 0
    query_id: str = ""
    batches: dict[str, int] = field(default_factory=dict)
    rolled_back_from: dict[str, int] = field(default_factory=dict)
    source: dict[str, object] = field(default_factory=dict)
    recent: Recent = field(default_factory=dict)
    watermarks: dict[int, Promise] = field(default_factory=dict)

    def add(self, entry: LaneEntry, recent: int = RECENT_COMMITS) -> None:
        """Fold the next entry in.

        Args:
            entry: The entry after the prefix.
            recent: How many commits with a batch to remember.

        Raises:
            CorruptData: It does not follow the last one (S2 LaneContiguous, S3 EpochMonotone, S19 RevMonotone).
        """
        claim = isinstance(entry, Claim)
        if (
            entry.seq != self.head + 1
            or entry.prev_id != self.head_id
            or entry.epoch != self.epoch + claim
            or entry.table_rev < self.table_rev
        ):
            raise CorruptData(
                f"entry {entry.seq} of lane {entry.lane!r} does not follow entry {self.head} (epoch {self.epoch})",
                hint="an object was replaced, or a writer broke the protocol: report it",
            )
        self.head, self.head_id, self.epoch = entry.seq, entry.commit_id, entry.epoch
        self.stamp = max(self.stamp, entry.stamp)
        self.committed_at_ms, self.table_rev = entry.committed_at_ms, entry.table_rev
        if isinstance(entry, Claim):
            self.owner, self.intent = entry.owner, entry.intent
        elif isinstance(entry, Data) and in_spans(self.rolled_back, entry.seq):
            if entry.query_id and entry.query_id not in self.batches:
                self.rolled_back_from.setdefault(entry.query_id, entry.batch)
        elif isinstance(entry, Data):
            self.watermarks = entry.watermarks
            if entry.query_id:
                self._note_batch(entry, recent)

    def _note_batch(self, entry: Data, recent: int) -> None:
        self.query_id = entry.query_id
        self.batches[entry.query_id] = entry.batch
        self.source = entry.source
        self.recent[entry.query_id, entry.batch] = Committed(entry.seq, entry.rows, entry.rows_ignored)
        if len(self.recent) > recent:
            del self.recent[next(iter(self.recent))]
