"""Reads one offset range of one partition into Arrow batches, on an executor.

- A range ends for exactly one of four reasons: its last offset was read; a later offset was read; the log ends at or
  after the end of the range; the rest of the range does not exist any more. The number of messages does not matter,
  because offsets have gaps (transaction markers, aborted records, compaction).
- Every wait is bounded. librdkafka reports nothing when a topic is deleted, so after `SILENCE_SECONDS` without messages
  the task requests the bounds of the log.
- If brokers are unreachable or restarting, the task waits for up to ``requestTimeoutMs``. Only a response of the
  brokers can show that offsets are lost. Every other error that a poll returns is raised.
- The topic id is checked after messages were fetched and before they are yielded. Ids are never used again, so the
  messages belong to the topic of the range, not to a later one of the same name.
- The consumer is assigned, never subscribed, commits nothing, and is always closed. The client that requests topic ids
  is shared by the tasks of a process, and stays connected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, TopicPartition

from weft.streams.kafka.cluster import Connection
from weft.streams.kafka.errors import concerns_group, is_gone, is_refused, report_losses, report_recreated
from weft.streams.kafka.offset_plan import Log, OffsetRange, describe_log
from weft.streams.kafka.options import KafkaOptions
from weft.streams.kafka.recreated_topic import Identity, find_recreated
from weft.streams.kafka.topic_ids import TopicIds, shared_topic_ids

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
"""Target size of the payload of an Arrow batch; the number of messages follows from the mean size in the last batch."""
FIRST_BATCH_MESSAGES: Final = 500
"""Messages of the first batch, when their size is unknown. With Kafka's default limit of 1 MB these are 500 MB."""
MAX_BATCH_MESSAGES: Final = 20_000
"""Limit of the messages of a batch; larger batches of small messages are not faster."""

POLL_SECONDS: Final = 0.1
"""Maximum time of a poll, which waits for a full batch. At the end of a log no batch is full, so it takes this long."""
SILENCE_SECONDS: Final = 2.0  # a topic is deleted rarely, and a busy broker may be silent for a second

_END_OF_LOG: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - names of librdkafka's errors begin with an underscore
_OUT_OF_RANGE: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - librdkafka's error because of `auto.offset.reset=error`

_TUNING: Final[dict[str, Any]] = {
    # The records of a range usually exist, so a broker need not wait for more; it waits only at a gap at the end of the
    # log.
    "fetch_wait_max_ms": 50,
    # There is one partition per consumer: allow responses larger than the default of 1 MB.
    "fetch_message_max_bytes": 8 * 1024 * 1024,
    # With the default of 1000 ms fetching stops for a second whenever the local queue was full for a moment.
    "fetch_queue_backoff_ms": 10,
}
_MAX_QUEUED: Final = 100_000
"""librdkafka's default number of messages to fetch ahead; a small range needs no more than its size."""


