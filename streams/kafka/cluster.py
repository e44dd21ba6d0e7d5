"""Asks the brokers which partitions, offsets and topic ids they have. Runs on the driver.

Every call is bounded by ``requestTimeoutMs``, retries included (by twice that if it waits for a topic to appear). A
consumer here never subscribes and never commits. The offsets of all partitions come from two requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from storage.errors import InvalidInput, NotFound
from streams.kafka.errors import SourceRefused, SourceUnavailable, is_gone, is_refused, name_some
from streams.kafka.offset_plan import Log, Topics
from streams.kafka.options import CLIENT_ID, EARLIEST, KAFKA_PREFIX, LATEST, KafkaOptions, Partition
from streams.kafka.topic_identity import Identity
from streams.kafka.topic_ids import TopicIds

GROUP_ID: Final = "weft-kafka-source"
"""librdkafka requires a group id although no group is joined. Brokers with ACLs on groups can allow this prefix."""

RETRY_SECONDS: Final = 0.2
"""Pause before asking again for a topic or leader that is not there yet; elections take about this long."""

ASK_SECONDS: Final = 2.0  # a query that waits for brokers can be stopped within this time

_DEFAULTS: Final[Mapping[str, Any]] = {
    "group.id": GROUP_ID,
    "client.id": CLIENT_ID,
    # At the level of errors librdkafka prints a refused connection twenty times a second. The reason is in the
    # exception instead; `kafka.log_level` brings the lines back.
    "log_level": 2,
}
_FORCED: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}


class Connection:
    """One librdkafka consumer, and its last error."""

    def __init__(self, options: KafkaOptions, **tuning: Any) -> None:
        """Check the ``kafka.`` settings; connecting happens later, in the background.

        Args:
            options: The user's settings win over ``tuning``.
            tuning: librdkafka settings with ``_`` for ``.``.

        Raises:
            InvalidInput: librdkafka does not accept a setting.
        """
        self._options = options
        self._complaint = ""
        self._refused = False
        tuned = {name.replace("_", "."): value for name, value in tuning.items()}
        config = {**_DEFAULTS, **tuned, **options.kafka, **_FORCED, "error_cb": self._note}
        try:
            self.consumer = Consumer(config)
        except KafkaException as error:
            raise InvalidInput(
                f"librdkafka does not accept the '{KAFKA_PREFIX}' options: {_text(error)}",
                hint="settings are librdkafka's (CONFIGURATION.md there), not those of the Java client",
            ) from error

    def _note(self, error: KafkaError) -> None:
        self._complaint = error.str()
        self._refused |= is_refused(error)

    def unavailable(self, doing: str, error: Exception | KafkaError | None = None) -> SourceUnavailable:
        """Build the error for brokers that did not answer, or refused (`SourceRefused`), with the reason they gave."""
        self.consumer.poll(0)  # hands over what librdkafka's threads have noted meanwhile
        reasons = [_text(error)] if error is not None else []
        if self._complaint and self._complaint not in reasons:
            reasons.append(self._complaint)
        code = error.args[0] if isinstance(error, KafkaException) else error
        refused = self._refused or (isinstance(code, KafkaError) and is_refused(code))
        kind = SourceRefused if refused else SourceUnavailable
        return kind(
            f"Kafka at {self._options.kafka['bootstrap.servers']}, {doing}: {'; '.join(reasons) or 'no answer'}",
            hint="check kafka.bootstrap.servers, the security settings and that the brokers run;"
            f" requestTimeoutMs is {round(self._options.request_timeout_seconds * 1000)}",
        )

    def close(self) -> None:
        """Free sockets and threads; safe to call twice."""
        self.consumer.close()


class Cluster:
    """The driver's view of the subscribed topics. Connects on first use; `close` it."""

    def __init__(self, options: KafkaOptions) -> None:
        """Opens nothing yet."""
        self._options = options
        self._connection: Connection | None = None
        self._topic_ids = TopicIds(options.kafka)
        self._seen: dict[str, str] = {}  # topic ids of the last answer

    def await_answer(self, waiting: Callable[[str], bool], *, ask_seconds: float = ASK_SECONDS) -> None:
        """Wait until the brokers answer; for ``requestTimeoutMs`` at most.

        Args:
            waiting: Called every ``ask_seconds`` with the reason; False ends the wait.
            ask_seconds: Time between two calls.

        Raises:
            SourceUnavailable: They do not answer.
            SourceRefused: They refuse access; this ends the wait.
        """
        connection = self._connect()
        deadline = time.monotonic() + self._options.request_timeout_seconds
        while True:
            try:
                connection.consumer.list_topics(self._options.topics[0], timeout=min(ask_seconds, _remaining(deadline)))
            except KafkaException as error:
                failure = connection.unavailable("waiting for an answer", error)
                if time.monotonic() >= deadline or isinstance(failure, SourceRefused):
                    raise failure from error
                if not waiting(failure.message):
                    return
                connection.consumer.poll(RETRY_SECONDS)  # it may have failed at once
            else:
                return

    def load_logs(self, *, wait_for_topics: bool) -> dict[Partition, Log]:
        """Ask for the offsets of every partition of the subscribed topics; see `load_topics`."""
        return self.load_topics(wait_for_topics=wait_for_topics).logs

    def load_topics(self, *, wait_for_topics: bool) -> Topics:
        """Ask for the offsets of every partition of the subscribed topics, and which topics they are.

        Topics that do not exist are left out. With ``wait_for_topics`` they get ``requestTimeoutMs`` to appear first;
        the time for the questions themselves begins anew with every answer that such a topic is not there yet.

        Raises:
            SourceUnavailable: No answer in time, or the brokers refused.
        """
        connection = self._connect()
        appear_by = deadline = time.monotonic() + self._options.request_timeout_seconds
        while True:
            now = time.monotonic()
            late = now >= deadline
            try:
                partitions = self._load_partitions(connection, deadline)
                missing = set(self._options.topics) - {partition.topic for partition in partitions}
                if missing and wait_for_topics and now < appear_by:
                    deadline = now + self._options.request_timeout_seconds
                elif (found := self._load_offsets(connection, partitions, deadline)) is not None:
                    return found
                elif late:
                    raise connection.unavailable("asking for topics that are being deleted or created")
            except KafkaException as error:
                # A topic that is being created, deleted or moved to another leader: ask again, from the beginning.
                if late or is_refused(error.args[0]):
                    raise connection.unavailable("asking for the offsets of the topics", error) from error
            connection.consumer.poll(RETRY_SECONDS)

    def _load_offsets(self, connection: Connection, partitions: list[Partition], deadline: float) -> Topics | None:
        """Offsets and identities; None if a topic was deleted or created meanwhile, so that they may not match."""
        names = sorted({partition.topic for partition in partitions})
        if not names:
            return Topics({}, {})
        # An id seen before the offsets and again after them is of the topic that the offsets are of. Mostly the answer
        # to the last question does for the first of the two.
        if not self._seen.keys() >= set(names):
            self._seen = self._topic_ids.load(names, _remaining(deadline))
        lows = _ask_offsets(connection, partitions, EARLIEST, deadline)
        highs = _ask_offsets(connection, partitions, LATEST, deadline)
        before, self._seen = self._seen, self._topic_ids.load(names, _remaining(deadline))
        if any(name not in self._seen or self._seen[name] != before.get(name) for name in names):
            return None
        identities = {name: Identity(self._seen[name]) for name in names}
        for name in names:
            if not self._seen[name]:
                members = (partition for partition in partitions if partition.topic == name)
                epochs = {p.number: max(lows[p].epoch, highs[p].epoch) for p in members}
                identities[name] = Identity(epochs={number: epoch for number, epoch in epochs.items() if epoch >= 0})
        logs = {p: Log(min(lows[p].offset, highs[p].offset), highs[p].offset) for p in partitions}
        return Topics(logs, identities)

    def require(self, logs: Iterable[Partition], start: Iterable[Partition]) -> None:
        """Check that each subscribed topic exists or was read before.

        Raises:
            NotFound: A topic does not exist.
        """
        known = {partition.topic for partition in logs} | {partition.topic for partition in start}
        if missing := [topic for topic in self._options.topics if topic not in known]:
            raise NotFound(
                f"Kafka at {self._options.kafka['bootstrap.servers']} has no topic {name_some(missing)}",
                hint="create the topic or correct option 'subscribe';"
                f" waited {self._options.request_timeout_seconds:g} s for it (requestTimeoutMs)",
            )

    def _load_partitions(self, connection: Connection, deadline: float) -> list[Partition]:
        found: list[Partition] = []
        for name in self._options.topics:
            topic = connection.consumer.list_topics(name, timeout=_remaining(deadline)).topics[name]
            if topic.error is not None and not is_gone(topic.error):
                raise KafkaException(topic.error)
            found += [Partition(name, number) for number in topic.partitions]
        return sorted(found)

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._options)
        return self._connection

    def close(self) -> None:
        """Disconnect; the next question connects again."""
        self._topic_ids.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _End(NamedTuple):
    """One end of a log: an offset, and the leader epoch that the broker names with it; -1 if it names none."""

    offset: int
    epoch: int


def _ask_offsets(
    connection: Connection,
    partitions: list[Partition],
    end: int,
    deadline: float,
) -> dict[Partition, _End]:
    # ListOffsets takes -1 and -2 for the two ends in place of a time, and asks each leader once for all its partitions.
    asked = [TopicPartition(partition.topic, partition.number, end) for partition in partitions]
    ends: dict[Partition, _End] = {}
    for answer in connection.consumer.offsets_for_times(asked, timeout=_remaining(deadline)):
        if answer.error is not None:
            raise KafkaException(answer.error)
        epoch = -1 if answer.leader_epoch is None else answer.leader_epoch
        ends[Partition(answer.topic, answer.partition)] = _End(answer.offset, epoch)
    return ends


def _remaining(deadline: float) -> float:
    # librdkafka takes 0 as "only what is at hand" and a negative number as "for ever".
    return max(deadline - time.monotonic(), 0.001)


def _text(error: Exception | KafkaError) -> str:
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner)
