"""Reads the newest messages of topics, for checks and proposals. Commits no offsets."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from weft.streams.kafka.cluster import Cluster
from weft.streams.kafka.fetch import HEADERS, SCHEMA, read_range
from weft.streams.kafka.offset_plan import OffsetRange, Topics
from weft.streams.kafka.options import KafkaOptions, parse_options

ANSWER_SECONDS: Final = 10.0
"""Time limit of a request to the brokers."""
_NAMES_SECONDS: Final = 5.0
"""The same for the names of topics, for which a user waits."""


def limit_requests(options: KafkaOptions, seconds: float = ANSWER_SECONDS) -> KafkaOptions:
    """Return the options with a time limit of requests of at most ``seconds``."""
    return replace(options, request_timeout_seconds=min(seconds, options.request_timeout_seconds))


def load_topics(options: KafkaOptions) -> Topics:
    """Request the topics, without waiting for brokers that do not answer at once.

    Raises:
        SourceUnavailable, SourceRefused: The brokers do not answer, or refuse access.
        TopicMissing: A topic does not exist.
    """
    cluster = Cluster(options)
    try:
        cluster.await_answer(lambda _: True)
        topics = cluster.load_topics(wait_for_topics=False)
        cluster.require(topics.logs, (), waited=False)
    finally:
        cluster.close()
    return topics


def topic_names(servers: str) -> list[str]:
    """Request the names of topics within `_NAMES_SECONDS`, see `weft.streams.kafka.cluster.Cluster.topic_names`.

    Args:
        servers: Addresses of brokers, as Kafka's bootstrap servers.

    Raises:
        InvalidInput: ``servers`` is not an address.
        SourceUnavailable, SourceRefused: The brokers do not answer, or refuse access.
    """
    options = {"kafka.bootstrap.servers": servers, "subscribe": "any"}
    cluster = Cluster(limit_requests(parse_options(options, default_starting="latest"), _NAMES_SECONDS))
    try:
        return cluster.topic_names()
    finally:
        cluster.close()


def read_newest(options: KafkaOptions, topics: Topics, count: int) -> pa.Table:
    """Read about ``count`` messages, the newest of each partition, with the columns of the source.

    Args:
        options: Options of the source.
        topics: The topics, from `load_topics`.
        count: Number of messages; may be 0.

    Raises:
        SourceUnavailable, DataLoss: See `weft.streams.kafka.fetch.read_range`.
    """
    schema = SCHEMA.append(HEADERS) if options.include_headers else SCHEMA
    batches: list[pa.RecordBatch] = []
    logs_with_messages = {partition: log for partition, log in topics.logs.items() if log.high > log.low}
    for partition, log in logs_with_messages.items():
        first = max(log.low, log.high - max(1, count // len(logs_with_messages)))
        identity = topics.identities.get(partition.topic)
        span = OffsetRange(partition, first, log.high, identity.topic_id if identity is not None else "")
        if count and sum(map(len, batches)) < count:
            batches += read_range(span, options)
    return pa.Table.from_batches(batches, schema)
