"""The demo: its workload, its feed, and how a run ends."""

from __future__ import annotations

import datetime as dt
import json
import signal
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import Row
from rich.console import Console

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.support.demo_messages import DELETES, ORDERING, ROWS, events, key_of, planned
from weft import Table
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.errors import InvalidInput, StoreUnavailable
from weft.streams.demo import shop
from weft.streams.demo.embedded_broker import PARTITION_LIMIT_BYTES
from weft.streams.demo.feed import Feed, TableProgress
from weft.streams.demo.outcome import DemoFailed, missing_messages, unfinished
from weft.streams.demo.reference import Comparison
from weft.streams.demo.run_demo import _check_alive, _folder
from weft.streams.demo.verdict import _show_comparison
from weft.streams.demo.watch import Interrupted, Watch, watch_signals
from weft.streams.demo.workload import MAX_PARTITIONS, Topic, plan_topics
from weft.streams.pipeline.run.supervisor import Job, Supervisor

NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def topics() -> dict[str, Topic]:
    return planned()


# --- workload --------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_messages_and_another_does_not(topics: dict[str, Topic]) -> None:
    again, other = planned(), planned(seed=2)
    for name, topic in topics.items():
        assert topic.part(0, 1) == again[name].part(0, 1)
        assert topic.part(0, 1) != other[name].part(0, 1)


def test_the_parts_have_the_requested_number_of_messages(topics: dict[str, Topic]) -> None:
    assert tuple(topics) == shop.STREAMS
    assert sum(topic.rows for topic in topics.values()) == ROWS
    for topic in topics.values():
        parts = [topic.part(number, 7) for number in range(7)]
        assert [value for part in parts for value in part.values] == list(topic.part(0, 1).values)


@pytest.mark.parametrize("name", shop.STREAMS)
def test_every_stream_has_every_kind_of_disorder(topics: dict[str, Topic], name: str) -> None:
    seen = events(topics[name])
    newest: dict[int, Any] = {}
    texts = set()
    late = duplicates = ties = revived = 0
    deleted = set()
    times = defaultdict(set)
    for event in seen:
        key, ordering = key_of(name, event), ORDERING[name](event)
        text = json.dumps(event)
        duplicates += text in texts
        late += text not in texts and key in newest and ordering < newest[key]
        texts.add(text)
        if key not in newest or ordering > newest[key]:
            newest[key] = ordering
            revived += key in deleted and not DELETES[name](event)
            deleted.discard(key)
            if DELETES[name](event):
                deleted.add(key)
        ties += ordering[0] in times[key] and not any(ordering == other for other in times[key])
        times[key].add(ordering[0])
    assert min(late, duplicates, ties, revived, len(deleted)) >= 3
    # Events with equal ordering values are copies: the message decides between any two others.
    assert len({(key_of(name, e), ORDERING[name](e)) for e in seen}) == len(texts)


def test_some_messages_are_much_later_than_a_commit(topics: dict[str, Topic]) -> None:
    for topic in topics.values():
        behind = np.maximum.accumulate(topic.columns["seq"]) - topic.columns["seq"]
        assert (behind > topic.rows // 4).sum() >= 3


def test_some_keys_are_in_one_stream_only_and_some_in_all(topics: dict[str, Topic]) -> None:
    known = {name: set(topics[name].columns["key"].tolist()) for name in shop.STREAMS}
    assert set.intersection(*known.values())
    for name in ("orders", "payments", "clicks"):
        assert known[name] - set.union(*(keys for other, keys in known.items() if other != name))


def test_many_rows_get_enough_partitions() -> None:
    small, large = plan_topics(ROWS), plan_topics(3_000_000)
    assert all(topic.partitions == 2 for topic in small.values())
    assert any(2 < topic.partitions <= MAX_PARTITIONS for topic in large.values())
    part = large["orders"].part(0, 100)
    assert set(part.partitions) == set(range(large["orders"].partitions))


def test_the_broker_keeps_all_of_a_topic_that_is_planned_to_be_full(broker: FaultyBroker) -> None:
    topic = plan_topics(1_000_000)["orders"]
    raw = sum(map(len, topic.part(0, 50).values)) * 50
    assert raw > topic.partitions * PARTITION_LIMIT_BYTES, "it would fit without compression: the test shows nothing"
    broker.create_topics({"full": topic.partitions})
    producer = broker.producer()
    for number in range(10):
        part = topic.part(number, 10)
        for partition, key, value in zip(part.partitions, part.keys, part.values, strict=True):
            producer.produce("full", value, key, partition)
        assert producer.flush(120) == 0
    assert [low for low, _ in broker_offsets(broker, "full", topic.partitions)] == [0] * topic.partitions


def broker_offsets(broker: FaultyBroker, topic: str, partitions: int) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "offsets"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=120) for n in range(partitions)]
    finally:
        consumer.close()


