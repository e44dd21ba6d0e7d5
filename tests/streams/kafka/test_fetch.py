"""One range of one partition: exactly its records are read, or the loss is named, within the time limit."""

from __future__ import annotations

import logging
import time

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from pyspark.sql.pandas.types import to_arrow_schema

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.topics import TEST_SECONDS, WAIT_SECONDS, Broker, cluster_logs, parsed, produce, read
from weft.streams.kafka import cluster, fetch, kafka_source
from weft.streams.kafka.errors import DataLoss, SourceUnavailable
from weft.streams.kafka.fetch import read_range
from weft.streams.kafka.offset_plan import Log, OffsetRange
from weft.streams.kafka.options import DEFAULT_REQUEST_TIMEOUT_MS, Partition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TEST_SECONDS)]


@pytest.mark.parametrize("headers", [False, True])
def test_the_arrow_schema_is_what_spark_expects(*, headers: bool) -> None:
    arrow_schema = fetch.SCHEMA.append(fetch.HEADERS) if headers else fetch.SCHEMA
    assert arrow_schema == to_arrow_schema(kafka_source.columns(include_headers=headers), timezone="UTC")


def test_a_range_is_read_exactly(broker: Broker, topic: str) -> None:
    produce(broker, topic, list(range(3000)))
    table = read(700, 2300, parsed(broker, topic))
    assert table["offset"].to_pylist() == list(range(700, 2300))
    assert table["value"].to_pylist() == [b"%d" % i for i in range(700, 2300)]
    assert set(table["topic"].to_pylist()) == {topic}
    assert set(table["partition"].to_pylist()) == {0}


def test_nulls_headers_and_timestamps_arrive_as_they_were_sent(broker: Broker, topic: str) -> None:
    producer = broker.producer()
    producer.produce(topic, key=None, value=b"", partition=0, timestamp=1_700_000_000_123)
    headers: list[tuple[str, bytes | str | None]] = [("h", b"1"), ("h", None), ("ä", b"")]
    producer.produce(topic, key=b"k", value=None, partition=0, timestamp=1_700_000_000_124, headers=headers)
    producer.flush(WAIT_SECONDS)
    table = read(0, 2, parsed(broker, topic, includeHeaders="true"))
    assert table["key"].to_pylist() == [None, b"k"]
    assert table["value"].to_pylist() == [b"", None]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, 1_700_000_000_124_000]
    assert table["timestampType"].to_pylist() == [0, 0]
    assert table["headers"].to_pylist() == [
        None,
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "ä", "value": b""}],
    ]


