"""Requests partitions, offsets and topic ids from the brokers. Runs on the driver.

Every call is bounded by ``requestTimeoutMs``, retries included (by twice that if it waits for a topic to appear). The
consumers of this module never subscribe and never commit. The offsets of all partitions come from two requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from weft.storage.errors import InvalidInput
from weft.streams.kafka.closest_topic import ask_for_closest
from weft.streams.kafka.errors import (
    SourceRefused,
    SourceUnavailable,
    TopicMissing,
    concerns_group,
    is_gone,
    is_refused,
    name_some,
)
from weft.streams.kafka.offset_plan import Log, Topics
from weft.streams.kafka.options import CLIENT_ID, EARLIEST, KAFKA_PREFIX, LATEST, KafkaOptions, Partition
from weft.streams.kafka.recreated_topic import Identity
from weft.streams.kafka.topic_ids import TopicIds

GROUP_ID: Final = "weft-kafka-source"
"""librdkafka requires a group id, although no group is joined. No permission for it is needed."""

RETRY_SECONDS: Final = 0.2
"""Pause before another request for a topic or leader that does not exist yet. Elections take about this long."""

ASK_SECONDS: Final = 2.0  # a query that waits for brokers can be stopped within this time

_DEFAULTS: Final[Mapping[str, Any]] = {
    "group.id": GROUP_ID,
    "client.id": CLIENT_ID,
    # At log level "error" librdkafka logs a refused connection twenty times a second. The reason is in the exception,
    # too. The option `kafka.log_level` enables the log lines.
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
        """Check the ``kafka.`` settings. librdkafka connects later, in the background.

        Args:
            options: Options of the source; settings of the user override ``tuning``.
            tuning: Settings of librdkafka with ``_`` for ``.``.

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
                hint="use settings of librdkafka (its CONFIGURATION.md), not those of the Java client",
            ) from error

    def _note(self, error: KafkaError) -> None:
        if concerns_group(error):
            return
        self._complaint = error.str()
        self._refused |= is_refused(error)

    def unavailable(self, doing: str, error: Exception | KafkaError | None = None) -> SourceUnavailable:
        """Make the error for brokers that did not answer, or refused access (`SourceRefused`), with the reasons."""
        self.consumer.poll(0)  # delivers errors that librdkafka's threads have recorded
        reasons = [_text(error)] if error is not None else []
        if self._complaint and self._complaint not in reasons:
            reasons.append(self._complaint)
        code = error.args[0] if isinstance(error, KafkaException) else error
        is_refusal = self._refused or (isinstance(code, KafkaError) and is_refused(code))
        kind = SourceRefused if is_refusal else SourceUnavailable
        return kind(
            f"Kafka at {self._options.kafka['bootstrap.servers']}, {doing}: {'; '.join(reasons) or 'no answer'}",
            hint="check kafka.bootstrap.servers, the security settings and that the brokers run;"
            f" requestTimeoutMs is {round(self._options.request_timeout_seconds * 1000)}",
        )

    def close(self) -> None:
        """Close sockets and threads; may be called twice."""
        self.consumer.close()


