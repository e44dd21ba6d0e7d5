"""``weft infer`` for every format: its proposal is a file that ``weft check`` accepts, and it says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession

from tests.streams.formats.debezium_messages import columns_of, write_event
from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import logical, record, written
from tests.streams.formats.test_protobuf import OTHER, ROW, serializer
from tests.streams.kafka.topics import topic_numbers
from tests.streams.support.pipelines import weft
from weft.storage.config.table_config import build_schema
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.formats import registry as registry_module
from weft.streams.pipeline.file.check_file import check_file
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.write.check_expressions import expression_problems

Message = tuple[bytes | None, bytes | None]
Make = Callable[[SchemaRegistry], Sequence[Message]]

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "region", "type": "string"},
        {"name": "id", "type": "long", "doc": "number of the order: unique in its region"},
        {
            "name": "amount",
            "type": ["null", logical("bytes", "decimal", precision=12, scale=2)],
            "default": None,
            "doc": "EUR",
        },
        {"name": "updated_at", "type": logical("long", "timestamp-micros")},
    ],
}


def header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def avro_messages(registry: SchemaRegistry) -> list[Message]:
    """Two versions of the schema, a composite key in Avro, and a message that is none."""
    key = {"type": "record", "name": "Key", "fields": [{"name": "region", "type": "string"}, ORDER["fields"][1]]}
    key_id = registry.register("orders-key", json.dumps(key))
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    made: list[Message] = []
    for schema in (ORDER, newer):
        schema_id = registry.register("orders-value", json.dumps(schema))
        for number in range(3):
            row = {"region": "north", "id": number, "amount": None, "updated_at": number}
            made.append((written(key, row, key_id), written(schema, row, schema_id)))
    return [*made, (None, b"\1bad"), (made[0][0], None)]


def protobuf_messages(registry: SchemaRegistry) -> list[Message]:
    serialize = serializer(registry, ROW)
    return [(str(number).encode(), serialize(ROW(id=number, name="a"))) for number in range(3)]


def json_schema_messages(registry: SchemaRegistry) -> list[Message]:
    properties = {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}, "n": {"type": "number"}}
    schema = {"type": "object", "title": "Order", "properties": properties, "required": ["id"]}
    schema_id = registry.register("orders-value", json.dumps(schema), "JSON")
    return [(None, header(schema_id) + b'{"id": 1, "at": "2024-01-01T00:00:00Z"}')]


def events(*, envelope: bool) -> Make:
    """Change events with a composite key, which are deletes as well."""

    def make(_: SchemaRegistry) -> list[Message]:
        columns = columns_of(["bigint", "text", "precise", "micros"])
        row = {"c0": 1, "c1": "a", "c2": None, "c3": None}
        key = {"schema": {"type": "struct", "fields": []}, "payload": {"c0": 1, "c1": "a"}} if envelope else {"c0": 1}
        made = [write_event(columns, "c", after=row, envelope=envelope)]
        made.append(write_event(columns, "d", before=row, envelope=envelope))
        return [*((json.dumps(key).encode(), value) for value in made), (json.dumps(key).encode(), None)]

    return make


def avro_events(registry: SchemaRegistry) -> list[Message]:
    source = {"type": "record", "name": "Source", "fields": [{"name": "connector", "type": "string"}]}
    fields = [
        {"name": "before", "type": ["null", ORDER]},
        {"name": "after", "type": ["null", "shop.Order"]},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
    ]
    event = {"type": "record", "name": "Envelope", "namespace": "server.orders", "fields": fields}
    schema_id = registry.register("events-value", json.dumps(event))
    row = {"region": "north", "id": 1, "amount": None, "updated_at": 1}
    value = {"before": None, "after": row, "source": {"connector": "mysql"}, "op": "c"}
    return [(b'{"region": "north", "id": 1}', written(event, value, schema_id))]


def proposed(path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The proposal, which replaces the file, as values and as text."""
    done = weft("infer", path, *arguments)
    assert done.exit_code == 0, done.output
    path.write_text(done.stdout)
    assert check_file(path).problems == []
    whole: dict[str, Any] = yaml.safe_load(done.stdout)
    return whole, done.stdout


