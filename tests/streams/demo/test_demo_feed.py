"""``weft demo --feed``: the demo's messages in a Kafka cluster that runs elsewhere."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.real_broker import RealBroker
from tests.streams.support.pipelines import weft
from weft.streams.demo.workload import MIN_ROWS, plan_topics


def messages_in(servers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "nobody", "log_level": 2})
    partitions = consumer.list_topics(topic, timeout=120).topics[topic].partitions
    offsets = [consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=120) for number in partitions]
    consumer.close()
    return sum(high - low for low, high in offsets)


def test_all_messages_are_sent_once(real_broker: RealBroker) -> None:
    servers = real_broker.bootstrap_servers
    fed = weft("demo", "--feed", servers, "--rows", str(MIN_ROWS))
    assert fed.exit_code == 0, fed.stderr
    wanted = {name: topic.rows for name, topic in plan_topics(MIN_ROWS).items()}
    assert {name: messages_in(servers, name) for name in wanted} == wanted
    again = weft("demo", "--feed", servers, "--rows", str(MIN_ROWS))
    for name in wanted:
        real_broker.delete_topic(name)  # other tests share the broker
    assert again.exit_code == 1
    assert "already has a topic orders" in again.stderr


def test_a_cluster_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.streams.demo.external_broker.REQUEST_SECONDS", 0.5)
    with FaultyBroker() as broker:
        broker.set_reachable(reachable=False)
        fed = weft("demo", "--feed", broker.bootstrap_servers, "--rows", str(MIN_ROWS))
    assert fed.exit_code == 1
    assert "does not create topic" in fed.stderr
