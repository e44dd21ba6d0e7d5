"""State of a writer's lane: what the next writer of the lane must know (PROTOCOL.md, S2, S3, S6).

The state is a function of a contiguous prefix of the lane and of the spans that restores have rolled back. Applying a
prefix in two steps gives the same state as in one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from weft.storage.core.log.cut import Span, in_spans
from weft.storage.core.log.entries import Claim, Data, Header, LaneEntry, Promise
from weft.storage.core.log.stored_as import stored_as
from weft.storage.errors import CorruptData

RECENT_COMMITS: Final = 1_000  # a source replays its last batch; older batches are looked up in the lane


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit of a batch, as a replay of the batch returns it.

    Attributes:
        seq: Slot of the commit.
        rows: Rows that it wrote.
        rows_ignored: Input rows that changed nothing.
    """

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
    """State of a prefix of a writer's lane. Checkpoints store all fields but ``table_seen``, as they are declared here.

    Attributes:
        rolled_back: Spans (after, up to) that restores have rolled back: their batches count as never sent.
        head: Length of the prefix.
        head_id: ``commit_id`` of its last entry, "" if it is empty.
        epoch: Number of the newest claim.
        owner: Owner of that claim.
        intent: Slot of the INTENT that the claim is for; 0 for the claim of a writer.
        stamp: Largest stamp.
        committed_at_ms: ``committed_at_ms`` of the last entry.
        table_rev: Largest ``table_rev`` (PROTOCOL.md, S19).
        query_id: The query that committed last, "" before the first commit with a batch.
        batches: Number of the last batch of each query.
        rolled_back_from: First batch that was rolled back, for each query without a live batch since: its source must
            go back to this batch.
        source: State of the source after the last commit, as the writer recorded it.
        recent: The newest commits with a batch, by batch; the argument of `add` limits their number.
        watermarks: Watermarks of the lane by group id, from its last live commit; none after a claim for a batch.
        table_seen: Largest number of entries of the table lane that the writer of a live commit had read. Checkpoints
            do not store it: it has only the commits after them.
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
    table_seen: int = field(default=0, compare=False)

    @classmethod
    def after(cls, last: Header | None, rolled_back: tuple[Span, ...]) -> LaneState:
        """The state of a lane for the writer of one batch: without batches and watermarks, which it does not continue.

        See PROTOCOL.md, W10.

        Args:
            last: The last entry of the lane, which finishes it; None if it is empty.
            rolled_back: Spans that restores have rolled back.
        """
        if last is None:
            return cls(rolled_back=rolled_back)
        state = cls(
            rolled_back=rolled_back,
            head=last.seq,
            head_id=last.commit_id,
            epoch=last.epoch,
            stamp=last.stamp,
            committed_at_ms=last.committed_at_ms,
            table_rev=last.table_rev,
        )
        if isinstance(last, Data) and not in_spans(rolled_back, last.seq):
            state.table_seen = last.table_seen or 0
        return state

    def add(self, entry: LaneEntry, recent: int = RECENT_COMMITS) -> None:
        """Apply the next entry.

        Args:
            entry: The entry after the prefix.
            recent: How many commits with a batch to remember.

        Raises:
            CorruptData: The entry does not follow the last one (S2 LaneContiguous, S3 EpochMonotone, S19 RevMonotone).
        """
        is_claim = isinstance(entry, Claim)
        if (
            entry.seq != self.head + 1
            or entry.prev_id != self.head_id
            or entry.epoch != self.epoch + is_claim
            or entry.table_rev < self.table_rev
        ):
            raise CorruptData(
                f"entry {entry.seq} of lane {entry.lane!r} does not follow entry {self.head} (epoch {self.epoch})",
                hint="an object was replaced: restore it from a copy of the store; else report this as a bug",
            )
        self.head, self.head_id, self.epoch = entry.seq, entry.commit_id, entry.epoch
        self.stamp = max(self.stamp, entry.stamp)
        self.committed_at_ms, self.table_rev = entry.committed_at_ms, entry.table_rev
        if isinstance(entry, Claim):
            self.owner, self.intent = entry.owner, entry.intent
            if entry.for_batch and not in_spans(self.rolled_back, entry.seq):
                self.watermarks = {}
        elif isinstance(entry, Data) and in_spans(self.rolled_back, entry.seq):
            if entry.query_id and entry.query_id not in self.batches:
                self.rolled_back_from.setdefault(entry.query_id, entry.batch)
        elif isinstance(entry, Data):
            self.watermarks = entry.watermarks
            self.table_seen = max(self.table_seen, entry.table_seen or 0)
            if entry.query_id:
                self._note_batch(entry, recent)

    def _note_batch(self, entry: Data, recent: int) -> None:
        self.query_id = entry.query_id
        self.batches[entry.query_id] = entry.batch
        self.source = entry.source
        self.recent[entry.query_id, entry.batch] = Committed(entry.seq, entry.rows, entry.rows_ignored)
        if len(self.recent) > recent:
            del self.recent[next(iter(self.recent))]
