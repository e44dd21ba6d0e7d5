"""Errors of the Kafka source, besides a bad option (`InvalidInput`) or a missing topic (`NotFound`).

Offsets that Kafka does not have any more are an error. They are skipped only with ``failOnDataLoss=false``, and then
logged. Error and log name the partition, the wanted offset and the available ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError

from storage.errors import TableError

logger = logging.getLogger("weft.kafka")

MAX_NAMED: Final = 5
"""Most partitions that a message names; the others are counted."""


_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the names of librdkafka's local errors begin so
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    },
)


_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
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


def is_gone(error: KafkaError) -> bool:
    """Whether the topic or partition does not exist."""
    return error.code() in _GONE


class SourceUnavailable(TableError):
    """The brokers did not answer within ``requestTimeoutMs``. Nothing was skipped; retrying is safe."""

    code = "SOURCE_UNAVAILABLE"


class SourceRefused(SourceUnavailable):
    """The brokers refused access: wrong password or missing permission. Waiting does not help."""

    code = "SOURCE_REFUSED"


class DataLoss(TableError):
    """Offsets that were not read yet are gone: deleted by retention, truncated, or the topic was created again."""

    code = "DATA_LOSS"


def report_recreated(recreated: Iterable[str], *, strict: bool) -> None:
    """Raise for topics that were deleted and created again, or log that they are read from their beginning.

    Args:
        recreated: One sentence for each topic; may be empty.
        strict: The option ``failOnDataLoss``.

    Raises:
        DataLoss: There are such topics, and ``strict``.
    """
    told = name_some(recreated)
    if told and strict:
        raise DataLoss(
            f"deleted and created again in Kafka: {told}",
            hint="what the old topic held and was not read is gone; failOnDataLoss=false reads the new topic from its"
            " beginning",
        )
    if told:
        logger.warning("failOnDataLoss=false, reading from the beginning what was deleted and created again: %s", told)


def report_losses(losses: list[str], *, strict: bool) -> None:
    """Raise for offsets that are gone, or log that they are skipped.

    Args:
        losses: One sentence for each partition; may be empty.
        strict: The option ``failOnDataLoss``.

    Raises:
        DataLoss: There are losses, and ``strict``.
    """
    if losses and strict:
        raise DataLoss(
            f"offsets are gone from Kafka: {name_some(losses)}",
            hint="keep topics for longer than the query may stand still; failOnDataLoss=false goes on without them",
        )
    if losses:
        logger.warning("failOnDataLoss=false, going on without offsets that are gone from Kafka: %s", name_some(losses))


def name_some(items: Iterable[str]) -> str:
    """Join the first `MAX_NAMED`, and count the rest."""
    named = list(items)
    rest = len(named) - MAX_NAMED
    return "; ".join(named[:MAX_NAMED]) + (f"; and {rest} more" if rest > 0 else "")
