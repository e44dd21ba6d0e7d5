"""The source against a real broker that asks for a login: SASL_SSL, and TLS with certificates of clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka.admin import AclOperation

from tests.download_cache import Unavailable
from tests.streams.kafka.certificates import Authority
from tests.streams.kafka.secure import SecureBroker, start_secure_broker
from tests.streams.kafka.topics import TEST_SECONDS, produce, topic_numbers
from weft.storage.errors import TableError
from weft.streams.kafka.cluster import Cluster
from weft.streams.kafka.errors import SourceRefused, SourceUnavailable
from weft.streams.kafka.fetch import read_range
from weft.streams.kafka.offset_plan import OffsetRange
from weft.streams.kafka.options import KafkaOptions, Partition, parse_options

pytestmark = [pytest.mark.integration, pytest.mark.timeout(TEST_SECONDS)]

PASSWORD = "pass-3f9a1c"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    starting = start_secure_broker(tmp_path_factory.mktemp("certificates"), PASSWORD)
    try:
        running = starting.__enter__()
    except Unavailable as reason:
        pytest.skip(f"no real Kafka broker: {reason}")
    yield running
    starting.__exit__(None, None, None)


@pytest.fixture
def topic(secure: SecureBroker) -> str:
    """A topic with three messages, which both users may read."""
    name = f"secure-{next(topic_numbers)}"
    secure.broker.create_topics({name: 1})
    produce(secure.broker, name, ["a", "b", "c"])
    for user in ("weft", "CN=client"):
        secure.allow(user, name, AclOperation.READ, AclOperation.DESCRIBE)
    return name


def options(kafka: dict[str, str], topic: str) -> KafkaOptions:
    given = {
        "subscribe": topic,
        "requestTimeoutMs": "60000",
        **{f"kafka.{name}": value for name, value in kafka.items()},
    }
    return parse_options(given, default_starting="earliest")


def read(chosen: KafkaOptions) -> list[str]:
    """Values of all messages of a topic, read as a batch of a query does."""
    cluster = Cluster(chosen)
    try:
        cluster.await_answer(lambda _: True)
        (topic,) = chosen.topics
        topics = cluster.load_topics(wait_for_topics=True)
    finally:
        cluster.close()
    log = topics.logs[Partition(topic, 0)]
    span = OffsetRange(Partition(topic, 0), log.low, log.high, topics.identities[topic].topic_id)
    return [value.as_py().decode() for batch in read_range(span, chosen) for value in batch.column("value")]


def test_user_and_password_over_tls(secure: SecureBroker, topic: str) -> None:
    assert read(options(secure.sasl(PASSWORD), topic)) == ["a", "b", "c"]


def test_a_certificate_of_the_client(secure: SecureBroker, topic: str) -> None:
    assert read(options(secure.tls(PASSWORD), topic)) == ["a", "b", "c"]


def refused(chosen: KafkaOptions, *, seconds: float = 60.0) -> TableError:
    # librdkafka tries again and again if it cannot connect, until then. A refusal ends the wait.
    with pytest.raises(SourceUnavailable) as caught:
        read(replace(chosen, request_timeout_seconds=seconds))
    assert PASSWORD not in str(caught.value)
    return caught.value


def test_a_wrong_password_is_refused(secure: SecureBroker, topic: str) -> None:
    error = refused(options(secure.sasl("wrong-" + PASSWORD[::-1]), topic))
    assert isinstance(error, SourceRefused), "waiting does not help"


def test_an_authority_that_is_not_known_is_refused(secure: SecureBroker, topic: str) -> None:
    other = Authority(secure.folder, "other")
    kafka = {**secure.sasl(PASSWORD), "ssl.ca.location": str(other.certificate)}
    reasons: list[str] = []
    cluster = Cluster(options(kafka, topic))
    cluster.await_answer(lambda reason: reasons.append(reason) or "certificate" not in reason)
    cluster.close()
    assert "certificate" in reasons[-1], "it is reported, and nothing answers"
    refused(options(kafka, topic), seconds=4.0)


def test_a_client_without_a_certificate_is_refused(secure: SecureBroker, topic: str) -> None:
    kafka = {
        name: value for name, value in secure.tls(PASSWORD).items() if not name.startswith(("ssl.cert", "ssl.key"))
    }
    refused(options(kafka, topic), seconds=4.0)


def test_a_topic_without_permission_is_refused(secure: SecureBroker) -> None:
    name = f"secure-{next(topic_numbers)}"
    secure.broker.create_topics({name: 1})
    assert isinstance(refused(options(secure.sasl(PASSWORD), name)), SourceRefused)
