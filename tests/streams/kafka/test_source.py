"""The Kafka source as Spark uses it: readers, batch reads, and queries that fail and continue from a checkpoint."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable

import weft.streams.kafka
from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.real_broker import RealBroker
from tests.streams.kafka.topics import (
    NOBODY,
    TEST_SECONDS,
    WAIT_SECONDS,
    Broker,
    options,
    parsed,
    produce,
    topic_numbers,
)
from tests.streams.support.slow_starts import start_in_time
from weft.streams.kafka import cluster, kafka_source
from weft.streams.kafka.errors import SourceUnavailable
from weft.streams.kafka.offset_plan import OffsetRange
from weft.streams.kafka.options import Partition

pytestmark = pytest.mark.timeout(TEST_SECONDS)


# --- readers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_the_first_batch_is_the_same_when_replayed(broker: Broker, topic: str, starting: str) -> None:
    produce(broker, topic, list(range(10)))
    chosen = parsed(broker, topic, startingOffsets=starting)
    before = kafka_source.KafkaStreamReader(chosen)
    start = before.initialOffset()
    produce(broker, topic, list(range(10, 20)))
    end = before.latestOffset(start, ReadAllAvailable())  # now in the checkpoint; Spark does not store the start
    before.stop()
    broker.delete_records(topic, 0, 5)
    produce(broker, topic, list(range(20, 30)))
    after = kafka_source.KafkaStreamReader(chosen)
    assert after.partitions(after.initialOffset(), end) == before.partitions(start, end)
    after.stop()


@pytest.mark.slow
def test_a_running_query_waits_in_an_outage_and_a_new_one_fails() -> None:
    with FaultyBroker() as private_broker:
        private_broker.create_topics({"away": 1})
        produce(private_broker, "away", [1, 2])
        chosen = parsed(private_broker, "away", startingOffsets="earliest", requestTimeoutMs="500")
        patient = replace(chosen, request_timeout_seconds=WAIT_SECONDS)
        running = kafka_source.KafkaStreamReader(patient)
        first = running.latestOffset(running.initialOffset(), ReadAllAvailable())
        end = running.latestOffset(first, ReadAllAvailable())
        assert running.reportLatestOffset() == {"away": {"0": 2}}
        restarted, fresh, ending = (kafka_source.KafkaStreamReader(made) for made in (chosen, chosen, patient))
        ending.prepareForTriggerAvailableNow()
        for reader in (running, ending):  # a busy machine may take longer for the answers before the outage
            reader._cluster._options = chosen
        private_broker.set_reachable(reachable=False)
        for reader in (running, restarted):
            for _ in range(2):
                assert reader.latestOffset(end, ReadAllAvailable()) == end
            assert reader.reportLatestOffset() is None, "the ends of the logs are unknown"
        with pytest.raises(SourceUnavailable):
            fresh.latestOffset(fresh.initialOffset(), ReadAllAvailable())
        with pytest.raises(SourceUnavailable):
            ending.latestOffset(end, ReadAllAvailable())
        private_broker.set_reachable(reachable=True)
        produce(private_broker, "away", [3])
        deadline = time.monotonic() + WAIT_SECONDS
        for reader in (running, restarted):
            # librdkafka pauses before it connects again, for longer than this source waits for one answer.
            while (found := reader.latestOffset(end, ReadAllAvailable())) == end:
                assert time.monotonic() < deadline
            assert running.partitions(end, found)
        for reader in (running, restarted, fresh, ending):
            reader.stop()


def test_readers_can_be_pickled_for_executors(broker: Broker, topic: str) -> None:
    produce(broker, topic, [1, 2, 3])
    reader = pickle.loads(cloudpickle.dumps(kafka_source.KafkaStreamReader(parsed(broker, topic))))
    span = pickle.loads(pickle.dumps(OffsetRange(Partition(topic, 0), 0, 3)))
    assert sum(batch.num_rows for batch in reader.read(span)) == 3


# --- Spark -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka(spark: SparkSession) -> SparkSession:
    weft.streams.kafka.register(spark)
    return spark


class Runs:
    """Runs of one query from one checkpoint, each to its end (``Trigger.AvailableNow``)."""

    def __init__(self, session: SparkSession, checkpoint: Path) -> None:
        self._session = session
        self._checkpoint = checkpoint
        self.batches: list[list[str]] = []
        """Values of each batch of the last run, also of one that failed."""
        self.progress: list[Any] = []

    def __call__(
        self,
        given: dict[str, str],
        on_batch: Callable[[list[str]], None] = lambda _: None,
    ) -> list[list[str]]:
        return start_in_time(lambda: self._run(given, on_batch))

    def _run(self, given: dict[str, str], on_batch: Callable[[list[str]], None]) -> list[list[str]]:
        batches = self.batches = []

        def collect(frame: DataFrame, _: int) -> None:
            rows = frame.orderBy("topic", "partition", "offset").collect()
            batches.append([row["value"].decode() for row in rows])
            on_batch(batches[-1])

        query = (
            self._session.readStream.format("weft_kafka")
            .options(**given)
            .load()
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(WAIT_SECONDS), "the query did not end"
            return batches
        finally:
            self.progress = query.recentProgress
            query.stop()


@pytest.fixture
def run(kafka: SparkSession, tmp_path: Path) -> Runs:
    return Runs(kafka, tmp_path / "checkpoint")


def running(writer: DataStreamWriter) -> StreamingQuery:
    query = writer.start()
    query.processAllAvailable()
    return query


def numbers(*bounds: int) -> list[str]:
    return [str(number) for number in range(*bounds)]


def test_a_batch_read_has_every_record_once(kafka: SparkSession, broker: Broker) -> None:
    name = f"batch-{next(topic_numbers)}"
    broker.create_topics({name: 3})
    produce(broker, name, numbers(1000), partition=0)
    produce(broker, name, numbers(500), partition=2)
    frame = kafka.read.format("weft_kafka").options(**options(broker, name, minPartitions="8")).load()
    assert frame.schema == kafka_source.columns(include_headers=False)
    assert frame.rdd.getNumPartitions() == 8
    read_all = sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())
    assert read_all == [*((0, i) for i in range(1000)), *((2, i) for i in range(500))]
    starting = json.dumps({name: {"0": 900, "1": -2, "2": -1}})
    some = kafka.read.format("weft_kafka").options(**options(broker, name, startingOffsets=starting)).load()
    assert sorted(row["offset"] for row in some.select("offset").collect()) == list(range(900, 1000))


def test_batch_read_of_an_empty_topic_is_empty(kafka: SparkSession, broker: Broker, topic: str) -> None:
    assert kafka.read.format("weft_kafka").options(**options(broker, topic)).load().collect() == []


def test_headers_and_nulls_reach_spark(kafka: SparkSession, broker: Broker, topic: str) -> None:
    producer = broker.producer()
    producer.produce(topic, key=None, value=b"v", partition=0, timestamp=1_700_000_000_123, headers=[("h", b"1")])
    producer.produce(topic, key=b"k", value=None, partition=0, timestamp=1_700_000_000_123)
    producer.flush(WAIT_SECONDS)
    frame = kafka.read.format("weft_kafka").options(**options(broker, topic, includeHeaders="true")).load()
    first, second = frame.selectExpr("*", "date_format(timestamp, 'yyyy-MM-dd HH:mm:ss.SSS') AS text").collect()
    assert (first["key"], first["value"], first["headers"]) == (None, b"v", [("h", b"1")])
    assert (second["key"], second["value"], second["headers"]) == (b"k", None, None)
    assert first["text"] == "2023-11-14 22:13:20.123"


def test_available_now_stops_at_the_end_and_continues_from_the_checkpoint(
    run: Runs,
    broker: Broker,
) -> None:
    name = f"limit-{next(topic_numbers)}"
    broker.create_topics({name: 2})
    produce(broker, name, numbers(900), partition=0)
    produce(broker, name, numbers(900, 1000), partition=1)
    given = options(broker, name, startingOffsets="earliest", maxOffsetsPerTrigger="400")

    def write_more_during_the_first(batch: list[str]) -> None:
        if batch and batch[0] == "0":
            produce(broker, name, numbers(1000, 1100), partition=1)

    batches = run(given, write_more_during_the_first)
    assert [len(batch) for batch in batches] == [0, 400, 400, 200]
    assert batches[1] == [*numbers(360), *numbers(900, 940)], "the limit is shared in proportion to the backlog"
    assert sorted(itertools.chain(*batches), key=int) == numbers(1000)
    ends = [json.loads(progress.sources[0].latestOffset) for progress in run.progress[1:3]]
    assert ends == [{name: {"0": 900, "1": 100}}, {name: {"0": 900, "1": 200}}]
    assert run(given) == [numbers(1000, 1100)]
    assert run(given) == []
    asking = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": cluster.GROUP_ID})
    committed = asking.committed([TopicPartition(name, 0), TopicPartition(name, 1)], timeout=WAIT_SECONDS)
    asking.close()
    assert all(partition.offset < 0 for partition in committed), "offsets are only in Spark's checkpoint"


def test_a_batch_that_failed_is_replayed_with_the_same_records(run: Runs, broker: Broker, topic: str) -> None:
    given = options(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    produce(broker, topic, numbers(250))

    def fail_on_the_second(batch: list[str]) -> None:
        if "100" in batch:
            raise RuntimeError("the sink failed")

    with pytest.raises(StreamingQueryException, match="the sink failed"):
        run(given, fail_on_the_second)
    assert run.batches == [[], numbers(100), numbers(100, 200)]
    produce(broker, topic, numbers(250, 300))
    assert run(given) == [numbers(100, 200), numbers(200, 300)]


def test_new_topics_and_partitions_are_read_from_their_first_record(run: Runs, real_broker: RealBroker) -> None:
    def add_partition(topic: str) -> None:
        real_broker.add_partitions(topic, 2)

    check_new_topics_and_partitions(run, real_broker, add_partition)


def test_new_topics_and_partitions_of_a_broker_without_topic_ids(run: Runs) -> None:
    with FaultyBroker(topic_ids=False) as broker:

        def add_partition(topic: str) -> None:
            # This broker cannot add a partition to a topic; for the source a new topic is equivalent.
            broker.delete_topic(topic)
            broker.create_topics({topic: 2})
            produce(broker, topic, numbers(10))

        check_new_topics_and_partitions(run, broker, add_partition)


def check_new_topics_and_partitions(run: Runs, broker: Broker, add_partition: Callable[[str], None]) -> None:
    one, two = f"grow-{next(topic_numbers)}", f"grow-{next(topic_numbers)}"
    broker.create_topics({one: 1})
    produce(broker, one, numbers(10))
    assert run(options(broker, one, startingOffsets="latest")) == [[]]
    broker.create_topics({two: 1})
    produce(broker, two, numbers(10, 20))
    add_partition(one)
    produce(broker, one, numbers(20, 30), partition=1)
    batches = run(options(broker, f"{one},{two}", startingOffsets="latest"))
    assert batches == [[], [*numbers(20, 30), *numbers(10, 20)]]


def test_a_running_query_reads_what_arrives(kafka: SparkSession, broker: Broker, topic: str) -> None:
    seen: list[int] = []
    writer = (
        kafka.readStream.format("weft_kafka")
        .options(**options(broker, topic, startingOffsets="earliest"))
        .load()
        .writeStream.foreachBatch(lambda frame, _: seen.extend(row["offset"] for row in frame.collect()))
    )
    query = start_in_time(lambda: running(writer))
    try:
        for count in (100, 200):
            produce(broker, topic, numbers(100))
            query.processAllAvailable()
            assert sorted(seen) == list(range(count))
    finally:
        query.stop()


def test_records_deleted_by_retention_fail_the_query_unless_losses_are_allowed(
    run: Runs,
    broker: Broker,
    topic: str,
) -> None:
    produce(broker, topic, numbers(10))
    strict = options(broker, topic, startingOffsets="earliest")
    assert run(strict) == [[], numbers(10)]
    produce(broker, topic, numbers(10, 30))
    broker.delete_records(topic, 0, 20)
    with pytest.raises(
        StreamingQueryException, match=rf"DataLoss.*{topic}-0 needs offset 10, .*\[20, 30\).*retention deleted"
    ):
        run(strict)
    assert run(strict | {"failOnDataLoss": "false"}) == [numbers(20, 30)]


def test_records_deleted_between_planning_and_reading_fail_the_query(
    run: Runs,
    broker: Broker,
    topic: str,
) -> None:
    given = options(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    produce(broker, topic, numbers(20))

    def fail_on_the_first(batch: list[str]) -> None:
        if batch:
            raise RuntimeError("the sink failed")

    with pytest.raises(StreamingQueryException, match="the sink failed"):
        run(given, fail_on_the_first)
    broker.delete_records(topic, 0, 5)
    # The replay is planned from the checkpoint alone, so the executor detects it.
    with pytest.raises(
        StreamingQueryException, match=r"DataLoss.*needs offsets \[0, 10\), the log has offsets \[5, 20\)"
    ):
        run(given)
    assert run(given | {"failOnDataLoss": "false"}) == [numbers(5, 10), numbers(10, 20)]


def test_a_recreated_topic_fails_the_query_or_is_read_from_its_beginning(
    run: Runs,
    broker: Broker,
    topic: str,
) -> None:
    produce(broker, topic, numbers(10))
    strict = options(broker, topic, startingOffsets="earliest")
    assert run(strict) == [[], numbers(10)]
    broker.delete_topic(topic)
    broker.create_topics({topic: 1})
    produce(broker, topic, numbers(100, 105))
    with pytest.raises(StreamingQueryException, match=rf"DataLoss.*topic {topic} has id .* to the topic with id"):
        run(strict)
    produce(broker, topic, numbers(105, 120))  # now it is longer than the part of the old topic that was read
    with pytest.raises(StreamingQueryException, match=rf"DataLoss.*topic {topic} has id .* to the topic with id"):
        run(strict)
    assert run(strict | {"failOnDataLoss": "false"}) == [[], numbers(100, 120)]
    produce(broker, topic, numbers(120, 125))
    assert run(strict) == [numbers(120, 125)]


def test_an_unreachable_broker_fails_the_query_within_the_time_limit(run: Runs) -> None:
    options = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", "requestTimeoutMs": "3000"}
    with pytest.raises(StreamingQueryException, match=rf"SourceUnavailable.*{NOBODY}.*refused"):
        run(options)


def test_wrong_options_are_an_error_of_load(kafka: SparkSession, broker: Broker, topic: str) -> None:
    for wrong, name in [
        ({"subscribe": topic}, "kafka.bootstrap.servers"),
        (options(broker, topic, failOnDatLoss="true"), "failOnDataLoss"),
        (options(broker, topic) | {"kafka.nonsense": "1"}, "nonsense"),
    ]:
        with pytest.raises(AnalysisException, match=rf"(?s)InvalidInput.*{name}"):
            kafka.readStream.format("weft_kafka").options(**wrong).load()
    with pytest.raises(AnalysisException, match=r"(?s)InvalidInput.*maxOffsetsPerTrigger"):
        kafka.read.format("weft_kafka").options(**options(broker, topic, maxOffsetsPerTrigger="5")).load().collect()
    with pytest.raises(AnalysisException, match=r"(?s)InvalidInput.*does not accept a schema"):
        kafka.read.format("weft_kafka").schema("value STRING").options(**options(broker, topic)).load().collect()
