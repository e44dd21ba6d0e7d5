"""Options of the Kafka source: a wrong option is named with a hint, and secrets are never shown."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.streams.kafka.topics import NOBODY, TEST_SECONDS, parsed
from weft.storage.errors import InvalidInput
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.kafka import cluster
from weft.streams.kafka.options import parse_options

pytestmark = pytest.mark.timeout(TEST_SECONDS)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"kafka.bootstrap.servers": None}, ["kafka.bootstrap.servers", "missing"]),
        ({"kafka.bootstrap.servers": " "}, ["kafka.bootstrap.servers", "missing"]),
        ({"subscribe": None}, ["subscribe", "missing"]),
        ({"subscribe": " , "}, ["subscribe", "missing"]),
        ({"subscribe": "orders.*"}, ["subscribe", "orders.*"]),
        ({"failOnDatLoss": "true"}, ["failondatloss", "'failOnDataLoss'"]),
        ({"bootstrap.servers": "x"}, ["bootstrap.servers", "kafka.bootstrap.servers"]),
        ({"path": "x"}, ["path", "includeHeaders"]),
        ({"failOnDataLoss": "yes"}, ["failOnDataLoss", "yes"]),
        ({"includeHeaders": "1"}, ["includeHeaders", "1"]),
        ({"maxOffsetsPerTrigger": "0"}, ["maxOffsetsPerTrigger", "0"]),
        ({"maxOffsetsPerTrigger": "1e6"}, ["maxOffsetsPerTrigger", "1e6"]),
        ({"minPartitions": "-2"}, ["minPartitions", "-2"]),
        ({"requestTimeoutMs": "1"}, ["requestTimeoutMs", "100"]),
        ({"kafka.enable.auto.commit": "true"}, ["kafka.enable.auto.commit", "checkpoint"]),
        ({"kafka.auto.offset.reset": "latest"}, ["kafka.auto.offset.reset", "startingOffsets"]),
        ({"startingOffsets": "newest"}, ["startingOffsets", "newest", "earliest"]),
        ({"startingOffsets": "[1]"}, ["startingOffsets", "[1]"]),
        ({"startingOffsets": '{"orders": 3}'}, ["startingOffsets", "JSON"]),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, ["startingOffsets", "orders-0", "-3"]),
        ({"startingOffsets": '{"orders": {"0": true}}'}, ["startingOffsets", "orders-0", "True"]),
        ({"startingOffsets": '{"orders": {"-1": 3}}'}, ["startingOffsets", "JSON"]),
        ({"startingOffsets": '{"orders": {"*": -3}}'}, ["startingOffsets", "orders-*", "-3"]),
        ({"startingOffsets": '{"payments": {"0": 1}}'}, ["startingOffsets", "subscribe", "orders, payments"]),
    ],
)
def test_a_wrong_option_is_named_with_a_hint(changes: Mapping[str, str | None], names: list[str]) -> None:
    given = {"kafka.bootstrap.servers": NOBODY, "subscribe": "orders", **changes}
    with pytest.raises(InvalidInput) as caught:
        parse_options({k: v for k, v in given.items() if v is not None}, default_starting="earliest")
    assert caught.value.hint
    assert [name for name in names if name not in str(caught.value)] == []


def test_a_setting_that_librdkafka_does_not_know_is_an_option_error(broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(InvalidInput, match=r"kafka\..*nonsense"):
        cluster.Connection(parsed(broker, topic, **{"kafka.nonsense": "1"}))


def test_secrets_do_not_show_in_the_options_text() -> None:
    given = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", "kafka.sasl.password": "hunter2"}
    assert "hunter2" not in repr(parse_options(given, default_starting="earliest"))
