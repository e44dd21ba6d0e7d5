"""``weft infer``: what samples of messages show, and a proposal that ``weft check`` accepts."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.streams.support.pipelines import weft
from weft.storage.config.table_config import build_schema, load_config
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.check_file import check_file
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.infer.infer_key import Fields, propose_fields
from weft.streams.pipeline.infer.json_types import infer_type, json_messages
from weft.streams.pipeline.infer.proposal import propose
from weft.streams.write.check_expressions import expression_problems


def message(key: Any = None, **fields: Any) -> tuple[bytes | None, bytes]:
    return None if key is None else json.dumps(key).encode(), json.dumps(fields).encode()


def inferred(*messages: tuple[bytes | None, bytes | None], stream: str = "orders") -> Fields:
    found = propose_fields(json_messages(stream, messages))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None], "bigint"),
        ([1, 2**63], "decimal(38,0)"),
        ([-(2**63)], "bigint"),
        ([1, 2.5], "double"),
        ([True, False], "boolean"),
        ([True, 1], "string"),
        (["a", "b"], "string"),
        (["2024-02-29T12:00:00Z", "2024-02-29 12:00:00.123+02:00"], "timestamp"),
        (["2024-02-29T12:00:00Z", "soon"], "string"),
        (["2024-02-29"], "date"),
        (["20240229"], "string"),
        ([None], "string"),
        ([], "string"),
        ([[1], [2.5, None]], "array<double>"),
        ([[]], "array<string>"),
        ([{"a": 1}, {"b": "x", "a": None}], "struct<a:bigint,b:string>"),
        ([{"a": {"b": [{"c": True}]}}], "struct<a:struct<b:array<struct<c:boolean>>>>"),
        ([{}], "string"),
        ([{"a b": 1}], "string"),
        ([{"a": 1, "A": 1}], "string"),
        ([{"a": 1}, [1]], "string"),
    ],
)
def test_types(values: list[Any], kind: str) -> None:
    assert infer_type(values) == kind


@pytest.mark.parametrize(
    ("messages", "key"),
    [
        ([message({"no": 1}, no=1, id=5), message({"no": 2}, no=2, id=6)], "no"),
        ([message(7, id=1, number=7), message(8, id=2, number=8)], "number"),
        ([(b"x", b'{"id": 1, "code": "x"}')], "code"),
        ([message(a=1, order_id=5, id=3)], "order_id"),
        ([message(a=1, id=3)], "id"),
        ([message(a=1, customer_id=3)], "customer_id"),
        ([message(a=None, b=2)], "b"),
        ([message({"x": 1, "y": 2}, x=1, y=2, id=3)], "id"),
        ([message(id=1.5, a="x")], "a"),
        ([message(id=None, a="x"), message(id=1, a="y")], "a"),
    ],
)
def test_the_key(messages: list[tuple[bytes | None, bytes]], key: str) -> None:
    assert inferred(*messages).key == key


@pytest.mark.parametrize(
    ("fields", "ordering"),
    [
        ({"id": 1, "created_at": "2024-01-01T00:00:00Z", "updated_at": "2024-01-01T00:00:00Z"}, "updated_at"),
        ({"id": 1, "order_ts": 5}, "order_ts"),
        ({"id": 1, "version": "a", "ts": 7}, "ts"),
        ({"id": 1, "updated_at": None, "ts": 7}, "ts"),
        ({"id": 1, "lots": 7}, None),
    ],
)
def test_the_ordering_column(fields: dict[str, Any], ordering: str | None) -> None:
    assert inferred(message(**fields)).ordering == ordering


def test_what_is_not_certain_is_said() -> None:
    found = inferred(
        message(id=1, gone=None, a=1, A=2, _op="d", ts=1), (None, b"not json"), (None, b"[1]"), (b"k", None)
    )
    assert found.schema == {"id": "bigint", "gone": "string", "ts": "bigint"}
    notes = "\n".join((*found.notes, *found.guesses))
    assert "2 of 4 messages are not JSON objects" in notes
    assert "'gone' is null in all messages" in notes
    assert "'A' is left out" in notes
    assert "'_op' is left out" in notes
    assert "is it right?" in notes
    for nothing in ([(None, b"x"), (None, None)], []):
        assert propose_fields(json_messages("s", nothing)) is None


SECONDS = 1_767_225_600


@pytest.mark.parametrize(
    ("name", "values", "sql"),
    [
        ("started_at", [SECONDS, None, SECONDS + 5], "timestamp_seconds(started_at)"),
        ("ts", [SECONDS * 1000], "timestamp_millis(ts)"),
        ("eventTime", [SECONDS * 10**6, SECONDS * 10**6 + 1], "timestamp_micros(eventTime)"),
        ("created_ms", [SECONDS * 1000], "created_ms"),  # no name of a time: milliseconds of what?
        ("ts_ms", [SECONDS * 1000], "timestamp_millis(ts_ms)"),
        ("created_at", [SECONDS, SECONDS * 1000], "created_at"),  # two units
        ("created_at", [SECONDS, 5], "created_at"),
        ("created_at", [None], "created_at"),
        ("when", [SECONDS * 1000], "timestamp_millis(when)"),
        ("whenever", [SECONDS * 1000], "whenever"),
        ("started", [SECONDS * 1000], "timestamp_millis(started)"),
        ("sent", [SECONDS, 7], "sent"),  # a number of messages
        ("restarted", [SECONDS], "restarted"),
        ("lots", [SECONDS], "lots"),
        ("flat", [SECONDS], "flat"),
        ("format", [SECONDS], "format"),
        ("created_at", [float(SECONDS)], "created_at"),
    ],
)
def test_integers_that_are_times(name: str, values: list[Any], sql: str) -> None:
    found = inferred(*(message(**{"id": number, name: value, "x": 1}) for number, value in enumerate(values)))
    proposal = propose({"orders": found})
    assert proposal.writers["orders"]["select"][name] == sql
    assert (proposal.config["columns"][name] == "timestamp") == (sql != name)
    assert found.schema[name] != "timestamp"
    build_schema(load_config(proposal.config))


def test_a_time_as_an_integer_orders_the_events() -> None:
    found = inferred(message(id=1, began_at=SECONDS, x=3))
    assert found.ordering == "began_at"
    assert "ordering: began_at, the first time that is never null: is it right?" in found.guesses
    proposal = propose({"orders": found})
    assert proposal.config["groups"]["orders"]["ordering"] == ["began_at"]
    assert proposal.writers["orders"]["select"] == {"id": "id", "began_at": "timestamp_seconds(began_at)", "x": "x"}


def test_what_is_the_same_in_all_events_of_a_key_orders_nothing() -> None:
    first, other = {"id": 1, "created_at": SECONDS}, {"id": 2, "created_at": SECONDS + 9}
    assert inferred(message(**first, x=1), message(**other, x=1)).ordering == "created_at"
    assert inferred(message(**first, x=1), message(**first, x=1), message(**other, x=1)).ordering == "created_at"
    assert inferred(message(**first, x=1), message(**first, x=2), message(**other, x=1)).ordering is None


def test_a_key_with_another_name_is_said_to_be_joined() -> None:
    events = inferred(message(session=5, url="/"), stream="events")
    proposal = propose({"sessions": inferred(message(session_id=5, user="a"), stream="sessions"), "events": events})
    text = "field session, joined with session_id of sessions: is it the same?"
    assert proposal.joins == {"events": {"session_id": text}}
    assert proposal.notes == {"events": [f"key: session_id is {text}"]}


def test_streams_share_a_key_and_have_columns_of_their_own() -> None:
    orders = inferred(message(order_id=1, status="new", note="x", ts=5))
    payments = inferred(message(id=1, paid=1.5, note="y"), stream="payments")
    found = propose({"orders": orders, "pay": payments})
    assert found.config["key"] == ["order_id"]
    assert found.config["columns"] == {
        "order_id": "bigint",
        "status": "string",
        "orders_note": "string",
        "ts": "bigint",
        "paid": "double",
        "payments_note": "string",
        "payments_kafka_ts": "timestamp",
    }
    assert found.config["groups"]["payments"] == {
        "columns": ["paid", "payments_note", "payments_kafka_ts"],
        "ordering": ["payments_kafka_ts"],
    }
    assert found.writers["pay"]["select"] == {
        "order_id": "id",
        "paid": "paid",
        "payments_note": "note",
        "payments_kafka_ts": "_kafka.timestamp",
    }
    build_schema(load_config(found.config))


def test_names_that_sql_does_not_take_are_quoted() -> None:
    found = propose({"orders": inferred(message(**{"id": 1, "first name": "x", "2nd": 1, "a`b": 2}))})
    assert found.writers["orders"]["select"] == {
        "id": "id",
        "first_name": "`first name`",
        "_2nd": "`2nd`",
        "a_b": "`a``b`",
        "orders_kafka_ts": "_kafka.timestamp",
    }
    build_schema(load_config(found.config))


def written(folder: Path, broker: str, topics: dict[str, str], **more: Any) -> Path:
    path = folder / "p.yaml"
    writers = {name: {"source": {"type": "kafka", "topic": topic}} for name, topic in topics.items()}
    kafka = {"bootstrap.servers": broker, "client.id": "${CLIENT}"}
    path.write_text(yaml.safe_dump({"table": {"uri": "./wide"}, "kafka": kafka, "writers": writers, **more}))
    return path


@pytest.fixture
def path(tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline file with two writers, whose topics have messages."""
    monkeypatch.setenv("CLIENT", "me")
    names = {"orders": f"orders-{uuid.uuid4().hex}", "payments": f"payments-{uuid.uuid4().hex}"}
    broker.create_topics({names["orders"]: 2, names["payments"]: 1})
    producer = broker.producer()
    for number in range(50):
        order = {"order_id": number, "status": "new", "lines": [{"sku": "a", "n": 1}], "ts": "2024-01-01T00:00:00Z"}
        producer.produce(names["orders"], json.dumps(order).encode(), str(number).encode())
        pay = {"id": number, "paid": 1 if number % 2 else 1.5, "status": "ok", "meta": {"x y": 1}}
        producer.produce(names["payments"], json.dumps(pay).encode())
    producer.produce(names["payments"], b"not json")
    assert producer.flush(60) == 0
    return written(tmp_path, broker.bootstrap_servers, names)


