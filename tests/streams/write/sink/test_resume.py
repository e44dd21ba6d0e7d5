"""Queries after a restore or an undo: they leave no gap, and continue where the table's live commits end."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import weft.streams
from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.topics import produce, topic_numbers
from tests.streams.write.sink.rig import TEST_SECONDS, WAIT_SECONDS, Feed, event, rows, run
from weft import Table
from weft.storage.core.log.cut import in_spans
from weft.storage.core.log.entries import Claim, Data
from weft.storage.errors import Conflict, Fenced, GapError, InvalidInput
from weft.storage.log.commit_log import CommitLog
from weft.streams.write.decode import decode_messages
from weft.streams.write.resume import LaneMoved, ResumePoint
from weft.streams.write.sink import write_stream
from weft.streams.write.writer_job import failure_of

pytestmark = pytest.mark.timeout(TEST_SECONDS)

MESSAGE = {"id": "bigint", "status": "string", "seq": "bigint"}


class Topic:
    """A topic of two partitions, and queries that read it to its end."""

    def __init__(self, spark: SparkSession, broker: FaultyBroker, table: Table, folder: Path) -> None:
        self.name = f"resume-{next(topic_numbers)}"
        self._spark, self._broker, self.table = spark, broker, table
        self.checkpoint = str(folder / "checkpoints/orders")
        self.sent = 0
        broker.create_topics({self.name: 2})
        weft.streams.kafka.register(spark)

    def send(self, count: int) -> None:
        made = [json.dumps({"id": i, "status": "new", "seq": 1}) for i in range(self.sent, self.sent + count)]
        for partition in (0, 1):
            produce(self._broker, self.name, made[partition::2], partition=partition)
        self.sent += count

    def frame(self, starting: str, status: str = "status", per_batch: int = 20, *, strict: bool = True) -> DataFrame:
        raw = (
            self._spark.readStream.format("weft_kafka")
            .option("kafka.bootstrap.servers", self._broker.bootstrap_servers)
            .option("subscribe", self.name)
            .option("startingOffsets", starting)
            .option("maxOffsetsPerTrigger", per_batch)
            .option("failOnDataLoss", str(strict).lower())
            .load()
        )
        return decode_messages(raw, MESSAGE, select={"id": "id", "status": status, "seq": "seq"}, where=None)

    def point(self) -> ResumePoint:
        return weft.resume_point(self._spark, self.table.uri, "orders", checkpoint=self.checkpoint)

    def run_from_checkpoint(self, folder: Path, status: str = "status") -> None:
        run(self.frame("earliest", status), self.table, folder, checkpoint=self.checkpoint)

    def recreate(self) -> None:
        self._broker.delete_topic(self.name)
        self._broker.create_topics({self.name: 2})

    def run_from_table(self, folder: Path, default: str = "earliest", **given: Any) -> ResumePoint:
        point = self.point()
        df = self.frame(point.starting_offsets(default), **given)
        run(df, self.table, folder, checkpoint=point.checkpoint, resume=point)
        return point


@pytest.fixture
def topic(spark: SparkSession, broker: FaultyBroker, table: Table, tmp_path: Path) -> Topic:
    return Topic(spark, broker, table, tmp_path)


def lane(table: Table, name: str = "orders") -> list[Any]:
    return list(CommitLog(table.env).read_after(name, 0))


def live_messages(table: Table) -> int:
    """Messages in live commits with their number of copies; mode `latest` would hide duplicates."""
    rolled_back = table.state().rolled_back.get("orders", ())
    data = [entry for entry in lane(table) if isinstance(entry, Data) and not in_spans(rolled_back, entry.seq)]
    return sum(entry.rows + entry.rows_ignored for entry in data)


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@pytest.mark.extended
def test_an_undone_stream_is_read_again_and_others_are_not_affected(topic: Topic, table: Table, tmp_path: Path) -> None:
    with table.writer("prices") as prices:
        prices.append(pa.table({"id": [1], "price": [1.0], "priced": [1.0]}))
        topic.send(25)
        topic.run_from_checkpoint(tmp_path)
        since = now()
        topic.send(25)
        topic.run_from_checkpoint(tmp_path, status="'wrong'")  # wrong rows that will be undone
        assert Counter(row[1] for row in rows(table)) == {"new": 25, "wrong": 25}
        table.undo("orders", since)
        topic.send(5)
        before = len(lane(table))
        with pytest.raises(GapError, match="stream undone: batches 3 to 4 of this query") as caught:
            topic.run_from_checkpoint(tmp_path)
        assert "resume: table" in caught.value.hint
        assert len(lane(table)) == before, "nothing was claimed: the corrected writer may be running already"
        point = topic.run_from_table(tmp_path)
        assert point.anew
        assert sum(point.offsets[topic.name].values()) == 25  # type: ignore[index]
        prices.append(pa.table({"id": [1], "price": [2.0], "priced": [2.0]}))
    found = table.snapshot().to_arrow(["id", "status", "price"]).sort_by("id").to_pylist()
    assert found == [{"id": i, "status": "new", "price": 2.0 if i == 1 else None} for i in range(55)]
    assert live_messages(table) == 55
    assert [type(entry) for entry in lane(table, "prices")] == [Claim, Data, Data]
    assert Path(topic.checkpoint, "metadata").exists(), "the old checkpoint is kept"
    # The lane now belongs to the new checkpoint, and a restart continues from it.
    topic.send(5)
    again = topic.run_from_table(tmp_path)
    assert (again.anew, again.checkpoint) == (False, point.checkpoint)
    assert live_messages(table) == 60


def test_a_completely_undone_stream_restarts_at_its_first_batch(topic: Topic, table: Table, tmp_path: Path) -> None:
    since = now()
    topic.send(10)
    run(topic.frame("latest"), table, tmp_path, checkpoint=topic.checkpoint)  # begins after these ten
    topic.send(20)
    topic.run_from_checkpoint(tmp_path)
    table.undo("orders", since)
    assert rows(table) == []
    with pytest.raises(GapError, match="batches 0 to 1"):
        topic.run_from_checkpoint(tmp_path)
    topic.run_from_table(tmp_path, default="latest")
    assert [row[0] for row in rows(table)] == list(range(10, 30))
    assert live_messages(table) == 20


@pytest.mark.extended
def test_a_start_that_crashed_before_its_first_commit_is_resumed(topic: Topic, table: Table, tmp_path: Path) -> None:
    topic.send(10)
    topic.run_from_checkpoint(tmp_path)
    since = now()
    topic.send(10)
    topic.run_from_checkpoint(tmp_path)
    table.undo("orders", since)
    point = topic.point()

    def crash(_: object) -> None:
        raise RuntimeError("the driver dies")

    # It dies right after the first commit, which only records the start.
    with pytest.raises(StreamingQueryException, match="the driver dies"):
        run(
            topic.frame(point.starting_offsets("earliest")), table, tmp_path,
            checkpoint=point.checkpoint, resume=point, on_commit=crash,
        )  # fmt: skip
    assert topic.point().checkpoint == point.checkpoint
    topic.send(3)
    topic.run_from_table(tmp_path)
    assert live_messages(table) == 23
    # A second undo gives another resume point, with a third checkpoint.
    table.undo("orders", since)
    other = topic.run_from_table(tmp_path)
    assert other.anew
    assert other.checkpoint not in {point.checkpoint, topic.checkpoint}
    assert live_messages(table) == 23
    assert len(rows(table)) == 23


@pytest.mark.extended
def test_a_recreated_topic_is_not_resumed(topic: Topic, table: Table, tmp_path: Path) -> None:
    topic.send(20)
    topic.run_from_checkpoint(tmp_path)
    since = now()
    topic.send(10)
    topic.run_from_checkpoint(tmp_path)
    table.undo("orders", since)
    point = topic.point()
    assert point.offsets == {topic.name: {"0": 10, "1": 10}}
    assert set(point.identities[topic.name]) == {"topic_id"}
    topic.recreate()
    topic.send(40)  # other messages, in a topic that is longer than the offsets of the old one
    before = live_messages(table)
    with pytest.raises(StreamingQueryException, match=rf"DataLoss.*topic {topic.name} has id"):
        topic.run_from_table(tmp_path)
    assert live_messages(table) == before
    topic.run_from_table(tmp_path, strict=False)
    assert live_messages(table) == before + 40
    assert [row[0] for row in rows(table)] == [*range(20), *range(30, 70)]


def test_a_lost_checkpoint_loses_no_messages(topic: Topic, table: Table, tmp_path: Path) -> None:
    topic.send(15)
    topic.run_from_checkpoint(tmp_path)
    Path(topic.checkpoint).rename(tmp_path / "lost")
    topic.send(15)
    with pytest.raises(Conflict, match="written by another query already"):
        topic.run_from_checkpoint(tmp_path)
    assert topic.run_from_table(tmp_path).anew
    assert live_messages(table) == 30


def test_reverting_a_restore_makes_the_old_checkpoint_valid_again(topic: Topic, table: Table, tmp_path: Path) -> None:
    topic.send(10)
    topic.run_from_checkpoint(tmp_path)
    first = str(table.snapshot().cut)
    topic.send(10)
    topic.run_from_checkpoint(tmp_path)
    table.savepoint("all")
    table.restore(first)
    assert topic.point().anew
    table.restore("all")
    assert topic.point() == ResumePoint("orders", topic.checkpoint, False, None, topic.point().source)
    assert live_messages(table) == 20


def test_a_resume_point_is_invalid_after_another_commit(topic: Topic, table: Table, tmp_path: Path) -> None:
    topic.send(10)
    topic.run_from_checkpoint(tmp_path)
    since = now()
    topic.send(10)
    topic.run_from_checkpoint(tmp_path)
    table.undo("orders", since)
    point, late = topic.point(), topic.point()
    topic.run_from_table(tmp_path)
    with pytest.raises(LaneMoved, match="has a new commit since its end was read"):
        run(
            topic.frame(late.starting_offsets("earliest")), table, tmp_path, checkpoint=late.checkpoint, resume=late
        )  # fmt: skip
    assert live_messages(table) == 20
    with pytest.raises(InvalidInput, match="is for checkpoint"):
        run(topic.frame("earliest"), table, tmp_path, checkpoint=topic.checkpoint, resume=point)


def test_a_query_running_during_an_undo_is_fenced_with_a_hint(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    query = write_stream(feed.read(), table.uri, "orders", checkpoint=str(tmp_path / "c"), trigger=None)
    try:
        query.processAllAvailable()
        table.undo("orders", now() - dt.timedelta(hours=1))
        feed.put(event(2))
        with pytest.raises(StreamingQueryException) as caught:
            assert query.awaitTermination(WAIT_SECONDS)
    finally:
        query.stop()
    failure = failure_of(caught.value)
    assert isinstance(failure, Fenced)
    assert "claimed for the restore" in failure.message
    assert "resume" in failure.hint


def test_unknown_offsets_are_refused(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    def point() -> ResumePoint:
        return weft.resume_point(spark, table.uri, "orders", checkpoint=str(tmp_path / "c"))

    assert point() == ResumePoint("orders", str(tmp_path / "c"), False, None, {})
    row = pa.table({"id": [1], "status": ["new"], "seq": [1]})
    with table.writer("orders") as writer:
        writer.append(row, batch=("q", 0))
    with pytest.raises(InvalidInput, match="has not recorded the position of its source"):
        point()
    with table.writer("orders", takeover=True) as writer:
        writer.append(row, batch=("q", 1), source={"offsets": [{"logOffset": 3}]})
    with pytest.raises(InvalidInput, match="does not come from one Kafka source"):
        point().starting_offsets("earliest")
    with table.writer("orders", takeover=True) as writer:
        writer.append(row, batch=("q", 2), source={"offsets": [{"a": {"0": 7}, "b": {"0": 1}}]})
    assert json.loads(point().starting_offsets("earliest", ["b", "c"])) == {"b": {"0": 1, "*": -2}, "c": {"*": -2}}
    named = {"a": {"0": 7, "topic_id": "x"}, "b": {"0": 1, "leader_epochs": {"0": 3}}}
    with table.writer("orders", takeover=True) as writer:
        writer.append(row, batch=("q", 3), source={"offsets": [named]})
    assert point().offsets == {"a": {"0": 7}, "b": {"0": 1}}
    assert json.loads(point().starting_offsets("earliest")) == {
        "a": {"0": 7, "*": -2, "topic_id": "x"},
        "b": {"0": 1, "*": -2, "leader_epochs": {"0": 3}},
    }
    with pytest.raises(InvalidInput, match="was written from topics a, b, not from c"):
        point().starting_offsets("earliest", ["c"])
    table.undo("orders", dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    with pytest.raises(InvalidInput, match="the start of its source is not recorded"):
        point().starting_offsets("latest")
