"""Features that only a real broker has: compaction, transactions, retention, new partitions, restarts, outages.

Every test reads with the source, and compares with the sent messages or with a plain consumer: each message once, in
the order of offsets within a partition.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.streams.kafka.query import Query
from tests.streams.kafka.real_broker import RealBroker
from tests.streams.kafka.topics import TEST_SECONDS, WAIT_SECONDS, produce, topic_numbers
from weft.streams.kafka.errors import DataLoss
from weft.streams.kafka.skipped_offsets import SKIPPED

pytestmark = [pytest.mark.integration, pytest.mark.timeout(TEST_SECONDS)]

AWAY_SECONDS = 6.0
COMPACTION_SECONDS = 240.0
COMPACTED = {
    "cleanup_policy": "compact",
    "segment_ms": "500",
    "min_cleanable_dirty_ratio": "0.01",
    "max_compaction_lag_ms": "1000",
    "delete_retention_ms": "0",
}

Message = tuple[str, int, int, str]


@pytest.fixture
def name() -> str:
    return f"real-{next(topic_numbers)}"


def by_partition(messages: Iterable[Message]) -> dict[int, list[tuple[int, str]]]:
    """Offsets and values of each partition, in the order in which they came."""
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for _, partition, offset, value in messages:
        found[partition].append((offset, value))
    return dict(found)


def consume(broker: RealBroker, topic: str, **conf: str) -> dict[int, list[tuple[int, str]]]:
    """The messages that a plain consumer finds in a topic; by partition, offsets and values."""
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "plain",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **settings,
        }
    )
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    try:
        numbers = set(consumer.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        ended: set[int] = set()
        while ended != numbers:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, "the broker is silent"
            if message.error() is not None:
                ended.add(message.partition())
            else:
                value = message.value()
                found[message.partition()].append((message.offset(), None if value is None else value.decode()))
    finally:
        consumer.close()
    return dict(found)


def send(
    broker: RealBroker, topic: str, partitions: int, count: int, start: int = 0
) -> dict[int, list[tuple[int, str]]]:
    """Messages of which each names its offset."""
    for number in range(partitions):
        produce(broker, topic, [f"{number}:{i}" for i in range(start, start + count)], partition=number)
    return {number: [(i, f"{number}:{i}") for i in range(start, start + count)] for number in range(partitions)}


def test_fifty_partitions(real_broker: RealBroker, name: str) -> None:
    real_broker.create_topics({name: 50})
    sent = send(real_broker, name, 50, 40)
    with Query(real_broker, name) as query:
        assert by_partition(query.drain(limit=333)) == sent
        for number in (0, 7, 49):
            produce(real_broker, name, ["late"], partition=number)
        assert query.drain() == [(name, number, 40, "late") for number in (0, 7, 49)]


def test_partitions_that_are_added_while_it_runs_and_while_it_is_stopped(real_broker: RealBroker, name: str) -> None:
    real_broker.create_topics({name: 1})
    expected = send(real_broker, name, 1, 100)
    with Query(real_broker, name) as running:
        found = running.drain()
        real_broker.add_partitions(name, 3)
        expected |= {number: part for number, part in send(real_broker, name, 3, 50).items() if number}
        expected[0] += [(100 + i, f"0:{i}") for i in range(50)]
        found += running.drain(limit=20)
        position = running.position
    real_broker.add_partitions(name, 5)
    for number in (3, 4):
        expected[number] = [(i, f"new:{i}") for i in range(30)]
        produce(real_broker, name, [f"new:{i}" for i in range(30)], partition=number)
    with Query(real_broker, name, position) as restarted:
        found += restarted.drain()
        assert restarted.position[name]["topic_id"] == position[name]["topic_id"], "it is the same topic"
    assert by_partition(found) == expected


def test_retention_that_passes_a_stopped_query(real_broker: RealBroker, name: str) -> None:
    real_broker.create_topics({name: 2})
    sent = send(real_broker, name, 2, 200)
    with Query(real_broker, name) as query:
        query.batch()
        query.batch(limit=100)
        position = query.position
        before = {number: position[name][str(number)] for number in (0, 1)}
    real_broker.delete_records(name, 1, 150)
    with Query(real_broker, name, position) as strict:
        for _ in range(2):
            with pytest.raises(
                DataLoss, match=rf"{name}-1 needs offset {before[1]}, .*\[150, 200\).*retention deleted"
            ):
                strict.plan()
    skipped = SKIPPED.total()
    with Query(real_broker, name, position, failOnDataLoss="false") as lenient:
        assert by_partition(lenient.drain(limit=30)) == {0: sent[0][before[0] :], 1: sent[1][150:]}
    assert SKIPPED.total() - skipped == 150 - before[1]
    real_broker.delete_records(name, 0, 200)
    with Query(real_broker, name, position, failOnDataLoss="false") as lenient:
        assert by_partition(lenient.drain()) == {1: sent[1][150:]}, (
            "the other partition has no messages left, and reading it does not wait"
        )


def await_compaction(broker: RealBroker, topic: str, partition: int, at_most: int) -> None:
    """Wait until a log has at most ``most`` records; each try adds one, because only closed segments are compacted."""
    deadline = time.monotonic() + COMPACTION_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.6)
        producer = broker.producer()
        producer.produce(topic, key="last", value="last", partition=partition)
        assert producer.flush(WAIT_SECONDS) == 0
        if len(consume(broker, topic)[partition]) <= at_most:
            return
    pytest.fail(f"the broker did not compact {topic} within {COMPACTION_SECONDS:g} s")


def read_unchanged(
    broker: RealBroker, topic: str, read: Callable[[], list[Message]]
) -> tuple[list[Message], list[tuple[int, str]]]:
    """What ``read`` returns, and the log, which the broker has not compacted again meanwhile."""
    deadline = time.monotonic() + COMPACTION_SECONDS
    while time.monotonic() < deadline:
        before = consume(broker, topic)[0]
        messages = read()
        if consume(broker, topic)[0] == before:
            return messages, before
    pytest.fail(f"the broker compacts {topic} without end")


def test_a_compacted_topic_with_tombstones(real_broker: RealBroker, name: str) -> None:
    real_broker.create_topics({name: 1}, **COMPACTED)
    producer = real_broker.producer()
    with Query(real_broker, name) as query:
        query.batch()
        for i in range(2_000):
            producer.produce(name, key=str(i % 50), value=str(i), partition=0)
        for key in range(0, 50, 2):
            producer.produce(name, key=str(key), value=None, partition=0)
        assert producer.flush(WAIT_SECONDS) == 0
        planned = query.plan()  # planned before compaction, read after it
        await_compaction(real_broker, name, 0, 60)
        found, left = read_unchanged(real_broker, name, lambda: list(query.read(planned)))
        assert left[-1][0] - len(left) > 1_900, "compaction leaves large gaps"
        end = planned[name]["0"]
        assert [(offset, value) for _, _, offset, value in found] == [m for m in left if m[0] < end]

        def read_rest() -> list[Message]:
            query.position = planned
            return query.drain()

        found, left = read_unchanged(real_broker, name, read_rest)
        assert by_partition(found) == {0: [m for m in left if m[0] >= end]}
    # Ranges that begin, end or lie in gaps; many are empty.
    for given in ({"minPartitions": "40"}, {"maxOffsetsPerTrigger": "100"}):
        limit = int(given.get("maxOffsetsPerTrigger", 0)) or None

        def read_all(given: dict[str, str] = given, limit: int | None = limit) -> list[Message]:
            with Query(real_broker, name, **given) as query:
                return query.drain(limit)

        found, left = read_unchanged(real_broker, name, read_all)
        assert by_partition(found) == {0: left}


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_transactions(real_broker: RealBroker, name: str, isolation: str) -> None:
    real_broker.create_topics({name: 2})
    producer = real_broker.producer(transactional_id=name)
    producer.init_transactions(WAIT_SECONDS)
    given = {"kafka.isolation.level": isolation}
    for number in range(12):
        producer.begin_transaction()
        for i in range(20):
            producer.produce(name, value=f"{number}:{i}", partition=i % 2)
        assert producer.flush(WAIT_SECONDS) == 0
        if number % 3:
            producer.abort_transaction(WAIT_SECONDS)
        else:
            producer.commit_transaction(WAIT_SECONDS)
    # The topic ends in two aborted transactions; an open one follows.
    with Query(real_broker, name, **given) as query:
        expected = consume(real_broker, name, isolation_level=isolation)
        found = query.drain(limit=15)
        assert by_partition(found) == expected
        committed = {f"{number}:{i}" for number in range(0, 12, 3) for i in range(20)}
        values = [value for *_, value in found]
        assert len(values) == len(set(values))
        assert set(values) == committed if isolation == "read_committed" else set(values) > committed
        producer.begin_transaction()
        for i in range(10):
            producer.produce(name, value=f"open:{i}", partition=0)
        assert producer.flush(WAIT_SECONDS) == 0
        opened = [value for *_, value in query.drain()]
        assert opened == ([] if isolation == "read_committed" else [f"open:{i}" for i in range(10)])
        producer.commit_transaction(WAIT_SECONDS)
        # A broker answers a commit before it has written the markers that make its messages readable.
        deadline = time.monotonic() + WAIT_SECONDS
        while len(opened) < 10 and time.monotonic() < deadline:
            opened += [value for *_, value in query.drain()]
        assert opened == [f"open:{i}" for i in range(10)]
        assert query.drain() == []
    with Query(real_broker, name, minPartitions="37", **given) as split:
        assert by_partition(split.drain()) == consume(real_broker, name, isolation_level=isolation)


def test_a_broker_that_is_restarted(real_broker: RealBroker, name: str) -> None:
    real_broker.create_topics({name: 3})
    sent = send(real_broker, name, 3, 300)
    with Query(real_broker, name) as running:
        found: list[Message] = []
        running.batch()
        end = running.plan(limit=300)
        reading = running.read(end)
        found += [next(reading) for _ in range(10)]
        real_broker.restart()
        found += reading
        running.position = end
        position = end
        found += running.drain()
        assert by_partition(found) == sent, "the reader and its connections survive the restart"
    with Query(real_broker, name, position) as restarted:
        again = by_partition(restarted.drain())
        assert again == {number: part[position[name][str(number)] :] for number, part in sent.items()}


@contextlib.contextmanager
def away(broker: RealBroker) -> Iterator[None]:
    """Stop the broker, and start it after `AWAY_SECONDS`; the block ends when it answers again."""
    broker.stop()
    back = threading.Timer(AWAY_SECONDS, broker.start)
    back.start()
    try:
        yield
    finally:
        back.join()


@pytest.mark.extended
def test_a_query_waits_for_a_broker_that_is_down(real_broker: RealBroker, name: str) -> None:
    real_broker.create_topics({name: 2})
    sent = send(real_broker, name, 2, 500)
    with Query(real_broker, name, requestTimeoutMs="600000") as query:
        query.batch()
        end = query.plan()
        with away(real_broker):
            found = list(query.read(end))  # the read waits
        assert by_partition(found) == sent
        query.position = end
        with away(real_broker):
            assert query.drain() == []  # planning waits
        produce(real_broker, name, ["after"])
        assert query.drain() == [(name, 0, 500, "after")]