class Pipelines:
    """Writes pipeline files whose topics have messages."""

    def __init__(self, folder: Path, broker: EmbeddedBroker, registry: SchemaRegistry) -> None:
        self.path = folder / "p.yaml"
        self.registry = registry
        self._broker = broker

    def topic(self, messages: Sequence[Message]) -> str:
        name = f"infer-{next(topic_numbers)}"
        self._broker.create_topics({name: 1})
        producer = self._broker.producer()
        for key, value in messages:
            producer.produce(name, value, key)
        assert producer.flush(60) == 0
        return name

    def write(self, messages: Sequence[Message], **source: Any) -> Path:
        return self.write_topics(orders={"topic": self.topic(messages), **source})

    def write_topics(self, **sources: dict[str, Any]) -> Path:
        writers = {name: {"source": {"type": "kafka", **source}} for name, source in sources.items()}
        whole = {
            "table": {"uri": "./wide"},
            "kafka": {"bootstrap.servers": self._broker.bootstrap_servers},
            "registry": {"url": self.registry.url},
            "writers": writers,
        }
        self.path.write_text(yaml.safe_dump(whole))
        return self.path


@pytest.fixture
def pipelines(tmp_path: Path, broker: EmbeddedBroker) -> Any:
    with SchemaRegistry() as registry:
        yield Pipelines(tmp_path, broker, registry)


def test_avro_with_a_composite_key(pipelines: Pipelines) -> None:
    messages = avro_messages(pipelines.registry)
    whole, text = proposed(pipelines.write(messages, format="avro", key_format="avro"))
    writer, config = whole["writers"]["orders"], whole["table"]["config"]
    assert writer["schema"] == {
        "region": "string",
        "id": "bigint",
        "amount": "decimal(12,2)",
        "updated_at": "timestamp",
        "note": "string",
    }
    assert (config["key"], writer["key"]) == (["region", "id"], {"region": "string", "id": "bigint"})
    assert config["groups"]["orders"] == {"columns": ["amount", "updated_at", "note"], "ordering": ["updated_at"]}
    number = {"type": "bigint", "comment": "number of the order: unique in its region"}
    assert (config["columns"]["id"], config["columns"]["amount"]) == (
        number,
        {"type": "decimal(12,2)", "comment": "EUR"},
    )
    assert "      id: bigint  # never null; number of the order: unique in its region\n" in text
    assert "2 versions of the schema" in text
    assert "1 of 8 messages become dead letters: the value does not begin with the id of a schema" in text


def test_a_key_that_the_value_does_not_have(pipelines: Pipelines) -> None:
    schema = record({"status": "string"})
    schema_id, key_id = (pipelines.registry.register(*given) for given in (("v", json.dumps(schema)), ("k", '"long"')))
    messages = [(written("long", 7, key_id), written(schema, {"status": "new"}, schema_id))]
    whole, _ = proposed(pipelines.write(messages, format="avro", key_format="avro"))
    assert whole["writers"]["orders"]["key"] == {"order_id": "bigint"}
    assert whole["writers"]["orders"]["select"]["order_id"] == "_key.order_id"
    assert whole["table"]["config"]["columns"]["order_id"] == "bigint"


def test_protobuf(pipelines: Pipelines) -> None:
    whole, text = proposed(pipelines.write(protobuf_messages(pipelines.registry), format="protobuf"))
    assert whole["writers"]["orders"]["schema"]["home"] == "struct<city:string>"
    assert whole["table"]["config"]["key"] == ["id"]
    assert "id (it has the value of the Kafka key)" in text


def test_json_schema_with_and_without_a_registry(pipelines: Pipelines) -> None:
    path = pipelines.write(json_schema_messages(pipelines.registry), format="json-schema")
    before = path.read_text()
    whole, _ = proposed(path)
    assert whole["writers"]["orders"]["schema"] == {"id": "bigint", "at": "timestamp", "n": "double"}
    whole = yaml.safe_load(before)
    del whole["registry"]
    path.write_text(yaml.safe_dump(whole))
    whole, text = proposed(path)
    assert whole["writers"]["orders"]["schema"] == {"id": "bigint", "at": "timestamp"}
    assert "types are those of the sample: add registry" in text


