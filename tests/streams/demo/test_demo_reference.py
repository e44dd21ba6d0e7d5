"""The demo's reference query equals an implementation in Python, and a comparison finds every difference."""

from __future__ import annotations

import datetime as dt
import decimal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.streams.support.demo_messages import DELETES, ORDERING, ROWS, events, key_of, planned
from weft.streams.demo import reference, shop
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.demo.workload import Topic
from weft.streams.pipeline.file.pipeline import load_pipeline


@pytest.fixture(scope="module")
def topics() -> dict[str, Topic]:
    return planned()


@pytest.fixture(scope="module")
def joined(
    spark: SparkSession, topics: dict[str, Topic], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DataFrame]:
    """The rows of the reference query for the whole workload, read from a broker of its own: its topics have names
    that other tests may use, too.
    """
    with EmbeddedBroker() as broker:
        broker.create_topics({name: topic.partitions for name, topic in topics.items()})
        producer = broker.producer()
        for name, topic in topics.items():
            part = topic.part(0, 1)
            for partition, key, value in zip(part.partitions, part.keys, part.values, strict=True):
                producer.produce(name, value, key, partition)
        assert producer.flush(120) == 0
        folder = tmp_path_factory.mktemp("topics")
        assert reference.load_topics(spark, broker.bootstrap_servers, folder) == ROWS
        answer = reference.join_query(spark).cache()
        yield answer
        answer.unpersist()


def oracle(topics: dict[str, Topic]) -> dict[int, dict[str, Any]]:
    """The semantics of MERGE.md that the demo uses, event by event."""
    newest: dict[str, dict[int, Any]] = {name: {} for name in topics}
    for name, topic in topics.items():
        for event in events(topic):
            if name == "clicks" and event["expired"]:
                continue
            known = newest[name].get(key_of(name, event))
            if known is None or ORDERING[name](event) >= ORDERING[name](known):
                newest[name][key_of(name, event)] = event
    rows = {}
    for key in set().union(*newest.values()):
        found = {name: states[key] for name, states in newest.items() if key in states}
        if "orders" in found and DELETES["orders"](found["orders"]):
            continue
        live = {name: event for name, event in found.items() if not DELETES[name](event)}
        if live:
            rows[key] = live
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


def test_the_reference_has_the_columns_of_the_table(joined: DataFrame, tmp_path: Path) -> None:
    pipeline = load_pipeline(shop.write_pipeline(tmp_path, "127.0.0.1:9"))
    kinds = {c: k if isinstance(k, str) else k.type for c, k in pipeline.config.columns.items()}
    assert {field.name: field.dataType.simpleString() for field in joined.schema} == kinds
    assert joined.columns == list(kinds)


def test_a_table_equals_itself_in_another_order(joined: DataFrame) -> None:
    found = reference.compare(joined, joined.orderBy("amount"))
    assert found.equal
    assert found.rows[0] == found.rows[1] > 100
    assert found.columns == 32
    assert found.examples == ([], [])


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
    assert tuple(map(len, found.examples)) == only
    assert found.schema_differences == ()


def test_a_duplicated_row_is_found(joined: DataFrame) -> None:
    found = reference.compare(joined, joined.unionAll(joined.limit(1)))
    assert not found.equal
    assert found.only == (0, 1)
    assert tuple(map(len, found.examples)) == (0, 1)


def test_columns_that_differ_are_named(joined: DataFrame) -> None:
    narrower = joined.drop("gift").withColumn("amount", joined["amount"].cast("double"))
    found = reference.compare(joined, narrower)
    assert not found.equal
    assert found.schema_differences == (
        "only in the first: amount decimal(12,2)",
        "only in the first: gift boolean",
        "only in the second: amount double",
    )
