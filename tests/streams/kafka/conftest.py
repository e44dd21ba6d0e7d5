"""Shared by the tests of the Kafka source: a topic of one's own on the broker of the whole run."""

from __future__ import annotations

import pytest

from streams.demo.broker import EmbeddedBroker
from tests.streams.kafka.topics import topic_numbers


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """Name of a topic of one partition that no other test uses."""
    name = f"topic-{next(topic_numbers)}"
    broker.create_topics({name: 1})
    return name
