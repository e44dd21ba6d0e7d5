"""An external Kafka cluster for ``weft demo --feed``, which gets the demo's topics and messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from weft.storage.errors import Conflict, StoreUnavailable, TableError
from weft.storage.plural import counted
from weft.streams.demo.feed import Feed
from weft.streams.demo.workload import plan_topics

BROKER_DEFAULT: Final = -1
"""Stands for the cluster's default number of partitions of a new topic."""
REQUEST_SECONDS: Final = 30.0  # enough for a broker that has just started


class Unsupported(TableError):
    """The cluster, such as the embedded broker, does not create topics on request; a first message may create one."""

    code = "UNSUPPORTED"


class ExternalBroker:
    """Creates topics and producers on a cluster, with the interface of the embedded broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        """Remember the address; the methods connect."""
        self._servers = bootstrap_servers

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics; ``topics`` has the number of partitions by name. Replicas are the cluster's default.

        Raises:
            StoreUnavailable: The cluster does not answer.
            Conflict: A topic exists.
            Unsupported: The cluster does not support this request.
        """
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 2})
        new_topics = [NewTopic(name, count) for name, count in topics.items()]
        for name, answer in admin.create_topics(new_topics, request_timeout=REQUEST_SECONDS).items():
            try:
                answer.result(2 * REQUEST_SECONDS)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    raise Conflict(
                        f"{self._servers} already has a topic {name}", hint="delete the topic first"
                    ) from None
                reason = error.args[0].str()
                if error.args[0].code() == KafkaError._UNSUPPORTED_FEATURE:  # noqa: SLF001 - the names of librdkafka's local errors begin so
                    raise Unsupported(f"{self._servers} does not create topics: {reason}") from error
                raise StoreUnavailable(f"{self._servers} does not create topic {name}: {reason}") from error

    def producer(self, **conf: Any) -> Producer:
        """Create a client that writes to the cluster, with these librdkafka settings."""
        return Producer({"bootstrap.servers": self._servers, "compression.type": "zstd", "linger.ms": 50, **conf})


def feed_broker(bootstrap_servers: str, rows: int, console: Console, *, seed: int = 1, seconds: float = 0.0) -> None:
    """Create the demo's topics on a cluster, and send all messages of the demo.

    Args:
        bootstrap_servers: Address of the cluster.
        rows: Messages of all topics together.
        console: Prints the result.
        seed: Seed of the messages.
        seconds: Spread the messages over this many seconds.

    Raises:
        InvalidInput: The number of messages is too small.
        StoreUnavailable: The cluster does not answer, or does not accept a message.
        Conflict: A topic already exists.
    """
    topics = plan_topics(rows, seed)
    feed = Feed(ExternalBroker(bootstrap_servers), topics)
    while not feed.finished:
        feed.send_part()
        time.sleep(seconds / feed.parts)
    console.print(
        f"{counted(rows, 'message')} in {counted(len(topics), 'topic')} of {bootstrap_servers}: {', '.join(topics)}"
    )