@pytest.mark.parametrize("envelope", [True, False])
def test_change_events(pipelines: Pipelines, *, envelope: bool) -> None:
    whole, text = proposed(pipelines.write(events(envelope=envelope)(pipelines.registry), format="debezium"))
    writer, config = whole["writers"]["orders"], whole["table"]["config"]
    assert config["key"] == (["c0", "c1"] if envelope else ["c0"])
    assert writer["select"]["lsn"] == "_debezium.source.lsn"
    assert config["groups"]["orders"]["ordering"] == ["lsn"]
    assert "merge: latest_non_null" in text
    if envelope:
        assert writer["schema"] == {"c0": "bigint", "c1": "string", "c2": "decimal(38,2)", "c3": "timestamp"}
    else:
        assert "2 messages have no schema: times and decimals are numbers and texts" in text


def test_change_events_as_avro(pipelines: Pipelines) -> None:
    whole, _ = proposed(pipelines.write(avro_events(pipelines.registry), format="debezium-avro"))
    writer, config = whole["writers"]["orders"], whole["table"]["config"]
    assert writer["schema"]["amount"] == "decimal(12,2)"
    assert config["key"] == ["region", "id"]
    assert config["groups"]["orders"]["ordering"] == ["file", "pos", "row"]
    assert [config["columns"][name] for name in ("file", "pos", "row")] == ["string", "bigint", "bigint"]


def test_a_topic_without_messages_has_the_newest_schema_of_the_registry(pipelines: Pipelines) -> None:
    topic = pipelines.topic([])
    path = pipelines.write_topics(orders={"topic": topic, "format": "avro"})
    refused = weft("infer", path)
    assert refused.exit_code == 1
    assert f"there is no message in {topic}, and the registry has no subject {topic}-value" in refused.stderr
    pipelines.registry.register(f"{topic}-value", json.dumps(ORDER))
    whole, text = proposed(path)
    assert whole["table"]["config"]["key"] == ["id"]
    assert "there is no value: the fields are those of schema 1, the newest one" in text


def two_types(registry: SchemaRegistry) -> list[Message]:
    values = [serializer(registry, ROW)(ROW(id=1)), serializer(registry, OTHER)(OTHER(id=2))]
    return [(None, value) for value in values]


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("avro", lambda _: [(None, header(999))], "schema 999 is not in the schema registry, and the values in"),
        ("avro", lambda _: [(None, b"{}")], "none of 1 values in"),
        ("avro", json_schema_messages, "schema 1 is of type JSON, not AVRO"),
        ("json-schema", avro_messages, "schema 3 is of type AVRO, not JSON"),
        ("protobuf", two_types, "messages are of 2 types: shop.Other (1), shop.Row (1)"),
        ("debezium-avro", avro_messages, "schema 3 does not describe a change event of Debezium"),
        ("debezium", lambda _: [(None, b'{"id": 1}')], "none of 1 message is a change event of Debezium with a row"),
        ("debezium", lambda _: [], "there is no message in"),
    ],
)
def test_what_is_wrong_is_said(
    pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch, name: str, make: Make, message: str
) -> None:
    monkeypatch.setattr(registry_module, "RETRY_SECONDS", ())
    done = weft("infer", pipelines.write(make(pipelines.registry), format=name))
    assert done.exit_code == 1
    assert f"writers.orders.source: {message}" in done.stderr
    assert done.stdout == ""


def test_a_registry_that_is_away(pipelines: Pipelines) -> None:
    path = pipelines.write(avro_messages(pipelines.registry), format="avro")
    pipelines.registry.failing = -1
    done = weft("infer", path)
    assert done.exit_code == 1
    assert "does not give the types of its schemas: HTTP 503" in done.stderr


# --- files -----------------------------------------------------------------------------------------------------------


def files_pipeline(folder: Path, file_format: str, **source: Any) -> Path:
    path = folder / "p.yaml"
    given = {"type": "files", "format": file_format, "path": "./landing", **source}
    path.write_text(yaml.safe_dump({"table": {"uri": "./wide"}, "writers": {"orders": {"source": given}}}))
    (folder / "landing").mkdir(exist_ok=True)
    return path


