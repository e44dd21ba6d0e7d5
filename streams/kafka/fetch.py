"""Reads one offset range of one partition into Arrow batches, on an executor.

- A range ends for one of four reasons and no other: its last offset was read; a later offset was seen; the log ended
  at or after its end; its rest is gone. Counting messages is none of them, because offsets have gaps (transaction
  markers, aborted records, compaction).
- Every wait is bounded. librdkafka reports nothing when a topic disappears, so after a time without messages the
  brokers are asked.
- Brokers that are away or are being restarted are waited for, for ``requestTimeoutMs``: only what they say of the log
  once they answer is taken for a loss. Every other error that a poll returns is raised.
- Messages are yielded after the topic id was checked, later than they were fetched: ids are never used again, so the
  messages belong to the topic of the range and not to a later one of the same name.
- The consumer is assigned, never subscribed, commits nothing, and is closed however the reading ends. What asks for
  topic ids is shared by the tasks of a process, and stays connected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, TopicPartition

from streams.kafka.cluster import Connection
from streams.kafka.errors import is_gone, is_refused, report_losses, report_recreated
from streams.kafka.offset_plan import Log, OffsetRange, describe_log
from streams.kafka.options import KafkaOptions
from streams.kafka.topic_identity import Identity, find_recreated
from streams.kafka.topic_ids import TopicIds, shared_topic_ids

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ],
)
HEADERS: Final = pa.field(
    "headers",
    pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
)

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Payload aimed at for one Arrow batch; messages are counted by the mean size of the batch before."""
FIRST_BATCH_MESSAGES: Final = 500
"""Of a first batch, whose message size is not known yet: with messages of Kafka's default limit (1 MB) it is 500 MB."""
MAX_BATCH_MESSAGES: Final = 20_000
"""Larger batches were not faster with small messages."""

POLL_SECONDS: Final = 0.1
"""Longest one poll waits for a full batch. At the end of a log no batch fills, so this much is lost there."""
SILENCE_SECONDS: Final = 2.0  # a topic is deleted rarely, and a busy broker may be silent for a second

_END_OF_LOG: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - names of librdkafka's errors begin with an underscore
_OUT_OF_RANGE: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - what `auto.offset.reset=error` turns it into

_TUNING: Final[dict[str, Any]] = {
    # The records of a range exist, so a broker has no reason to wait before it answers, except at a gap that ends the
    # log.
    "fetch_wait_max_ms": 50,
    # One partition per consumer: let one answer carry more than the default of 1 MB.
    "fetch_message_max_bytes": 8 * 1024 * 1024,
    # The default of 1000 ms stands still for a second whenever the local queue was full for an instant.
    "fetch_queue_backoff_ms": 10,
}
_MAX_QUEUED: Final = 100_000
"""librdkafka's default number of messages to fetch ahead; a small range needs no more than its size."""


