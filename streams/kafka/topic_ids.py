"""Asks the brokers for topic ids. Consumers cannot: librdkafka answers this question only to an admin client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from streams.kafka.errors import is_gone, is_refused
from streams.kafka.options import CLIENT_ID, KafkaOptions

RETRY_SECONDS: Final = 0.2
_LEAST_SECONDS: Final = 0.001  # librdkafka does not take 0
_NO_ID: Final = "A" * 22
"""Of a broker older than topic ids: zero, in base64."""


class TopicIds:
    """A client for this one question; it connects in the background, at the first one."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Nothing is opened yet.

        Args:
            settings: Those of librdkafka.
        """
        self._settings = dict(settings)
        self._client: AdminClient | None = None

    def connect(self, topics: Sequence[str], timeout: float) -> None:
        """Begin to connect, so that the first `load` finds a connection; does not wait."""
        if self._client is None:
            self._connected().describe_topics(TopicCollection(list(topics)), request_timeout=timeout)

    def load(self, topics: Sequence[str], timeout: float) -> dict[str, str]:
        """Ids by topic, as Kafka's tools print them; "" where the broker has none. A topic that is gone is left out.

        Args:
            topics: At least one.
            timeout: Seconds for the answer.

        Raises:
            KafkaException: No answer in time, or the brokers refused.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._ask(topics, max(deadline - time.monotonic(), _LEAST_SECONDS))
            except KafkaException as error:
                # librdkafka does not ask again when the connection breaks on which it waits for the answer.
                if is_refused(error.args[0]) or time.monotonic() + RETRY_SECONDS >= deadline:
                    raise
            time.sleep(RETRY_SECONDS)

    def _ask(self, topics: Sequence[str], timeout: float) -> dict[str, str]:
        asked = self._connected().describe_topics(TopicCollection(list(topics)), request_timeout=timeout)
        found: dict[str, str] = {}
        for topic, answer in asked.items():
            try:
                text = str(answer.result().topic_id)
            except KafkaException as error:
                if not is_gone(error.args[0]):
                    raise
            else:
                # confluent-kafka writes base64's other two characters; Kafka's tools take those of URLs.
                found[topic] = "" if text == _NO_ID else text.replace("+", "-").replace("/", "_")
        return found

    def close(self) -> None:
        """Disconnect; the next question connects again."""
        self._client = None  # it has no method for this: sockets and threads end with the object

    def _connected(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient({"client.id": CLIENT_ID, "log_level": 2, **self._settings})
        return self._client


def shared_topic_ids(options: KafkaOptions) -> TopicIds:
    """The client of this process for these brokers, which stays connected.

    For tasks: they follow each other in one process, and to connect costs more than to read a small range.
    """
    return _shared(tuple(sorted(options.kafka.items())))


@lru_cache(maxsize=1)
def _shared(settings: tuple[tuple[str, str], ...]) -> TopicIds:
    return TopicIds(dict(settings))
