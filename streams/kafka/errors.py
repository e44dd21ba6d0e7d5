"""What can go wrong between Kafka and Spark, beyond a bad option (`InvalidInput`) or a missing topic (`NotFound`).

The rule of this room: offsets that are gone are an error, and they are skipped only where the user said so; either way
the partition, what was wanted and what is there are named.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError

from storage.errors import TableError

logger = logging.getLogger("weft.kafka")

MAX_NAMED: Final = 5
"""A message names this many partitions; the rest is a count, so that a thousand partitions do not bury the cause."""


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
"""Asking again does not help: the login is wrong, a right is missing, or the broker does not take the name."""


def is_refused(error: KafkaError) -> bool:
    """The brokers answered, and will not answer otherwise if they are asked again."""
    return error.code() in _REFUSED


def is_gone(error: KafkaError) -> bool:
    """The topic or partition does not exist (here, now)."""
    return error.code() in _GONE


class SourceUnavailable(TableError):
    """The brokers refused, or did not answer within ``requestTimeoutMs``. Nothing was skipped; retrying is safe."""

    code = "SOURCE_UNAVAILABLE"


class SourceRefused(SourceUnavailable):
    """The brokers answered, and refused: a wrong password, a missing right. Waiting does not help."""

    code = "SOURCE_REFUSED"


class DataLoss(TableError):
    """Offsets still to be read are gone from Kafka: aged out, truncated, or the topic was recreated."""

    code = "DATA_LOSS"


def report_recreated(recreated: Iterable[str], *, strict: bool) -> None:
    """Raise for topics that were deleted and created again, or write down that they are read from their beginning.

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
    """Raise for what is gone, or, where the user asked to go on, write down what is skipped.

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
