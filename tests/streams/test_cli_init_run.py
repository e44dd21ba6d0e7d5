"""``weft init``: its result runs as it is, on a terminal and with a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import Table
from streams.demo.broker import EmbeddedBroker
from streams.pipeline.pipeline import load_pipeline
from tests.streams.terminal import run


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Two topics with messages."""
    with EmbeddedBroker() as broker:
        producer = broker.producer()
        for number in range(20):
            key = str(number).encode()
            order = {"order_id": number, "status": "new", "city": "Ulm", "street": "a", "ts": number}
            producer.produce("shop.orders", key=key, value=json.dumps(order))
            producer.produce("shop.payments", key=key, value=json.dumps({"order_id": number, "paid": 1.5, "ts": 1}))
        producer.produce(
            "shop.orders", key=b"3", value=json.dumps({**order, "order_id": 3, "status": "sent", "ts": 99})
        )
        producer.flush()
        yield broker


@pytest.mark.spark
@pytest.mark.slow
def test_what_it_found_in_topics_runs_as_it_is(tmp_path: Path, broker: EmbeddedBroker) -> None:
    """On a terminal, each question is answered with Enter but for topics and brokers; then a real run."""
    answers = ["shop.orders, shop.payments", broker.bootstrap_servers, *[""] * 8]
    shown = run([["init", tmp_path / "shop"]], standard_input="\n".join(answers) + "\n")
    file = tmp_path / "shop/pipeline.yaml"
    assert file.is_file(), shown
    assert "topic shop.orders: order_id bigint, status string" in shown.words.replace("\r\n", " ")
    done = run([["run", file, "--once"]], terminal=False)
    table = Table.open(load_pipeline(file).table.uri)
    rows = table.get([3], ["status", "city", "paid"]).to_pylist()
    assert rows == [{"status": "sent", "city": "Ulm", "paid": 1.5}], done
    assert table.snapshot().to_arrow().num_rows == 20