def test_the_proposal_is_a_file_that_check_accepts(path: Path) -> None:
    done = weft("infer", path, "--sample", "40")
    assert done.exit_code == 0, done.output
    assert "# orders: key: order_id (it has the value of the Kafka key)" in done.stdout
    assert "payments: 1 of 40 messages are not JSON objects" in done.stderr
    assert "${CLIENT}" in done.stdout, "values of references are not printed"
    path.write_text(done.stdout)
    assert check_file(path).problems == []
    pipeline = load_pipeline(path)
    assert pipeline.config is not None
    assert pipeline.config.columns["lines"].type == "array<struct<sku:string,n:bigint>>"

    again = weft("infer", path)
    assert again.exit_code == 2
    assert "every Kafka writer has a schema" in again.stderr

    # A file with a table gets only schemas.
    whole = yaml.safe_load(done.stdout)
    del whole["writers"]["orders"]["schema"]
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    only_schemas = weft("infer", path)
    assert yaml.safe_load(only_schemas.stdout) == yaml.safe_load(done.stdout)
    assert "not proposed" not in only_schemas.stderr

    # Without a table, a writer that has a schema leaves no table to propose, and infer says so.
    del whole["table"]["config"]
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    told = weft("infer", path).stderr
    assert "table.config and select are not proposed, because not every writer is inferred: payments" in told


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_expressions_of_the_proposal_are_right(spark: SparkSession, path: Path) -> None:
    path.write_text(weft("infer", path).stdout)
    pipeline = load_pipeline(path)
    assert pipeline.config is not None
    schema = build_schema(pipeline.config)
    for writer in pipeline.writers.values():
        assert list(expression_problems(spark, writer, schema)) == []


