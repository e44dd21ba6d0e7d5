"""Shared by the tests of the Kafka source: each runs against the embedded broker and against a real one."""

from __future__ import annotations

import pytest

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.topics import Broker, topic_numbers


@pytest.fixture(params=["embedded", pytest.param("real", marks=[pytest.mark.integration, pytest.mark.extended])])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Shared by all tests: use a separate topic."""
    return request.getfixturevalue(f"{request.param}_broker")


@pytest.fixture
def topic(broker: Broker) -> str:
    """Name of a topic of one partition that no other test uses."""
    return new_topic(broker)


@pytest.fixture
def embedded_topic(embedded_broker: FaultyBroker) -> str:
    """The same on the embedded broker, for faults that a real one does not cause on demand."""
    return new_topic(embedded_broker)


def new_topic(broker: Broker) -> str:
    name = f"topic-{next(topic_numbers)}"
    broker.create_topics({name: 1})
    return name