def test_json_files(tmp_path: Path) -> None:
    path = files_pipeline(tmp_path, "json")
    (tmp_path / "landing" / "a.json").write_text('{"order_id": 1, "on": "2024-01-01"}\n\nnot json\n')
    whole, text = proposed(path)
    assert whole["writers"]["orders"]["schema"] == {"order_id": "bigint", "on": "date"}
    assert whole["writers"]["orders"]["select"]["orders_kafka_ts"] == "_kafka.timestamp"
    assert "ordering: the time at which the file was modified" in text


def test_csv_files(tmp_path: Path) -> None:
    path = files_pipeline(tmp_path, "csv", options={"header": True, "sep": ";"})
    text = "id;zip;price;ok;day;note\n1;01234;1.5;true;2024-01-01;\n2;99999;2;false;2024-01-02;a\n"
    (tmp_path / "landing" / "a.csv").write_text(text)
    whole, _ = proposed(path)
    assert whole["writers"]["orders"]["schema"] == {
        "id": "bigint",
        "zip": "string",
        "price": "double",
        "ok": "boolean",
        "day": "date",
        "note": "string",
    }
    plain = files_pipeline(tmp_path, "csv")
    (tmp_path / "landing" / "a.csv").write_text("1,a\n2,\n")
    whole, output = proposed(plain)
    assert whole["writers"]["orders"]["schema"] == {"c1": "bigint", "c2": "string"}
    assert "the files have no header" in output


def test_parquet_files(tmp_path: Path) -> None:
    path = files_pipeline(tmp_path, "parquet")
    rows = {
        "order_id": pa.array([1, 2], pa.int32()),
        "updated_at": pa.array([1, 2], pa.timestamp("us", "UTC")),
        "took": pa.array([1, 2], pa.time64("us")),
    }
    pq.write_table(pa.table(rows), tmp_path / "landing" / "a.parquet")
    rows["order_id"] = pa.array([1, 2**40], pa.int64())
    pq.write_table(pa.table(rows), tmp_path / "landing" / "b.parquet")
    whole, text = proposed(path)
    assert whole["writers"]["orders"]["schema"] == {"order_id": "bigint", "updated_at": "timestamp"}
    assert whole["table"]["config"]["groups"]["orders"]["ordering"] == ["updated_at"]
    assert "field 'took' is left out: no column has the type time64[us]" in text


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("./landing", None, "there is no file in"),
        ("./landing", b"PAR0", "is not parquet"),
        ("s3://bucket/landing", None, "s3://bucket/landing is not local"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, path: str, content: bytes | None, message: str) -> None:
    file = files_pipeline(tmp_path, "parquet", path=path)
    if content is not None:
        (tmp_path / "landing" / "a.parquet").write_bytes(content)
    done = weft("infer", file)
    assert done.exit_code == 1
    assert "writers.orders.source: " in done.stderr
    assert message in done.stderr


# --- with Spark ------------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_expressions_for_all_formats_in_one_table(spark: SparkSession, pipelines: Pipelines) -> None:
    registry = pipelines.registry
    made: dict[str, tuple[str, Sequence[Message]]] = {
        "orders": ("avro", avro_messages(registry)),
        "rows": ("protobuf", protobuf_messages(registry)),
        "notes": ("json-schema", json_schema_messages(registry)),
        "changes": ("debezium", events(envelope=True)(registry)),
        "events": ("debezium-avro", avro_events(registry)),
    }
    sources: dict[str, dict[str, Any]] = {
        name: {"topic": pipelines.topic(messages), "format": kind} for name, (kind, messages) in made.items()
    }
    sources["orders"]["key_format"] = "avro"
    path = pipelines.write_topics(**sources)
    proposed(path)
    pipeline = load_pipeline(path)
    assert pipeline.config is not None
    schema = build_schema(pipeline.config)
    for writer in pipeline.writers.values():
        assert list(expression_problems(spark, writer, schema)) == []