def test_a_topic_without_messages(tmp_path: Path, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT", "me")
    broker.create_topics({"infer-empty": 1})
    empty = weft("infer", written(tmp_path, broker.bootstrap_servers, {"orders": "infer-empty"}))
    assert empty.exit_code == 1
    assert "writers.orders.source: there is no message in infer-empty" in empty.stderr


@pytest.mark.parametrize(
    ("writers", "message"),
    [
        ({"a": {"source": {"type": "spark", "format": "rate"}}}, "every Kafka writer has a schema"),
        ({"a": {"source": {"type": "kafka", "topic": "t", "format": "avro"}}}, "'avro' needs a schema registry"),
        ({"a": {"source": {"type": "kafka", "tpoic": "t"}}}, "writers.a.source.tpoic: is not a known field"),
        ({"a": {"source": {"type": "kafka", "topic": "t", "options": {"failOnDataLoss": "x"}}}}, "failOnDataLoss"),
    ],
)
def test_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: dict[str, Any], message: str) -> None:
    monkeypatch.setenv("CLIENT", "me")
    done = weft("infer", written(tmp_path, "127.0.0.1:1", {}, writers=writers))
    assert done.exit_code == 2
    assert message in done.stderr


def test_no_answer_of_the_broker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT", "me")
    path = written(tmp_path, "127.0.0.1:1", {"a": "t"})
    whole = yaml.safe_load(path.read_text())
    whole["writers"]["a"]["source"]["options"] = {"requestTimeoutMs": 500}
    path.write_text(yaml.safe_dump(whole))
    done = weft("infer", path)
    assert done.exit_code == 1
    assert "127.0.0.1:1" in done.stderr
