"""Partitions and offsets of a cluster: unreachable brokers, topics that are created later, leaders that move."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.topics import (
    NOBODY,
    TEST_SECONDS,
    WAIT_SECONDS,
    Broker,
    cluster_logs,
    parsed,
    produce,
    read,
    topic_numbers,
)
from weft.storage.errors import NotFound
from weft.streams.kafka import cluster, kafka_source
from weft.streams.kafka.errors import SourceRefused, SourceUnavailable
from weft.streams.kafka.offset_plan import Log
from weft.streams.kafka.options import DEFAULT_REQUEST_TIMEOUT_MS, Partition, parse_options

pytestmark = pytest.mark.timeout(TEST_SECONDS)

REFUSED_MS = "3000"
"""Time limit of requests to nobody. librdkafka reports a refused connection within milliseconds, if it is not busy."""


def test_an_unreachable_broker_is_an_error_within_the_time_limit() -> None:
    options = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", "requestTimeoutMs": REFUSED_MS}
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match=rf"{NOBODY}.*refused"):
        cluster_logs(parse_options(options, default_starting="earliest"))
    with pytest.raises(SourceUnavailable, match=rf"{NOBODY}.*refused"):
        read(0, 10, parse_options(options, default_starting="earliest"))
    assert time.monotonic() - began < 2 * DEFAULT_REQUEST_TIMEOUT_MS / 1000, "the default time limit does not count"


def test_a_refused_login_is_an_error_without_waiting() -> None:
    """The embedded broker has no logins, and refuses them."""
    login = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
    user = {"kafka.sasl.username": "u", "kafka.sasl.password": "p"}
    with FaultyBroker() as private_broker:
        private_broker.create_topics({"t": 1})
        asking = cluster.Cluster(parsed(private_broker, "t", requestTimeoutMs="60000", **login, **user))
        reasons: list[str] = []
        with pytest.raises(SourceRefused, match="SASL authentication"):
            asking.await_answer(lambda reason: reasons.append(reason) or True)
        assert not [reason for reason in reasons if "SASL authentication" in reason], "a refusal is not waited out"
        asking.close()


def test_waiting_for_brokers_is_reported_regularly(broker: Broker, topic: str) -> None:
    reasons: list[str] = []
    options = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t"}
    asking = cluster.Cluster(parse_options({**options, "requestTimeoutMs": REFUSED_MS}, default_starting="earliest"))
    with pytest.raises(SourceUnavailable, match=rf"{NOBODY}.*refused"):
        asking.await_answer(lambda reason: reasons.append(reason) or True, ask_seconds=0.1)
    assert reasons
    asking.close()
    patient = cluster.Cluster(parse_options({**options, "requestTimeoutMs": "60000"}, default_starting="earliest"))
    reasons.clear()
    patient.await_answer(lambda reason: reasons.append(reason) or len(reasons) < 3, ask_seconds=0.1)
    assert len(reasons) == 3, "the wait can be stopped"
    assert all(NOBODY in reason for reason in reasons)
    patient.close()
    answering = cluster.Cluster(parsed(broker, topic, requestTimeoutMs=str(1000 * WAIT_SECONDS)))
    answering.await_answer(pytest.fail, ask_seconds=WAIT_SECONDS)
    answering.close()


def test_a_topic_is_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"late-{next(topic_numbers)}"
    asked: list[int] = []
    load_partitions = cluster.Cluster._load_partitions

    def appear_after_the_first_question(self: cluster.Cluster, *rest: Any) -> list[Partition]:
        found = load_partitions(self, *rest)
        if not asked:
            broker.create_topics({name: 2})
        asked.append(len(found))
        return found

    monkeypatch.setattr(cluster.Cluster, "_load_partitions", appear_after_the_first_question)
    asking = cluster.Cluster(parsed(broker, name))
    assert asking.load_logs(wait_for_topics=True) == {Partition(name, 0): Log(0, 0), Partition(name, 1): Log(0, 0)}
    asking.close()
    assert asked[0] == 0
    assert set(asked[1:]) == {2}, "it asks again if the leaders of the new partitions are not ready"


def test_a_missing_topic_is_noticed_without_waiting(broker: Broker, topic: str) -> None:
    asking = cluster.Cluster(parsed(broker, f"{topic},{topic}x"))
    missing = asking.look_for_topics()
    assert missing is not None
    assert missing.message == f"Kafka at {broker.bootstrap_servers} has no topic {topic}x"
    assert missing.hint.startswith("did you mean ")
    assert "waited" not in missing.hint
    asking.close()
    asking = cluster.Cluster(parsed(broker, topic))
    assert asking.look_for_topics() is None
    asking.close()


@pytest.mark.slow
def test_a_topic_that_never_appears_is_an_error_and_is_not_created(broker: Broker) -> None:
    name = f"never-{next(topic_numbers)}"
    reader = kafka_source.KafkaStreamReader(
        parsed(broker, name, requestTimeoutMs="10000")  # a busy broker answers by then
    )
    for _ in range(2):
        with pytest.raises(NotFound, match=rf"no topic {name}"):
            reader.latestOffset({}, ReadAllAvailable())
    reader.stop()


def test_a_request_is_repeated_if_the_leader_moves() -> None:
    with FaultyBroker() as private_broker:  # so that no other client gets the errors
        private_broker.create_topics({"led": 1})
        produce(private_broker, "led", list(range(10)))
        private_broker.fail_requests(2, [KafkaError.LEADER_NOT_AVAILABLE] * 3)
        assert cluster_logs(parsed(private_broker, "led")) == {Partition("led", 0): Log(0, 10)}