def read_range(
    span: OffsetRange, options: KafkaOptions, *, silence_seconds: float = SILENCE_SECONDS
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one range in offset order; `SCHEMA`, and `HEADERS` where asked for.

    Args:
        span: The range.
        options: Options of the source.
        silence_seconds: After so long without a message, ask the brokers whether the range still exists.

    Raises:
        SourceUnavailable: The brokers refuse, or nothing arrives within ``requestTimeoutMs``.
        DataLoss: Offsets of the range are gone and ``failOnDataLoss`` is set; otherwise they are left out.
    """
    connection = Connection(options, queued_min_messages=min(span.end - span.start, _MAX_QUEUED), **_TUNING)
    topic_ids = shared_topic_ids(options)
    if span.topic_id:  # while the first messages are fetched
        topic_ids.connect([span.partition.topic], options.request_timeout_seconds)
    try:
        yield from _Reading(span, options, connection, topic_ids, silence_seconds)
    finally:
        connection.close()


class _Reading:
    """One range's reading; its state is the next offset wanted."""

    def __init__(
        self,
        span: OffsetRange,
        options: KafkaOptions,
        connection: Connection,
        topic_ids: TopicIds,
        silence_seconds: float,
    ) -> None:
        self._span = span
        self._silence_seconds = silence_seconds
        self._options = options
        self._connection = connection
        self._topic_ids = topic_ids
        self._position = span.start
        self._trouble: KafkaException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        consumer = self._connection.consumer
        self._seek(self._span.start)
        size = FIRST_BATCH_MESSAGES
        heard = asked = time.monotonic()
        while self._position < self._span.end:
            before = self._position
            messages, stop = self._cut(consumer.consume(min(size, self._span.end - before), POLL_SECONDS))
            if messages and self._is_the_topic():
                batch = encode_messages(messages, self._span, headers=self._options.include_headers)
                self._position = _offset(messages[-1]) + 1
                size = min(max(BATCH_BYTES * len(messages) // max(batch.nbytes, 1), 1), MAX_BATCH_MESSAGES)
                yield batch
            if stop is not None and self._position < self._span.end:
                self._handle(stop)
            # Only progress counts as an answer: a broker that keeps sending errors must not keep the task alive.
            now = time.monotonic()
            if self._position != before:
                heard = asked = now
            elif now - heard >= self._options.request_timeout_seconds:
                doing = f"reading {self._span}: no message arrived in time"
                raise self._connection.unavailable(doing, self._trouble)
            elif now - asked >= self._silence_seconds:
                self._ask_bounds()
                asked = time.monotonic()

    def _seek(self, offset: int) -> None:
        self._position = offset
        partition = self._span.partition
        self._connection.consumer.assign([TopicPartition(partition.topic, partition.number, offset)])

    def _cut(self, polled: list[Message]) -> tuple[list[Message], Message | None]:
        """Split what was polled at the first error or the first offset past the range."""
        if polled and not any([m.error() for m in polled]) and _offset(polled[-1]) < self._span.end:  # noqa: C419 - faster
            return polled, None
        for i, message in enumerate(polled):
            if message.error() is not None or _offset(message) >= self._span.end:
                return polled[:i], message
        return polled, None

    def _handle(self, stop: Message) -> None:
        """Decide what an error, or a message past the end, means for the range."""
        error = stop.error()
        if error is None or (error.code() == _END_OF_LOG and _offset(stop) >= self._span.end):
            self._position = self._span.end
        elif error.code() == _END_OF_LOG:
            # The log ends before the range does: it was truncated, or a new leader is still catching up. Its bounds
            # tell which; in the second case reading goes on.
            self._ask_bounds()
        elif error.code() == _OUT_OF_RANGE:
            self._ask_bounds()
            self._seek(self._position)
        elif is_gone(error):
            self._ask_bounds()  # a broker that has just started may not know all of its partitions yet
        else:
            raise self._connection.unavailable(f"reading {self._span}", error)

    def _ask_bounds(self) -> None:
        """Ask what the log holds, and compare; brokers that cannot tell now are asked again after the next silence."""
        try:
            log = self._load_log()
        except KafkaException as error:
            if is_refused(error.args[0]):
                raise self._connection.unavailable(
                    f"asking for the offsets of {self._span.partition}", error
                ) from error
            self._trouble = error
        else:
            self._trouble = None
            self._check_bounds(log)

    def _load_log(self) -> Log | None:
        """Ask for the bounds of the log; None where the partition does not exist."""
        name, number = self._span.partition
        timeout = self._options.request_timeout_seconds
        topic = self._connection.consumer.list_topics(name, timeout=timeout).topics[name]
        if topic.error is not None and not is_gone(topic.error):
            raise KafkaException(topic.error)
        if number not in topic.partitions:
            return None
        low, high = self._connection.consumer.get_watermark_offsets(TopicPartition(name, number), timeout=timeout)
        return Log(low, high)

    def _is_the_topic(self) -> bool:
        """Whether the topic is (still) the one that the range is of; otherwise report the loss and end the range."""
        topic = self._span.partition.topic
        if not self._span.topic_id:
            return True
        try:
            found = self._topic_ids.load([topic], self._options.request_timeout_seconds)
        except KafkaException as error:
            raise self._connection.unavailable(f"asking for the id of topic {topic}", error) from error
        strict = self._options.fail_on_data_loss
        if topic not in found:
            report_losses([f"{self._wanted()}, the topic does not exist any more"], strict=strict)
        elif recreated := find_recreated({topic: Identity(self._span.topic_id)}, {topic: Identity(found[topic])}):
            report_recreated(recreated.values(), strict=strict)
        else:
            return True
        self._position = self._span.end
        return False

    def _wanted(self) -> str:
        return f"{self._span.partition} wanted offsets [{self._position}, {self._span.end})"

    def _check_bounds(self, log: Log | None) -> None:
        """Go on where the log holds the rest of the range; otherwise report the loss and pass over it."""
        if log is not None and not self._is_the_topic():
            return
        wanted = self._wanted()
        strict = self._options.fail_on_data_loss
        if log is None:
            report_losses([f"{wanted}, the partition does not exist any more"], strict=strict)
            self._position = self._span.end
        elif log.high < self._span.end:
            report_losses([f"{wanted}, {describe_log(log)}: the topic was truncated or recreated"], strict=strict)
            self._position = self._span.end
        elif self._position < log.low:
            report_losses([f"{wanted}, {describe_log(log)}: older records have aged out"], strict=strict)
            self._seek(min(log.low, self._span.end))


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "messages and the events that are handled here carry an offset"
    return offset


def encode_messages(messages: list[Message], span: OffsetRange, *, headers: bool) -> pa.RecordBatch:
    """Turn messages of one partition into Arrow: n rows, `SCHEMA`, and `HEADERS` last where ``headers``.

    A message without a timestamp has a null one and type -1, as in Spark's own Kafka source; one without headers null.
    """
    count = len(messages)
    # Flat, because this loop is what reading costs in Python: numpy takes twice as long for a list of pairs.
    pairs = chain.from_iterable(message.timestamp() for message in messages)
    kinds, times = np.fromiter(pairs, np.int64, 2 * count).reshape(count, 2).T
    columns = [
        pa.array([message.key() for message in messages], SCHEMA.field("key").type),
        pa.array([message.value() for message in messages], SCHEMA.field("value").type),
        pa.repeat(pa.scalar(span.partition.topic, SCHEMA.field("topic").type), count),
        pa.repeat(pa.scalar(span.partition.number, SCHEMA.field("partition").type), count),
        pa.array(np.fromiter((message.offset() for message in messages), np.int64, count)),
        pa.array(times * 1000, mask=kinds == TIMESTAMP_NOT_AVAILABLE).cast(SCHEMA.field("timestamp").type),
        # librdkafka counts from 0 (none, create time, append time), Spark from -1.
        pa.array((kinds - 1).astype(np.int32)),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    columns.append(pa.array([_header_pairs(message) for message in messages], HEADERS.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.append(HEADERS))


def _header_pairs(message: Message) -> list[dict[str, str | bytes | None]] | None:
    # Consumed messages give a list; the dict in the declared type is for producing. Names may repeat, order counts.
    headers = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if isinstance(headers, list) and headers else None
