"""What the soak with a real broker has produced, and the rows that the table must have.

The oracle knows only what was produced and where (topic, partition, offset), and which cuts were erased or rewritten.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.oracle import Oracle
from tests.soak.real.letters import Message
from tests.soak.real.topics import FORMATS, PARTITIONS, Encoder, make_row, table_config

KEYS: Final = 300  # initial number; few, so that every key has many events
LATE_SHARE: Final = 0.05
DOUBLE_SHARE: Final = 0.02
BAD_SHARE: Final = 0.004
LATE_EVENTS: Final = 500  # a late event is held back for up to this many others
FLUSH_SECONDS: Final = 120.0  # a broker may be starting

Produce = Callable[..., None]


@dataclass
class Sent:
    """One produced message; the position is known when the broker has confirmed it.

    Attributes:
        row: The event; None for a tombstone and a bad message.
        bad_key, bad_value: Of a bad message.
        life: How often the topic was created again before.
    """

    row: dict[str, Any] | None
    bad_key: str | None
    life: int
    partition: int = -1
    offset: int = -1
    error: str = ""
    bad_value: bytes = b""


@dataclass
class Feed:
    """The messages of one topic.

    Attributes:
        retired: Keys that get no more events.
        evolved: Whether events have the added column.
    """

    stream: str
    rng: random.Random
    encoder: Encoder
    sent: list[Sent] = field(default_factory=list)
    retired: set[int] = field(default_factory=set)
    evolved: bool = False
    life: int = 0
    _made: int = 0
    _bad: int = 0
    _held: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def produce(self, count: int, produce: Produce) -> None:
        """Produce about ``count`` events."""
        for _ in range(count):
            self._made += 1
            row = make_row(self.stream, self._made, self._key(), self.rng, evolved=self.evolved)
            if self.rng.random() < LATE_SHARE:
                self._held.append((self._made + self.rng.randrange(LATE_EVENTS), row))
            else:
                self._send(row, produce)
            if self.rng.random() < DOUBLE_SHARE:
                self._held.append((self._made + self.rng.randrange(LATE_EVENTS), row))
            if self.rng.random() < BAD_SHARE:
                self.produce_bad(produce)
            due = [held for place, held in self._held if place <= self._made]
            self._held = [(place, held) for place, held in self._held if place > self._made]
            for held in due:
                self._send(held, produce)

    def produce_bad(self, produce: Produce) -> None:
        """Produce one message that cannot be stored; the kinds take turns."""
        values = self.encoder.bad_values(self.stream)
        value = values[self._bad % len(values)]
        self._bad += 1
        key = f"bad-{self.stream}-{self._bad}"
        self._produce(
            Sent(None, key, self.life, bad_value=value), key.encode(), value, self.rng.randrange(PARTITIONS), produce
        )

    def rest(self, produce: Produce) -> None:
        """Produce the events that are held back."""
        for _, row in self._held:
            self._send(row, produce)
        self._held = []

    def retire(self, keys: Iterable[int], produce: Produce) -> None:
        """Send no more events of some keys; those that are held back are sent now."""
        self.retired.update(keys)
        for _, row in self._held:
            if row["id"] in self.retired:
                self._send(row, produce)
        self._held = [held for held in self._held if held[1]["id"] not in self.retired]

    @property
    def bad(self) -> list[Message]:
        """The bad messages, with the positions that the broker has confirmed."""
        return [
            Message(one.bad_key, self.stream, one.partition, one.offset, one.bad_value)
            for one in self.sent
            if one.bad_key is not None
        ]

    @property
    def events(self) -> int:
        """Number of messages that are events, which is what commits count: no tombstones, and no bad messages."""
        return sum(one.row is not None for one in self.sent)

    def messages(self) -> int:
        """Number of messages in the topic that exists now."""
        return sum(one.life == self.life for one in self.sent)

    def _key(self) -> int:
        while True:
            key = self.rng.randrange(KEYS + self._made // 20)
            if key not in self.retired:
                return key

    def _send(self, row: dict[str, Any], produce: Produce) -> None:
        for key, value in self.encoder.messages(self.stream, row):
            event = None if value is None else row
            self._produce(Sent(event, None, self.life), key, value, row["id"] % PARTITIONS, produce)

    def _produce(self, one: Sent, key: bytes, value: bytes | None, partition: int, produce: Produce) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                one.error = str(error)
            else:
                one.partition, one.offset = message.partition(), message.offset()

        self.sent.append(one)
        produce(self.stream, value=value, key=key, partition=partition, on_delivery=delivered)


@dataclass
class Change:
    """An erase of keys, or a rewrite of a column, at a cut.

    Attributes:
        reached: For each stream: the life of its topic, and the next offset of each partition, at the cut.
        keys: Keys that were erased.
        column, function: What was rewritten.
    """

    reached: dict[str, tuple[int, dict[int, int]]]
    keys: frozenset[int] = frozenset()
    column: str = ""
    function: Callable[[Any], Any] = str

    def covers(self, stream: str, one: Sent) -> bool:
        life, offsets = self.reached.get(stream, (-1, {}))
        return (one.life, one.offset) < (life, offsets.get(one.partition, 0))


def expected(feeds: dict[str, Feed], changes: list[Change]) -> list[dict[str, Any]]:
    """Rows of the table that has every event once, with all changes, by key."""
    evolved = feeds["payments"].evolved
    oracle = Oracle(table_config(evolved=evolved))
    for arrival, stream in enumerate(FORMATS):
        rows = []
        for one in feeds[stream].sent:
            row = one.row
            for change in changes:
                if row is None or not change.covers(stream, one):
                    continue
                if row["id"] in change.keys:
                    row = None
                elif row.get(change.column) is not None:
                    row = {**row, change.column: change.function(row[change.column])}
            if row is not None:
                rows.append({"currency": None, **row} if evolved and stream == "payments" else row)
        oracle.append(stream, rows, arrival)
    return [dict(row) for _, row in sorted(oracle.read().items())]
