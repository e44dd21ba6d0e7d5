"""Parses and checks the options of ``weft_kafka``, without a request to a broker.

Every error names the option as the documentation spells it, and says how to correct it. An unknown option is an error,
because ignoring a misspelt ``failOnDataLoss`` could lose data. Spark passes names in lower case, so they are compared
in lower case; names of librdkafka have no capitals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Literal, NamedTuple

from weft.storage.errors import InvalidInput
from weft.storage.foreign_text import parse_json
from weft.streams.kafka.recreated_topic import IDENTITY_KEYS, Identity, parse_identities

CLIENT_ID: Final = "weft-kafka-source"
"""Client id, unless ``kafka.client.id`` is set."""

KAFKA_PREFIX: Final = "kafka."
_NAMES: Final = (
    "subscribe",
    "startingOffsets",
    "failOnDataLoss",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "requestTimeoutMs",
)

DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000
"""Long enough for a leader election or a slow TLS handshake, short enough that a supervisor notices a failure soon."""
MIN_REQUEST_TIMEOUT_MS: Final = 100
"""With a shorter time-out a healthy local broker is sometimes reported as unreachable."""

EARLIEST: Final = -2
LATEST: Final = -1
"""Kafka's codes for the two ends of a log, also accepted in ``startingOffsets`` as JSON."""

ANY_PARTITION: Final = "*"
"""Key in ``startingOffsets`` as JSON that stands for all partitions of the topic that are not named."""
OTHERS: Final = -1
"""The partition number that `ANY_PARTITION` is parsed to."""

_FIXED: Final = {
    "auto.offset.reset": "use startingOffsets and failOnDataLoss",
    "enable.auto.commit": "remove it: offsets are in Spark's checkpoint and are never committed to Kafka",
    "enable.auto.offset.store": "remove it: offsets are in Spark's checkpoint and are never committed to Kafka",
    "enable.partition.eof": "remove it: the source needs this event to finish a range that ends in a gap",
    "group.instance.id": "remove it: Spark assigns partitions, and the consumer never joins a group",
}
"""Settings of librdkafka that the user cannot set, because the guarantees of the source depend on them; with hints."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Partition(NamedTuple):
    """One partition of one topic; sorts by topic, then number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{ANY_PARTITION if self.number == OTHERS else self.number}"


