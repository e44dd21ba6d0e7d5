"""Checks the names and values of librdkafka's settings one by one, without a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from confluent_kafka import Consumer, KafkaException

from weft.storage.errors import InvalidInput
from weft.streams.kafka.options import KAFKA_PREFIX

_UNKNOWN: Final = "No such configuration property"
_REFUSALS: Final = (_UNKNOWN, "Invalid value", "Configuration property")
"""Beginnings of messages about one setting. Others are about several settings, or about files that may be elsewhere."""

_USUAL: Final = (
    *("bootstrap.servers", "client.id", "client.rack", "security.protocol", "broker.address.family"),
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.oauthbearer.config"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"),
    *("fetch.min.bytes", "fetch.max.bytes", "fetch.wait.max.ms", "max.partition.fetch.bytes", "isolation.level"),
    *("queued.min.messages", "queued.max.messages.kbytes", "receive.message.max.bytes"),
    *("socket.timeout.ms", "socket.keepalive.enable", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "log_level"),
)
"""Settings to suggest for a misspelt name; librdkafka has no list of its settings."""


def wrong_settings(kafka: Mapping[str, str]) -> Iterator[InvalidInput]:
    """Yield an error for each setting that librdkafka refuses. This connects to no broker and reads no file.

    Args:
        kafka: Settings by name, without the prefix of options.
    """
    for name, value in kafka.items():
        # One setting at a time, so that librdkafka neither connects nor opens certificates, which may be elsewhere.
        try:
            Consumer({"group.id": "weft-check", "log_level": 0, name: value}).close()
        except KafkaException as error:
            text = error.args[0].str().strip()
            if not text.startswith(_REFUSALS):
                continue
            if not text.startswith(_UNKNOWN):
                yield InvalidInput(f"{KAFKA_PREFIX}{name}: {text}", hint="see the settings of librdkafka")
                continue
            near = get_close_matches(name, _USUAL, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see the settings of librdkafka"
            yield InvalidInput(f"{KAFKA_PREFIX}{name}: librdkafka has no setting of this name", hint=hint)
