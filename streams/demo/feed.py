"""Messages into the broker while the writers run, and how many of them the table holds.

Both sides count messages: `Feed` what was acknowledged by the broker, `Landed` what the commits of a lane say of their
source's offsets. They are compared, so that the demo ends when the table has everything, and not when somebody says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from storage.engine import LaneObserver
from storage.errors import StoreUnavailable
from streams.demo.broker import EmbeddedBroker
from streams.demo.workload import Topic

MIN_PARTS: Final = 24
"""Enough to kill a writer in the middle of something."""
PART_ROWS: Final = 50_000
"""Of a large run: a part is produced at once, and meanwhile nobody looks after the writers."""
FLUSH_SECONDS: Final = 60.0  # a part takes a fraction of a second on an idle machine


class Feed:
    """Produces all topics side by side, a part at a time."""

    def __init__(
        self, broker: EmbeddedBroker, topics: Mapping[str, Topic], *, flush_seconds: float = FLUSH_SECONDS
    ) -> None:
        """Create the topics.

        Args:
            broker: The broker to produce to.
            topics: What to produce, by name of the topic.
            flush_seconds: How long the broker may take for a part.
        """
        broker.create_topics({name: topic.partitions for name, topic in topics.items()})
        self._topics, self._producer = topics, broker.producer()
        self._refused: list[str] = []
        self._flush_seconds = flush_seconds
        self.parts: Final = max(MIN_PARTS, sum(topic.rows for topic in topics.values()) // PART_ROWS)
        self.sent = 0
        """Parts that are in the broker."""

    @property
    def finished(self) -> bool:
        """Whether everything was produced."""
        return self.sent == self.parts

    @property
    def share(self) -> float:
        """How much of everything was produced, from 0 to 1."""
        return self.sent / self.parts

    def messages(self, topic: str) -> int:
        """How many messages of a topic were produced."""
        return self._topics[topic].rows * self.sent // self.parts

    def send_part(self) -> None:
        """Produce the next part of every topic.

        Raises:
            StoreUnavailable: The broker did not take a message.
        """
        for name, topic in self._topics.items():
            part = topic.part(self.sent, self.parts)
            for partition, key, value in zip(part.partitions, part.keys, part.values, strict=True):
                self._producer.produce(name, value, key, partition, on_delivery=self._delivered)
        waiting = self._producer.flush(self._flush_seconds)
        if waiting or self._refused:
            reason = self._refused[0] if self._refused else f"no answer for {self._flush_seconds:g} s"
            raise StoreUnavailable(
                f"the embedded broker did not take {waiting + len(self._refused)} messages: {reason}",
                hint="is the machine out of memory? Try fewer --rows",
            )
        self.sent += 1

    def _delivered(self, error: Any, _: object) -> None:
        if error is not None:
            self._refused.append(str(error))


class Landed:
    """What the lanes of a table say that they hold of their topics.

    Attributes:
        messages: By lane, counted from the offsets in its last commit; a topic's offsets start at 0.
        events: By lane, how many rows its commits have, ignored ones included: what was written twice counts twice.
        claims: By lane, how many incarnations its writer has had.
    """

    def __init__(self, table: Path, lanes: Mapping[str, Topic]) -> None:
        self._observer = LaneObserver(table)
        self._wanted = {name: topic.rows for name, topic in lanes.items()}
        self.messages = dict.fromkeys(lanes, 0)
        self.events = dict.fromkeys(lanes, 0)
        self.claims = dict.fromkeys(lanes, 0)

    def share(self, lane: str) -> float:
        """How much of its topic a lane holds, from 0 to 1."""
        return self.messages[lane] / self._wanted[lane]

    @property
    def everything(self) -> bool:
        """Whether every lane holds its whole topic."""
        return self.messages == self._wanted

    @property
    def total(self) -> int:
        """Messages in the table, of all lanes."""
        return sum(self.messages.values())

    def refresh(self) -> None:
        """Read what was committed since the last call.

        Raises:
            TableError: The log is damaged or out of reach.
        """
        for lane in self._wanted:
            claims, rows, source = self._observer.news(lane)
            self.claims[lane] += claims
            self.events[lane] += rows
            self.messages[lane] = self.messages[lane] if source is None else _count(source)


def _count(source: Mapping[str, Any]) -> int:
    """Messages before the offsets that a commit recorded: ``{"offsets": [{topic: {partition: next offset, ...}}]}``."""
    return sum(
        int(offset)
        for offsets in source["offsets"]
        for partitions in (offsets or {}).values()
        for number, offset in partitions.items()
        if number.isdecimal()
    )
