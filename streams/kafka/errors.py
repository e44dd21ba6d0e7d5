"""Errors of the Kafka source, besides a bad option (`InvalidInput`).

Offsets that Kafka does not have any more are an error. They are skipped only with ``failOnDataLoss=false``, and then
logged. Error and log name the partition, the required offset and the available offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError

from weft.storage.errors import NotFound, TableError

logger = logging.getLogger("weft.kafka")

MAX_NAMED: Final = 5
"""Maximum number of partitions that a message names; the others are counted."""


_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the names of librdkafka's local errors begin so
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
    },
)


_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - the names of librdkafka's local errors begin so
    },
)
"""A retry does not help: the login is wrong, a permission is missing, or the topic name is invalid."""


def is_refused(error: KafkaError) -> bool:
    """Whether the brokers refused, so that a retry does not help."""
    return error.code() in _REFUSED


def concerns_group(error: KafkaError) -> bool:
    """Whether the user may not use the consumer group. The source joins no group, so this does not matter.

    librdkafka nevertheless looks for the coordinator of its group, and may report the refusal at any time.
    """
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def is_gone(error: KafkaError) -> bool:
    """Whether the topic or partition does not exist."""
    return error.code() in _GONE


class SourceUnavailable(TableError):
    """The brokers did not answer within ``requestTimeoutMs``. Nothing was skipped; retrying is safe."""

    code = "SOURCE_UNAVAILABLE"


class SourceRefused(SourceUnavailable):
    """The brokers refused access: wrong password or missing permission. Waiting does not help."""

    code = "SOURCE_REFUSED"


class TopicMissing(NotFound):
    """A subscribed topic does not exist. It may be created later, or its name is wrong."""

    code = "TOPIC_MISSING"


class DataLoss(TableError):
    """Records that were not read yet are lost: retention deleted them, or the topic was truncated or created again."""

    code = "DATA_LOSS"
    guide = "deploy/docs/recovery.md#a-topic-was-created-again"


def report_recreated(recreated: Iterable[str], *, strict: bool) -> None:
    """Raise for topics that were deleted and created again, or log that they are read from their beginning.

    Args:
        recreated: One sentence per topic; may be empty.
        strict: The option ``failOnDataLoss``.

    Raises:
        DataLoss: There are such topics, and ``strict`` is true.
    """
    topics = name_some(recreated)
    if topics and strict:
        raise DataLoss(
            f"a topic was deleted and created again, or all of Kafka was: {topics}",
            hint="set failOnDataLoss=false to read it from its beginning; unread records of the old topic are lost",
        )
    if topics:
        logger.warning("failOnDataLoss=false: topics that were created again are read from their beginning: %s", topics)


def report_losses(losses: list[str], *, strict: bool) -> None:
    """Raise for offsets that Kafka does not have any more, or log that they are skipped.

    Args:
        losses: One sentence per partition; may be empty.
        strict: The option ``failOnDataLoss``.

    Raises:
        DataLoss: There are losses, and ``strict`` is true.
    """
    if losses and strict:
        raise DataLoss(
            f"Kafka does not have the offsets any more: {name_some(losses)}",
            hint="set failOnDataLoss=false to skip them; keep messages for longer than any stop of the query",
        )
    if losses:
        logger.warning(
            "failOnDataLoss=false: skipping offsets that Kafka does not have any more: %s", name_some(losses)
        )


def name_some(items: Iterable[str]) -> str:
    """Join the first `MAX_NAMED` items, and count the others."""
    names = list(items)
    rest = len(names) - MAX_NAMED
    return "; ".join(names[:MAX_NAMED]) + (f"; and {rest} more" if rest > 0 else "")
