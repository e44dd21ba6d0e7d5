"""The demo: its workload, its reference compared with an implementation in Python, and a small run."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, Row, SparkSession
from rich.console import Console

from storage import Table
from storage.config import build_schema, load_config
from storage.errors import InvalidInput, StoreUnavailable
from streams.demo import reference, shop
from streams.demo.broker import PARTITION_LIMIT_BYTES, EmbeddedBroker
from streams.demo.customers import CustomersWriter
from streams.demo.feed import Feed, TableProgress
from streams.demo.reference import Comparison
from streams.demo.run_demo import DemoFailed, Interrupted, _check_alive, _folder, _limited
from streams.demo.verdict import _show_comparison
from streams.demo.workload import MAX_PARTITIONS, Topic, plan_customers, plan_topics
from streams.pipeline.pipeline import load_pipeline
from streams.pipeline.run import open_table
from streams.pipeline.supervisor import Job, Supervisor

ROWS = 4_000
NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def planned(seed: int = 1) -> dict[str, Topic]:
    return {**plan_topics(ROWS, seed), shop.CUSTOMERS: plan_customers(ROWS, seed)}


@pytest.fixture(scope="module")
def topics() -> dict[str, Topic]:
    return planned()


def events(topic: Topic) -> list[dict[str, Any]]:
    return [json.loads(value) for value in topic.part(0, 1).values]


def order_key(event: dict[str, Any]) -> int:
    return int((event["after"] or event["before"])["order_id"])


# By topic, functions of a message: its key, its ordering values, and whether it is a delete.
KEY = {"orders": order_key, "payments": lambda e: e["order"], "customers": lambda e: e["id"]}
ORDERING = {
    "orders": lambda e: (e["ts_ms"], e["source"]["lsn"]),
    "payments": lambda e: (e["at"], e["no"]),
    "shipments": lambda e: (e["event_at"], e["rev"]),
    "clicks": lambda e: (e["us"], e["n"]),
    "customers": lambda e: (e["changed_ms"], e["version"]),
}
DELETES = {
    "orders": lambda e: e["op"] == "d",
    "payments": lambda e: e["event"] == "voided",
    "shipments": lambda e: e["cancelled"],
    "clicks": lambda e: e["expired"],
    "customers": lambda e: e["closed"],
}


def key_of(topic: str, event: dict[str, Any]) -> int:
    return int(KEY.get(topic, lambda e: e["order_id"])(event))


# --- workload --------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_messages_and_another_does_not(topics: dict[str, Topic]) -> None:
    again, other = planned(), planned(seed=2)
    for name, topic in topics.items():
        assert topic.part(0, 1) == again[name].part(0, 1)
        assert topic.part(0, 1) != other[name].part(0, 1)


def test_the_parts_have_the_requested_number_of_messages(topics: dict[str, Topic]) -> None:
    assert list(topics) == [*shop.STREAMS, shop.CUSTOMERS]
    assert sum(topics[name].rows for name in shop.STREAMS) == ROWS
    assert topics[shop.CUSTOMERS].rows == ROWS // 10
    for topic in topics.values():
        parts = [topic.part(number, 7) for number in range(7)]
        assert [value for part in parts for value in part.values] == list(topic.part(0, 1).values)


@pytest.mark.parametrize("name", [*shop.STREAMS, shop.CUSTOMERS])
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


def test_orders_name_customers_that_exist_were_deleted_or_never_existed(topics: dict[str, Topic]) -> None:
    named = {event["after"]["customer_id"] for event in events(topics["orders"]) if event["after"]}
    versions = sorted(events(topics[shop.CUSTOMERS]), key=ORDERING["customers"])
    state = {event["id"]: event["closed"] for event in versions}
    assert None in named
    assert {state.get(number) for number in named - {None}} == {None, True, False}
    assert max(Counter(event["id"] for event in versions).values()) >= 3


def test_many_rows_get_enough_partitions() -> None:
    small, large = plan_topics(ROWS), plan_topics(1_500_000)
    assert all(topic.partitions == 2 for topic in small.values())
    assert any(2 < topic.partitions <= MAX_PARTITIONS for topic in large.values())
    part = large["orders"].part(0, 100)
    assert set(part.partitions) == set(range(large["orders"].partitions))


def test_the_broker_keeps_all_of_a_topic_that_is_planned_to_be_full(broker: EmbeddedBroker) -> None:
    topic = plan_topics(1_000_000)["orders"]
    raw = sum(map(len, topic.part(0, 50).values)) * 50
    assert raw > topic.partitions * PARTITION_LIMIT_BYTES, "it would fit without compression: the test shows nothing"
    broker.create_topics({"full": topic.partitions})
    producer = broker.producer()
    for number in range(10):
        part = topic.part(number, 10)
        for partition, key, value in zip(part.partitions, part.keys, part.values, strict=True):
            producer.produce("full", value, key, partition)
        assert producer.flush(30) == 0
    assert [low for low, _ in broker_offsets(broker, "full", topic.partitions)] == [0] * topic.partitions


def broker_offsets(broker: EmbeddedBroker, topic: str, partitions: int) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "offsets"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=10) for n in range(partitions)]
    finally:
        consumer.close()


@pytest.mark.parametrize(("rows", "words"), [(10, ["10", "1000"]), (10**12, ["do not fit", "5 MB", "rows fit"])])
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


def test_every_message_is_produced_once_in_parts(broker: EmbeddedBroker) -> None:
    topics = {f"fed-{name}": replace(topic, name=f"fed-{name}") for name, topic in plan_topics(ROWS, seed=3).items()}
    feed = Feed(broker, topics)
    while not feed.finished:
        feed.send_part()
        assert feed.share == feed.sent / feed.parts
    assert feed.sent == feed.parts >= 24
    for name, topic in topics.items():
        offsets = broker_offsets(broker, name, topic.partitions)
        assert sum(high for _, high in offsets) == topic.rows
        assert {low for low, _ in offsets} == {0}


def test_a_broker_that_does_not_answer_is_an_error() -> None:
    with EmbeddedBroker() as private_broker:
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


def test_customers_are_written_once_in_several_sessions_and_read_with_the_orders(
    broker: EmbeddedBroker, tmp_path: Path, topics: dict[str, Topic]
) -> None:
    topic = replace(topics[shop.CUSTOMERS], name="customers-alone")
    table = Table.create(tmp_path / shop.CUSTOMERS, shop.CUSTOMERS_CONFIG)
    progress = TableProgress(table.uri, {shop.CUSTOMERS: topic})
    feed = Feed(broker, {topic.name: topic})
    while not feed.finished:
        with CustomersWriter(table, broker.bootstrap_servers, topic) as writer:
            for _ in range(8):
                feed.send_part()
            while progress.messages[shop.CUSTOMERS] < feed.messages(topic.name):
                writer.write_batch(wait_seconds=10.0)
                progress.refresh()
    assert progress.claims[shop.CUSTOMERS] == 3
    assert progress.complete
    assert progress.events == progress.messages == {shop.CUSTOMERS: topic.rows}
    newest: dict[int, Any] = {}
    for event in sorted(events(topic), key=ORDERING["customers"]):
        newest[event["id"]] = event
    shown = {row["id"]: row for row in table.snapshot().to_arrow().to_pylist()}
    assert shown.keys() == {number for number, event in newest.items() if not event["closed"]}
    for number, row in shown.items():
        cents = newest[number]["credit_cents"]
        assert (row["tier"], row["version"], row["credit"] * 100) == (
            newest[number]["tier"],
            newest[number]["version"],
            cents,
        )
    pipeline = load_pipeline(shop.write_pipeline(tmp_path, "127.0.0.1:9", customers=True))
    open_table(pipeline)
    orders = Table.open(pipeline.table.uri)
    order = dict.fromkeys(orders.schema.group_by_name["order"].columns) | {"order_at": NOW, "order_lsn": 1}
    known = next(iter(shown))
    with orders.writer("orders") as order_writer:
        order_writer.append(pa.Table.from_pylist([{"order_id": 1, **order, "customer_id": known}]))
    assert orders.get([1], columns=["customer_name"]).to_pylist() == [{"customer_name": newest[known]["name"]}]


# --- run -------------------------------------------------------------------------------------------------------------


def test_the_time_limit_ends_the_run() -> None:
    with pytest.raises(Interrupted, match=r"within 0 s"), _limited(0.05):
        time.sleep(30)


def test_a_second_signal_does_not_interrupt_the_clean_up() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def run() -> None:
        with _limited(60):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)
                cleaned.append(True)

    with pytest.raises(Interrupted, match="SIGTERM"):
        run()
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before


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
    examples = (Row(order_id=7, paid=1, _copies=1), Row(order_id=7, paid=None, _copies=-1))
    _show_comparison(Comparison((3, 3), 2, (), (1, 1), examples), Console(width=200))
    output = capsys.readouterr().out
    assert "snapshot == join: no" in output
    assert "only in the snapshot: order_id=7, paid=1" in output
    assert "only in the join: order_id=7\n" in output
    _show_comparison(Comparison((3, 3), 2, (), (0, 0), ()), Console(width=200))
    assert capsys.readouterr().out == "snapshot == join: yes (3 rows, 2 columns)\n"


# --- reference -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def joined(
    spark: SparkSession, broker: EmbeddedBroker, topics: dict[str, Topic], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DataFrame]:
    """The rows of the reference query for the whole workload, read from a broker."""
    broker.create_topics({name: topic.partitions for name, topic in topics.items()})
    producer = broker.producer()
    for name, topic in topics.items():
        part = topic.part(0, 1)
        for partition, key, value in zip(part.partitions, part.keys, part.values, strict=True):
            producer.produce(name, value, key, partition)
    assert producer.flush(30) == 0
    folder = tmp_path_factory.mktemp("topics")
    assert reference.load_topics(spark, broker.bootstrap_servers, folder) == ROWS + topics[shop.CUSTOMERS].rows
    answer = reference.join_query(spark).cache()
    yield answer
    answer.unpersist()


def oracle(topics: dict[str, Topic]) -> dict[int, dict[str, Any]]:
    """The semantics of MERGE.md that the demo uses, event by event."""
    newest: dict[str, dict[int, Any]] = {name: {} for name in topics}  # the customers too, by customer
    for name, topic in topics.items():
        for event in events(topic):
            if name == "clicks" and event["expired"]:
                continue
            known = newest[name].get(key_of(name, event))
            if known is None or ORDERING[name](event) >= ORDERING[name](known):
                newest[name][key_of(name, event)] = event
    rows = {}
    customers = newest.pop(shop.CUSTOMERS)
    for key in set().union(*newest.values()):
        found = {name: states[key] for name, states in newest.items() if key in states}
        if "orders" in found and DELETES["orders"](found["orders"]):
            continue
        live = {name: event for name, event in found.items() if not DELETES[name](event)}
        if live:
            rows[key] = live
            customer = customers.get(live["orders"]["after"]["customer_id"]) if "orders" in live else None
            if customer is not None and not customer["closed"]:
                live["customers"] = customer
    return rows


def money(value: object) -> decimal.Decimal | None:
    return None if value is None else decimal.Decimal(str(value))


def test_the_reference_query_equals_a_python_implementation(joined: DataFrame, topics: dict[str, Topic]) -> None:
    expected = oracle(topics)
    rows = {row.order_id: row for row in joined.collect()}
    assert rows.keys() == expected.keys()
    assert joined.count() == len(rows)
    nothing: dict[str, Any] = defaultdict(lambda: None)
    for key, row in rows.items():
        live = expected[key]
        order = live.get("orders", {}).get("after", nothing)
        payment, shipment, click = (live.get(name, nothing) for name in ("payments", "shipments", "clicks"))
        assert (row.customer_id, row.country, row.amount, row.skus, row.gift) == (
            order["customer_id"],
            order["country"],
            money(order["amount"]),
            order["skus"],
            order["gift"],
        )
        assert (row.order_at is None) == ("orders" not in live)
        assert (row.pay_event, row.paid, row.pay_fee, row.pay_no) == (
            payment["event"],
            money(payment["amount"]),
            payment["fee"],
            payment["no"],
        )
        assert (row.carrier, row.ship_rev, row.delivered) == (
            shipment["carrier"],
            shipment["rev"],
            shipment["delivered"],
        )
        assert (row.address and row.address.asDict()) == shipment["address"]
        assert row.promised_on == (shipment["promised"] and dt.date.fromisoformat(shipment["promised"]))
        assert row.page_views == (click["views"] if "clicks" in live else 0)
        assert (row.click_no, row.devices, row.bounced) == (click["n"], click["devices"], click["bounce"])
        customer = live.get("customers", nothing)
        assert (row.customer_name, row.customer_tier) == (customer["name"], customer["tier"])
        assert (row.customer_credit and row.customer_credit * 100) == customer["credit_cents"]
    assert {None, True} == {"customers" in live or None for live in expected.values() if "orders" in live}


def test_the_reference_has_the_columns_of_the_table(joined: DataFrame, tmp_path: Path) -> None:
    Table.create(tmp_path / shop.CUSTOMERS, shop.CUSTOMERS_CONFIG)
    pipeline = load_pipeline(shop.write_pipeline(tmp_path, "127.0.0.1:9", customers=True))
    open_table(pipeline)
    kinds = {c: k if isinstance(k, str) else k.type for c, k in pipeline.config.columns.items()}
    shown = {"customer_name": "string", "customer_tier": "string", "customer_credit": "decimal(12,2)"}
    assert {field.name: field.dataType.simpleString() for field in joined.schema} == kinds | shown
    assert joined.columns == list(kinds | shown) == Table.open(pipeline.table.uri).snapshot().schema.names


def test_a_table_equals_itself_in_another_order(joined: DataFrame) -> None:
    found = reference.compare(joined, joined.orderBy("amount"))
    assert found.equal
    assert found.rows[0] == found.rows[1] > 100
    assert found.columns == 35
    assert found.examples == ()


@pytest.mark.parametrize(
    ("where", "changed", "only"),
    [
        ("order_id <> {key}", {}, (1, 0)),
        ("true", {"devices": "if(order_id = {key}, array('other'), devices)"}, (1, 1)),
        ("true", {"order_id": "nullif(order_id, {key})"}, (1, 1)),
    ],
    ids=["missing", "changed", "null"],
)
def test_one_row_that_differs_is_found(
    joined: DataFrame, where: str, changed: dict[str, str], only: tuple[int, int]
) -> None:
    key = joined.orderBy("order_id").first()["order_id"]
    columns = [f"{changed[c]} AS {c}".format(key=key) if c in changed else c for c in joined.columns]
    found = reference.compare(joined, joined.where(where.format(key=key)).selectExpr(*columns))
    assert not found.equal
    assert found.only == only
    assert len(found.examples) == sum(only)
    assert found.schema_differences == ()


def test_a_duplicated_row_is_found(joined: DataFrame) -> None:
    found = reference.compare(joined, joined.unionAll(joined.limit(1)))
    assert not found.equal
    assert found.only == (0, 1)
    assert [row["_copies"] for row in found.examples] == [-1]


def test_columns_that_differ_are_named(joined: DataFrame) -> None:
    narrower = joined.drop("gift").withColumn("amount", joined["amount"].cast("double"))
    found = reference.compare(joined, narrower)
    assert not found.equal
    assert found.schema_differences == (
        "only in the first: amount decimal(12,2)",
        "only in the first: gift boolean",
        "only in the second: amount double",
    )
