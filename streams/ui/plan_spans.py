"""When compactions and folds ran, for bars in the timeline: from the entry that begins one to its last result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from weft.storage.services.inspect.inspect import TimelineEntry

MAX_BARS: Final = 1_000
"""Largest number of bars of one answer."""
_KIND: Final = {"BASE": "compaction", "FOLD": "fold"}


@dataclass(slots=True)
class PlanSpan:
    """A compaction or a fold.

    Attributes:
        begin_ms: When it began.
        end_ms: When the newest of its entries was written.
        seq: Number of its first entry.
        kind: "compaction" or "fold"; "plan" if it has no result, or none yet.
        open: Whether it has not ended.
    """

    begin_ms: int
    end_ms: int
    seq: int
    kind: str = "plan"
    open: bool = False


class PlanSpans:
    """The compactions and folds in the entries of the table lane, which may be added in any order."""

    def __init__(self) -> None:
        """Begin without entries."""
        self._spans: dict[str, PlanSpan] = {}

    def add(self, entries: Iterable[TimelineEntry]) -> None:
        """Add entries of the table lane."""
        for entry in entries:
            if not entry.plan:
                continue
            span = self._spans.get(entry.plan)
            if span is None:
                span = self._spans[entry.plan] = PlanSpan(entry.committed_at_ms, entry.committed_at_ms, entry.seq)
            span.begin_ms, span.seq = min((span.begin_ms, span.seq), (entry.committed_at_ms, entry.seq))
            span.end_ms = max(span.end_ms, entry.committed_at_ms)
            span.kind = _KIND.get(entry.kind, span.kind)

    def between(self, begin_ms: int, end_ms: int, least_ms: int, opened: AbstractSet[str]) -> Sequence[PlanSpan]:
        """Return the newest `MAX_BARS` plans that overlap a span of time, the oldest first.

        Args:
            begin_ms: Begin of the span.
            end_ms: End of the span; plans that are still open last until then.
            least_ms: Leave out plans that took less time: their entries are drawn anyway.
            opened: Ids of the plans that have not ended.
        """
        spans = []
        for plan, span in self._spans.items():
            end = max(end_ms, span.end_ms) if plan in opened else span.end_ms
            if span.begin_ms <= end_ms and end >= begin_ms and (plan in opened or end - span.begin_ms >= least_ms):
                spans.append(PlanSpan(span.begin_ms, end, span.seq, span.kind, plan in opened))
        return sorted(spans, key=lambda span: span.seq)[-MAX_BARS:]