def test_batches_of_large_messages_stay_small(broker: Broker, topic: str) -> None:
    producer = broker.producer(message_max_bytes=10_000_000)
    for _ in range(600):
        producer.produce(topic, value=bytes(200_000), partition=0)
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0
    span = OffsetRange(Partition(topic, 0), 0, 600)
    sizes = [batch.num_rows for batch in read_range(span, parsed(broker, topic))]
    assert sum(sizes) == 600
    assert all(size <= fetch.BATCH_BYTES // 200_000 for size in sizes[1:])


def test_a_range_that_ends_in_transaction_markers_ends(broker: Broker, topic: str) -> None:
    producer = broker.producer(transactional_id=topic)
    producer.init_transactions(WAIT_SECONDS)
    for _ in range(2):
        producer.begin_transaction()
        for value in range(5):
            producer.produce(topic, value=b"%d" % value, partition=0)
        producer.commit_transaction(WAIT_SECONDS)
    chosen = parsed(broker, topic)
    logs = cluster_logs(chosen)
    assert logs == {Partition(topic, 0): Log(0, 12)}, "the broker writes a marker after each transaction"
    # They end without asking after a silence, and before the time limit, at which they would fail.
    assert read(0, 12, chosen, silence_seconds=WAIT_SECONDS)["offset"].to_pylist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert read(5, 6, chosen, silence_seconds=WAIT_SECONDS).num_rows == 0
    assert read(11, 12, chosen, silence_seconds=WAIT_SECONDS).num_rows == 0


def test_records_deleted_by_retention_are_a_loss(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    produce(broker, topic, list(range(100)))
    broker.delete_records(topic, 0, 40)
    with pytest.raises(DataLoss, match=rf"{topic}-0 needs offsets \[10, 90\), the log has offsets \[40, 100\)"):
        read(10, 90, parsed(broker, topic))
    lenient = parsed(broker, topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "weft.kafka"):
        assert read(10, 90, lenient)["offset"].to_pylist() == list(range(40, 90))
        assert read(10, 30, lenient).num_rows == 0
    assert "[10, 90)" in caplog.text


@pytest.mark.parametrize("left", [0, 20, 30])
def test_a_truncated_log_is_a_loss(broker: Broker, topic: str, left: int) -> None:
    produce(broker, topic, list(range(100)))
    broker.delete_topic(topic)
    broker.create_topics({topic: 1})
    produce(broker, topic, list(range(left)))
    with pytest.raises(DataLoss, match=rf"{topic}-0 needs offsets \[30, 90\), the log has offsets \[0, {left}\)"):
        read(30, 90, parsed(broker, topic))
    assert read(30, 90, parsed(broker, topic, failOnDataLoss="false")).num_rows == 0


def test_a_topic_that_disappears_is_a_loss(broker: Broker, topic: str) -> None:
    produce(broker, topic, list(range(100)))
    broker.delete_topic(topic)
    with pytest.raises(DataLoss, match=rf"{topic}-0 needs offsets \[0, 90\), the partition does not exist"):
        # librdkafka reports nothing, so the source has to send a request.
        read(0, 90, parsed(broker, topic), silence_seconds=0.1)
    assert read(0, 90, parsed(broker, topic, failOnDataLoss="false"), silence_seconds=0.1).num_rows == 0


def test_an_error_of_the_broker_is_raised() -> None:
    with FaultyBroker() as private_broker:  # so that no other client gets the error
        private_broker.create_topics({"secret": 1})
        produce(private_broker, "secret", list(range(10)))
        private_broker.fail_requests(1, [KafkaError.TOPIC_AUTHORIZATION_FAILED])
        with pytest.raises(SourceUnavailable, match=r"\[0, 10\).*authorization failed"):
            read(0, 10, parsed(private_broker, "secret"))


def test_endless_errors_end_the_task() -> None:
    topic = "errors"
    with FaultyBroker() as private_broker:
        private_broker.create_topics({topic: 1})
        produce(private_broker, topic, list(range(10)))
        private_broker.fail_requests(1, [KafkaError.OFFSET_OUT_OF_RANGE] * 10_000)
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match="no message arrived in time"):
            read(0, 10, parsed(private_broker, topic, requestTimeoutMs="1000"))
        assert time.monotonic() - began < DEFAULT_REQUEST_TIMEOUT_MS / 1000


def test_an_unreachable_broker_ends_the_read_within_the_time_limit() -> None:
    topic = "away"
    with FaultyBroker() as private_broker:
        private_broker.create_topics({topic: 1})
        # One batch of the producer is one answer of the broker: the first batch of the reader is full, and the end of
        # the log is not fetched before the broker goes away.
        producer = private_broker.producer(linger_ms=60_000)  # until `flush`
        for value in range(2 * fetch.FIRST_BATCH_MESSAGES):
            producer.produce(topic, value=b"%d" % value, partition=0)
        assert producer.flush(WAIT_SECONDS) == 0
        slow = {"kafka.queued.min.messages": "1", "kafka.fetch.queue.backoff.ms": "1000"}
        batches = read_range(
            OffsetRange(Partition(topic, 0), 0, 10**6),
            parsed(private_broker, topic, requestTimeoutMs="10000", **slow),
        )
        assert next(batches).num_rows == fetch.FIRST_BATCH_MESSAGES
        private_broker.set_reachable(reachable=False)
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match=private_broker.bootstrap_servers):
            list(batches)
        assert time.monotonic() - began < DEFAULT_REQUEST_TIMEOUT_MS / 1000


def test_the_consumer_is_always_closed(
    broker: Broker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    produce(broker, topic, list(range(1000)))
    closed: list[int] = []
    close = cluster.Connection.close
    monkeypatch.setattr(cluster.Connection, "close", lambda self: (closed.append(1), close(self)))
    read(0, 1000, parsed(broker, topic))
    abandoned = read_range(OffsetRange(Partition(topic, 0), 0, 1000), parsed(broker, topic))
    next(abandoned)
    abandoned.close()  # type: ignore[attr-defined]
    broker.delete_records(topic, 0, 500)
    with pytest.raises(DataLoss):
        read(0, 1000, parsed(broker, topic))
    assert len(closed) == 3