def read_range(
    span: OffsetRange, options: KafkaOptions, *, silence_seconds: float = SILENCE_SECONDS
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one range in offset order: `SCHEMA`, and `HEADERS` if the options include headers.

    Args:
        span: The range.
        options: Options of the source.
        silence_seconds: After this time without a message, check with the brokers that the range still exists.

    Raises:
        SourceUnavailable: The brokers refuse access, or no message arrives within ``requestTimeoutMs``.
        DataLoss: Kafka does not have offsets of the range any more, and ``failOnDataLoss`` is true; otherwise they are
            skipped.
    """
    connection = Connection(options, queued_min_messages=min(span.end - span.start, _MAX_QUEUED), **_TUNING)
    topic_ids = shared_topic_ids(options)
    if span.topic_id:  # in the background, while the first messages are fetched
        topic_ids.connect([span.partition.topic], options.request_timeout_seconds)
    try:
        yield from _Reading(span, options, connection, topic_ids, silence_seconds)
    finally:
        connection.close()


class _Reading:
    """Reads one range; its state is the next offset to read."""

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
        last_message_at = last_check_at = time.monotonic()
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
            # Only messages reset the time-out: a broker that sends only errors must not keep the task running.
            now = time.monotonic()
            if self._position != before:
                last_message_at = last_check_at = now
            elif now - last_message_at >= self._options.request_timeout_seconds:
                doing = f"reading {self._span}: no message arrived in time"
                raise self._connection.unavailable(doing, self._trouble)
            elif now - last_check_at >= self._silence_seconds:
                self._ask_bounds()
                last_check_at = time.monotonic()

    def _seek(self, offset: int) -> None:
        self._position = offset
        partition = self._span.partition
        self._connection.consumer.assign([TopicPartition(partition.topic, partition.number, offset)])

    def _cut(self, polled: list[Message]) -> tuple[list[Message], Message | None]:
        """Split the polled messages at the first error, or the first offset after the range."""
        if polled and not any([m.error() for m in polled]) and _offset(polled[-1]) < self._span.end:  # noqa: C419 - faster
            return polled, None
        polled = [message for message in polled if (error := message.error()) is None or not concerns_group(error)]
        for i, message in enumerate(polled):
            if message.error() is not None or _offset(message) >= self._span.end:
                return polled[:i], message
        return polled, None

    def _handle(self, stop: Message) -> None:
        """Handle an error, or a message after the end of the range."""
        error = stop.error()
        if error is None or (error.code() == _END_OF_LOG and _offset(stop) >= self._span.end):
            self._position = self._span.end
        elif error.code() == _END_OF_LOG:
            # The log ends before the range: it was truncated, or a new leader has not caught up yet. The bounds of the
            # log tell the two apart; in the second case reading continues.
            self._ask_bounds()
        elif error.code() == _OUT_OF_RANGE:
            self._ask_bounds()
            self._seek(self._position)
        elif is_gone(error):
            self._ask_bounds()  # a broker that has just started may not have loaded all of its partitions
        else:
            raise self._connection.unavailable(f"reading {self._span}", error)

    def _ask_bounds(self) -> None:
        """Compare the range with the bounds of the log. If the brokers do not answer, retry after the next silence."""
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
        """Request the bounds of the log; None if the partition does not exist."""
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
        """Whether the topic is still the one of the range; otherwise report the loss and end the range."""
        topic = self._span.partition.topic
        if not self._span.topic_id:
            return True
        try:
            topic_ids = self._topic_ids.load([topic], self._options.request_timeout_seconds)
        except KafkaException as error:
            raise self._connection.unavailable(f"asking for the id of topic {topic}", error) from error
        strict = self._options.fail_on_data_loss
        if topic not in topic_ids:
            report_losses([f"{self._describe_request()}, the topic does not exist any more"], strict=strict)
        elif recreated := find_recreated({topic: Identity(self._span.topic_id)}, {topic: Identity(topic_ids[topic])}):
            report_recreated(recreated.values(), strict=strict)
        else:
            return True
        self._position = self._span.end
        return False

    def _describe_request(self) -> str:
        return f"{self._span.partition} needs offsets [{self._position}, {self._span.end})"

    def _check_bounds(self, log: Log | None) -> None:
        """Continue if the log has the rest of the range; otherwise report the lost offsets and skip them."""
        if log is not None and not self._is_the_topic():
            return
        request_text = self._describe_request()
        strict = self._options.fail_on_data_loss
        if log is None:
            report_losses([f"{request_text}, the partition does not exist any more"], strict=strict)
            self._position = self._span.end
        elif log.high < self._span.end:
            report_losses([f"{request_text}, {describe_log(log)}: the topic was truncated or recreated"], strict=strict)
            self._position = self._span.end
        elif self._position < log.low:
            report_losses([f"{request_text}, {describe_log(log)}: retention deleted older records"], strict=strict)
            self._seek(min(log.low, self._span.end))


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "messages and the events that are handled here have an offset"
    return offset


def encode_messages(messages: list[Message], span: OffsetRange, *, headers: bool) -> pa.RecordBatch:
    """Convert n messages of one partition to n rows: `SCHEMA`, and `HEADERS` as the last column if ``headers``.

    As in Spark's Kafka source, a message without a timestamp gets null and type -1, one without headers gets null.
    """
    count = len(messages)
    # Flat, because most of the CPU time is spent here, and numpy takes twice as long for a list of pairs.
    pairs = chain.from_iterable(message.timestamp() for message in messages)
    kinds, times = np.fromiter(pairs, np.int64, 2 * count).reshape(count, 2).T
    columns = [
        pa.array([message.key() for message in messages], SCHEMA.field("key").type),
        pa.array([message.value() for message in messages], SCHEMA.field("value").type),
        pa.repeat(pa.scalar(span.partition.topic, SCHEMA.field("topic").type), count),
        pa.repeat(pa.scalar(span.partition.number, SCHEMA.field("partition").type), count),
        pa.array(np.fromiter((message.offset() for message in messages), np.int64, count)),
        pa.array(times * 1000, mask=kinds == TIMESTAMP_NOT_AVAILABLE).cast(SCHEMA.field("timestamp").type),
        # The types none, create time and append time are 0, 1, 2 in librdkafka and -1, 0, 1 in Spark.
        pa.array((kinds - 1).astype(np.int32)),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    headers_of = [_header_pairs(message) for message in messages]
    columns.append(pa.array(headers_of, HEADERS.type) if any(headers_of) else pa.nulls(count, HEADERS.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.append(HEADERS))


def _header_pairs(message: Message) -> list[dict[str, str | bytes | None]] | None:
    # Consumed messages have a list; the dict in the declared type is for producers. Names may repeat, and are ordered.
    headers = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if isinstance(headers, list) and headers else None
