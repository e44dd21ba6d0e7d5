"""The Kafka source against a broker that speaks the protocol, alone and under Spark."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

import streams.kafka
from storage.errors import InvalidInput, NotFound
from streams.demo.broker import EmbeddedBroker
from streams.kafka import cluster, fetch, source
from streams.kafka.errors import DataLoss, SourceUnavailable
from streams.kafka.fetch import read_range
from streams.kafka.options import KafkaOptions, Partition, parse_options
from streams.kafka.plan import (
    Log,
    OffsetRange,
    format_offsets,
    parse_offsets,
    plan_end,
    plan_ranges,
    plan_start,
    share_limit,
)

pytestmark = pytest.mark.timeout(240)

NOBODY = "127.0.0.1:1"
"""No program listens on port 1 (tcpmux), so a connection is refused at once."""
WAIT_SECONDS = 90
"""Bound on one streaming query; they take one or two seconds on an idle machine, and a minute on a very busy one."""

_numbers = itertools.count()


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """Name of a topic of one partition that no other test uses."""
    name = f"topic-{next(_numbers)}"
    broker.create_topics({name: 1})
    return name


def produce(broker: EmbeddedBroker, topic: str, values: list[Any], *, partition: int = 0) -> None:
    producer = broker.producer()
    for value in values:
        producer.produce(topic, value=str(value).encode(), partition=partition)
    assert producer.flush(WAIT_SECONDS) == 0


def options(broker: EmbeddedBroker, topic: str, **given: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, **given}


def parsed(broker: EmbeddedBroker, topic: str, **given: str) -> KafkaOptions:
    return parse_options(options(broker, topic, **given), default_starting="earliest")


def read(start: int, end: int, chosen: KafkaOptions, *, partition: int = 0) -> pa.Table:
    schema = fetch.SCHEMA.append(fetch.HEADERS) if chosen.include_headers else fetch.SCHEMA
    span = OffsetRange(Partition(chosen.topics[0], partition), start, end)
    return pa.Table.from_batches(read_range(span, chosen), schema)


# --- options ---------------------------------------------------------------------------------------------------------


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
        ({"startingOffsets": '{"payments": {"0": 1}}'}, ["startingOffsets", "subscribe", "orders, payments"]),
    ],
)
def test_a_bad_option_is_named_with_its_mend(changes: Mapping[str, str | None], names: list[str]) -> None:
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


# --- plan ------------------------------------------------------------------------------------------------------------

backlogs = st.dictionaries(
    st.builds(Partition, st.sampled_from(["a", "b"]), st.integers(0, 20)),
    st.integers(1, 10**12),
    min_size=1,
)


@hypothesis.given(backlogs, st.integers(1, 10**12))
def test_a_limit_is_shared_in_proportion_and_nobody_starves(backlog: dict[Partition, int], limit: int) -> None:
    shares = share_limit(backlog, limit)
    assert all(1 <= shares[p] <= backlog[p] for p in backlog)
    assert sum(shares.values()) == min(max(limit, len(backlog)), sum(backlog.values()))
    ranked = sorted(backlog, key=backlog.__getitem__)
    assert all(shares[a] <= shares[b] + 1 for a, b in itertools.pairwise(ranked))


def test_a_limit_is_shared_in_proportion() -> None:
    backlog = {Partition("t", 0): 900, Partition("t", 1): 90, Partition("t", 2): 10}
    assert list(share_limit(backlog, 100).values()) == [88, 10, 2]


@hypothesis.given(backlogs, st.integers(1, 60))
def test_ranges_cover_every_offset_once_however_they_are_split(backlog: dict[Partition, int], least: int) -> None:
    start = dict.fromkeys(backlog, 7)
    ranges = plan_ranges(start, {p: 7 + count for p, count in backlog.items()}, least)
    assert len(ranges) >= min(least, sum(backlog.values()))
    for partition, count in backlog.items():
        own = [r for r in ranges if r.partition == partition]
        assert [r.start for r in own] == [7, *(r.end for r in own[:-1])]
        assert own[-1].end == 7 + count
        assert all(r.start < r.end for r in own)


@hypothesis.given(backlogs)
def test_offsets_survive_the_checkpoint_as_the_same_text(offsets: dict[Partition, int]) -> None:
    text = json.dumps(format_offsets(offsets))
    again = parse_offsets(json.loads(text))
    assert again == offsets
    assert json.dumps(format_offsets(dict(reversed(again.items())))) == text


A, B = Partition("t", 0), Partition("t", 1)


def test_a_new_partition_enters_with_its_first_offset_and_is_read_from_the_next_batch_on() -> None:
    logs = {A: Log(0, 9), B: Log(3, 8)}
    first = plan_end({A: 5}, logs, ["t"], limit=None).offsets
    assert first == {A: 9, B: 3}
    assert plan_ranges({A: 5}, first, None) == [OffsetRange(A, 5, 9)]
    assert plan_end(first, logs, ["t"], limit=None).offsets == {A: 9, B: 8}


def test_available_now_neither_passes_its_target_nor_adds_partitions() -> None:
    plan = plan_end({A: 5}, {A: Log(0, 100), B: Log(0, 8)}, ["t"], limit=None, target={A: 9})
    assert plan.offsets == {A: 9}


def test_aged_offsets_are_a_loss_and_take_nothing_of_the_limit() -> None:
    plan = plan_end({A: 5}, {A: Log(1000, 2000)}, ["t"], limit=10)
    assert plan.offsets == {A: 1010}
    assert [part in plan.losses[0] for part in ("t-0", "offset 5", "[1000, 2000)")] == [True] * 3


def test_a_shorter_log_is_a_loss_and_is_read_from_its_head_in_the_next_batch() -> None:
    plan = plan_end({A: 500}, {A: Log(0, 20)}, ["t"], limit=None)
    assert plan.offsets == {A: 0}
    assert [part in plan.losses[0] for part in ("t-0", "offset 500", "[0, 20)")] == [True] * 3
    assert plan_ranges({A: 500}, plan.offsets, None) == []


def test_a_partition_that_is_gone_keeps_its_offset_and_is_a_loss_only_while_subscribed() -> None:
    gone = plan_end({A: 5, B: 7}, {A: Log(0, 9)}, ["t"], limit=None)
    assert gone.offsets == {A: 9, B: 7}
    assert "t-1 wanted offset 7" in gone.losses[0]
    dropped = plan_end({A: 5, Partition("old", 0): 7}, {A: Log(0, 9)}, ["t"], limit=None)
    assert dropped == ({A: 9, Partition("old", 0): 7}, [])


def test_starting_offsets_by_name_and_number() -> None:
    logs = {A: Log(3, 9), B: Log(4, 8)}
    assert plan_start("earliest", logs).offsets == {A: 3, B: 4}
    assert plan_start("latest", logs).offsets == {A: 9, B: 8}
    assert plan_start({A: -2, B: -1}, logs).offsets == {A: 3, B: 8}
    assert plan_start({A: 7, B: 2}, logs) == (
        {A: 7, B: 4},
        ["t-1 wanted offset 2, the log holds [4, 8): older records have aged out"],
    )
    with pytest.raises(InvalidInput, match="t-1 is not named"):
        plan_start({A: 5}, logs)
    with pytest.raises(InvalidInput, match="t-7 is no partition"):
        plan_start({A: 5, B: 5, Partition("t", 7): 0}, logs)
    with pytest.raises(InvalidInput, match=r"t-0 wanted offset 10, the log holds \[3, 9\)"):
        plan_start({A: 10, B: 5}, logs)


# --- fetch -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [False, True])
def test_the_arrow_schema_is_what_spark_expects(*, headers: bool) -> None:
    own = fetch.SCHEMA.append(fetch.HEADERS) if headers else fetch.SCHEMA
    assert own == to_arrow_schema(source.columns(include_headers=headers), timezone="UTC")


def test_a_range_is_read_exactly(broker: EmbeddedBroker, topic: str) -> None:
    produce(broker, topic, list(range(3000)))
    table = read(700, 2300, parsed(broker, topic))
    assert table["offset"].to_pylist() == list(range(700, 2300))
    assert table["value"].to_pylist() == [b"%d" % i for i in range(700, 2300)]
    assert set(table["topic"].to_pylist()) == {topic}
    assert set(table["partition"].to_pylist()) == {0}


def test_nulls_headers_and_timestamps_arrive_as_they_were_sent(broker: EmbeddedBroker, topic: str) -> None:
    producer = broker.producer()
    producer.produce(topic, key=None, value=b"", partition=0, timestamp=1_700_000_000_123)
    headers: list[tuple[str, bytes | str | None]] = [("h", b"1"), ("h", None), ("ä", b"")]
    producer.produce(topic, key=b"k", value=None, partition=0, timestamp=1_700_000_000_124, headers=headers)
    producer.flush(WAIT_SECONDS)
    table = read(0, 2, parsed(broker, topic, includeHeaders="true"))
    assert table["key"].to_pylist() == [None, b"k"]
    assert table["value"].to_pylist() == [b"", None]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, 1_700_000_000_124_000]
    assert table["timestampType"].to_pylist() == [0, 0]
    assert table["headers"].to_pylist() == [
        None,
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "ä", "value": b""}],
    ]


def test_batches_of_large_messages_stay_small(broker: EmbeddedBroker, topic: str) -> None:
    producer = broker.producer(message_max_bytes=10_000_000)
    for _ in range(600):
        producer.produce(topic, value=bytes(200_000), partition=0)
        producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0
    span = OffsetRange(Partition(topic, 0), 0, 600)
    sizes = [batch.num_rows for batch in read_range(span, parsed(broker, topic))]
    assert sum(sizes) == 600
    assert all(size <= fetch.BATCH_BYTES // 200_000 for size in sizes[1:])


def test_a_range_that_ends_in_transaction_markers_ends(broker: EmbeddedBroker, topic: str) -> None:
    producer = broker.producer(transactional_id=topic)
    producer.init_transactions(WAIT_SECONDS)
    for _ in range(2):
        producer.begin_transaction()
        for value in range(5):
            producer.produce(topic, value=b"%d" % value, partition=0)
        producer.commit_transaction(WAIT_SECONDS)
    chosen = parsed(broker, topic)
    logs = cluster_logs(chosen)
    assert logs == {Partition(topic, 0): Log(0, 12)}, "the broker writes a marker after each transaction"
    began = time.monotonic()
    assert read(0, 12, chosen)["offset"].to_pylist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert read(5, 6, chosen).num_rows == 0
    assert read(11, 12, chosen).num_rows == 0
    assert time.monotonic() - began < 5


def cluster_logs(chosen: KafkaOptions) -> dict[Partition, Log]:
    asking = cluster.Cluster(chosen)
    try:
        return asking.load_logs(wait_for_topics=False)
    finally:
        asking.close()


def test_a_head_that_aged_out_is_a_loss(broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    produce(broker, topic, list(range(100)))
    broker.delete_records(topic, 0, 40)
    with pytest.raises(DataLoss, match=rf"{topic}-0 wanted offsets \[10, 90\), the log holds \[40, 100\)"):
        read(10, 90, parsed(broker, topic))
    lenient = parsed(broker, topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "weft.kafka"):
        assert read(10, 90, lenient)["offset"].to_pylist() == list(range(40, 90))
        assert read(10, 30, lenient).num_rows == 0
    assert "[10, 90)" in caplog.text


def test_the_embedded_broker_drops_the_head_of_a_full_partition(broker: EmbeddedBroker, topic: str) -> None:
    producer = broker.producer(compression_type="none")
    for _ in range(7000):
        producer.produce(topic, value=bytes(1000), partition=0)
    assert producer.flush(WAIT_SECONDS) == 0
    (log,) = cluster_logs(parsed(broker, topic)).values()
    assert log.low > 0
    with pytest.raises(DataLoss, match="aged out"):
        read(0, 7000, parsed(broker, topic))
    assert read(log.low, 7000, parsed(broker, topic)).num_rows == 7000 - log.low


def test_the_embedded_broker_says_what_it_refused(broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(RuntimeError, match=rf"topic_create\({topic}, 1, 1\): TOPIC_ALREADY_EXISTS"):
        broker.create_topics({topic: 1})
    with pytest.raises(RuntimeError, match=r"delete_records\(.*, 0, 5\): OFFSET_OUT_OF_RANGE"):
        broker.delete_records(topic, 0, 5)


@pytest.mark.parametrize("left", [0, 20, 30])
def test_a_log_that_became_shorter_is_a_loss(broker: EmbeddedBroker, topic: str, left: int) -> None:
    produce(broker, topic, list(range(100)))
    broker.delete_topic(topic)
    broker.create_topics({topic: 1})
    produce(broker, topic, list(range(left)))
    with pytest.raises(DataLoss, match=rf"{topic}-0 wanted offsets \[30, 90\), the log holds \[0, {left}\)"):
        read(30, 90, parsed(broker, topic))
    assert read(30, 90, parsed(broker, topic, failOnDataLoss="false")).num_rows == 0


def test_a_topic_that_disappears_is_a_loss(
    broker: EmbeddedBroker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "SILENCE_SECONDS", 0.1)  # librdkafka says nothing about it, so the source has to ask
    produce(broker, topic, list(range(100)))
    broker.delete_topic(topic)
    with pytest.raises(DataLoss, match=rf"{topic}-0 wanted offsets \[0, 90\), the partition does not exist"):
        read(0, 90, parsed(broker, topic))
    assert read(0, 90, parsed(broker, topic, failOnDataLoss="false")).num_rows == 0


def test_an_error_of_the_broker_is_raised(broker: EmbeddedBroker, topic: str) -> None:
    produce(broker, topic, list(range(10)))
    broker.fail_requests(1, [KafkaError.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(SourceUnavailable, match=r"\[0, 10\).*authorization failed"):
        read(0, 10, parsed(broker, topic))


def test_errors_without_an_end_do_not_keep_a_task_alive(broker: EmbeddedBroker, topic: str) -> None:
    produce(broker, topic, list(range(10)))
    with EmbeddedBroker() as own:
        own.create_topics({topic: 1})
        produce(own, topic, list(range(10)))
        own.fail_requests(1, [KafkaError.OFFSET_OUT_OF_RANGE] * 10_000)
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match="no message arrived in time"):
            read(0, 10, parsed(own, topic, requestTimeoutMs="1000"))
        assert time.monotonic() - began < 10


def test_a_broker_that_goes_away_ends_the_reading_in_time(topic: str) -> None:
    with EmbeddedBroker() as own:
        own.create_topics({topic: 1})
        produce(own, topic, list(range(2 * fetch.FIRST_BATCH_MESSAGES)))
        # One message per answer, so that the rest is not fetched ahead before the broker goes away.
        slow = {"kafka.queued.min.messages": "1", "kafka.fetch.queue.backoff.ms": "1000"}
        batches = read_range(
            OffsetRange(Partition(topic, 0), 0, 10**6),
            parsed(own, topic, requestTimeoutMs="1000", **slow),
        )
        assert next(batches).num_rows == fetch.FIRST_BATCH_MESSAGES
        own.set_reachable(reachable=False)
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match=own.bootstrap_servers):
            list(batches)
        assert time.monotonic() - began < 10


def test_the_consumer_is_closed_however_the_reading_ends(
    broker: EmbeddedBroker,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    produce(broker, topic, list(range(1000)))
    closed: list[int] = []
    close = cluster.Connection.close
    monkeypatch.setattr(cluster.Connection, "close", lambda self: (closed.append(1), close(self)))
    read(0, 1000, parsed(broker, topic))
    abandoned = read_range(OffsetRange(Partition(topic, 0), 0, 1000), parsed(broker, topic))
    next(abandoned)
    abandoned.close()  # type: ignore[attr-defined]
    broker.delete_records(topic, 0, 500)
    with pytest.raises(DataLoss):
        read(0, 1000, parsed(broker, topic))
    assert len(closed) == 3


# --- cluster ---------------------------------------------------------------------------------------------------------


def test_an_unreachable_broker_is_an_error_in_time() -> None:
    given = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", "requestTimeoutMs": "300"}
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match=rf"{NOBODY}.*refused"):
        cluster_logs(parse_options(given, default_starting="earliest"))
    with pytest.raises(SourceUnavailable, match=rf"{NOBODY}.*refused"):
        read(0, 10, parse_options(given, default_starting="earliest"))
    assert time.monotonic() - began < 5


def test_a_topic_is_waited_for(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"late-{next(_numbers)}"
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
    assert asked == [0, 2]


def test_a_topic_that_never_appears_is_an_error_and_is_not_created(broker: EmbeddedBroker) -> None:
    name = f"never-{next(_numbers)}"
    reader = source.KafkaStreamReader(parsed(broker, name, requestTimeoutMs="300"))
    for _ in range(2):
        with pytest.raises(NotFound, match=rf"no topic {name}"):
            reader.latestOffset({}, ReadAllAvailable())
    reader.stop()


def test_a_moving_leader_is_asked_again(broker: EmbeddedBroker, topic: str) -> None:
    produce(broker, topic, list(range(10)))
    broker.fail_requests(2, [KafkaError.LEADER_NOT_AVAILABLE] * 3)
    assert cluster_logs(parsed(broker, topic)) == {Partition(topic, 0): Log(0, 10)}


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_the_first_batch_is_the_same_when_replayed(broker: EmbeddedBroker, topic: str, starting: str) -> None:
    produce(broker, topic, list(range(10)))
    chosen = parsed(broker, topic, startingOffsets=starting)
    before = source.KafkaStreamReader(chosen)
    start = before.initialOffset()
    produce(broker, topic, list(range(10, 20)))
    end = before.latestOffset(start, ReadAllAvailable())  # now in the checkpoint; Spark does not keep the start
    before.stop()
    broker.delete_records(topic, 0, 5)
    produce(broker, topic, list(range(20, 30)))
    after = source.KafkaStreamReader(chosen)
    assert after.partitions(after.initialOffset(), end) == before.partitions(start, end)
    after.stop()


def test_readers_travel_to_the_executors(broker: EmbeddedBroker, topic: str) -> None:
    produce(broker, topic, [1, 2, 3])
    reader = pickle.loads(pickle.dumps(source.KafkaStreamReader(parsed(broker, topic))))
    span = pickle.loads(pickle.dumps(OffsetRange(Partition(topic, 0), 0, 3)))
    assert sum(batch.num_rows for batch in reader.read(span)) == 3


# --- Spark -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka(spark: SparkSession) -> SparkSession:
    streams.kafka.register(spark)
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


def numbers(*bounds: int) -> list[str]:
    return [str(number) for number in range(*bounds)]


def test_batch_read_is_everything_once(kafka: SparkSession, broker: EmbeddedBroker) -> None:
    name = f"batch-{next(_numbers)}"
    broker.create_topics({name: 3})
    produce(broker, name, numbers(1000), partition=0)
    produce(broker, name, numbers(500), partition=2)
    frame = kafka.read.format("weft_kafka").options(**options(broker, name, minPartitions="8")).load()
    assert frame.schema == source.columns(include_headers=False)
    assert frame.rdd.getNumPartitions() == 8
    read_all = sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())
    assert read_all == [*((0, i) for i in range(1000)), *((2, i) for i in range(500))]
    starting = json.dumps({name: {"0": 900, "1": -2, "2": -1}})
    some = kafka.read.format("weft_kafka").options(**options(broker, name, startingOffsets=starting)).load()
    assert sorted(row["offset"] for row in some.select("offset").collect()) == list(range(900, 1000))


def test_batch_read_of_an_empty_topic_is_empty(kafka: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    assert kafka.read.format("weft_kafka").options(**options(broker, topic)).load().collect() == []


def test_headers_and_nulls_reach_spark(kafka: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    producer = broker.producer()
    producer.produce(topic, key=None, value=b"v", partition=0, timestamp=1_700_000_000_123, headers=[("h", b"1")])
    producer.produce(topic, key=b"k", value=None, partition=0, timestamp=1_700_000_000_123)
    producer.flush(WAIT_SECONDS)
    frame = kafka.read.format("weft_kafka").options(**options(broker, topic, includeHeaders="true")).load()
    first, second = frame.selectExpr("*", "date_format(timestamp, 'yyyy-MM-dd HH:mm:ss.SSS') AS text").collect()
    assert (first["key"], first["value"], first["headers"]) == (None, b"v", [("h", b"1")])
    assert (second["key"], second["value"], second["headers"]) == (b"k", None, None)
    assert first["text"] == "2023-11-14 22:13:20.123"


def test_available_now_ends_at_what_was_there_and_goes_on_from_the_checkpoint(
    run: Runs,
    broker: EmbeddedBroker,
) -> None:
    name = f"limit-{next(_numbers)}"
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
    assert all(partition.offset < 0 for partition in committed), "offsets are in Spark's checkpoint alone"


def test_a_batch_that_failed_is_replayed_with_the_same_records(run: Runs, broker: EmbeddedBroker, topic: str) -> None:
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


def test_new_topics_and_partitions_are_read_from_their_first_record(run: Runs, broker: EmbeddedBroker) -> None:
    one, two = f"grow-{next(_numbers)}", f"grow-{next(_numbers)}"
    broker.create_topics({one: 1})
    produce(broker, one, numbers(10))
    assert run(options(broker, one, startingOffsets="latest")) == [[]]
    broker.create_topics({two: 1})
    produce(broker, two, numbers(10, 20))
    # The mock cannot add a partition to a topic; to the source this looks the same.
    broker.delete_topic(one)
    broker.create_topics({one: 2})
    produce(broker, one, numbers(10))
    produce(broker, one, numbers(20, 30), partition=1)
    batches = run(options(broker, f"{one},{two}", startingOffsets="latest"))
    assert batches == [[], [*numbers(20, 30), *numbers(10, 20)]]


def test_a_running_query_reads_what_arrives(kafka: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    seen: list[int] = []
    query = (
        kafka.readStream.format("weft_kafka")
        .options(**options(broker, topic, startingOffsets="earliest"))
        .load()
        .writeStream.foreachBatch(lambda frame, _: seen.extend(row["offset"] for row in frame.collect()))
        .start()
    )
    try:
        for count in (100, 200):
            produce(broker, topic, numbers(100))
            query.processAllAvailable()
            assert sorted(seen) == list(range(count))
    finally:
        query.stop()


def test_records_that_aged_out_stop_the_query_unless_told_otherwise(
    run: Runs,
    broker: EmbeddedBroker,
    topic: str,
) -> None:
    produce(broker, topic, numbers(10))
    strict = options(broker, topic, startingOffsets="earliest")
    assert run(strict) == [[], numbers(10)]
    produce(broker, topic, numbers(10, 30))
    broker.delete_records(topic, 0, 20)
    with pytest.raises(StreamingQueryException, match=rf"DataLoss.*{topic}-0 wanted offset 10, .*\[20, 30\).*aged out"):
        run(strict)
    assert run(strict | {"failOnDataLoss": "false"}) == [numbers(20, 30)]


def test_records_that_age_out_between_planning_and_reading_stop_the_query(
    run: Runs,
    broker: EmbeddedBroker,
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
    # The replay is planned from the checkpoint alone, so it is the executor that finds out.
    with pytest.raises(StreamingQueryException, match=r"DataLoss.*wanted offsets \[0, 10\), the log holds \[5, 20\)"):
        run(given)
    assert run(given | {"failOnDataLoss": "false"}) == [numbers(5, 10), numbers(10, 20)]


def test_a_recreated_topic_stops_the_query_or_is_read_from_its_head(
    run: Runs,
    broker: EmbeddedBroker,
    topic: str,
) -> None:
    produce(broker, topic, numbers(10))
    strict = options(broker, topic, startingOffsets="earliest")
    assert run(strict) == [[], numbers(10)]
    broker.delete_topic(topic)
    broker.create_topics({topic: 1})
    produce(broker, topic, numbers(100, 105))
    with pytest.raises(StreamingQueryException, match=rf"DataLoss.*{topic}-0 wanted offset 10, .*\[0, 5\).*recreated"):
        run(strict)
    assert run(strict | {"failOnDataLoss": "false"}) == [[], numbers(100, 105)]


def test_an_unreachable_broker_stops_the_query_in_time(run: Runs) -> None:
    given = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", "requestTimeoutMs": "500"}
    with pytest.raises(StreamingQueryException, match=rf"SourceUnavailable.*{NOBODY}.*refused"):
        run(given)


def test_a_mistake_in_the_options_shows_when_loading(kafka: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    for wrong, name in [
        ({"subscribe": topic}, "kafka.bootstrap.servers"),
        (options(broker, topic, failOnDatLoss="true"), "failOnDataLoss"),
        (options(broker, topic) | {"kafka.nonsense": "1"}, "nonsense"),
    ]:
        with pytest.raises(AnalysisException, match=rf"(?s)InvalidInput.*{name}"):
            kafka.readStream.format("weft_kafka").options(**wrong).load()
    with pytest.raises(AnalysisException, match=r"(?s)InvalidInput.*maxOffsetsPerTrigger"):
        kafka.read.format("weft_kafka").options(**options(broker, topic, maxOffsetsPerTrigger="5")).load().collect()
    with pytest.raises(AnalysisException, match=r"(?s)InvalidInput.*does not take a schema"):
        kafka.read.format("weft_kafka").schema("value STRING").options(**options(broker, topic)).load().collect()
