"""Behaviour of the embedded broker that other tests rely on: it drops old records, and names refused requests."""

from __future__ import annotations

import pytest

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.topics import TEST_SECONDS, WAIT_SECONDS, cluster_logs, parsed, read
from weft.streams.kafka.errors import DataLoss

pytestmark = pytest.mark.timeout(TEST_SECONDS)


def test_the_embedded_broker_drops_the_head_of_a_full_partition(
    embedded_broker: FaultyBroker, embedded_topic: str
) -> None:
    producer = embedded_broker.producer(compression_type="none")
    for _ in range(7000):
        producer.produce(embedded_topic, value=bytes(1000), partition=0)
    assert producer.flush(WAIT_SECONDS) == 0
    (log,) = cluster_logs(parsed(embedded_broker, embedded_topic)).values()
    assert log.low > 0
    with pytest.raises(DataLoss, match="retention deleted"):
        read(0, 7000, parsed(embedded_broker, embedded_topic))
    assert read(log.low, 7000, parsed(embedded_broker, embedded_topic)).num_rows == 7000 - log.low


def test_the_embedded_broker_names_what_it_refused(embedded_broker: FaultyBroker, embedded_topic: str) -> None:
    with pytest.raises(RuntimeError, match=rf"topic_create\({embedded_topic}, 1, 1\): TOPIC_ALREADY_EXISTS"):
        embedded_broker.create_topics({embedded_topic: 1})
    with pytest.raises(RuntimeError, match=r"delete_records\(.*, 0, 5\): OFFSET_OUT_OF_RANGE"):
        embedded_broker.delete_records(embedded_topic, 0, 5)
