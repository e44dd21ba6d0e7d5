"""The lag of a writer: computed from offsets, and unknown if brokers are unreachable or a topic was recreated."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.topics import WAIT_SECONDS, parsed, produce, topic_numbers
from tests.wait_until import wait_until
from weft.streams.kafka.errors import SourceUnavailable
from weft.streams.kafka.offset_plan import Log
from weft.streams.kafka.options import Partition
from weft.streams.pipeline.run.lag import Lag, LagMeter, is_past_end, kafka_offsets, messages_waiting

A, B = Partition("t", 0), Partition("t", 1)


@pytest.mark.parametrize(
    ("logs", "position", "waiting"),
    [
        ({A: Log(0, 9), B: Log(0, 7)}, {A: 5, B: 7}, 4),
        ({A: Log(0, 9)}, {A: 9}, 0),
        ({A: Log(6, 9)}, {A: 2}, 3),  # records deleted by retention are not counted
        ({A: Log(9, 9)}, {A: 2}, 0),
        ({A: Log(0, 9), B: Log(3, 7)}, {A: 9}, 4),  # a new partition, read from its beginning
        ({A: Log(0, 9)}, {A: 9, Partition("other", 0): 3}, 0),  # not subscribed to any more
    ],
)
def test_waiting_messages(logs: dict[Partition, Log], position: dict[Partition, int], waiting: int) -> None:
    assert messages_waiting(logs, position) == waiting


def test_logs_that_end_before_the_position_are_other_logs() -> None:
    assert not is_past_end({A: Log(0, 9)}, {A: 9})
    assert is_past_end({A: Log(0, 9)}, {A: 10})
    assert is_past_end({A: Log(0, 9)}, {A: 9, B: 0}), "a partition was removed"
    assert not is_past_end({A: Log(0, 9)}, {Partition("other", 0): 3})


@pytest.mark.parametrize(
    ("source", "offsets"),
    [
        ({"offsets": [{"t": {"0": 5, "1": 7}}]}, {A: 5, B: 7}),
        ({"offsets": [{}]}, None),
        ({"offsets": [{"t": {"0": 5}}, {"u": {"0": 1}}]}, None),
        ({"offsets": [None]}, None),
        ({"offsets": [{"logOffset": 3}]}, None),
        ({}, None),
    ],
)
def test_offsets_of_a_kafka_source(source: dict[str, object], offsets: dict[Partition, int] | None) -> None:
    assert kafka_offsets(source) == offsets


@pytest.fixture
def private_broker() -> Iterator[FaultyBroker]:
    with FaultyBroker() as running:
        yield running


def patient_meter(broker: FaultyBroker, topic: str, *, max_age_seconds: float = 600) -> LagMeter:
    """A meter whose measurements neither fail nor become too old on a busy machine."""
    return LagMeter(
        parsed(broker, topic), every_seconds=1, timeout_seconds=WAIT_SECONDS, max_age_seconds=max_age_seconds
    )


def test_the_lag_is_unknown_before_a_position_is_known(broker: FaultyBroker) -> None:
    topic = f"lag-{next(topic_numbers)}"
    broker.create_topics({topic: 1})
    produce(broker, topic, [1, 2, 3])
    meter = patient_meter(broker, topic)
    assert meter.measure() is None
    meter.set_position({Partition(topic, 0): 1})
    assert meter.lag == Lag(2, None), "the number of waiting messages is known, but not their age"


def test_a_writer_that_never_catches_up_is_as_fresh_as_its_last_batch(broker: FaultyBroker) -> None:
    topic = f"lag-{next(topic_numbers)}"
    place = Partition(topic, 0)
    broker.create_topics({topic: 1})
    meter = patient_meter(broker, topic)
    meter.set_position({place: 0})
    times = []
    for number in range(3):
        produce(broker, topic, [number])
        times.append(time.time_ns() // 1_000_000)
        found = meter.measure()
        assert found is not None
        assert found.waiting == number + 1
    meter.set_position({place: 2})
    found = meter.lag
    assert found is not None
    assert found.waiting == 1
    assert found.complete_at_ms is not None
    assert times[1] <= found.complete_at_ms <= times[2]
    meter.set_position({place: 3})
    assert meter.lag is not None
    assert meter.lag.waiting == 0
    assert (meter.lag.complete_at_ms or 0) >= times[2]


@pytest.mark.slow
def test_unreachable_brokers_make_the_lag_unknown(private_broker: FaultyBroker) -> None:
    private_broker.create_topics({"away": 1})
    produce(private_broker, "away", [1])
    with LagMeter(parsed(private_broker, "away"), every_seconds=1, timeout_seconds=1) as meter:
        meter.set_position({Partition("away", 0): 1})
        # On a busy machine a measurement may fail at any time, so what belongs together is waited for together.
        wait_until(lambda: waiting(meter) == 0 and meter.outage is None, WAIT_SECONDS)
        private_broker.set_reachable(reachable=False)
        wait_until(lambda: meter.lag is None and isinstance(meter.outage, SourceUnavailable), WAIT_SECONDS)
        private_broker.set_reachable(reachable=True)
        wait_until(lambda: waiting(meter) == 0 and meter.outage is None, WAIT_SECONDS)


def waiting(meter: LagMeter) -> int | None:
    lag = meter.lag
    return None if lag is None else lag.waiting


def test_an_old_measurement_is_not_used(broker: FaultyBroker) -> None:
    topic = f"lag-{next(topic_numbers)}"
    broker.create_topics({topic: 1})
    meters = [patient_meter(broker, topic, max_age_seconds=age) for age in (600, 0)]
    for meter in meters:
        meter.set_position({Partition(topic, 0): 0})
        meter.measure()
    assert [meter.lag is None for meter in meters] == [False, True]


def test_a_recreated_topic_makes_the_lag_unknown(private_broker: FaultyBroker) -> None:
    private_broker.create_topics({"again": 1})
    produce(private_broker, "again", [1, 2, 3])
    meter = patient_meter(private_broker, "again")
    meter.set_position({Partition("again", 0): 3})
    assert meter.measure() is not None
    private_broker.delete_topic("again")
    assert meter.measure() is None
    private_broker.create_topics({"again": 1})
    produce(private_broker, "again", [1])
    assert meter.measure() is None


def test_records_deleted_by_retention_are_not_counted(broker: FaultyBroker) -> None:
    topic = f"lag-{next(topic_numbers)}"
    broker.create_topics({topic: 1})
    for number in range(5):
        produce(broker, topic, [number])
    meter = patient_meter(broker, topic)
    meter.set_position({Partition(topic, 0): 1})
    first = meter.measure()
    broker.delete_records(topic, 0, 4)
    second = meter.measure()
    assert (first, second) == (Lag(4, None), Lag(1, None))
