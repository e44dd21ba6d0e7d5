"""``weft check`` compares declared fields with those of messages, and says whether it has looked at any."""

from __future__ import annotations

import copy
import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.kafka.topics import NOBODY, topic_numbers
from tests.streams.pipeline.file.test_pipeline import WHOLE
from tests.streams.pipeline.infer.test_infer_formats import avro_messages
from tests.streams.support.pipelines import weft
from weft.storage.config.table_config import build_schema
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.infer.check_messages import MessageFindings, check_messages
from weft.streams.pipeline.infer.check_ordering import unordered_messages

SCHEMA: dict[str, str] = WHOLE["writers"]["orders"]["schema"]


def written(folder: Path, source: Mapping[str, Any], schema: Mapping[str, str], **more: Any) -> Path:
    whole = copy.deepcopy(WHOLE)
    whole["kafka"] = {"bootstrap.servers": more.pop("servers", "127.0.0.1:9")}
    whole["writers"]["orders"] |= {"source": dict(source), "schema": dict(schema)}
    if "registry" in more:
        whole["registry"] = {"url": more.pop("registry")}
    whole["writers"]["orders"] |= more
    file = folder / "shop.yaml"
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    return file


def found(file: Path) -> MessageFindings:
    return check_messages(load_pipeline(file, {}).writers)


def topic(broker: EmbeddedBroker, *messages: tuple[bytes | None, bytes | None]) -> dict[str, str]:
    name = f"checked-{next(topic_numbers)}"
    broker.create_topics({name: 1})
    producer = broker.producer()
    for key, value in messages:
        producer.produce(name, value, key)
    assert producer.flush(30) == 0
    return {"type": "kafka", "topic": name}


def test_fields_that_no_message_has_are_named_with_the_closest(broker: EmbeddedBroker, tmp_path: Path) -> None:
    rows = [{"id": 1, "status": "new"}, {"id": 2, "Amount": None, "total": 5}]
    source = topic(broker, *((None, json.dumps(row).encode()) for row in rows), (None, None), (None, b"bad"))
    schema = {"id": "bigint", "statuss": "string", "amount": "double", "total": "int", "zzz": "int"}
    findings = found(written(tmp_path, source, schema, servers=broker.bootstrap_servers))
    assert [(each.message, each.hint) for each in findings.warnings] == [
        (
            f"writers.orders.schema.{name}: not found in 2 messages of {source['topic']}",
            f"{close}fields found: Amount, id, status, total",
        )
        for name, close in (("statuss", "did you mean status? "), ("amount", "did you mean Amount? "), ("zzz", ""))
    ]
    assert findings.checked == {"orders": f"2 messages of {source['topic']}"}
    assert findings.unchecked == {}