class Cluster:
    """Requests data about the subscribed topics from the brokers. Connects on first use; must be closed."""

    def __init__(self, options: KafkaOptions) -> None:
        """Remember the options; the first request connects."""
        self._options = options
        self._connection: Connection | None = None
        self._topic_ids = TopicIds(options.kafka)
        self._last_ids: dict[str, str] = {}  # topic ids of the last response

    def await_answer(self, waiting: Callable[[str], bool], *, ask_seconds: float = ASK_SECONDS) -> None:
        """Wait until the brokers answer, for at most ``requestTimeoutMs``.

        Args:
            waiting: Called every ``ask_seconds`` with the reason; False ends the wait.
            ask_seconds: Time between two calls.

        Raises:
            SourceUnavailable: The brokers do not answer.
            SourceRefused: The brokers refuse access; this ends the wait.
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
                connection.consumer.poll(RETRY_SECONDS)  # the connection may have failed at once
            else:
                return

    def topic_names(self) -> list[str]:
        """Return the names of all topics that the user may see, sorted, without those of Kafka itself.

        Raises:
            SourceUnavailable: The brokers did not answer in time, or refused access.
        """
        connection = self._connect()
        try:
            metadata = connection.consumer.list_topics(timeout=self._options.request_timeout_seconds)
        except KafkaException as error:
            raise connection.unavailable("asking for the topics", error) from error
        return sorted(name for name in metadata.topics if not name.startswith("__"))

    def load_logs(self, *, wait_for_topics: bool) -> dict[Partition, Log]:
        """Request the offsets of every partition of the subscribed topics; see `load_topics`."""
        return self.load_topics(wait_for_topics=wait_for_topics).logs

    def load_topics(self, *, wait_for_topics: bool) -> Topics:
        """Request the offsets of every partition of the subscribed topics, and the identities of the topics.

        Topics that do not exist are left out. With ``wait_for_topics`` it first waits up to ``requestTimeoutMs`` for
        them to be created. The time-out of the other requests starts again after each response in that wait.

        Raises:
            SourceUnavailable: The brokers did not answer in time, or refused access.
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
                elif (loaded_topics := self._load_offsets(connection, partitions, deadline)) is not None:
                    return loaded_topics
                elif late:
                    raise connection.unavailable("asking for topics that are being deleted or created")
            except KafkaException as error:
                # A topic is being created, deleted or moved to another leader: send all requests again.
                if late or is_refused(error.args[0]):
                    raise connection.unavailable("asking for the offsets of the topics", error) from error
            connection.consumer.poll(RETRY_SECONDS)

    def _load_offsets(self, connection: Connection, partitions: list[Partition], deadline: float) -> Topics | None:
        """Request offsets and identities; None if they may not match, as a topic was deleted or created meanwhile."""
        names = sorted({partition.topic for partition in partitions})
        if not names:
            return Topics({}, {})
        # If a topic id is the same before and after the offsets are read, they belong to that topic. Usually the ids of
        # the last call serve as the ids before.
        if not self._last_ids.keys() >= set(names):
            self._last_ids = self._topic_ids.load(names, _remaining(deadline))
        lows = _ask_offsets(connection, partitions, EARLIEST, deadline)
        highs = _ask_offsets(connection, partitions, LATEST, deadline)
        before, self._last_ids = self._last_ids, self._topic_ids.load(names, _remaining(deadline))
        if any(name not in self._last_ids or self._last_ids[name] != before.get(name) for name in names):
            return None
        identities = {name: Identity(self._last_ids[name]) for name in names}
        for name in names:
            if not self._last_ids[name]:
                members = (partition for partition in partitions if partition.topic == name)
                epochs = {p.number: max(lows[p].epoch, highs[p].epoch) for p in members}
                identities[name] = Identity(epochs={number: epoch for number, epoch in epochs.items() if epoch >= 0})
        logs = {p: Log(min(lows[p].offset, highs[p].offset), highs[p].offset) for p in partitions}
        return Topics(logs, identities)

    def _closest(self, topic: str) -> str:
        """Return a suggestion for a missing topic; "" if there is none, or if the brokers do not answer."""
        try:
            return ask_for_closest(topic, self.topic_names())
        except SourceUnavailable:
            return ""

    def require(self, logs: Iterable[Partition], start: Iterable[Partition], *, waited: bool) -> None:
        """Check that each subscribed topic exists or was read before.

        Args:
            logs: The partitions that exist.
            start: The partitions that were read before.
            waited: Whether the topics were waited for.

        Raises:
            TopicMissing: A topic does not exist.
        """
        if (missing := self.missing((*logs, *start))) is not None:
            seconds = f"{self._options.request_timeout_seconds:g}"
            missing.hint += f"; waited {seconds} s for it (requestTimeoutMs)" if waited else ""
            raise missing

    def look_for_topics(self) -> TopicMissing | None:
        """Return the error for subscribed topics that do not exist now; None if all of them exist.

        Raises:
            SourceUnavailable: The brokers did not answer in time, or refused access.
        """
        connection = self._connect()
        try:
            partitions = self._load_partitions(connection, time.monotonic() + self._options.request_timeout_seconds)
        except KafkaException as error:
            raise connection.unavailable("looking for the topics", error) from error
        return self.missing(partitions)

    def missing(self, partitions: Iterable[Partition]) -> TopicMissing | None:
        """Make the error that names the subscribed topics without a partition; None if each has one."""
        topics = {partition.topic for partition in partitions}
        missing = [topic for topic in self._options.topics if topic not in topics]
        if not missing:
            return None
        return TopicMissing(
            f"Kafka at {self._options.kafka['bootstrap.servers']} has no topic {name_some(missing)}",
            hint=f"{self._closest(missing[0])}create the topic, or correct its name (topic in a pipeline file, "
            "subscribe in Spark)",
        )

    def _load_partitions(self, connection: Connection, deadline: float) -> list[Partition]:
        partitions: list[Partition] = []
        for name in self._options.topics:
            topic = connection.consumer.list_topics(name, timeout=_remaining(deadline)).topics[name]
            if topic.error is not None and not is_gone(topic.error):
                raise KafkaException(topic.error)
            partitions += [Partition(name, number) for number in topic.partitions]
        return sorted(partitions)

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._options)
        return self._connection

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        self._topic_ids.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _End(NamedTuple):
    """One end of a log: an offset, and the leader epoch in the broker's response; -1 if that has none."""

    offset: int
    epoch: int


def _ask_offsets(
    connection: Connection,
    partitions: list[Partition],
    end: int,
    deadline: float,
) -> dict[Partition, _End]:
    # In ListOffsets -1 and -2 stand for the two ends. Each leader gets one request for all its partitions.
    requests = [TopicPartition(partition.topic, partition.number, end) for partition in partitions]
    ends: dict[Partition, _End] = {}
    for answer in connection.consumer.offsets_for_times(requests, timeout=_remaining(deadline)):
        if answer.error is not None:
            raise KafkaException(answer.error)
        epoch = -1 if answer.leader_epoch is None else answer.leader_epoch
        ends[Partition(answer.topic, answer.partition)] = _End(answer.offset, epoch)
    return ends


def _remaining(deadline: float) -> float:
    # For librdkafka 0 means "do not wait", and a negative number "wait for ever".
    return max(deadline - time.monotonic(), 0.001)


def _text(error: Exception | KafkaError) -> str:
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner)