Starting = Literal["earliest", "latest"] | Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Checked options. They can be pickled, because executors need them.

    Attributes:
        topics: At least one topic, sorted, without duplicates.
        starting: Where a query without a checkpoint begins. A mapping may contain `EARLIEST`, `LATEST` and `OTHERS`.
        starting_identities: Identities of the topics in ``starting``, if it contains any.
        kafka: Settings of librdkafka without the prefix. They may contain secrets, so ``repr`` does not show them.
        request_timeout_seconds: Limit of every wait for the brokers.
    """

    topics: tuple[str, ...]
    starting: Starting
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    request_timeout_seconds: float
    kafka: Mapping[str, str] = field(repr=False)
    starting_identities: Mapping[str, Identity] = field(default_factory=dict)


def parse_options(raw: Mapping[str, str], *, default_starting: Literal["earliest", "latest"]) -> KafkaOptions:
    """Parse the options, and check everything that can be checked without a broker.

    Raises:
        InvalidInput: An option is unknown or missing, or its value is invalid.
    """
    options = {name.lower(): value for name, value in raw.items()}
    kafka = {name.removeprefix(KAFKA_PREFIX): value for name, value in options.items() if name.startswith(KAFKA_PREFIX)}
    _refuse_unknown(options)
    _check_kafka(kafka)
    topics = _parse_topics(options.get("subscribe"))
    starting, identities = _parse_starting(options.get("startingoffsets", default_starting), topics)
    return KafkaOptions(
        topics=topics,
        starting=starting,
        starting_identities=identities,
        fail_on_data_loss=_parse_bool("failOnDataLoss", options.get("failondataloss", "true")),
        include_headers=_parse_bool("includeHeaders", options.get("includeheaders", "false")),
        max_offsets_per_trigger=_parse_count("maxOffsetsPerTrigger", options.get("maxoffsetspertrigger")),
        min_partitions=_parse_count("minPartitions", options.get("minpartitions")),
        request_timeout_seconds=_parse_timeout(options.get("requesttimeoutms")) / 1000,
        kafka=kafka,
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    names = {name.lower(): name for name in _NAMES}
    for name in options:
        if name in names or name.startswith(KAFKA_PREFIX):
            continue
        if "." in name:
            hint = f"a librdkafka setting takes the prefix {KAFKA_PREFIX!r}: {KAFKA_PREFIX}{name}"
        elif near := get_close_matches(name, names, n=1):
            hint = f"did you mean {names[near[0]]!r}?"
        else:
            hint = f"use one of {', '.join(_NAMES)}, or a librdkafka setting as {KAFKA_PREFIX}<name>"
        raise InvalidInput(f"weft_kafka has no option {name!r}", hint=hint)


def _check_kafka(kafka: Mapping[str, str]) -> None:
    if not kafka.get("bootstrap.servers", "").strip():
        raise InvalidInput(
            "option 'kafka.bootstrap.servers' is missing",
            hint="name at least one broker: .option('kafka.bootstrap.servers', 'host:9092')",
        )
    for name, reason in _FIXED.items():
        if name in kafka:
            raise InvalidInput(f"option '{KAFKA_PREFIX}{name}' cannot be set: the source sets it", hint=reason)


def _parse_topics(text: str | None) -> tuple[str, ...]:
    topics = sorted({topic.strip() for topic in (text or "").split(",")} - {""})
    if not topics:
        raise InvalidInput(
            "option 'subscribe' is missing",
            hint="name the topics: .option('subscribe', 'orders,payments')",
        )
    for topic in topics:
        if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
            raise InvalidInput(
                f"option 'subscribe': {topic!r} is not a topic name",
                hint="use 1 to 249 letters, digits, '.', '_' or '-'; separate topics by commas, without patterns",
            )
    return tuple(topics)


def _parse_bool(name: str, text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise InvalidInput(f"option {name!r} is {text!r}", hint="give true or false")
    return text.strip().lower() == "true"


def _parse_count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII) or int(text) == 0:
        raise InvalidInput(f"option {name!r} is {text!r}", hint="give a whole number of at least 1")
    return int(text)


def _parse_timeout(text: str | None) -> int:
    milliseconds = _parse_count("requestTimeoutMs", text) or DEFAULT_REQUEST_TIMEOUT_MS
    if milliseconds < MIN_REQUEST_TIMEOUT_MS:
        raise InvalidInput(
            f"option 'requestTimeoutMs' is {milliseconds}",
            hint=f"give at least {MIN_REQUEST_TIMEOUT_MS}; the default is {DEFAULT_REQUEST_TIMEOUT_MS}",
        )
    return milliseconds


_STARTING_HINT: Final = (
    'give earliest, latest, or JSON with every partition of every topic: {"topic": {"0": 23, "1": -2, "*": -1}}'
    " where -2 is earliest, -1 is latest, and * every other partition"
)


def _parse_starting(text: str, topics: tuple[str, ...]) -> tuple[Starting, dict[str, Identity]]:
    word = text.strip().lower()
    if word == "earliest":
        return "earliest", {}
    if word == "latest":
        return "latest", {}
    try:
        offsets_by_topic = parse_json(text)
        starting = {
            Partition(topic, _parse_number(number)): offset
            for topic, partitions in offsets_by_topic.items()
            for number, offset in partitions.items()
            if number not in IDENTITY_KEYS
        }
        identities = parse_identities(offsets_by_topic)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"option 'startingOffsets' is {text!r}", hint=_STARTING_HINT) from error
    for partition, offset in starting.items():
        if type(offset) is not int or offset < EARLIEST:
            raise InvalidInput(f"option 'startingOffsets': {partition} has offset {offset!r}", hint=_STARTING_HINT)
    if differing := {partition.topic for partition in starting} ^ set(topics):
        raise InvalidInput(
            f"options 'startingOffsets' and 'subscribe' do not name the same topics: {', '.join(sorted(differing))}",
            hint=_STARTING_HINT,
        )
    return starting, identities


def _parse_number(text: str) -> int:
    if text == ANY_PARTITION:
        return OTHERS
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a partition")
    return int(text)