def test_numbers_that_look_like_another_unit_are_told(broker: EmbeddedBroker, tmp_path: Path) -> None:
    millis = 1_772_355_600_123
    rows = [
        {"id": 1, "ts": millis, "at": millis // 1000, "in": {"seen": millis * 1000}, "text": "2026-03-01T09:00:00Z"},
        {"id": 2, "ts": "2026-03-01T09:00:00Z", "at": None, "in": {"seen": None}, "text": str(millis)},
    ]
    source = topic(broker, *((None, json.dumps(row).encode()) for row in rows))
    times = {"ts": "timestamp", "at": "TIMESTAMP", "text": "timestamp", "in": "struct<seen: timestamp>"}
    findings = found(written(tmp_path, source, {"id": "bigint", **times}, servers=broker.bootstrap_servers))
    assert [(each.message.partition(", and is")[0], each.hint) for each in findings.warnings] == [
        (
            "writers.orders.schema.ts: in 1 of 2 messages it is a number that looks like milliseconds",
            "declare it bigint, and select timestamp_millis(ts)",
        ),
        (
            "writers.orders.schema.in.seen: in 1 of 2 messages it is a number that looks like microseconds",
            "declare it bigint, and select timestamp_micros(in.seen)",
        ),
    ]
    as_numbers = {"id": "bigint", "ts": "bigint", "at": "bigint"}
    assert found(written(tmp_path, source, as_numbers, servers=broker.bootstrap_servers)).warnings == []


def ordered(broker: EmbeddedBroker, folder: Path, rows: list[dict[str, Any]], **more: Any) -> list[tuple[str, str]]:
    """What is found in messages of a writer whose column ``ts`` orders the events."""
    source = topic(broker, *((None, json.dumps(row).encode()) for row in rows))
    file = written(folder, source, SCHEMA, servers=broker.bootstrap_servers, **more)
    pipeline = load_pipeline(file, {})
    assert pipeline.config is not None
    warnings = check_messages(pipeline.writers, build_schema(pipeline.config)).warnings
    return [
        (each.message.replace(source["topic"], "T"), each.hint) for each in warnings if "orders the" in each.message
    ]


ORDERS_TIME = {"order_id": "id", "status": "status", "amount": "amount"}


def test_messages_without_an_ordering_value_are_counted(broker: EmbeddedBroker, tmp_path: Path) -> None:
    row = {"id": 1, "status": "new", "amount": 1.5, "ts": "2026-03-01T09:00:00Z"}
    rows = [row, {**row, "ts": None}, {name: row[name] for name in ("id", "status", "amount")}]
    [(text, hint)] = ordered(broker, tmp_path, rows)
    assert text == (
        "writers.orders.select.ts: 2 of 3 messages have no value in ts, which orders the events, and change nothing: "
        "they would not be in the table (T)"
    )
    assert "in select: ts: coalesce(ts, _kafka.timestamp) " in hint
    assert ordered(broker, tmp_path, [row]) == []
    for expression in ("timestamp_millis(ts)", "`ts`", " CAST(ts AS timestamp) "):
        assert len(ordered(broker, tmp_path, rows, select={**ORDERS_TIME, "ts": expression})) == 1, expression


@pytest.mark.parametrize(
    "expression", ["coalesce(ts, _kafka.timestamp)", "nvl(ts)", "_kafka.timestamp", "if(ts IS NULL, now(), ts)", "zz"]
)
def test_an_expression_that_may_fill_the_gap_is_not_judged(
    broker: EmbeddedBroker, tmp_path: Path, expression: str
) -> None:
    rows = [{"id": 1, "status": "new", "amount": 1.5}]
    assert ordered(broker, tmp_path, rows, select={**ORDERS_TIME, "ts": expression}) == []


def test_a_message_for_another_group_of_the_stream_is_whole(tmp_path: Path) -> None:
    """Its fields of the first group are missing altogether."""
    groups = {"g": {"columns": ["status", "amount", "ts"], "ordering": ["ts"]}, "h": {"columns": ["n"]}}
    columns = {"order_id": "bigint", "status": "string", "amount": "double", "ts": "timestamp", "n": "int"}
    config = {"key": ["order_id"], "columns": columns, "groups": groups, "streams": {"orders": {"groups": ["g", "h"]}}}
    table = {"uri": "./lake/two", "config": config}
    select = {**ORDERS_TIME, "ts": "ts", "n": "n"}
    file = written(tmp_path, {"type": "kafka", "topic": "t"}, {**SCHEMA, "n": "int"}, select=select)
    whole = {**yaml.safe_load(file.read_text()), "table": table}
    file.write_text(yaml.safe_dump(whole))
    pipeline = load_pipeline(file, {})
    assert pipeline.config is not None
    rows = [{"id": 1, "n": 3}, {"id": 1, "status": None, "amount": None}, {"id": 2, "status": "new", "n": 1}]
    [found] = unordered_messages(pipeline.writer("orders"), build_schema(pipeline.config), rows, "T")
    assert "1 of 3 messages have no value in ts, which orders the events, and do not change group g" in found.message


def test_fields_of_the_kafka_key(broker: EmbeddedBroker, tmp_path: Path) -> None:
    source = topic(broker, (b'{"order": 1}', json.dumps(dict.fromkeys(SCHEMA, 1)).encode()))
    file = written(tmp_path, source, SCHEMA, servers=broker.bootstrap_servers, key={"id": "bigint"})
    [warning] = found(file).warnings
    assert warning.message == f"writers.orders.key.id: not found in the keys of {source['topic']}"


def test_fields_of_schemas_in_a_registry(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with SchemaRegistry() as registry:
        source = {**topic(broker, *avro_messages(registry)), "format": "avro"}
        schema = {"id": "bigint", "note": "string", "amont": "decimal(12,2)"}
        file = written(tmp_path, source, schema, servers=broker.bootstrap_servers, registry=registry.url)
        [warning] = found(file).warnings
    assert warning.message.startswith("writers.orders.schema.amont: not found in ")
    assert warning.hint.startswith("did you mean amount?")


def test_sources_without_messages_say_so(broker: EmbeddedBroker, tmp_path: Path) -> None:
    empty = topic(broker)
    findings = found(written(tmp_path, empty, SCHEMA, servers=broker.bootstrap_servers))
    assert findings.unchecked == {"orders": f"there is no message in {empty['topic']}"}
    assert findings.warnings == []
    bad = topic(broker, (None, b"[1]"))
    [warning] = found(written(tmp_path, bad, SCHEMA, servers=broker.bootstrap_servers)).warnings
    assert warning.message.startswith("writers.orders.source: none of 1 message is a JSON object")
    missing = {"type": "kafka", "topic": "nobody"}
    [warning] = found(written(tmp_path, missing, SCHEMA, servers=broker.bootstrap_servers)).warnings
    assert "nobody" in warning.message


@pytest.mark.parametrize("form", ["json", "parquet", "csv"])
def test_files(tmp_path: Path, form: str) -> None:
    (tmp_path / "in").mkdir()
    source = {"type": "files", "path": "./in", "format": form}
    if form == "parquet":
        pq.write_table(pa.table({"ID": [1], "status": ["new"]}), tmp_path / "in/a.parquet")
    elif form == "csv":
        source["options"] = {"header": "true"}  # type: ignore[assignment]
        (tmp_path / "in/a.csv").write_text("id,status\n1,new\n")
    else:
        (tmp_path / "in/a.json").write_text('{"id": 1, "status": "new"}\n')
    [warning] = found(written(tmp_path, source, {"id": "bigint", "stat": "string"})).warnings
    assert warning.message.startswith("writers.orders.schema.stat: not found in 1 message of ")


def test_files_that_do_not_name_their_fields_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("1,new\n")
    file = written(tmp_path, {"type": "files", "path": "./in", "format": "csv"}, {"id": "bigint", "stat": "string"})
    assert found(file).unchecked == {"orders": "files without a header do not name their fields"}


@pytest.mark.parametrize(
    ("path", "reason"), [("s3://b/in", "s3://b/in is not local"), ("./in", "there is no file in ")]
)
def test_files_that_are_not_there_yet_or_elsewhere_are_not_looked_at(tmp_path: Path, path: str, reason: str) -> None:
    findings = found(written(tmp_path, {"type": "files", "path": path, "format": "json"}, {"id": "bigint"}))
    assert findings.warnings == []
    assert findings.unchecked["orders"].startswith(reason)


def test_warnings_are_printed_and_are_no_problems(broker: EmbeddedBroker, tmp_path: Path) -> None:
    source = topic(broker, (None, b'{"id": 1, "status": "new", "ts": 5}'))
    file = written(tmp_path, source, SCHEMA, servers=broker.bootstrap_servers)
    done = weft("check", file, "--without-spark")
    assert done.exit_code == 0, done.output
    assert ": warning: writers.orders.schema.amount: not found in 1 message of" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{file}: no problem found, 1 warning"
    assert "orders: fields were compared with 1 message" in done.stderr
    [line] = [json.loads(line) for line in weft("check", file, "--without-spark", "--json").stdout.splitlines()]
    assert line["severity"] == "warning"
    alone = weft("check", file, "--without-spark", "--without-messages")
    assert alone.stdout == f"{file}: no problem found\n"
    assert "messages were not looked at" in alone.stderr


def test_what_the_file_shows_is_printed_before_a_broker_is_asked(tmp_path: Path) -> None:
    """The broker accepts connections and never answers; two writers ask it once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = written(
            tmp_path, {"type": "kafka", "topic": "t"}, SCHEMA, servers=f"127.0.0.1:{silent.getsockname()[1]}"
        )
        whole = yaml.safe_load(file.read_text())
        whole["writers"]["again"] = {**whole["writers"]["orders"], "lane": "again", "stream": "orders"}
        whole["table"]["url"] = "x"
        file.write_text(yaml.safe_dump(whole, sort_keys=False))
        argv = [sys.executable, "-m", "weft.streams.cli.main", "check", str(file), "--without-spark"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert "table.url: is not a known field" in process.stdout.readline()
            assert process.poll() is None
            output, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert output.splitlines()[-1] == "1 problem"
    assert errors.startswith("orders, again: messages were not looked at: Kafka at")


def test_brokers_that_do_not_answer_have_an_exit_code_of_their_own(tmp_path: Path) -> None:
    """Nothing is wrong so far as could be seen, which is not the same as that nothing is wrong."""
    file = written(tmp_path, {"type": "kafka", "topic": "orders"}, SCHEMA, servers=NOBODY)
    done = weft("check", file, "--without-spark")
    assert done.exit_code == 3, done.stderr
    assert "no problem found, but not everything could be checked" in done.stdout
    assert "orders: messages were not looked at: Kafka at" in done.stderr
    (line,) = weft("check", file, "--without-spark", "--json").stdout.splitlines()
    assert json.loads(line)["severity"] == "skipped"
    assert weft("check", file, "--without-spark", "--without-messages").exit_code == 0
