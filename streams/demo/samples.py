"""What the demo measures while it runs: messages that the topics and the table have, and how fresh the table is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

EVERY_SECONDS: Final = 0.5
SPAN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment.

    Attributes:
        seconds: Since the beginning.
        produced: Messages that the topic of each stream has.
        committed: Messages of each stream that the table has.
        fresh_seconds: By how much the table is behind the topic of each stream; None if it is not known.
    """

    seconds: float
    produced: Mapping[str, int]
    committed: Mapping[str, int]
    fresh_seconds: Mapping[str, float | None]


@dataclass(slots=True)
class Samples:
    """All moments so far.

    Attributes:
        started: Monotonic time of the beginning.
        all: The samples, oldest first.
        events: What happened, with the seconds since the beginning.
    """

    started: float = field(default_factory=time.monotonic)
    all: list[Sample] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    @property
    def due(self) -> bool:
        """Whether the next sample is due."""
        return not self.all or self.seconds - self.all[-1].seconds >= EVERY_SECONDS

    def add(
        self, produced: Mapping[str, int], committed: Mapping[str, int], complete_at_ms: Mapping[str, int | None]
    ) -> None:
        """Add a sample of now.

        Args:
            produced: See `Sample`.
            committed: See `Sample`.
            complete_at_ms: The table has all messages of each stream up to this time, in Unix milliseconds.
        """
        now_ms = time.time() * 1000
        fresh = {name: None if at is None else max(0.0, now_ms - at) / 1000 for name, at in complete_at_ms.items()}
        self.all.append(Sample(self.seconds, dict(produced), dict(committed), fresh))

    def happened(self, what: str) -> None:
        """Note an event."""
        self.events.append((self.seconds, what))


def throughput(samples: Sequence[Sample], stream: str) -> list[tuple[float, float]]:
    """Messages a second that the table got from a stream: (seconds, rate), over spans of `SPAN_SECONDS` or more.

    The last sample comes just after the one before: a rate between the two would be one commit in no time.
    """
    ends = list(samples[:1])
    for each in samples[1:]:
        if each.seconds - ends[-1].seconds >= SPAN_SECONDS:
            ends.append(each)
    if len(ends) > 1:
        ends[-1] = samples[-1]
    return [
        (after.seconds, (after.committed[stream] - before.committed[stream]) / (after.seconds - before.seconds))
        for before, after in pairwise(ends)
    ]


def lag(samples: Sequence[Sample], stream: str) -> list[tuple[float, float]]:
    """Messages that the topic of a stream has and the table lacks: (seconds, messages)."""
    return [(each.seconds, float(each.produced[stream] - each.committed[stream])) for each in samples]


def freshness(samples: Sequence[Sample], stream: str) -> list[tuple[float, float]]:
    """By how many seconds the table is behind, where it is known: (seconds, seconds)."""
    found = ((each.seconds, each.fresh_seconds.get(stream)) for each in samples)
    return [(at, value) for at, value in found if value is not None]
