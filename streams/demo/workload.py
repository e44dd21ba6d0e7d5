"""The messages of the demo: four topics of one wide table, from a seed.

The functions are pure (no I/O, clock or global randomness): the same arguments give the same messages. Every stream has
- messages *out of order*: displaced by a little, within and across commits;
- *late* messages: they arrive long after newer events of their key have been committed;
- *duplicates*: delivered twice, the copy later;
- *ties*: events with the key and time of the previous event; a sequence number decides;
- *deletes*, with another convention in each topic (`weft.streams.demo.shop` reads them);
- keys that only some of the streams have.

Events are columns of numbers; `Topic.messages` formats a range of them as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from weft.storage.errors import InvalidInput
from weft.streams.demo import messages
from weft.streams.demo.embedded_broker import PARTITION_LIMIT_BYTES
from weft.streams.demo.messages import DAYS, START, Columns, Ints

_START_MS: Final = int(START.timestamp() * 1000)
_SPAN_MS: Final = DAYS * 86_400_000

MIN_ROWS: Final = 1_000
"""With fewer messages some of the cases above would not occur in every stream."""
ROWS_PER_KEY: Final = 6
FIRST_KEY: Final = 10_000_000_000
"""Keys need more than 32 bits."""

DISPLACED_SHARE: Final = 0.12
DISPLACED_BY: Final = 0.005
"""Standard deviation of a small displacement, as a share of the stream."""
LATE_SHARE: Final = 0.03
DUPLICATE_SHARE: Final = 0.02
TIE_SHARE: Final = 0.05
DELETE_SHARE: Final = 0.05

MIN_PARTITIONS: Final = 2
MAX_PARTITIONS: Final = 32
"""Maximum number of partitions of a topic: each takes a task of every batch, and the broker has only one thread."""
MESSAGE_BYTES: Final = 70
"""Bytes of a message in the broker: twice the 33 of a large batch, because small batches compress worse."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one topic in order of delivery, as parallel lists."""

    partitions: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; ``columns`` have one number per message, in order of delivery."""

    name: str
    partitions: int
    columns: Columns
    format: Callable[[Columns], list[str]]

    @property
    def rows(self) -> int:
        """Number of messages of the topic."""
        return len(self.columns["key"])

    def part(self, number: int, parts: int) -> Messages:
        """Return the messages of part ``number`` (from 0) of ``parts`` nearly equal parts."""
        edges = [self.rows * i // parts for i in (number, number + 1)]
        return self.messages(edges[0], edges[1])

    def messages(self, start: int, end: int) -> Messages:
        """Return the messages from position ``start`` to ``end`` (exclusive). Each key has one partition."""
        columns = {name: values[start:end] for name, values in self.columns.items()}
        keys = columns["key"]
        return Messages(
            (keys % self.partitions).tolist(),
            [b"%d" % key for key in keys.tolist()],
            [text.encode() for text in self.format(columns)],
        )


def plan_topics(rows: int, seed: int = 1) -> dict[str, Topic]:
    """Plan the four topics of a run, with enough partitions that the embedded broker keeps all messages.

    Args:
        rows: Number of messages of all topics together.
        seed: Seed of the messages.

    Raises:
        InvalidInput: ``rows`` is too small, or the messages do not fit into the broker.
    """
    if rows < MIN_ROWS:
        raise InvalidInput(f"{rows} rows are too few for a demo", hint=f"give at least {MIN_ROWS}")
    topics = {}
    for number, (name, stream) in enumerate(_STREAMS.items()):
        count = round(rows * stream.share)
        partitions = _partitions(name, rows, count)
        rng = np.random.default_rng([seed, number])
        columns = stream.events(rng, count, rows // ROWS_PER_KEY)
        topics[name] = Topic(name, partitions, _delivered(rng, columns), stream.format)
    return topics


def _partitions(name: str, rows: int, messages: int) -> int:
    """Return the number of partitions that a topic of ``messages`` messages needs."""
    need = messages * MESSAGE_BYTES / PARTITION_LIMIT_BYTES
    if need > MAX_PARTITIONS:
        raise InvalidInput(
            f"{rows} rows do not fit into the embedded broker: a partition keeps {PARTITION_LIMIT_BYTES >> 20} MB, "
            f"and topic {name!r} would need {int(need) + 1} partitions of at most {MAX_PARTITIONS}",
            hint=f"use at most about {int(rows * MAX_PARTITIONS / need) // 100_000 * 100_000} rows, "
            "or a pipeline file with a real Kafka",
        )
    return max(MIN_PARTITIONS, int(need) + 1)


# --- events ----------------------------------------------------------------------------------------------------------


def _events(rng: np.random.Generator, count: int, keys: Ints) -> Columns:
    """Create the events of a stream in order of time: key, time, number, and random numbers for the other fields."""
    moments = np.sort(rng.integers(0, _SPAN_MS, count))
    ties = np.flatnonzero(rng.random(count) < TIE_SHARE)
    ties = ties[ties > 0]
    keys[ties], moments[ties] = keys[ties - 1], moments[ties - 1]
    return {
        "key": keys,
        "ms": _START_MS + moments,
        "day": moments // 86_400_000,
        "seq": np.arange(1, count + 1),
        "delete": (rng.random(count) < DELETE_SHARE).astype(np.int64),
        "money": rng.integers(0, 100_000, count),
        # A random number per message, from which the columns of text choose their values.
        "dice": rng.integers(0, 1 << 40, count),
    }


def _delivered(rng: np.random.Generator, columns: Columns) -> Columns:
    """Put events into the order of delivery: some are displaced, some are late, some are delivered twice."""
    count = len(columns["key"])
    place = np.arange(count, dtype=np.float64)
    moved = rng.random(count)
    place += np.where(moved < DISPLACED_SHARE, rng.normal(0, max(count * DISPLACED_BY, 2), count), 0)
    late = moved > 1 - LATE_SHARE
    place += np.where(late, rng.random(count) * (count - place), 0)
    copied = np.flatnonzero(rng.random(count) < DUPLICATE_SHARE)
    copies = place[copied] + rng.random(len(copied)) * (count - place[copied])
    order = np.argsort(np.concatenate([place, copies]), kind="stable")
    # The last events are cut off, so that there are `count` messages in spite of the copies.
    chosen = np.concatenate([np.arange(count), copied])[order][:count]
    return {name: values[chosen] for name, values in columns.items()}


def _keys(rng: np.random.Generator, count: int, keys: int, low: float, high: float) -> Ints:
    """Draw random keys from a part of the key space; small keys occur more often."""
    return np.int64(FIRST_KEY + int(low * keys)) + (rng.random(count) ** 1.5 * (high - low) * keys).astype(np.int64)


def _orders(rng: np.random.Generator, count: int, keys: int) -> Columns:
    columns = _events(rng, count, _keys(rng, count, keys, 0, 0.9))
    _, first = np.unique(columns["key"], return_index=True)
    columns["created"] = np.zeros(count, np.int64)
    columns["created"][first] = 1
    return columns


def _payments(rng: np.random.Generator, count: int, keys: int) -> Columns:
    drawn = _keys(rng, count, keys, 0.05, 0.95)
    return _events(rng, count, drawn + (drawn % 7 == 3))  # one order in seven is never paid


def _shipments(rng: np.random.Generator, count: int, keys: int) -> Columns:
    drawn = _keys(rng, count, keys, 0.1, 0.8)
    return _events(rng, count, drawn + (drawn % 5 == 0))


def _clicks(rng: np.random.Generator, count: int, keys: int) -> Columns:
    return _events(rng, count, _keys(rng, count, keys, 0.3, 1))


@dataclass(frozen=True, slots=True)
class _Stream:
    """The description of a topic: its share of all messages, its events from (rng, count, keys), and their format."""

    share: float
    events: Callable[[np.random.Generator, int, int], Columns]
    format: Callable[[Columns], list[str]]


_STREAMS: Final = {
    "orders": _Stream(0.3, _orders, messages.format_orders),
    "payments": _Stream(0.2, _payments, messages.format_payments),
    "shipments": _Stream(0.2, _shipments, messages.format_shipments),
    "clicks": _Stream(0.3, _clicks, messages.format_clicks),
}
