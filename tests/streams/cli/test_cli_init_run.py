"""``weft init``: its result runs as it is, on a terminal and with a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.pipeline.infer.test_infer_formats import (
    avro_events,
    avro_messages,
    json_schema_messages,
    protobuf_messages,
)
from tests.streams.support.pipelines import weft
from tests.streams.support.terminal import run
from weft import Table
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.check_file import check_file
from weft.streams.pipeline.file.pipeline import load_pipeline


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
    """On a terminal, each question is answered with Enter but for brokers and topics; then a real run."""
    answers = [broker.bootstrap_servers, "shop.orders, shop.payments", *[""] * 8]
    shown = run([["init", tmp_path / "shop"]], standard_input="\n".join(answers) + "\n")
    file = tmp_path / "shop/pipeline.yaml"
    assert file.is_file(), shown
    assert "topic shop.orders: order_id bigint, status string" in shown.words.replace("\r\n", " ")
    done = run([["run", file, "--once"]], terminal=False)
    table = Table.open(load_pipeline(file).table.uri)
    rows = table.get([3], ["status", "city", "paid"]).to_pylist()
    assert rows == [{"status": "sent", "city": "Ulm", "paid": 1.5}], done
    assert table.snapshot().to_arrow().num_rows == 20


def test_a_wrong_address_and_a_mistyped_topic_are_asked_again(tmp_path: Path, broker: EmbeddedBroker) -> None:
    answers = ["127.0.0.1:9", broker.bootstrap_servers, "shop.order", "shop.orders"]
    written, shown = asked(tmp_path / "shop", *answers)
    places = [
        "Kafka at 127.0.0.1:9, asking for the topics",
        "hint: give another address, or the same again",
        f"topics at {broker.bootstrap_servers}: ",
        f"there is no topic shop.order at {broker.bootstrap_servers}",
        "hint: did you mean shop.orders? topics there: ",
        "topic shop.orders: order_id bigint",
        "Key of the table",
    ]
    found = [shown.find(place) for place in places]
    assert -1 not in found, shown
    assert found == sorted(found)
    assert "shows no fields" not in shown
    assert list(written["writers"]) == ["orders"]


def test_answers_that_are_given_again_are_taken(tmp_path: Path, broker: EmbeddedBroker) -> None:
    """Brokers that will be started later, and a topic that will be created later."""
    written, _ = asked(tmp_path / "a", "127.0.0.1:9", "127.0.0.1:9", "later", "", "id bigint, at timestamp")
    assert written["kafka"] == {"bootstrap.servers": "127.0.0.1:9"}
    answers = ["later", "later", "", "id bigint, at timestamp"]
    written, shown = asked(tmp_path / "b", broker.bootstrap_servers, *answers)
    assert written["writers"]["later"]["source"]["topic"] == "later"
    assert "topic later shows no fields: " in shown


def test_options_that_name_no_topic_of_the_brokers_are_refused(tmp_path: Path, broker: EmbeddedBroker) -> None:
    flags = ["--topic", "shop.order", "--brokers", broker.bootstrap_servers]
    done = weft("init", tmp_path / "a", *flags)
    assert done.exit_code == 2, done.output
    assert f"there is no topic shop.order at {broker.bootstrap_servers}" in done.stderr
    assert "did you mean shop.orders? topics there: " in done.stderr
    assert not (tmp_path / "a").exists()
    assert weft("init", tmp_path / "a", *flags, "--fields", "shop.order=id bigint, at timestamp").exit_code == 0


def asked(folder: Path, *answers: str) -> tuple[dict[str, Any], str]:
    """The file that the answers give, with Enter for all further questions, and what the terminal showed."""
    shown = run([["init", folder]], standard_input="\n".join([*answers, *[""] * 8]) + "\n")
    file = folder / "pipeline.yaml"
    assert file.is_file(), shown
    assert check_file(file).problems == []
    return yaml.safe_load(file.read_text()), " ".join((shown.words + shown.output).split())


def produce(broker: EmbeddedBroker, topic: str, messages: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    producer = broker.producer()
    for key, value in messages:
        producer.produce(topic, value, key)
    assert producer.flush(120) == 0


def test_keys_with_other_names_are_joined_and_said(tmp_path: Path, broker: EmbeddedBroker) -> None:
    began = 1_767_225_600_000
    produce(broker, "sessions", [(b"7", json.dumps({"session_id": 7, "began_at": began}).encode())])
    produce(broker, "views", [(b"7", json.dumps({"other": 5, "session": 7, "url": "/", "ms": 3}).encode())])
    written, shown = asked(tmp_path / "a", broker.bootstrap_servers, "sessions, views")
    assert "Key of views (other topics call it otherwise) [session]" in shown
    assert "views: key: session_id is field session, joined with session_id of sessions: is it the same?" in shown
    assert "sessions: ordering: began_at, the first time that is never null" in shown
    assert written["writers"]["sessions"]["select"]["began_at"] == "timestamp_millis(began_at)"
    assert written["writers"]["views"]["select"]["session_id"] == "session"
    text = (tmp_path / "a/pipeline.yaml").read_text()
    assert "session_id: session  # field session, joined with session_id of sessions: is it the same?" in text
    other, _ = asked(tmp_path / "b", broker.bootstrap_servers, "sessions, views", "", "", "nothing", "other")
    assert other["writers"]["views"]["select"]["session_id"] == "other"


@pytest.mark.parametrize(
    ("form", "make", "key", "ordering", "key_format"),
    [
        ("avro", avro_messages, ["region", "id"], ["updated_at"], "avro"),
        ("protobuf", protobuf_messages, ["id"], ["orders_kafka_ts"], None),
        ("json-schema", json_schema_messages, ["id"], ["at"], None),
        ("debezium-avro", avro_events, ["region", "id"], ["file", "pos", "row"], None),
    ],
)
def test_formats_with_a_registry(
    tmp_path: Path,
    broker: EmbeddedBroker,
    form: str,
    make: Callable[[SchemaRegistry], Sequence[tuple[bytes | None, bytes | None]]],
    key: list[str],
    ordering: list[str],
    key_format: str | None,
) -> None:
    """Keys are those of Kafka, also if they are in a format of the registry."""
    with SchemaRegistry() as registry:
        produce(broker, f"{form}.orders", make(registry))
        written, shown = asked(tmp_path / "a", broker.bootstrap_servers, f"{form}.orders", form, registry.url)
    assert "URL of the schema registry" in shown
    assert written["registry"] == {"url": registry.url}
    assert written["table"]["config"]["key"] == key
    assert written["table"]["config"]["groups"]["orders"]["ordering"] == ordering
    assert written["writers"]["orders"]["source"].get("key_format") == key_format
    assert ("key" in written["writers"]["orders"]) == (key_format is not None)


def test_a_registry_that_is_away_leaves_the_fields_to_the_user(tmp_path: Path, broker: EmbeddedBroker) -> None:
    produce(broker, "away.orders", [(None, b"\0\0\0\0\1x")])
    answers = [broker.bootstrap_servers, "away.orders", "avro", "http://127.0.0.1:9", "id bigint, at timestamp"]
    written, shown = asked(tmp_path / "a", *answers)
    assert "topic away.orders shows no fields: " in shown
    assert written["writers"]["orders"]["schema"] == {"id": "bigint", "at": "timestamp"}
    assert written["table"]["config"]["groups"]["orders"]["ordering"] == ["at"]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_change_events_run_as_they_were_found(tmp_path: Path, broker: EmbeddedBroker) -> None:
    def event(op: str, number: int, lsn: int, **row: Any) -> tuple[bytes, bytes]:
        values = {"before" if op == "d" else "after": {"id": number, **row}}
        source = {"connector": "postgresql", "lsn": lsn}
        value = {"op": op, "ts_ms": 1_767_225_600_000, "source": source, **values}
        return json.dumps({"id": number}).encode(), json.dumps(value).encode()

    first = [event("c", 1, 1, name="a"), event("c", 2, 2, name="b")]
    produce(broker, "db.public.people", [*first, event("u", 1, 3, name="c"), event("d", 2, 4, name="b")])
    _, shown = asked(tmp_path / "a", broker.bootstrap_servers, "db.public.people", "debezium")
    assert "people: ordering: lsn, the position in the source" in shown
    file = tmp_path / "a/pipeline.yaml"
    done = run([["run", file, "--once"]], terminal=False)
    rows = Table.open(load_pipeline(file).table.uri).snapshot().to_arrow().to_pylist()
    assert rows == [{"id": 1, "name": "c", "lsn": 3}], done
    assert re.search(r"people: done · 4 rows in \d+ commits? ", done.output), done  # a batch may be empty
