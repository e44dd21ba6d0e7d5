"""Topics that were deleted and created again are never read as if they were the old ones, even if they are longer."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.query import Query
from tests.streams.kafka.topics import TEST_SECONDS, Broker, options, parsed, produce
from weft.storage.errors import InvalidInput
from weft.streams.kafka import kafka_source
from weft.streams.kafka.errors import DataLoss
from weft.streams.kafka.options import parse_options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TEST_SECONDS)]

RECREATED = r"topic {0} has id [\w-]{{22}}, but the offsets belong to the topic with id [\w-]{{22}}"


def recreate(broker: Broker, topic: str, messages: int, *, partitions: int = 1) -> list[str]:
    """Delete and create the topic, with ``messages`` other messages in each partition."""
    broker.delete_topic(topic)
    broker.create_topics({topic: partitions})
    made = [[f"new-{number}-{i}" for i in range(messages)] for number in range(partitions)]
    for number, values in enumerate(made):
        produce(broker, topic, values, partition=number)
    return [value for values in made for value in values]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("grown_to", [100, 500, 800])
def test_a_recreated_topic_is_an_error_that_names_it(
    broker: Broker, topic: str, grown_to: int, *, restarted: bool
) -> None:
    produce(broker, topic, [f"old-{i}" for i in range(500)])
    with Query(broker, topic) as first:
        assert first.batch() == []
        assert len(first.batch()) == 500
        old = first.position[topic]["topic_id"]
        recreate(broker, topic, grown_to)
        with Query(broker, topic, first.position) as second:
            query = second if restarted else first
            for _ in range(2):
                with pytest.raises(DataLoss, match=RECREATED.format(topic)) as caught:
                    query.plan()
                assert f"to the topic with id {old}" in caught.value.message
                assert "failOnDataLoss=false" in caught.value.hint


@pytest.mark.parametrize("grown_to", [100, 500, 800])
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_without_fail_on_data_loss_the_new_topic_is_read_from_its_beginning(
    broker: Broker, topic: str, grown_to: int, partitions: int, caplog: pytest.LogCaptureFixture
) -> None:
    two = f"{topic}-2"
    broker.create_topics({two: 2})
    for number in (0, 1):
        produce(broker, two, [f"old-{number}-{i}" for i in range(500)], partition=number)
    produce(broker, topic, [f"other-{i}" for i in range(10)])
    with Query(broker, f"{topic},{two}", failOnDataLoss="false") as query:
        assert len(query.drain()) == 1010
        sent = recreate(broker, two, grown_to, partitions=partitions)
        produce(broker, topic, ["other-10"])
        with caplog.at_level(logging.WARNING, "weft.kafka"):
            found = query.drain()
        assert sorted(value for *_, value in found) == sorted([*sent, "other-10"]), (
            "each message once, and the other topic continues"
        )
        assert [offset for name, number, offset, _ in found if (name, number) == (two, 0)] == list(range(grown_to))
        assert "read from their beginning" in caplog.text
        assert f"topic {two} has id" in caplog.text
        caplog.clear()
        produce(broker, two, ["more"])
        assert query.batch() == ["more"]
        assert caplog.text == "", "it is logged once"


def test_a_query_that_started_at_latest_detects_it_too(broker: Broker, topic: str) -> None:
    produce(broker, topic, ["old"] * 50)
    with Query(broker, topic, startingOffsets="latest") as query:
        assert query.batch() == []
        recreate(broker, topic, 80)
        with pytest.raises(DataLoss, match=RECREATED.format(topic)):
            query.plan()


def test_a_topic_that_is_recreated_between_planning_and_reading(broker: Broker, topic: str) -> None:
    produce(broker, topic, ["old"] * 100)
    with Query(broker, topic) as query:
        query.batch()
        end = query.plan()
        sent = recreate(broker, topic, 300)
        with pytest.raises(DataLoss, match=RECREATED.format(topic)):
            list(query.read(end))
        with Query(broker, topic, query.position, failOnDataLoss="false") as lenient:
            assert list(lenient.read(end)) == []
            lenient.position = end
            assert [value for *_, value in lenient.drain()] == sent


@pytest.mark.parametrize("strict", [True, False])
def test_a_topic_that_is_recreated_while_it_is_read(broker: Broker, topic: str, *, strict: bool) -> None:
    old = [f"old-{i}" + "x" * 2_000 for i in range(3_000)]
    produce(broker, topic, old)
    # Few messages are fetched ahead, so that the rest of the range is requested from the new topic.
    slow = {"kafka.queued.min.messages": "1", "kafka.fetch.message.max.bytes": "1000"}
    with Query(broker, topic, failOnDataLoss=str(strict).lower(), **slow) as query:
        query.batch()
        end = query.plan()
        reading = query.read(end)
        first = [next(reading)[3] for _ in range(10)]
        sent = recreate(broker, topic, 4_000)
        if strict:
            with pytest.raises(DataLoss, match=rf"{RECREATED.format(topic)}|does not exist"):
                list(reading)
            return
        rest = [value for *_, value in reading]
        assert first + rest == old[: 10 + len(rest)], "only messages of the topic that was planned"
        query.position = end
        assert [value for *_, value in query.drain()] == sent


def test_a_batch_read_detects_it_too(broker: Broker, topic: str) -> None:
    produce(broker, topic, ["old"] * 100)
    for strict in (True, False):
        given = options(broker, topic, failOnDataLoss=str(strict).lower())
        reader = kafka_source.KafkaBatchReader(parse_options(given, default_starting="earliest"))
        (span,) = reader.partitions()
        recreate(broker, topic, 300)
        if strict:
            with pytest.raises(DataLoss, match=RECREATED.format(topic)):
                list(reader.read(span))
        else:
            assert list(reader.read(span)) == []


def test_starting_offsets_may_have_the_topic_id(broker: Broker, topic: str) -> None:
    produce(broker, topic, [str(i) for i in range(100)])
    with Query(broker, topic) as query:
        query.drain()
        recorded = json.dumps({topic: {**query.position[topic], "0": 40, "*": -2}})
    with Query(broker, topic, startingOffsets=recorded) as query:
        assert [value for *_, value in query.drain()] == [str(i) for i in range(40, 100)]
    sent = recreate(broker, topic, 200, partitions=2)
    with Query(broker, topic, startingOffsets=recorded) as query, pytest.raises(DataLoss, match="deleted and created"):
        query.plan()
    with Query(broker, topic, startingOffsets=recorded, failOnDataLoss="false") as query:
        assert sorted(value for *_, value in query.drain()) == sorted(sent)
    batch = kafka_source.KafkaBatchReader(parsed(broker, topic, startingOffsets=recorded))
    with pytest.raises(DataLoss, match="deleted and created"):
        batch.partitions()
    with pytest.raises(InvalidInput, match="startingOffsets"):
        parsed(broker, topic, startingOffsets=json.dumps({topic: {"0": 1, "topic_id": 7}}))


def test_offsets_without_an_identity_adopt_the_existing_topic(broker: Broker, topic: str) -> None:
    """They are offsets in a checkpoint of an older version."""
    produce(broker, topic, [str(i) for i in range(100)])
    with Query(broker, topic, {topic: {"0": 40}}) as query:
        assert query.batch() == [str(i) for i in range(40, 100)]
        assert set(query.position[topic]) == {"0", "topic_id"}
        recreate(broker, topic, 300)
        with pytest.raises(DataLoss, match=RECREATED.format(topic)):
            query.plan()
    with Query(broker, topic, {topic: {"0": 300}}) as idle:
        assert idle.batch() == []
        assert set(idle.position[topic]) == {"0", "topic_id"}, "also for partitions with nothing to read"


def test_available_now_reads_a_recreated_topic_too(broker: Broker, topic: str) -> None:
    produce(broker, topic, ["old"] * 50)
    with Query(broker, topic) as query:
        query.drain()
        position = query.position
    sent = recreate(broker, topic, 80, partitions=2)
    with Query(broker, topic, position, failOnDataLoss="false") as query:
        query._reader.prepareForTriggerAvailableNow()
        found = query.drain()
        assert sorted(value for *_, value in found) == sorted(sent)


def test_topic_ids_have_the_form_of_kafkas_tools(real_broker: Broker) -> None:
    # Ids are random: some have characters that differ between the two encodings.
    names = [f"written-{number}" for number in range(20)]
    real_broker.create_topics(dict.fromkeys(names, 1))
    with Query(real_broker, ",".join(names)) as query:
        query.batch()
        ids = [query.position[name]["topic_id"] for name in names]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", topic_id) for topic_id in ids)
    assert len(set(ids)) == len(names)


# --- brokers without topic ids ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old_broker() -> Iterator[FaultyBroker]:
    with FaultyBroker(topic_ids=False) as running:
        yield running


def lead(broker: FaultyBroker, topic: str, times: int) -> None:
    for _ in range(times):
        broker.elect_leader(topic, 0)


def test_without_topic_ids_a_smaller_leader_epoch_means_recreated(old_broker: FaultyBroker) -> None:
    old_broker.create_topics({"led": 1})
    lead(old_broker, "led", 4)
    produce(old_broker, "led", ["old"] * 50)
    with Query(old_broker, "led") as query:
        assert len(query.drain()) == 50
        assert query.position == {"led": {"0": 50, "leader_epochs": {"0": 5}}}
        position = query.position
        sent = recreate(old_broker, "led", 80)
        message = "topic led has leader epoch 1 in partition 0, but the offsets belong to leader epoch 5"
        with pytest.raises(DataLoss, match=message):
            query.plan()
    with Query(old_broker, "led", position, failOnDataLoss="false") as lenient:
        assert [value for *_, value in lenient.drain()] == sent
        assert lenient.position == {"led": {"0": 80, "leader_epochs": {"0": 1}}}


def test_without_topic_ids_an_election_causes_neither_a_loss_nor_a_batch(old_broker: FaultyBroker) -> None:
    old_broker.create_topics({"elected": 1})
    produce(old_broker, "elected", ["a"] * 10)
    with Query(old_broker, "elected") as query:
        assert len(query.drain()) == 10
        lead(old_broker, "elected", 3)
        assert query.drain() == []
        produce(old_broker, "elected", ["b"])
        old_broker.delete_records("elected", 0, 10)
        assert query.batch() == ["b"]
        assert query.position == {"elected": {"0": 11, "leader_epochs": {"0": 4}}}


def test_without_topic_ids_a_shorter_log_means_recreated(old_broker: FaultyBroker) -> None:
    old_broker.create_topics({"shorter": 1})
    produce(old_broker, "shorter", ["old"] * 10)
    with Query(old_broker, "shorter") as query:
        query.drain()
        position = query.position
        sent = recreate(old_broker, "shorter", 5)
        with pytest.raises(DataLoss, match=r"shorter-0 needs offset 10, .*\[0, 5\).*recreated"):
            query.plan()
    with Query(old_broker, "shorter", position, failOnDataLoss="false") as lenient:
        assert [value for *_, value in lenient.drain()] == sent


def test_a_reader_accepts_offsets_with_and_without_topic_ids(old_broker: FaultyBroker, broker: Broker) -> None:
    """A cluster gets topic ids when it is upgraded; behind a proxy they may disappear."""
    name = "upgraded"
    for one in (old_broker, broker):
        one.create_topics({name: 1})
        produce(one, name, ["x"] * 10)
    with Query(old_broker, name) as query:
        query.drain()
        position = query.position
    with Query(broker, name, position) as query:
        assert query.batch() == []
        assert set(query.position[name]) == {"0", "topic_id"}
        known = query.position
    with Query(old_broker, name, known) as query:
        assert query._reader.latestOffset(known, ReadAllAvailable()) == known, "known identities are kept"
    for one in (old_broker, broker):
        one.delete_topic(name)
