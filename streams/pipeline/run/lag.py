"""Lag of a writer behind its Kafka topics, measured from the brokers while the query runs.

Spark reports the lag of a query when a batch ends, as of the time when that batch was planned. During a long batch,
after a stop, or while the brokers are away this is out of date. So this module asks the brokers:

    waiting  =  sum over partitions of  end of the log - max(where the last finished batch ended, start of the log)

`waiting` is an upper bound of the messages that are not in the table yet. Kafka counts offsets, not messages:
compaction leaves gaps, and transactions use offsets for markers and aborted records; Kafka has no request that returns
their number. 0 is exact, because batches end at the end of a log and not at their last message. Records that retention
deleted before they were read are not counted.

The table is complete as of the newest measurement whose log ends the finished batches have reached. So freshness is
known even if messages never stop arriving.

The lag is None (unknown) before the first batch of a new checkpoint has ended, while the brokers do not answer, and if
a log ends before the position that was read (the topic was deleted, truncated or created again).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from weft.storage.errors import TableError
from weft.streams.kafka.cluster import Cluster
from weft.streams.kafka.errors import TopicMissing
from weft.streams.kafka.offset_plan import Log, Offsets, parse_offsets
from weft.streams.kafka.options import KafkaOptions, Partition
from weft.streams.pipeline.run.error_kinds import is_outage

__all__ = ["Lag", "LagMeter", "is_past_end", "kafka_offsets", "messages_waiting"]

MAX_AGE_SECONDS: Final = 10.0
MIN_SECONDS: Final = 1.0  # minimum time between two measurements, to limit the load on the brokers
MAX_SECONDS: Final = MAX_AGE_SECONDS / 2  # maximum time between two measurements: each is replaced before it is too old
MAX_MEASUREMENTS: Final = (
    1_000  # measurements to keep; above it every other one is dropped, and freshness is less precise
)
TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a writer.

    Attributes:
        waiting: Upper bound of the messages that are in the topics and not in the table.
        complete_at_ms: The table holds everything that was in the topics at this time, in Unix milliseconds; None if
            that is not known.
    """

    waiting: int
    complete_at_ms: int | None


def messages_waiting(logs: Mapping[Partition, Log], position: Offsets) -> int:
    """Upper bound of the messages in the logs that have not been read.

    Args:
        logs: Logs of all partitions of the subscribed topics.
        position: Next offset to read, by partition. A missing partition is new and is read from its beginning.
    """
    return sum(max(0, log.high - max(position.get(p, log.low), log.low)) for p, log in logs.items())


def is_past_end(logs: Mapping[Partition, Log], position: Offsets) -> bool:
    """Whether the position is past the end of a log, so that this is not the log that was read."""
    topics = {partition.topic for partition in logs}
    return any(
        partition.topic in topics and (partition not in logs or offset > logs[partition].high)
        for partition, offset in position.items()
    )


def kafka_offsets(source: Mapping[str, Any]) -> Offsets | None:
    """Offsets of a query over one Kafka source, from the result of `read_offsets`; None for other sources."""
    recorded = source.get("offsets")
    if not isinstance(recorded, list) or len(recorded) != 1 or not isinstance(recorded[0], dict):
        return None
    try:
        return parse_offsets(recorded[0]) or None
    except (ValueError, TypeError, AttributeError):
        return None


class LagMeter:
    """Measures the lag in a background thread while its ``with`` block runs. Thread-safe."""

    def __init__(
        self,
        options: KafkaOptions,
        *,
        every_seconds: float,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_age_seconds: float = MAX_AGE_SECONDS,
    ) -> None:
        """Do not connect yet.

        Args:
            options: Options of the source.
            every_seconds: Time between two measurements; kept between `MIN_SECONDS` and `MAX_SECONDS`.
            timeout_seconds: Brokers that take longer count as not answering.
            max_age_seconds: An older measurement is not used.
        """
        self._timeout = min(options.request_timeout_seconds, timeout_seconds)
        self._max_age = max_age_seconds
        self._options = replace(options, request_timeout_seconds=self._timeout)
        self._cluster = Cluster(self._options)
        self._every = min(max(every_seconds, MIN_SECONDS), MAX_SECONDS)
        self._position: Offsets | None = None
        # The newest measurement whose log ends the table has reached, and all later ones.
        self._measurements: list[tuple[int, Mapping[Partition, Log]]] = []
        self._complete_at_ms: int | None = None
        self._measured_at = 0.0
        self._outage: TableError | None = None
        self._missing: TopicMissing | None = None
        self._state = threading.Lock()
        self._ended = threading.Event()
        self._measuring = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="weft-lag", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(2 * self._timeout)

    def set_position(self, position: Offsets | None) -> None:
        """Set the position that the table has reached; None if it is not known."""
        with self._state:
            self._position = position
            self._update_complete()

    @property
    def lag(self) -> Lag | None:
        """The last measurement; None if there is none, it failed, or it is too old."""
        with self._state:
            if self._position is None or not self._measurements or time.monotonic() - self._measured_at > self._max_age:
                return None
            return Lag(messages_waiting(self._measurements[-1][1], self._position), self._complete_at_ms)

    @property
    def outage(self) -> TableError | None:
        """Why the brokers did not answer the last request; None if they did. In an outage the lag is None."""
        return self._outage

    @property
    def missing(self) -> TopicMissing | None:
        """The error for topics that did not exist when the brokers last answered; None if all did."""
        return self._missing

    @property
    def has_measured(self) -> bool:
        """Whether the brokers have been asked."""
        return self._measured_at > 0

    def measure(self) -> Lag | None:
        """Measure now."""
        with self._measuring:
            position, started_at_ms, started_at = self._position, time.time_ns() // 1_000_000, time.monotonic()
            outage = None
            try:
                logs = self._cluster.load_logs(wait_for_topics=False)
                self._missing = self._cluster.missing(logs)
            except TableError as error:
                logs = {}
                outage = error if is_outage(error) else None
            is_valid = bool(logs) and self._missing is None and not is_past_end(logs, position or {})
            with self._state:
                self._measured_at, self._outage = started_at, outage
                if is_valid:
                    self._measurements.append((started_at_ms, logs))
                    self._update_complete()
                else:
                    self._measurements, self._complete_at_ms = [], None
        return self.lag

    def _update_complete(self) -> None:
        """Find the newest measurement whose log ends the table has reached, and drop those before it."""
        if self._position is None:
            return
        for number in reversed(range(len(self._measurements))):
            started_at_ms, logs = self._measurements[number]
            if messages_waiting(logs, self._position) == 0:
                self._complete_at_ms = started_at_ms
                del self._measurements[:number]
                break
        if len(self._measurements) > MAX_MEASUREMENTS:
            del self._measurements[1:-1:2]

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self.measure()
                self._ended.wait(self._every)
        finally:
            with self._measuring:
                self._cluster.close()
