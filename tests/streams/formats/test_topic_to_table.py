"""From a topic to the rows of a table, by a pipeline file: keys, headers, and schemas that change meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import record, written
from tests.streams.kafka.topics import WAIT_SECONDS, topic_numbers
from tests.streams.write.sink.rig import TEST_SECONDS, run
from weft import Table
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.formats.registry import NO_HEADER
from weft.streams.pipeline.file.check import key_of
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.write.sink import CommitReport
from weft.streams.write.writer_job import read_events

pytestmark = [pytest.mark.spark, pytest.mark.timeout(TEST_SECONDS)]

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {"id": "bigint", "name": "string", "note": "string", "origin": "string", "seq": "bigint"},
    "groups": {"row": {"columns": ["name", "note", "origin", "seq"], "ordering": ["seq"]}},
    "streams": {"rows": {"groups": ["row"]}},
}


@pytest.mark.extended
def test_avro_values_and_keys_with_headers_while_the_schema_changes(
    spark: SparkSession, broker: EmbeddedBroker, registry: SchemaRegistry, tmp_path: Path
) -> None:
    topic = f"avro-{next(topic_numbers)}"
    broker.create_topics({topic: 1})
    key_id = registry.register(f"{topic}-key", json.dumps("long"))
    first, second = record({"id": "long", "name": "string"}), record({"note": "string", "id": "long", "name": "string"})
    select = {
        "id": "id",
        "name": "name",
        "note": "note",
        "origin": "decode(filter(_kafka.headers, h -> h.key = 'origin')[0].value, 'UTF-8')",
        "seq": "_kafka.offset",
    }
    writer: dict[str, Any] = {
        "source": {"type": "kafka", "topic": topic, "format": "avro", "key_format": "avro"},
        "schema": {"id": "bigint", "name": "string", "note": "string"},
        "select": select,
        "where": "_kafka.partition = 0",
        "tombstones": "delete",
        "dead_letter": str(tmp_path / "dead"),
    }
    file = tmp_path / "shop.yaml"
    whole = {
        "table": {"uri": "./table", "config": CONFIG},
        "kafka": {"bootstrap.servers": broker.bootstrap_servers},
        "registry": {"url": registry.url},
        "writers": {"rows": writer},
    }
    file.write_text(yaml.safe_dump(whole))
    spec = load_pipeline(file, {}).writer("rows")
    table = Table.create(tmp_path / "table", CONFIG)
    commits: list[CommitReport] = []

    def send(schema: Any, *rows: dict[str, Any] | bytes | int) -> None:
        """A row, a value that is none, or the id of a row to delete by a tombstone."""
        producer = broker.producer()
        schema_id = registry.register(f"{topic}-value", json.dumps(schema))
        for row in rows:
            value = row if isinstance(row, bytes) else None if isinstance(row, int) else written(schema, row, schema_id)
            key = row["id"] if isinstance(row, dict) else row if isinstance(row, int) else 0
            headers = [("origin", b"test"), ("other", None)]
            producer.produce(topic, value=value, key=written("long", key, key_id), headers=headers)
        assert producer.flush(WAIT_SECONDS) == 0

    def write() -> None:
        events = read_events(spark, spec, None, key_of(spec, table.schema))
        run(events, table, tmp_path, "rows", dead_letter=spec.dead_letter, on_commit=commits.append)

    def rows() -> list[dict[str, Any]]:
        return Table.open(tmp_path / "table").snapshot().to_arrow().sort_by("id").to_pylist()

    send(first, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}, b"\1bad")
    write()
    send(second, {"id": 3, "name": "c", "note": "new"}, 2)
    write()
    assert rows() == [
        {"id": 1, "name": "a", "note": None, "origin": "test", "seq": 0},
        {"id": 3, "name": "c", "note": "new", "origin": "test", "seq": 3},
    ]
    letters = [json.loads(line) for file in (tmp_path / "dead").rglob("*.jsonl") for line in file.open()]
    assert [(letter["reason"], letter["offset"]) for letter in letters] == [(NO_HEADER, 2)]
    assert sum(commit.rows_refused for commit in commits) == 1
