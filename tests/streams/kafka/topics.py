"""Topics of the shared brokers: unique names, producing records, and reading them with the source."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Producer

from weft.streams.kafka import cluster, fetch
from weft.streams.kafka.fetch import read_range
from weft.streams.kafka.offset_plan import Log, OffsetRange
from weft.streams.kafka.options import KafkaOptions, Partition, parse_options


class Broker(Protocol):
    """The common interface of the embedded broker and a real one."""

    @property
    def bootstrap_servers(self) -> str: ...
    def create_topics(self, topics: Mapping[str, int]) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def delete_records(self, topic: str, partition: int, before_offset: int) -> None: ...
    def producer(self, **conf: Any) -> Producer: ...


NOBODY = "127.0.0.1:1"
"""No program listens on port 1 (tcpmux), so a connection is refused at once."""

WAIT_SECONDS = 300
"""Time limit of a streaming query, which takes one or two seconds on an idle machine, and a minute on a busy one."""

TEST_SECONDS = 3 * WAIT_SECONDS
"""Time limit of a test; the first one also starts Spark and the brokers."""

topic_numbers = itertools.count(1000)  # with a fixed number of digits, because batches are in the order of topic names


def produce(broker: Broker, topic: str, values: list[Any], *, partition: int = 0) -> None:
    producer = broker.producer()
    for value in values:
        producer.produce(topic, value=str(value).encode(), partition=partition)
    assert producer.flush(WAIT_SECONDS) == 0


def options(broker: Broker, topic: str, **given: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, **given}


def parsed(broker: Broker, topic: str, **given: str) -> KafkaOptions:
    return parse_options(options(broker, topic, **given), default_starting="earliest")


def read(start: int, end: int, chosen: KafkaOptions, *, partition: int = 0, **timing: float) -> pa.Table:
    schema = fetch.SCHEMA.append(fetch.HEADERS) if chosen.include_headers else fetch.SCHEMA
    span = OffsetRange(Partition(chosen.topics[0], partition), start, end)
    return pa.Table.from_batches(read_range(span, chosen, **timing), schema)


def cluster_logs(chosen: KafkaOptions) -> dict[Partition, Log]:
    asking = cluster.Cluster(chosen)
    try:
        return asking.load_logs(wait_for_topics=False)
    finally:
        asking.close()
