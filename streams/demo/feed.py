"""Sends the messages of the demo, and counts how many of them the table has.

`Feed` counts the messages that the broker has acknowledged. `TableProgress` counts messages by the source offsets in
the commits of each lane. The demo ends when the two are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from weft.storage.errors import StoreUnavailable
from weft.storage.services.lane_observer import LaneObserver
from weft.streams.demo.workload import Topic

if TYPE_CHECKING:
    from confluent_kafka import Producer

MIN_PARTS: Final = 24
"""Smallest number of parts; with fewer, a writer could not be killed in the middle of a batch."""
PART_ROWS: Final = 50_000
"""Messages per part of a large run. The writers are not supervised while a part is produced, so it must be small."""
FLUSH_SECONDS: Final = 60.0  # a part takes a fraction of a second on an idle machine


class Broker(Protocol):
    """A Kafka cluster in which topics can be created, and to which messages can be sent."""

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics; ``topics`` has the number of partitions by name."""

    def producer(self) -> Producer:
        """Create a client that writes to it."""


class Feed:
    """Produces the messages of all topics in parts."""

    def __init__(self, broker: Broker, topics: Mapping[str, Topic], *, flush_seconds: float = FLUSH_SECONDS) -> None:
        """Create the topics in the broker.

        Args:
            broker: The broker to produce to.
            topics: The topics and their messages, by name.
            flush_seconds: Time limit of the broker for a part.
        """
        broker.create_topics({name: topic.partitions for name, topic in topics.items()})
        self._topics, self._producer = topics, broker.producer()
        self._refused: list[str] = []
        self._flush_seconds = flush_seconds
        self.parts: Final = max(MIN_PARTS, sum(topic.rows for topic in topics.values()) // PART_ROWS)
        self.parts_sent = 0
        """Number of parts that the broker has acknowledged."""

    @property
    def finished(self) -> bool:
        """Whether all messages were produced."""
        return self.parts_sent == self.parts

    @property
    def share(self) -> float:
        """Share of all messages that were produced, from 0 to 1."""
        return self.parts_sent / self.parts

    def messages(self, topic: str) -> int:
        """Return the number of messages of a topic that were produced."""
        return self._topics[topic].rows * self.parts_sent // self.parts

    def send_part(self) -> None:
        """Produce the next part of every topic.

        Raises:
            StoreUnavailable: The broker did not accept a message.
        """
        for name, topic in self._topics.items():
            part = topic.part(self.parts_sent, self.parts)
            for partition, key, value in zip(part.partitions, part.keys, part.values, strict=True):
                self._producer.produce(name, value, key, partition, on_delivery=self._delivered)
        waiting = self._producer.flush(self._flush_seconds)
        if waiting or self._refused:
            reason = self._refused[0] if self._refused else f"no answer for {self._flush_seconds:g} s"
            raise StoreUnavailable(
                f"the broker did not accept {waiting + len(self._refused)} messages: {reason}",
                hint="try fewer --rows: the machine may be out of memory",
            )
        self.parts_sent += 1

    def _delivered(self, error: Any, _: object) -> None:
        if error is not None:
            self._refused.append(str(error))


class TableProgress:
    """Counts how much of its topic each lane of a table has committed.

    Attributes:
        expected: Number of messages that each lane must have at the end.
        messages: Number of messages before the offsets in the last commit, by lane; offsets of a topic start at 0.
        events: Number of rows of all commits, by lane, ignored rows included. An event that was committed twice counts
            twice.
        claims: Number of times that a writer has claimed the lane, by lane.
    """

    def __init__(
        self, table: str | Path, lanes: Mapping[str, Topic], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._observer = LaneObserver(table, storage_options)
        self.expected = {name: topic.rows for name, topic in lanes.items()}
        self.messages = dict.fromkeys(lanes, 0)
        self.events = dict.fromkeys(lanes, 0)
        self.claims = dict.fromkeys(lanes, 0)

    def share(self, lane: str) -> float:
        """Return the share of its topic that a lane has committed, from 0 to 1."""
        return self.messages[lane] / self.expected[lane]

    @property
    def complete(self) -> bool:
        """Whether every lane has its whole topic."""
        return self.messages == self.expected

    @property
    def total(self) -> int:
        """Number of messages in the table, of all lanes."""
        return sum(self.messages.values())

    def refresh(self) -> None:
        """Read the commits since the last call.

        Raises:
            TableError: The log is damaged or not accessible.
        """
        for lane in self.expected:
            claims, rows, source = self._observer.news(lane)
            self.claims[lane] += claims
            self.events[lane] += rows
            self.messages[lane] = self.messages[lane] if source is None else _count(source)


def _count(source: Mapping[str, Any]) -> int:
    """Count the messages before the offsets of a commit: ``{"offsets": [{topic: {partition: next offset, ...}}]}``."""
    return sum(
        int(offset)
        for offsets in source["offsets"]
        for partitions in (offsets or {}).values()
        for number, offset in partitions.items()
        if number.isdecimal()
    )