@pytest.mark.parametrize(("rows", "words"), [(10, ["10", "1000"]), (10**12, ["do not fit", "5 MB", "use at most"])])
def test_too_few_or_too_many_rows_are_refused(rows: int, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan_topics(rows)
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_pipeline_file_names_columns_and_topics_that_exist(tmp_path: Path, topics: dict[str, Topic]) -> None:
    pipeline = yaml.safe_load(shop.write_pipeline(tmp_path, "127.0.0.1:9").read_text())
    schema = build_schema(load_config(pipeline["table"]["config"]))
    for name, writer in pipeline["writers"].items():
        assert writer["source"]["topic"] == name
        assert set(writer["select"]) == {"_op", *schema.stream_columns(schema.stream(name))}
        assert set(writer["schema"]) == set(events(topics[name])[0])


# --- feed ------------------------------------------------------------------------------------------------------------


def test_every_message_is_produced_once_in_parts(broker: FaultyBroker) -> None:
    topics = {f"fed-{name}": replace(topic, name=f"fed-{name}") for name, topic in plan_topics(ROWS, seed=3).items()}
    feed = Feed(broker, topics)
    while not feed.finished:
        feed.send_part()
        assert feed.share == feed.parts_sent / feed.parts
    assert feed.parts_sent == feed.parts >= 24
    for name, topic in topics.items():
        offsets = broker_offsets(broker, name, topic.partitions)
        assert sum(high for _, high in offsets) == topic.rows
        assert {low for low, _ in offsets} == {0}


def test_a_broker_that_does_not_answer_is_an_error() -> None:
    with FaultyBroker() as private_broker:
        feed = Feed(private_broker, plan_topics(ROWS), flush_seconds=0.2)
        private_broker.set_reachable(reachable=False)
        with pytest.raises(StoreUnavailable, match="did not accept"):
            feed.send_part()


def test_progress_is_read_from_the_commits_of_the_table(tmp_path: Path, topics: dict[str, Topic]) -> None:
    config = yaml.safe_load(shop.write_pipeline(tmp_path, "127.0.0.1:9").read_text())["table"]["config"]
    table = Table.create(tmp_path / shop.TABLE, config)
    progress = TableProgress(tmp_path / shop.TABLE, {name: topics[name] for name in shop.STREAMS})
    progress.refresh()
    assert (progress.total, progress.complete) == (0, False)
    click = dict.fromkeys(table.schema.group_by_name["click"].columns) | {"clicked_at": NOW, "click_no": 1}
    batch = pa.Table.from_pylist([{"order_id": 1, **click}])
    for incarnation in (1, 2):
        with table.writer("clicks") as writer:
            source = {"offsets": [{"clicks": {"0": 100 * incarnation, "1": 7}}]}
            writer.append(batch, batch=("q", incarnation), source=source)
        progress.refresh()
        assert progress.messages == {"orders": 0, "payments": 0, "shipments": 0, "clicks": 100 * incarnation + 7}
        assert progress.claims["clicks"] == progress.events["clicks"] == incarnation
    assert not progress.complete
    assert TableProgress(tmp_path / shop.TABLE, {}).complete


# --- run -------------------------------------------------------------------------------------------------------------


def test_only_a_stall_ends_the_run() -> None:
    watch = Watch(0.05)
    for done in range(20):
        time.sleep(0.01)
        watch.check(done)
    time.sleep(0.06)
    with pytest.raises(Interrupted, match="no progress for 0 s"):
        watch.check(done)


def test_a_signal_ends_the_run_at_the_next_step_and_a_second_one_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with watch_signals(60) as watch:
        watch.check(0)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            watch.check(1)
        signal.raise_signal(signal.SIGINT)  # in the clean-up
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_verdict_says_what_is_missing() -> None:
    wanted = {"orders": 2_000, "clicks": 10}
    assert missing_messages(wanted, wanted) == []
    missing = missing_messages(wanted, {"orders": 500, "clicks": 10})
    assert missing == ["1,500 of 2,000 messages of orders"]
    text = unfinished("no progress for 5 s", missing)
    assert text == f"unfinished, no progress for 5 s; missing: {missing[0]}; the comparison with the join in Spark"


def test_a_temporary_folder_is_always_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run() -> None:
        with _folder(None) as folder:
            (folder / "table").mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_to_be_kept_must_be_new_or_empty(tmp_path: Path) -> None:
    with _folder(tmp_path / "a" / "b") as folder:
        (folder / "table").mkdir()
    assert folder.is_dir()
    for wrong in (tmp_path, tmp_path / "file" / "below"):
        (tmp_path / "file").touch()
        with pytest.raises(InvalidInput, match="--keep"), _folder(wrong):
            pass


def test_a_process_that_fails_permanently_ends_the_demo_with_its_log(tmp_path: Path) -> None:
    job = Job("orders", (sys.executable, "-c", "print('no such topic'); raise SystemExit(3)"), tmp_path / "orders.log")
    supervisor = Supervisor([job])

    def run() -> None:
        while True:
            _check_alive(supervisor.poll(1))

    try:
        supervisor.start()
        with pytest.raises(DemoFailed, match=r"(?s)orders failed.*no such topic.*orders\.log"):
            run()
    finally:
        supervisor.stop(at_once=True)


def test_differences_are_shown_with_rows_of_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    examples = ([Row(order_id=7, paid=1)], [Row(order_id=7, paid=None)])
    _show_comparison(Comparison((3, 3), 2, (), (1, 1), examples), Console(width=200))
    output = capsys.readouterr().out
    assert "snapshot == join: no" in output
    assert "only in the snapshot: order_id=7, paid=1" in output
    assert "only in the join: order_id=7\n" in output
    _show_comparison(Comparison((3, 3), 2, ()), Console(width=200))
    assert capsys.readouterr().out == "snapshot == join: yes (3 rows, 2 columns)\n"
