"""Requests topic ids from the brokers with an admin client, because librdkafka's consumers have no such request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from weft.streams.kafka.errors import is_gone, is_refused
from weft.streams.kafka.options import CLIENT_ID, KafkaOptions

RETRY_SECONDS: Final = 0.2
_LEAST_SECONDS: Final = 0.001  # librdkafka does not accept 0
_NO_ID: Final = "A" * 22
"""The id that a broker without topic ids returns: zero, in base64."""


class TopicIds:
    """A client that requests topic ids. It connects in the background, at the first request."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Remember the settings; the first request connects.

        Args:
            settings: Settings of librdkafka.
        """
        self._settings = dict(settings)
        self._client: AdminClient | None = None

    def connect(self, topics: Sequence[str], timeout: float) -> None:
        """Start to connect in the background, so that the first `load` need not wait for a connection."""
        if self._client is None:
            self._connect().describe_topics(TopicCollection(list(topics)), request_timeout=timeout)

    def load(self, topics: Sequence[str], timeout: float) -> dict[str, str]:
        """Request ids by topic, as Kafka's tools print them; "" if the broker has no ids. Missing topics are left out.

        Args:
            topics: At least one topic.
            timeout: Time limit in seconds.

        Raises:
            KafkaException: The brokers did not answer in time, or refused access.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._ask(topics, max(deadline - time.monotonic(), _LEAST_SECONDS))
            except KafkaException as error:
                # librdkafka does not repeat the request if the connection breaks while it waits for the response.
                if is_refused(error.args[0]) or time.monotonic() + RETRY_SECONDS >= deadline:
                    raise
            time.sleep(RETRY_SECONDS)

    def _ask(self, topics: Sequence[str], timeout: float) -> dict[str, str]:
        answers = self._connect().describe_topics(TopicCollection(list(topics)), request_timeout=timeout)
        ids: dict[str, str] = {}
        for topic, answer in answers.items():
            try:
                text = str(answer.result().topic_id)
            except KafkaException as error:
                if not is_gone(error.args[0]):
                    raise
            else:
                # confluent-kafka uses plain base64, Kafka's tools the variant for URLs.
                ids[topic] = "" if text == _NO_ID else text.replace("+", "-").replace("/", "_")
        return ids

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        self._client = None  # it has no close method: sockets and threads end with the object

    def _connect(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient({"client.id": CLIENT_ID, "log_level": 2, **self._settings})
        return self._client


def shared_topic_ids(options: KafkaOptions) -> TopicIds:
    """Return the shared client of this process for these brokers, which stays connected.

    It is for tasks: a process runs many of them, and connecting takes longer than reading a small range.
    """
    return _shared_ids(tuple(sorted(options.kafka.items())))


@lru_cache(maxsize=1)
def _shared_ids(settings: tuple[tuple[str, str], ...]) -> TopicIds:
    return TopicIds(dict(settings))
